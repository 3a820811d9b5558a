"""Gumbel and generalised extreme value (GEV) distributions of group maxima, and their fits.

The shape ξ has the sign of the literature, ξ = −c of SciPy's `genextreme`: above 0 the tail is heavy and has no end,
below 0 it ends at location − scale/ξ, and 0 is Gumbel. Estimators: maximum likelihood by SciPy, and L-moments (Hosking,
"L-Moments: Analysis and Estimation of Distributions using Linear Combinations of Order Statistics", Journal of the
Royal Statistical Society B 52, 1990), which are steadier for small samples and fast enough to be resampled.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln
from scipy.stats import FitError, genextreme, gumbel_r

Floats: TypeAlias = NDArray[np.float64]

EULER = 0.5772156649015329
FARTHEST = 16
"""k up to which means of larger groups were found to be right; beyond, they are extrapolations."""

_LIKE_GUMBEL = 1e-9
"""Shapes closer to 0 differ from Gumbel by less than rounding does."""
_NEWTON_STEPS = 4
_SIMULATIONS = 200
_TEST_SIZE = 2000
"""Maxima that the test looks at: with more, it rejects for differences that nobody would see."""


@dataclass(frozen=True, slots=True)
class Tail:
    """A distribution of maxima, or as many as its arrays have elements."""

    location: Floats
    scale: Floats
    shape: Floats
    """ξ; 0 for Gumbel."""

    @classmethod
    def of(cls, location: float, scale: float, shape: float = 0.0) -> Tail:
        """One distribution."""
        return cls(*map(np.asarray, (location, scale, shape)))

    def mean(self, k: float = 1.0) -> Floats:
        """Mean of the largest of k draws: the mean maximum of groups k times as large; NaN where ξ ≥ 1.

        Gumbel: μ + σ (ln k + γ). GEV: μ + σ (k^ξ Γ(1 − ξ) − 1) / ξ.
        """
        shape = np.where(self.shape < 1, self.shape, np.nan)
        grown = np.expm1(shape * math.log(k) + gammaln(1 - shape))
        return np.asarray(self.location + self.scale * _over_shape(grown, shape, np.asarray(math.log(k) + EULER)))

    def quantile(self, probability: Floats) -> Floats:
        """The value below which a draw lies with this probability."""
        reduced = -np.log(-np.log(probability))
        return np.asarray(self.location + self.scale * _over_shape(np.expm1(self.shape * reduced), self.shape, reduced))

    def distribution(self, value: Floats) -> Floats:
        """Probability of a draw that is at most the value."""
        return np.asarray(np.exp(-np.exp(-self._reduced(value))))

    def density(self, value: Floats) -> Floats:
        """Probability density, 0 beyond the end of the tail."""
        reduced = self._reduced(value)
        with np.errstate(over="ignore", invalid="ignore"):
            density = np.exp(-(1 + self.shape) * reduced - np.exp(-reduced)) / self.scale
        return np.where(np.isfinite(reduced), density, 0.0)

    def _reduced(self, value: Floats) -> Floats:
        """The value on the scale of the standard Gumbel distribution: ∓ infinity beyond an end of the tail."""
        standard = (value - self.location) / self.scale
        with np.errstate(divide="ignore"):
            stretched = np.log(np.maximum(1 + self.shape * standard, 0.0))
        return _over_shape(stretched, self.shape, standard)

    def __getitem__(self, index: int) -> Tail:
        return Tail(self.location[index], self.scale[index], self.shape[index])


def _over_shape(numerator: Floats, shape: Floats, limit: Floats) -> Floats:
    """The numerator over the shape, and its limit at shape 0."""
    near = np.abs(shape) < _LIKE_GUMBEL
    return np.where(near, limit, numerator / np.where(near, 1.0, shape))


class LMoments(NamedTuple):
    """Sample L-moments: location, scale, and the ratio L-skewness."""

    mean: Floats
    scale: Floats
    skewness: Floats


def l_moments(ordered: Floats) -> LMoments:
    """Unbiased L-moments along the last axis, which holds at least three values in ascending order."""
    first, second, third = np.moveaxis(ordered @ _weights(ordered.shape[-1]), -1, 0)
    scale = 2 * second - first
    return LMoments(first, scale, (6 * third - 6 * second + first) / scale)


@lru_cache(maxsize=4)
def _weights(count: int) -> Floats:
    """Shape (count, 3): weights of ordered values in the first three probability-weighted moments."""
    below = np.arange(count, dtype=np.float64)
    parts = (np.ones(count), below / (count - 1), below * (below - 1) / ((count - 1) * (count - 2)))
    return np.stack(parts, axis=1) / count


def gumbel_by_l_moments(moments: LMoments) -> Tail:
    """Gumbel distribution of these L-moments."""
    scale = moments.scale / math.log(2)
    return Tail(moments.mean - EULER * scale, scale, np.zeros_like(scale))


def gev_by_l_moments(moments: LMoments) -> Tail:
    """GEV of these L-moments: Hosking's approximation of the shape, made exact by Newton's method; ξ < 1 always."""
    ln2, ln3 = math.log(2), math.log(3)
    distance = 2 / (3 + moments.skewness) - ln2 / ln3
    c = 7.8590 * distance + 2.9554 * distance**2
    for _ in range(_NEWTON_STEPS):
        c = np.where(np.abs(c) < _LIKE_GUMBEL, 2 * _LIKE_GUMBEL, c)
        above, below = np.expm1(-c * ln3), np.expm1(-c * ln2)
        slope = 2 * (ln2 * above * np.exp(-c * ln2) - ln3 * below * np.exp(-c * ln3)) / below**2
        c = np.maximum(c - (2 * above / below - 3 - moments.skewness) / slope, -1 + _LIKE_GUMBEL)
    c = np.where(np.abs(c) < _LIKE_GUMBEL, 2 * _LIKE_GUMBEL, c)
    scale = moments.scale * c / (-np.expm1(-c * ln2) * np.exp(gammaln(1 + c)))
    return Tail(moments.mean + scale * np.expm1(gammaln(1 + c)) / c, scale, -c)


def gumbel_by_likelihood(values: Floats) -> Tail:
    """Gumbel distribution under which the values are most likely."""
    return Tail.of(*gumbel_r.fit(values))


def gev_by_likelihood(values: Floats) -> Tail:
    """GEV under which the values are most likely, searched from the Gumbel fit; NaN where the search fails.

    Its shape can be 1 or more.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the search looks beyond the end of the tail
        location, scale = gumbel_r.fit(values)
        try:
            c, location, scale = genextreme.fit(values, 0.0, loc=location, scale=scale)
        except FitError:
            return Tail.of(math.nan, math.nan, math.nan)
    return Tail.of(location, scale, -c)


