"""Errors that concern all ranks: found on one, raised on every one, so that the job can end in good order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dlbench.comm.library import MPI
from dlbench.errors import DlbenchError

T = TypeVar("T")


class AgreedExit(Exception):
    """Every rank raises this together: the job ends with `exit_code`, and rank 0 says `message` if there is one."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code


def agree(comm: MPI.Comm, action: Callable[[], T]) -> T:
    """Run `action` on every rank. Collective.

    Where some raise a `DlbenchError`, every rank raises `AgreedExit` with the error of the lowest of them. Any other
    exception is not agreed upon: it leaves this rank alone, and the caller must abort the job.
    """
    outcome: tuple[str, int] | None = None
    try:
        result = action()
    except DlbenchError as error:
        outcome = (str(error), error.exit_code)
    except SystemExit as leave:  # --help
        outcome = ("", int(leave.code or 0))
    first = comm.allreduce(comm.rank if outcome else comm.size, MPI.MIN)
    if first == comm.size:
        return result
    raise AgreedExit(*comm.bcast(outcome, root=first))


def from_root(comm: MPI.Comm, make: Callable[[], bytes]) -> bytes:
    """What `make` returns on rank 0, on every rank; raises like `agree`. Collective."""
    made = agree(comm, lambda: make() if comm.rank == 0 else b"")
    received: bytes = comm.bcast(made, root=0)
    return received
