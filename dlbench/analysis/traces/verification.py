"""Whether kernels of several ranks that were set beside each other can be the same collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlbench.quantities import duration

_EQUAL_SIZES = ("allreduce", "allgather", "reduce_scatter", "broadcast", "reduce")
"""Operations whose messages, where they are known, have the same size on all ranks."""
_SURELY_EQUAL = 0.1
"""Share of the tolerance within which ends are equal, whatever else ends there."""
_NANOSECOND = 1e-9
_CAUSES = ("the traces are of different windows or jobs, or clocks differ", "a trace has lost kernels, or clocks drift")
"""What is likely where the first collective disagrees, and where a later one does."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairing:
    """Kernels set beside each other, a collective to a row and a rank to a column."""

    ranks: tuple[int, ...]
    operations: NDArray[np.object_]
    sizes: NDArray[np.int64]
    """Bytes, negative where they are unknown."""
    starts: NDArray[np.int64]
    """Nanoseconds."""
    ends: NDArray[np.int64]
    """Nanoseconds."""
    numbered: bool
    """Whether they were paired by sequence number, so that a shift cannot be."""

    def disagreement(self, tolerance: float) -> str | None:
        """The first collective on which ranks disagree, and how; None where they agree on all.

        Ends agree that lie within `tolerance` seconds, and, unless kernels are numbered, are not nearer to the end of
        another collective.
        """
        skew = np.ptp(self.ends, axis=1) * _NANOSECOND
        other_operation = (self.operations != self.operations[:, :1]).any(axis=1)
        equal_sizes = np.isin(self.operations[:, 0].astype(str), _EQUAL_SIZES)
        other_size = equal_sizes & (self.sizes != self.sizes[:, :1]).any(axis=1)
        other_end = skew > tolerance
        if not self.numbered:
            other_end |= (skew > tolerance * _SURELY_EQUAL) & _nearer_to_another(self.ends)
        wrong = np.flatnonzero(other_operation | other_size | other_end)
        if not len(wrong):
            return None
        index = int(wrong[0])
        if other_operation[index]:
            reason = self._difference([f"performs {name}" for name in self.operations[index]])
        elif other_size[index]:
            reason = self._difference([f"sends {size} bytes" for size in self.sizes[index]])
        else:
            reason = self._apart(index, float(skew[index]), tolerance)
        return f"collective {index} of {len(self.ends)} disagrees: {reason}; {_CAUSES[index > 0]}"

    def _difference(self, values: Sequence[str]) -> str:
        """Which rank differs from what most do."""
        usual = Counter(values).most_common(1)[0][0]
        rank, other = next((rank, value) for rank, value in zip(self.ranks, values, strict=True) if value != usual)
        return f"rank {rank} {other}, most ranks {usual.split(maxsplit=1)[1]}"

    def _apart(self, index: int, skew: float, tolerance: float) -> str:
        ends = self.ends[index]
        farthest = self.ranks[int(np.abs(ends - np.median(ends)).argmax())]
        limit = f"{duration(tolerance)} are allowed" if skew > tolerance else "those of its neighbours are nearer"
        return f"its ends lie {duration(skew)} apart, that of rank {farthest} farthest; {limit}"


def _nearer_to_another(ends: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which collectives end, on some rank, nearer to another collective of the first rank, or the other way round.

    That tells a shift of collectives that follow each other faster than the tolerance.
    """
    found = np.zeros(len(ends), dtype=np.bool_)
    first = ends[:, :1]
    own = np.abs(ends - first)
    for these, those in ((ends, first), (first, ends)):
        found[:-1] |= (np.abs(these[:-1] - those[1:]) < own[:-1]).any(axis=1)
        found[1:] |= (np.abs(these[1:] - those[:-1]) < own[1:]).any(axis=1)
    return found
