"""No computation at all: communication back to back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlbench.compute.protocol import Phase


class NoCompute:
    """Every phase is over at once."""

    name = "none"
    timed = False
    on_device = False

    def describe(self) -> dict[str, str]:
        """Return nothing: there is nothing to tell."""
        return {}

    def remarks(self, phases: Iterable[Phase]) -> list[str]:
        """Nothing to remark."""
        return []

    def memory_bytes(self, phases: Iterable[Phase]) -> int:
        """Nothing needs no memory."""
        return 0

    def prepare(self, phases: Iterable[Phase]) -> None:
        """Nothing to allocate."""

    def bind(self, phase: Phase, progress: Callable[[], None] | None = None) -> Callable[[], None]:
        """Bind a phase to the empty call."""
        return no_time

    def close(self) -> None:
        """Nothing to give back."""


def no_time() -> None:
    """Take no time."""
