"""Bootstrap intervals of means and of ratios of geometric means, for iterations that come in runs.

Iterations of one run share its nodes, its routes and its hour, so they are less different from each other than from
those of another run. The bootstrap therefore has two levels (Davison and Hinkley, "Bootstrap Methods and their
Application", 1997, section 3.8): draw as many runs as there are, with replacement, and from each run drawn as many of
its iterations as it has, with replacement. One run alone is resampled by its iterations; how much runs differ, it
cannot tell.

The interval lies between percentiles of the resampled values. Those of few samples are too narrow, since a resample
varies less than its source: the percentiles are moved outwards by as much as the Student interval of the mean exceeds
the one with known variance (Hesterberg, "What Teachers Should Know About the Bootstrap", The American Statistician 69,
2015: the expanded percentile interval). Intervals are asked for by Hoefler and Belli, "Scientific Benchmarking of
Parallel Computing Systems" (SC15), rule 5.

Every estimate has a random stream of its own, made from the seed and the shape of the samples: it depends on nothing
that was computed before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from dlbench.analysis.samples import Estimate, Samples
from dlbench.statistics import FEWEST_SAMPLES

RESAMPLES = 1000
CONFIDENCE = 0.95

_BLOCK = 1 << 20
"""Weights that are held at a time: 8 MiB."""
_NUMERATOR, _DENOMINATOR = 0, 1
"""Streams, so that both sides of a ratio are resampled independently even where they have one shape."""


def mean(samples: Samples, seed: int) -> Estimate:
    """Arithmetic mean over all iterations of all runs; no interval below 6 iterations, NaN of none."""
    value = _mean(samples)
    if len(samples.values) < FEWEST_SAMPLES:
        return Estimate(value)
    return _between_percentiles(value, _resampled_means(samples, seed, _NUMERATOR), _units(samples))


def geometric_mean(samples: Samples, seed: int) -> Estimate:
    """Geometric mean, exp of the mean logarithm, over all iterations of all runs; no interval below 6 iterations.

    The samples are positive.
    """
    return mean(_logarithms(samples), seed).map(math.exp)


def ratio(numerator: Samples, denominator: Samples, seed: int) -> Estimate:
    """Geometric mean of the numerator ÷ that of the denominator, both resampled independently.

    No interval where one side has less than 6 iterations, NaN where one has none. The samples are positive.
    """
    above, below = _logarithms(numerator), _logarithms(denominator)
    difference = _mean(above) - _mean(below)
    if min(len(above.values), len(below.values)) < FEWEST_SAMPLES:
        return Estimate(math.exp(difference))
    resampled = _resampled_means(above, seed, _NUMERATOR) - _resampled_means(below, seed, _DENOMINATOR)
    return _between_percentiles(difference, resampled, min(_units(above), _units(below))).map(math.exp)


def ratio_of_sums(part: Samples, whole: Samples, seed: int) -> Estimate:
    """Sum of `part` ÷ sum of `whole`, two numbers of the same iterations, resampled together.

    No interval below 6 iterations or where a sample of the whole is 0, NaN of none or where all are. No sample of the
    whole is negative.
    """
    total = float(whole.values.sum())
    if not total:
        return Estimate(math.nan)
    value = float(part.values.sum()) / total
    if len(whole.values) < FEWEST_SAMPLES or not whole.values.all():
        return Estimate(value)
    blocks = [
        (weights @ part.values) / (weights @ whole.values) for weights in _weights(whole.lengths, seed, _NUMERATOR)
    ]
    return _between_percentiles(value, np.concatenate(blocks), _units(whole))


def _mean(samples: Samples) -> float:
    return float(samples.values.mean()) if len(samples.values) else math.nan


def _logarithms(samples: Samples) -> Samples:
    return Samples(np.log(samples.values), samples.lengths)


def _units(samples: Samples) -> int:
    """How many independent draws a resample consists of."""
    return len(samples.lengths) if len(samples.lengths) > 1 else samples.lengths[0]


def _between_percentiles(value: float, resampled: NDArray[np.float64], units: int) -> Estimate:
    tail = expanded_tail(units)
    low, high = np.quantile(resampled, (tail, 1 - tail))
    return Estimate(value, float(low), float(high))


@lru_cache(maxsize=1024)
def expanded_tail(units: int) -> float:
    """Share of resampled values to leave out at either end, for `units` ≥ 2 independent draws: less than 2.5 %."""
    normal = NormalDist()
    quantile = student_quantile(normal.inv_cdf((1 + CONFIDENCE) / 2), units - 1)
    return normal.cdf(-math.sqrt(units / (units - 1)) * quantile)


def student_quantile(z: float, freedom: int) -> float:
    """Quantile of Student's t from that of the normal distribution: the expansion of Abramowitz and Stegun, 26.7.5.

    At the 97.5 % point it is exact to 0.2 % from 5 degrees of freedom on. Below, it is too small, down to 9.7 instead
    of 12.7 at 1, but the tail is then empty either way: the interval is the range of the resampled values.
    """
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return sum((term / freedom**power for power, term in enumerate(terms)), start=0.0)


def _resampled_means(samples: Samples, seed: int, stream: int) -> NDArray[np.float64]:
    """Mean of each resample, shape (RESAMPLES,). Deviations are averaged, so that equal samples stay equal."""
    centre = samples.values.mean()
    deviations = samples.values - centre
    blocks = [weights @ deviations for weights in _weights(samples.lengths, seed, stream)]
    return np.asarray(centre + np.concatenate(blocks))


def _weights(lengths: tuple[int, ...], seed: int, stream: int) -> Iterator[NDArray[np.float64]]:
    """Weight of each sample in each resample, in blocks of shape (resamples, samples)."""
    rows = min(RESAMPLES, max(1, _BLOCK // sum(lengths)))
    for first in range(0, RESAMPLES, rows):
        yield _block(lengths, (seed, stream, first), min(rows, RESAMPLES - first))


@lru_cache(maxsize=8)
def _block(lengths: tuple[int, ...], seed: tuple[int, ...], rows: int) -> NDArray[np.float64]:
    """A block of weights. Configurations of one shape, and all columns of one, share it."""
    generator = np.random.default_rng(seed)
    sizes = np.array(lengths)
    starts = np.cumsum(sizes) - sizes
    total = int(sizes.sum())
    drawn = generator.integers(len(sizes), size=(rows, len(sizes)))
    size = sizes[drawn]
    row = np.repeat(np.arange(rows), size.sum(axis=1))
    run = np.repeat(drawn.ravel(), size.ravel())
    picked = starts[run] + generator.integers(sizes[run])
    counts = np.bincount(row * total + picked, minlength=rows * total).reshape(rows, total)
    weights: NDArray[np.float64] = counts / counts.sum(axis=1, keepdims=True)
    return weights
