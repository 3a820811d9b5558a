"""What stands in for the computation between two communications."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol


class Phase(Protocol):
    """What a compute model may know of a phase (structurally: `dlbench.roofline.Phase`)."""

    @property
    def seconds(self) -> float:
        """Duration by the roofline, time scale included."""

    @property
    def gemms(self) -> Sequence[tuple[int, int, int, float]]:
        """Matrix products as (m, n, k, count): C[m, n] = A[m, k] B[k, n], `count` times; fractions are allowed."""


class Compute(Protocol):
    """A compute model."""

    @property
    def name(self) -> str:
        """Name in options and records."""

    def prepare(self, phases: Iterable[Phase]) -> None:
        """Allocate what the phases need; called once, before the first iteration."""

    def run(self, phase: Phase) -> None:
        """Return when the phase is over; requests in flight go on meanwhile."""
