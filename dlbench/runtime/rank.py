"""The process of one rank: `python -m dlbench.dp` and its like."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from dlbench.comm.library import MPI, version
from dlbench.errors import DlbenchError
from dlbench.runtime.abort import Abort
from dlbench.runtime.agreement import AgreedExit, from_root
from dlbench.runtime.hosts import find_host, share_file
from dlbench.runtime.preflight import check_world_size, launcher_claim
from dlbench.runtime.request import RunRequest
from dlbench.runtime.runner import Runner
from dlbench.runtime.situation import Situation
from dlbench.runtime.watchdog import say

TRACEBACK_VARIABLE = "DLBENCH_TRACEBACK"
"""Environment variable that asks for the traceback of a failure besides its one line."""


def run_rank(strategy: str, argv: Sequence[str], prog: str) -> int:
    """Exit code of the run. Any failure that concerns this rank alone ends the whole job."""
    comm = MPI.COMM_WORLD
    claim = launcher_claim(os.environ)
    try:
        check_world_size(comm.size, version(), claim)
    except DlbenchError as error:
        if claim is None or claim.rank == 0:  # n jobs of one rank each: one of them speaks
            say(str(error))
        return error.exit_code
    host = find_host(comm)
    situation = Situation(rank=comm.rank, host=host.name)
    abort = Abort(comm.rank, comm.size, shared_file=share_file(host.comm), end=comm.Abort)
    try:
        situation.enter("reading the options")
        return Runner(comm, _request(comm, strategy, argv, prog), host, situation, abort).run()
    except AgreedExit as leave:
        if comm.rank == 0 and leave.message:
            say(leave.message)
        return leave.exit_code
    except BaseException as error:
        _print_traceback(error)
        abort("failed", _reason(situation, error), 1)
        return 1


def _request(comm: MPI.Intracomm, strategy: str, argv: Sequence[str], prog: str) -> RunRequest:
    """What rank 0 reads from the command line and the specs, on every rank."""

    def read() -> bytes:
        from dlbench.runtime.options import check_request, parse_request, run_parser  # noqa: PLC0415 - rank 0 only

        request = parse_request(strategy, run_parser(prog, strategy), argv)
        check_request(request, comm.size)
        return msgspec.msgpack.encode(request)

    return msgspec.msgpack.decode(from_root(comm, read), type=RunRequest)


def _reason(situation: Situation, error: BaseException) -> str:
    """One line that says which rank failed, where and why."""
    cause = str(error) if isinstance(error, DlbenchError) else f"{type(error).__name__}: {error}"
    return " ".join(f"{situation.who()} failed in {situation.where()}: {cause}".split())


def _print_traceback(error: BaseException) -> None:
    if os.environ.get(TRACEBACK_VARIABLE):
        import traceback  # noqa: PLC0415 - only for a failure

        traceback.print_exception(error)
