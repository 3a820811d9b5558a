"""Axes that a few extreme samples do not stretch until nothing else can be seen: they are cut, and counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_SPREADS = 3.0
"""Distance from the upper quartile, in interquartile ranges, beyond which Tukey calls a sample far out."""
_LEAST_SPREAD = 0.1
"""As a share of the median: samples that hardly differ do not make their neighbours outliers."""
_WORTH_CUTTING = 1.25


@dataclass(frozen=True, slots=True)
class Clipped:
    """The samples of a group that lie above the axis."""

    count: int
    maximum: float


def upper_limit(groups: Sequence[NDArray[np.float64]]) -> float:
    """Where the axis ends: at the largest sample of any group that is not far out in its own group.

    Far out is what exceeds the upper quartile by three interquartile ranges (Tukey, "Exploratory Data Analysis", 1977)
    and by a tenth of the median. Samples that would stretch the axis by less than a quarter are not cut.
    """
    limit = max(float(group[group <= _fence(group)].max()) for group in groups)
    lowest, highest = min(float(group.min()) for group in groups), max(float(group.max()) for group in groups)
    return highest if highest - lowest <= _WORTH_CUTTING * (limit - lowest) else limit


def _fence(group: NDArray[np.float64]) -> float:
    lower, median, upper = np.quantile(group, [0.25, 0.5, 0.75])
    return float(upper + max(_SPREADS * (upper - lower), _LEAST_SPREAD * median))


def clipped(group: NDArray[np.float64], limit: float) -> Clipped | None:
    """What of the group lies above the limit; None where nothing does."""
    above = group[group > limit]
    return Clipped(len(above), float(above.max())) if len(above) else None
