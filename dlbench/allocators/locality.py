"""Placement classes for the jobs of an experiment, sampled evenly over low, medium and high mean locality.

Classes drawn blindly have nearly all about the same mean. Here the mean is aimed at, and the classes are drawn with
exponentially tilted chances, p(class) ∝ exp(θ score), whose expectation it is; a class that would put the bin out of
reach is never drawn, so that every draw ends in the bin.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, product
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from dlbench.allocators.classes import PlacementClass, bin_bounds, locality, locality_bin
from dlbench.allocators.mixture import BINS, Bin
from dlbench.errors import OptionError

if TYPE_CHECKING:
    import numpy as np

Choice: TypeAlias = tuple[PlacementClass, ...]
"""A class for every job."""

FEW_JOBS = 2
"""Of so many jobs, all choices are listed: the steps between their means can be wider than a bin."""
_ROUNDING = 3e-10
"""Tolerance of a mean at the border of a bin, between the rounding of a sum and that of `third`."""
_STEEPEST = 40.0
"""Tilt at which all jobs have the nearest, or the farthest, of their classes."""
_BISECTIONS = 25


class _Kind(NamedTuple):
    """Classes that some jobs can have, and their scores."""

    classes: Choice
    scores: tuple[float, ...]


class LocalitySampler:
    """Draws choices for jobs, of which each can have some classes.

    Raises `OptionError` for no job, or one without a class.
    """

    def __init__(self, choices: Sequence[Sequence[PlacementClass]]) -> None:
        if not choices or not all(choices):
            raise OptionError("expected jobs, each with a placement class that it can have")
        numbers: dict[Choice, int] = {}
        self._jobs = [numbers.setdefault(tuple(classes), len(numbers)) for classes in choices]
        """Kind of every job."""
        self._kinds = [_Kind(classes, tuple(found.score for found in classes)) for classes in numbers]
        self._counts = [self._jobs.count(kind) for kind in range(len(self._kinds))]
        self._nearest = [min(kind.scores) for kind in self._kinds]
        self._farthest = [max(kind.scores) for kind in self._kinds]

    def reaches(self, name: Bin) -> bool:
        """Whether some choice has its mean in the bin."""
        if len(self._jobs) <= FEW_JOBS:
            return bool(self._listed(name))
        return self._reach(name) is not None

    def draw(self, name: Bin, rng: np.random.Generator) -> Choice | None:
        """One choice whose mean locality lies in the bin; None where there is none."""
        if len(self._jobs) <= FEW_JOBS:
            listed = self._listed(name)
            return listed[int(rng.integers(len(listed)))] if listed else None
        if (reach := self._reach(name)) is None:
            return None
        return self._walk(name, self._tilt(rng.uniform(*reach)), rng)

    def _listed(self, name: Bin) -> list[Choice]:
        all_choices = product(*(self._kinds[kind].classes for kind in self._jobs))
        return [choice for choice in all_choices if locality_bin(locality(choice)) == name]

    def _mean(self, by_kind: Sequence[float]) -> float:
        return math.fsum(map(operator.mul, by_kind, self._counts)) / len(self._jobs)

    def _reach(self, name: Bin) -> tuple[float, float] | None:
        """Least and largest mean within the bin that the jobs' nearest and farthest classes allow.

        Means between these are met in steps of at most 2 / jobs, which no bin is narrower than: if there is room
        between the extremes and the borders, some choice is in it.
        """
        begin, end = _borders(name)
        least, most = max(begin, self._mean(self._nearest)), min(end, self._mean(self._farthest))
        return (least, most) if least <= most and least < end else None

    def _tilt(self, mean: float) -> float:
        """The θ at which the expected mean score is this, by bisection."""
        low, high = -_STEEPEST, _STEEPEST
        for _ in range(_BISECTIONS):
            tilt = (low + high) / 2
            expected = self._mean([_expected(kind.scores, tilt) for kind in self._kinds])
            low, high = (tilt, high) if expected < mean else (low, tilt)
        return (low + high) / 2

    def _walk(self, name: Bin, tilt: float, rng: np.random.Generator) -> Choice:
        """A class for every job in random order, each drawn among those from which the bin can still be reached."""
        begin, end = (border * len(self._jobs) for border in _borders(name))
        order: list[int] = rng.permutation(len(self._jobs)).tolist()
        nearest = _still(self._nearest[self._jobs[job]] for job in order)
        farthest = _still(self._farthest[self._jobs[job]] for job in order)
        weights = [[math.exp(tilt * score) for score in kind.scores] for kind in self._kinds]
        chosen: dict[int, PlacementClass] = {}
        total = 0.0
        for step, (job, random) in enumerate(zip(order, rng.random(len(order)).tolist(), strict=True), start=1):
            number = self._jobs[job]
            kind = self._kinds[number]
            allowed = [
                weight if total + score + farthest[step] >= begin and total + score + nearest[step] < end else 0.0
                for weight, score in zip(weights[number], kind.scores, strict=True)
            ]
            index = _drawn(allowed, random)
            chosen[job] = kind.classes[index]
            total += kind.scores[index]
        return tuple(chosen[job] for job in range(len(self._jobs)))


def _borders(name: Bin) -> tuple[float, float]:
    """Least mean of a bin, and the mean that is too much."""
    begin, end = bin_bounds(name)
    return begin - _ROUNDING, end + (_ROUNDING if name == BINS[-1] else -_ROUNDING)


def _expected(scores: Sequence[float], tilt: float) -> float:
    weights = [math.exp(tilt * score) for score in scores]
    return math.fsum(map(operator.mul, weights, scores)) / math.fsum(weights)


def _still(scores: Iterable[float]) -> list[float]:
    """Sum of the scores from each one on, and 0 after the last."""
    return list(accumulate(reversed(list(scores)), initial=0.0))[::-1]


def _drawn(weights: Sequence[float], random: float) -> int:
    """Index drawn in proportion to the weights, not all 0, by a random number in [0, 1)."""
    cumulated = list(accumulate(weights))
    return bisect_right(cumulated, random * cumulated[-1], hi=len(cumulated) - 1)
