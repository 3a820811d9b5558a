"""Why the last rank came late: its critical path to a collective, beside that of the rank that came first.

A path leads from the entry of a rank back in time, always to what was over last of all that had to be over. Both paths
of a collective end at the last one before it that they have in common, so they cover the same window: what the one is
longer by is the tax. What happened on the path of the slow rank is compared with what has the same name and number on
that of the fast one, or with nothing where that has none; the largest difference is the culprit.

Time on a path that nothing covers is idle. It belongs to what follows it, but explains nothing: where it is much, the
path may have missed a dependency, however well the lengths of the paths agree with the tax. They do so by construction
where ranks leave the earlier collective together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlbench.analysis.programs import Place

_RESOLUTION = 1e-9
"""Seconds: what differs by less is the same."""


class Part(NamedTuple):
    """Something on a path."""

    what: int
    """Number of its name and kind, the same on all ranks."""
    occurrence: int
    """How many of these the rank had begun before, from where the window begins."""
    idle: bool = False
    """Whether it is the idle time before."""


@dataclass(frozen=True, slots=True)
class Path:
    """What a rank's path to a collective consists of."""

    seconds: Mapping[Part, float]
    """What each part adds to the path's length."""
    places: Mapping[Part, Place] = field(default_factory=dict)
    """Rank and op of each part, where paths lead over several ranks."""

    @property
    def length(self) -> float:
        """Seconds."""
        return sum(self.seconds.values())

    @property
    def idle(self) -> float:
        """Seconds that nothing covers."""
        return sum(seconds for part, seconds in self.seconds.items() if part.idle)


class Blame(NamedTuple):
    """The part that makes the most of the difference between two paths."""

    part: Part
    seconds: float


def blame(slow: Path, fast: Path) -> Blame | None:
    """The culprit on the slow path, None where nothing on it took longer; of equals the one nearest the collective."""
    best = None
    for part, seconds in slow.seconds.items():
        difference = seconds - fast.seconds.get(part, 0.0)
        if difference > (best.seconds if best else 0.0):
            best = Blame(part, difference)
    return best


class Culprit(NamedTuple):
    """What made the last rank late in a collective."""

    name: str = ""
    """"" where there is none."""
    kind: str = ""
    """Its class."""
    rank: int = -1
    number: int = -1
    """Of records the number of the op; of traces that among what has its name, from where the window begins."""
    idle: bool = False
    """Whether it is the idle time before what is named."""
    seconds: float = 0.0
    """By how much it took longer than on the first rank."""


class Reason(NamedTuple):
    """What the paths say of a collective, in seconds."""

    predicted: float = math.nan
    """Length of the last rank's path − that of the first; NaN where they have no window in common."""
    gap: float = math.nan
    """Of that, idle time that no event covers."""
    window: float = math.nan
    """Length of the last rank's path."""
    culprit: Culprit = Culprit()
    classes: Mapping[str, float] = MappingProxyType({})
    """What of `predicted` each class of events makes: its time on the one path − that on the other."""


def reason(slow: Path, fast: Path, culprit: Culprit, class_of: Callable[[Part], str]) -> Reason:
    """What two paths say, with the culprit that `blame` found."""
    length, idle = slow.length, slow.idle
    return Reason(length - fast.length, idle - fast.idle, length, culprit, _by_class(slow, fast, class_of))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Explained:
    """The reasons of all collectives of a group. Arrays have shape (collectives,)."""

    predicted: NDArray[np.float64]
    gap: NDArray[np.float64]
    window: NDArray[np.float64]
    culprits: Sequence[Culprit]
    classes: Sequence[Mapping[str, float]]


def explained(reasons: Sequence[Reason]) -> Explained:
    """The reasons by column."""
    columns = [[each.predicted, each.gap, each.window] for each in reasons]
    predicted, gap, window = np.array(columns, dtype=np.float64).reshape(-1, 3).T
    return Explained(
        predicted=predicted,
        gap=gap,
        window=window,
        culprits=[each.culprit for each in reasons],
        classes=[each.classes for each in reasons],
    )


def _by_class(slow: Path, fast: Path, class_of: Callable[[Part], str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for path, sign in ((slow, 1.0), (fast, -1.0)):
        for part, seconds in path.seconds.items():
            name = class_of(part)
            found[name] = found.get(name, 0.0) + sign * seconds
    return found


def determination(measured: NDArray[np.float64], predicted: NDArray[np.float64]) -> float:
    """R² of `predicted` itself, not of a line through it: 1 − Σ(m − p)² / Σ(m − mean)²; NaN where m is constant."""
    known = np.isfinite(predicted)
    measured, predicted = measured[known], predicted[known]
    if not len(measured) or np.ptp(measured) < _RESOLUTION:
        return math.nan
    return 1.0 - float(np.sum((measured - predicted) ** 2) / np.sum((measured - measured.mean()) ** 2))
