"""The process of one rank: `python -m dlbench.dp` and its like."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from dlbench.comm.library import MPI, version
from dlbench.errors import DlbenchError, OptionError
from dlbench.runtime.abort import Abort
from dlbench.runtime.agreement import AgreedExit, agree, from_root
from dlbench.runtime.hosts import find_host, share_file
from dlbench.runtime.preflight import check_world_size, launcher_claim
from dlbench.runtime.request import RunRequest
from dlbench.runtime.runner import Runner
from dlbench.runtime.situation import Situation
from dlbench.runtime.streams import say
from dlbench.runtime.watchdog import Watchdog

TRACEBACK_VARIABLE = "DLBENCH_TRACEBACK"
"""Environment variable that asks for the traceback of a failure besides its one line."""


def run_rank(strategy: str, argv: Sequence[str], prog: str, watchdog: Watchdog) -> int:
    """Exit code of the run. Any failure that concerns this rank alone ends the whole job.

    Raises `PreflightError` where the launcher does not belong to the MPI library.
    """
    comm, situation = MPI.COMM_WORLD, watchdog.situation
    if comm.size > 1:  # n worlds of one rank each are told apart by what the launcher says
        situation.rank = comm.rank
    check_world_size(comm.size, version(), launcher_claim(os.environ, comm.size))
    try:
        situation.enter("finding the ranks of this host")
        host = find_host(comm)
        watchdog.abort = abort = Abort(comm.rank, comm.size, shared_file=share_file(host.comm), end=comm.Abort)
        situation.enter("reading the options")
        request = _request(comm, strategy, argv, prog)
        return Runner(comm, request, host, watchdog, abort).run()
    except AgreedExit as leave:
        if comm.rank == 0 and leave.message:
            say(leave.message)
        return leave.exit_code
    except BaseException as error:
        _print_traceback(error)
        watchdog.abort("failed", _reason(situation, error), 1)
        return 1


def _request(comm: MPI.Intracomm, strategy: str, argv: Sequence[str], prog: str) -> RunRequest:
    """What rank 0 reads from the command line and the specs, on every rank."""

    def read() -> bytes:
        from dlbench.runtime.options import check_request, parse_request, run_parser  # noqa: PLC0415 - rank 0 only

        request = parse_request(strategy, run_parser(prog, strategy), argv)
        check_request(request, comm.size)
        return msgspec.msgpack.encode(request)

    request = msgspec.msgpack.decode(from_root(comm, read), type=RunRequest)
    agree(comm, lambda: _check_strategy(comm.rank, strategy, request.strategy))
    return request


def _check_strategy(rank: int, own: str, first: str) -> None:
    """Raise `OptionError` where a launcher, told so, has started another strategy on this rank than on rank 0."""
    if own != first:
        raise OptionError(
            f"rank 0 runs dlbench.{first}, but rank {rank} dlbench.{own}; start one strategy on all ranks"
        )


def _reason(situation: Situation, error: BaseException) -> str:
    """One line that says which rank failed, where and why."""
    cause = str(error) if isinstance(error, DlbenchError) else f"{type(error).__name__}: {error}"
    return " ".join(f"{situation.who()} failed in {situation.where()}: {cause}".split())


def _print_traceback(error: BaseException) -> None:
    if os.environ.get(TRACEBACK_VARIABLE):
        import traceback  # noqa: PLC0415 - only for a failure

        traceback.print_exception(error)
