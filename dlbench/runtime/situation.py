"""Where a rank is right now: what a failure message and the watchdog say."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic


class Situation:
    """Rank, host and device of this process, and what it is doing.

    `current_op` is asked only when somebody wants to know: a timed iteration keeps no books for it.
    """

    def __init__(self, rank: int, host: str, device: str = "cpu") -> None:
        self.rank = rank
        self.host = host
        self.device = device
        self.enter("starting up")

    def enter(self, step: str, current_op: Callable[[], str] | None = None) -> None:
        """Begin a step, such as "iteration 7"; its time limit counts from here."""
        self.step = step
        self.current_op = current_op
        self.since = monotonic()

    def who(self) -> str:
        """Name of this process, e.g. `rank 3 (node017, cuda:3)`."""
        return f"rank {self.rank} ({self.host}, {self.device})"

    def where(self) -> str:
        """What this process is doing, e.g. `op 12 allreduce/world of iteration 7`."""
        op = self.current_op() if self.current_op else ""
        return f"{op} of {self.step}" if op else self.step