class Goodness(NamedTuple):
    """How well a fit describes maxima."""

    anderson_darling: float
    """A², which weighs the tails; of at most 2000 maxima, drawn at random."""
    p_value: float
    """Share of samples from the fit that lie, fitted again, as far or farther, where the maxima count as one."""
    p_samples: int
    """How many samples from the fit."""
    correlation: float
    """Of the points of the quantile-quantile plot: 1 where all lie on a line."""


def goodness(ordered: Floats, estimate: Callable[[LMoments], Tail], seed: int) -> Goodness:
    """Goodness of the fit by L-moments to values in ascending order, with a parametric bootstrap of its p-value.

    Tabulated critical values hold for given parameters only; the bootstrap estimates them anew in every sample.
    """
    generator = np.random.default_rng((seed, len(ordered)))
    tail = estimate(l_moments(ordered))
    looked_at = ordered
    if len(ordered) > _TEST_SIZE:
        looked_at = np.sort(generator.choice(ordered, _TEST_SIZE, replace=False))
    distance = anderson_darling(looked_at, estimate(l_moments(looked_at)))
    simulated = np.sort(tail.quantile(generator.uniform(1e-300, 1, size=(_SIMULATIONS, len(looked_at)))), axis=-1)
    again = estimate(l_moments(simulated))
    fits = Tail(again.location[:, np.newaxis], again.scale[:, np.newaxis], again.shape[:, np.newaxis])
    farther = np.count_nonzero(anderson_darling(simulated, fits) >= distance)
    correlation = float(np.corrcoef(ordered, tail.quantile(plotting_positions(len(ordered))))[0, 1])
    return Goodness(float(distance), (1 + farther) / (1 + _SIMULATIONS), _SIMULATIONS, correlation)


def anderson_darling(ordered: Floats, tail: Tail) -> Floats:
    """Anderson and Darling's A² along the last axis, which is in ascending order."""
    count = ordered.shape[-1]
    below = np.clip(tail.distribution(ordered), 1e-15, 1 - 1e-15)
    odd = 2 * np.arange(1, count + 1) - 1
    return np.asarray(-count - ((np.log(below) + np.log1p(-below[..., ::-1])) * odd).mean(axis=-1))


def plotting_positions(count: int) -> Floats:
    """Probabilities at which a quantile-quantile plot sets values in order: (i − 0.35) / n, as Hosking proposes."""
    return np.asarray((np.arange(1, count + 1) - 0.35) / count)
