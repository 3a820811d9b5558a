"""What stands in for the computation between two communications."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol


class Phase(Protocol):
    """What a compute model may know of a phase (structurally: `dlbench.roofline.Phase`)."""

    @property
    def seconds(self) -> float:
        """Duration by the roofline, time scale included."""

    @property
    def gemms(self) -> Sequence[tuple[int, int, int, float]]:
        """Matrix products (m, n, k, count): C[m, n] = A[m, k] B[k, n], `count` times; fractions are allowed."""


class Compute(Protocol):
    """A compute model."""

    @property
    def name(self) -> str:
        """Name in options and records."""

    @property
    def timed(self) -> bool:
        """Whether a phase is meant to last `Phase.seconds`."""

    @property
    def on_device(self) -> bool:
        """Whether it works on the GPU, whose memory `memory_bytes` then counts; otherwise that of the host."""

    def describe(self) -> dict[str, str]:
        """How the phases are performed (precision, spin, threads): goes into the record."""

    def remarks(self, phases: Iterable[Phase]) -> list[str]:
        """What a record must say where the phases are not performed as they are described."""

    def memory_bytes(self, phases: Iterable[Phase]) -> int:
        """Bytes that `prepare` allocates for the phases."""

    def prepare(self, phases: Iterable[Phase]) -> None:
        """Allocate what the phases need; called once, before the first `bind`."""

    def bind(self, phase: Phase, progress: Callable[[], None] | None = None) -> Callable[[], None]:
        """Turn the phase into a call that returns when it is over; bound once, so that the call is lean.

        `progress` drives the requests that are in flight during the phase, and is called now and then while it
        lasts. Without it the phase runs in one piece: right where nothing is in flight, or where the library
        needs no help.
        """

    def close(self) -> None:
        """Give back what `prepare` took, when no phase is under way; no phase can follow."""
