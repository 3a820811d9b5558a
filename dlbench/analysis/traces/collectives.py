"""Collectives that the ranks of a group performed together, and the synchronisation tax on them.

All ranks leave a collective together, so a rank that stays in it for long came early and waited for the last one, whose
stay is the shortest. Definitions: of the durations d of a collective on its ranks, tau_range = max d - min d,
tau_med = median d - min d, tau_mean = mean d - min d, which is the mean wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Collectives:
    """Collectives of one group, in their order. Arrays have shape (collectives, ranks) where nothing else is said."""

    group: str
    """The group in words."""
    ranks: tuple[int, ...]
    """World ranks of the columns, ascending."""
    operations: tuple[str, ...]
    """Operation of each collective, e.g. `allreduce`."""
    names: tuple[str, ...]
    """What tells collectives apart: kernels of traces, ops of records."""
    bytes: NDArray[np.int64]
    """Shape (collectives,): size of the message, -1 where it is unknown."""
    enter: NDArray[np.float64]
    """Seconds since a moment that all groups of an analysis share."""
    leave: NDArray[np.float64]
    """Seconds since that moment."""
    error: NDArray[np.float64]
    """Seconds: bound on the error of a time, by the clock or the digits that it was written with."""

    def __len__(self) -> int:
        return len(self.operations)

    @property
    def durations(self) -> NDArray[np.float64]:
        """Seconds that each rank was in each collective."""
        return self.leave - self.enter

    @property
    def end_skew(self) -> NDArray[np.float64]:
        """Shape (collectives,): seconds between the first and the last rank to leave."""
        return np.asarray(self.leave.max(axis=1) - self.leave.min(axis=1))

    @property
    def waits(self) -> NDArray[np.float64]:
        """Seconds that each rank stayed longer than the one that stayed for the shortest time."""
        durations = self.durations
        return np.asarray(durations - durations.min(axis=1, keepdims=True))

    @property
    def tau_range(self) -> NDArray[np.float64]:
        """Shape (collectives,): wait of the first rank to come, in seconds."""
        return np.asarray(self.waits.max(axis=1))

    @property
    def tau_med(self) -> NDArray[np.float64]:
        """Shape (collectives,): wait of the median rank, in seconds."""
        return np.asarray(np.median(self.waits, axis=1))

    @property
    def tau_mean(self) -> NDArray[np.float64]:
        """Shape (collectives,): mean wait over the ranks, in seconds."""
        return np.asarray(self.waits.mean(axis=1))

    @property
    def straggler(self) -> NDArray[np.int64]:
        """Shape (collectives,): the rank that stayed for the shortest time, the lowest of equals."""
        return np.asarray(np.array(self.ranks, dtype=np.int64)[self.durations.argmin(axis=1)])


def in_time(groups: Sequence[Collectives]) -> list[tuple[int, int]]:
    """All collectives by the moment the last rank entered: index of the group, and of the collective in it."""
    moments = [
        (moment, group, index)
        for group, collectives in enumerate(groups)
        for index, moment in enumerate(collectives.enter.max(axis=1).tolist())
    ]
    return [(group, index) for _, group, index in sorted(moments)]
