"""The process of one rank: `python -m dlbench.dp` and its like."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from time import sleep
from typing import NoReturn

import msgspec

from dlbench.comm.library import MPI, version
from dlbench.errors import DlbenchError
from dlbench.runtime.agreement import AgreedExit, from_root
from dlbench.runtime.hosts import find_host
from dlbench.runtime.preflight import check_world_size, launcher_claim
from dlbench.runtime.request import RunRequest
from dlbench.runtime.runner import Runner
from dlbench.runtime.situation import Situation
from dlbench.runtime.watchdog import FORWARD_SECONDS, Status, say

Note = Callable[[Status, str], bool]
"""Puts the end into the record; False where another rank has done so."""

_RANK_WAITS_SECONDS = 0.5
_LONGEST_WAIT_SECONDS = 2.0

TRACEBACK_VARIABLE = "DLBENCH_TRACEBACK"
"""Environment variable that asks for the traceback of a failure besides its one line."""


def main(strategy: str) -> NoReturn:
    """Run this process as a rank of a strategy; leaves with the exit code of the run."""
    sys.exit(run_rank(strategy, sys.argv[1:], prog=f"python -m dlbench.{strategy}"))


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
    runner: Runner | None = None
    try:
        situation.enter("reading the options")
        request = _request(comm, strategy, argv, prog)
        runner = Runner(comm, request, host, situation)
        return runner.run()
    except AgreedExit as leave:
        if comm.rank == 0 and leave.message:
            say(leave.message)
        return leave.exit_code
    except BaseException as error:
        return _abort(comm, situation, error, runner.note if runner else lambda status, reason: True)


def _request(comm: MPI.Intracomm, strategy: str, argv: Sequence[str], prog: str) -> RunRequest:
    """What rank 0 reads from the command line and the specs, on every rank."""

    def read() -> bytes:
        from dlbench.runtime.options import check_request, parse_request, run_parser  # noqa: PLC0415 - rank 0 only

        request = parse_request(strategy, run_parser(prog, strategy), argv)
        check_request(request, comm.size)
        return msgspec.msgpack.encode(request)

    return msgspec.msgpack.decode(from_root(comm, read), type=RunRequest)


def _abort(comm: MPI.Intracomm, situation: Situation, error: BaseException, note: Note) -> int:
    """One line that says which rank failed, where and why; then the end of every rank.

    A broken network fails on many ranks at once. The higher ones wait, so that the lowest can speak for all and end
    them.
    """
    sleep(min(comm.rank * _RANK_WAITS_SECONDS, _LONGEST_WAIT_SECONDS))
    cause = str(error) if isinstance(error, DlbenchError) else f"{type(error).__name__}: {error}"
    reason = " ".join(f"{situation.who()} failed in {situation.where()}: {cause}".split())
    if os.environ.get(TRACEBACK_VARIABLE):
        import traceback  # noqa: PLC0415 - only for a failure

        traceback.print_exception(error)
    if note("failed", reason):
        say(f"FAILED: {reason}")
        sleep(FORWARD_SECONDS)
    comm.Abort(1)
    return 1
