"""Medians with error bars, without assumptions on the distribution.

The interval of a median is that of Hoefler and Belli, "Scientific Benchmarking of Parallel Computing Systems" (SC15):
the number of n samples below the true median is binomial (n, 1/2), so two order statistics enclose the median with a
probability that is known exactly, whatever the samples' distribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dlbench.errors import OptionError

FEWEST_SAMPLES = 6
"""Below, not even the smallest and the largest sample enclose the median with 95 % probability."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Confidence interval from order statistics, in the samples' unit."""

    low: float
    high: float
    coverage: float
    """Achieved probability to enclose the true value; at least the confidence that was asked for."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A set of samples in five numbers, in the samples' unit."""

    count: int
    median: float
    interval: Interval | None
    """Of the median; None where the samples are too few for it."""
    minimum: float
    maximum: float


def median_interval(samples: ArrayLike, confidence: float = 0.95) -> Interval | None:
    """Narrowest symmetric order-statistics interval of the median with at least `confidence` coverage.

    None below 6 samples, and where even the extremes do not reach the confidence (0.99 takes 8). Raises `ValueError`
    for samples that are not finite and `OptionError` for a confidence outside (0, 1).
    """
    ordered = np.sort(_finite(samples))
    if not 0 < confidence < 1:
        raise OptionError(f"confidence {confidence} is impossible; use a number between 0 and 1, e.g. 0.95")
    rank, coverage = _lower_rank(len(ordered), confidence)
    if rank == 0:
        return None
    return Interval(low=float(ordered[rank - 1]), high=float(ordered[-rank]), coverage=coverage)


@lru_cache(maxsize=1024)
def _lower_rank(count: int, confidence: float) -> tuple[int, float]:
    """Largest l whose interval, from the l-th smallest to the l-th largest sample, covers enough, and its coverage.

    P(X < l) for X binomial (count, 1/2) is summed from ratios to the largest term, which neither overflow nor cancel
    at any count. 0 where no l covers enough.
    """
    if count < FEWEST_SAMPLES:
        return 0, 0.0
    middle = count // 2
    k = np.arange(middle, 0, -1)
    terms = np.concatenate(([1.0], np.cumprod(k / (count - k + 1))))[::-1]
    both_halves = 2 * terms.sum() - (1 if count % 2 == 0 else 0)
    below = np.cumsum(terms[:-1]) / both_halves
    rounding = 1 + 1e-12
    rank = int(np.searchsorted(below, (1 - confidence) / 2 * rounding, side="right"))
    return (rank, 1 - 2 * float(below[rank - 1])) if rank else (0, 0.0)


def relative_reach(interval: Interval | None, median: float) -> float:
    """How far the interval reaches from the median, on its longer side, as a share of it: the interval lies in ±reach.

    Infinite without an interval or with median 0.
    """
    if interval is None or median == 0:
        return math.inf
    return max(interval.high - median, median - interval.low) / abs(median)


def geometric_mean(samples: ArrayLike) -> float:
    """Geometric mean of positive samples. Raises `ValueError` where one is not, or there is none."""
    values = _finite(samples)
    if values.min() <= 0:
        raise ValueError(f"a geometric mean needs positive samples; the smallest is {values.min()}")
    return float(np.exp(np.log(values).mean()))


def summarise(samples: ArrayLike, confidence: float = 0.95) -> Summary:
    """Summary of samples. Raises as `median_interval` does, and `ValueError` where there are none."""
    values = _finite(samples)
    return Summary(
        count=len(values),
        median=float(np.median(values)),
        interval=median_interval(values, confidence),
        minimum=float(values.min()),
        maximum=float(values.max()),
    )


def _finite(samples: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(samples, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise ValueError(f"samples must be a list of at least one number, not of shape {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError("samples must be finite; leave failed measurements out, and say so")
    return values
