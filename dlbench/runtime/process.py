"""What every rank process does around its work: it knows its place, and its failure ends the whole job."""

from __future__ import annotations

import os
from collections.abc import Callable

from dlbench.comm.library import MPI, version
from dlbench.errors import DlbenchError
from dlbench.runtime.abort import Abort
from dlbench.runtime.agreement import AgreedExit
from dlbench.runtime.hosts import Host, find_host, share_file
from dlbench.runtime.preflight import check_world_size, launcher_claim
from dlbench.runtime.situation import Situation
from dlbench.runtime.streams import say
from dlbench.runtime.watchdog import Watchdog

TRACEBACK_VARIABLE = "DLBENCH_TRACEBACK"
"""Environment variable that asks for the traceback of a failure besides its one line."""


def run_process(watchdog: Watchdog, work: Callable[[MPI.Intracomm], int]) -> int:
    """Exit code of the work of this rank. Any failure that concerns this rank alone ends the whole job.

    Raises `PreflightError` where the launcher does not belong to the MPI library.
    """
    comm, situation = MPI.COMM_WORLD, watchdog.situation
    if comm.size > 1:  # n worlds of one rank each are told apart by what the launcher says
        situation.rank = comm.rank
    check_world_size(comm.size, version(), launcher_claim(os.environ, comm.size))
    try:
        return work(comm)
    except AgreedExit as leave:
        if comm.rank == 0 and leave.message:
            say(leave.message)
        return leave.exit_code
    except BaseException as error:
        _print_traceback(error)
        watchdog.abort("failed", _reason(situation, error), 1)
        return 1


def join_host(comm: MPI.Intracomm, watchdog: Watchdog) -> tuple[Host, Abort]:
    """The host of this rank, and the end of the job that its ranks agree on; the watchdog takes it over. Collective."""
    watchdog.situation.enter("finding the ranks of this host")
    host = find_host(comm)
    end: Callable[[int], object] = comm.Abort
    if comm.size == 1:  # MPICH's Abort is `exit` then, which waits for ever where a library hangs while it is loaded
        end = os._exit
    watchdog.abort = abort = Abort(comm.rank, comm.size, shared_file=share_file(host.comm), end=end)
    return host, abort


def _reason(situation: Situation, error: BaseException) -> str:
    """One line that says which rank failed, where and why."""
    cause = str(error) if isinstance(error, DlbenchError) else f"{type(error).__name__}: {error}"
    return " ".join(f"{situation.who()} failed in {situation.where()}: {cause}".split())


def _print_traceback(error: BaseException) -> None:
    if os.environ.get(TRACEBACK_VARIABLE):
        import traceback  # noqa: PLC0415 - only for a failure

        traceback.print_exception(error)
