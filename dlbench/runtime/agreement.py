"""Errors that concern all ranks: found on one, raised on every one, so that the job can end in good order."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep
from typing import TypeVar

import numpy as np

from dlbench.comm.library import MPI
from dlbench.errors import DlbenchError

T = TypeVar("T")

_POLL_SECONDS = 0.01


class AgreedExit(Exception):
    """Every rank raises this together: the job ends with `exit_code`, and rank 0 says `message` if there is one."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code


def agree(comm: MPI.Intracomm, action: Callable[[], T], *, patience: float = float("inf")) -> T:
    """Run `action` on every rank. Collective.

    Where some raise a `DlbenchError`, every rank raises `AgreedExit` with the error of the lowest of them. Any other
    exception is not agreed upon: it leaves this rank alone, and the caller must abort the job. So does the error of a
    rank for which the others do not come within `patience` seconds: they may wait for it inside the action.
    """
    failure: DlbenchError | SystemExit | None = None
    try:
        result = action()
    except (DlbenchError, SystemExit) as error:  # SystemExit after --help
        failure = error
    first = np.array([comm.rank if failure else comm.size])
    request = comm.Iallreduce(MPI.IN_PLACE, first, MPI.MIN)
    if failure and not _completes(request, patience):
        raise failure
    request.Wait()
    if first[0] == comm.size:
        return result
    raise AgreedExit(*comm.bcast(failure and _outcome(failure), root=int(first[0])))


def _completes(request: MPI.Request, seconds: float) -> bool:
    """Whether a request completes within so many seconds."""
    deadline = monotonic() + seconds
    while not (done := request.Test()) and monotonic() < deadline:
        sleep(_POLL_SECONDS)
    return done


def _outcome(failure: DlbenchError | SystemExit) -> tuple[str, int]:
    """Message and exit code."""
    return (str(failure), failure.exit_code) if isinstance(failure, DlbenchError) else ("", int(failure.code or 0))


def from_root(comm: MPI.Intracomm, make: Callable[[], bytes]) -> bytes:
    """What `make` returns on rank 0, on every rank; raises like `agree`. Collective."""
    made = agree(comm, lambda: make() if comm.rank == 0 else b"")
    received: bytes = comm.bcast(made, root=0)
    return received
