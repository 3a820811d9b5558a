"""Gumbel and GEV distributions: means of larger groups, L-moments, likelihood, goodness, and known errors."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from dlbench.analysis.tails import (
    LMoments,
    Tail,
    anderson_darling,
    gev_by_l_moments,
    gev_by_likelihood,
    goodness,
    gumbel_by_l_moments,
    gumbel_by_likelihood,
    l_moments,
)

EULER = 0.5772156649
SHAPES = st.floats(-2, 0.95).filter(lambda shape: abs(shape) > 0.01)
COUNTS = st.integers(1, 2000)


def test_the_mean_of_the_largest_of_k_gumbel_draws_grows_by_the_scale_times_ln_k() -> None:
    tail = Tail.of(1.0, 2.0)
    assert float(tail.mean()) == pytest.approx(1 + 2 * EULER)
    assert float(tail.mean(32)) == pytest.approx(1 + 2 * math.log(32) + 2 * EULER)


def test_the_mean_of_a_gev_is_the_published_one() -> None:
    # Γ(1/2) = √π: μ + σ (k^ξ Γ(1 − ξ) − 1) / ξ with k = 16 is 1 + 2 (4 √π − 1) / 0.5.
    assert float(Tail.of(1.0, 2.0, 0.5).mean(16)) == pytest.approx(1 + 4 * (4 * math.sqrt(math.pi) - 1))


@given(shape=SHAPES, k=COUNTS)
def test_the_largest_of_k_is_a_gev_of_the_same_shape(shape: float, k: int) -> None:
    grown = Tail.of(0.3 + 1.7 * (k**shape - 1) / shape, 1.7 * k**shape, shape)
    assert float(Tail.of(0.3, 1.7, shape).mean(k)) == pytest.approx(float(grown.mean()), rel=1e-6, abs=1e-6)


@given(shape=st.floats(-1e-6, 1e-6), k=COUNTS)
def test_a_gev_of_shape_0_is_gumbel(shape: float, k: int) -> None:
    assert float(Tail.of(1.0, 2.0, shape).mean(k)) == pytest.approx(float(Tail.of(1.0, 2.0).mean(k)), rel=1e-4)


@pytest.mark.parametrize("shape", [1.0, 1.5])
def test_a_tail_of_shape_1_or_more_has_no_mean(shape: float) -> None:
    assert math.isnan(float(Tail.of(0.0, 1.0, shape).mean(4)))


@given(shape=st.floats(-2, 2), probability=st.floats(0.001, 0.999))
def test_a_quantile_lies_where_the_distribution_says(shape: float, probability: float) -> None:
    tail = Tail.of(-1.0, 3.0, shape)
    value = tail.quantile(np.asarray(probability))
    assert float(tail.distribution(value)) == pytest.approx(probability, rel=1e-6)


@given(shape=SHAPES, probability=st.floats(0.05, 0.95))
def test_distribution_and_density_are_those_of_scipy_with_the_sign_of_the_shape_turned(
    shape: float, probability: float
) -> None:
    tail, other = Tail.of(0.5, 2.0, shape), stats.genextreme(-shape, loc=0.5, scale=2.0)
    value = other.ppf(probability)
    assert float(tail.distribution(value)) == pytest.approx(probability)
    assert float(tail.density(np.asarray(value))) == pytest.approx(other.pdf(value))


def test_beyond_the_end_of_a_tail_there_is_nothing() -> None:
    light, heavy = Tail.of(0.0, 1.0, -0.5), Tail.of(0.0, 1.0, 0.5)  # end at 2, begin at −2
    beyond = np.array([3.0])
    assert (light.distribution(beyond), light.density(beyond)) == (1.0, 0.0)
    assert (heavy.distribution(-beyond), heavy.density(-beyond)) == (0.0, 0.0)


def test_l_moments_of_three_values_are_those_of_the_definition() -> None:
    # b0 = 7/3, b1 = (0·1 + 1/2·2 + 1·4) / 3 = 5/3, b2 = 4/3: λ2 = 2 b1 − b0 = 1, λ3 = 6 b2 − 6 b1 + b0 = 1/3.
    assert l_moments(np.array([1.0, 2.0, 4.0])) == pytest.approx((7 / 3, 1.0, 1 / 3))


def test_l_moments_of_many_samples_are_those_of_each() -> None:
    samples = np.sort(np.random.default_rng(0).normal(size=(3, 20)))
    together = l_moments(samples)
    for index, sample in enumerate(samples):
        assert [part[index] for part in together] == pytest.approx(list(l_moments(sample)))


def test_a_gumbel_fit_has_the_mean_and_the_second_l_moment() -> None:
    tail = gumbel_by_l_moments(LMoments(np.asarray(1 + 2 * EULER), np.asarray(2 * math.log(2)), np.asarray(0.0)))
    assert (float(tail.location), float(tail.scale), float(tail.shape)) == pytest.approx((1.0, 2.0, 0.0))


@given(shape=SHAPES)
def test_a_gev_fit_recovers_the_distribution_whose_l_moments_it_gets(shape: float) -> None:
    k = -shape
    gamma = math.gamma(1 + k)
    mean = 0.4 + 1.5 * (1 - gamma) / k
    scale = 1.5 * (1 - 2**-k) * gamma / k
    skewness = 2 * (1 - 3**-k) / (1 - 2**-k) - 3
    tail = gev_by_l_moments(LMoments(*map(np.asarray, (mean, scale, skewness))))
    assert (float(tail.location), float(tail.scale), float(tail.shape)) == pytest.approx((0.4, 1.5, shape), rel=1e-6)


def test_the_l_skewness_of_gumbel_gives_shape_0() -> None:
    skewness = 2 * math.log(3) / math.log(2) - 3
    tail = gev_by_l_moments(LMoments(np.asarray(EULER), np.asarray(math.log(2)), np.asarray(skewness)))
    assert (float(tail.location), float(tail.scale), float(tail.shape)) == pytest.approx((0, 1, 0), abs=1e-6)


@pytest.mark.parametrize("shape", [-0.3, 0.2])
def test_both_estimators_find_the_parameters_of_a_large_sample(shape: float) -> None:
    uniform = np.random.default_rng(1).uniform(size=20_000)
    sample = np.sort(Tail.of(2.0, 0.5, shape).quantile(uniform))
    for tail in (gev_by_l_moments(l_moments(sample)), gev_by_likelihood(sample)):
        found = (float(tail.location), float(tail.scale), float(tail.shape))
        assert found == pytest.approx((2.0, 0.5, shape), abs=0.02)


Parent = Callable[[NDArray[np.float64]], NDArray[np.float64]]
PARENTS: dict[str, Parent] = {
    "normal": stats.norm.isf,
    "lognormal": lambda q: np.exp(0.5 * stats.norm.isf(q)),
    "exponential": lambda q: -np.log(q),
    "student": lambda q: stats.t.isf(q, 5),
    "pareto": lambda q: q ** (-1 / 3),
}
"""The value above which a draw lies with probability q."""
GROUP = 4
FITTED = 20_000


def mean_maximum(parent: Parent, ranks: int) -> float:
    """Mean of the largest of `ranks` draws: its quantiles are integrated over s = logit q."""
    s, step = np.linspace(-36, 36, 200_001, retstep=True)
    q, rest = 1 / (1 + np.exp(-s)), 1 / (1 + np.exp(s))
    return float(np.sum(parent(q) * ranks * rest ** (ranks - 1) * q * rest) * step)


def errors(parent: Parent, fit: Callable[[NDArray[np.float64]], Tail]) -> list[float]:
    """Percent by which the wait of 128 and of 4096 ranks is predicted wrong from maxima of groups of 4."""
    draws = parent(np.random.default_rng(7).uniform(size=(FITTED, GROUP)))
    tail = fit(np.sort(draws.max(axis=1)))
    mean = mean_maximum(parent, 1)
    return [100 * ((float(tail.mean(n / GROUP)) - mean) / (mean_maximum(parent, n) - mean) - 1) for n in (128, 4096)]


def test_the_integral_knows_the_means_of_exponential_and_normal_maxima() -> None:
    assert mean_maximum(PARENTS["exponential"], 4) == pytest.approx(1 + 1 / 2 + 1 / 3 + 1 / 4)
    assert mean_maximum(PARENTS["normal"], 8) == pytest.approx(1.4236, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "gumbel", "gev"),
    [
        ("normal", (30, 56), (1, -5)),
        ("lognormal", (-10, -20), (1, 3)),
        ("exponential", (-9, -11), (6, 24)),
        ("student", (-4, -26), (-6, -28)),
    ],
)
def test_predictions_by_likelihood_are_wrong_by_what_is_known(
    name: str, gumbel: tuple[float, float], gev: tuple[float, float]
) -> None:
    for fit, known in ((gumbel_by_likelihood, gumbel), (gev_by_likelihood, gev)):
        near, far = errors(PARENTS[name], fit)
        assert near == pytest.approx(known[0], abs=4)
        assert far == pytest.approx(known[1], abs=6)


def test_for_a_pareto_parent_gumbel_is_far_too_low_and_the_gev_is_not() -> None:
    """No figure is known to compare with, but the limit is: a GEV of shape 1/3, whose mean grows as n^(1/3).

    So the GEV has to be near, and Gumbel, whose mean grows as ln n, far below.
    """
    gumbel, gev = (errors(PARENTS["pareto"], fit) for fit in (gumbel_by_likelihood, gev_by_likelihood))
    assert gumbel[0] < -40
    assert abs(gev[0]) < 15


@pytest.mark.parametrize("name", PARENTS)
def test_a_gev_by_l_moments_predicts_128_ranks_within_a_tenth(name: str) -> None:
    near, _ = errors(PARENTS[name], lambda maxima: gev_by_l_moments(l_moments(maxima)))
    assert abs(near) < 10


def test_the_anderson_darling_distance_is_that_of_scipy() -> None:
    sample = np.sort(np.random.default_rng(3).gumbel(size=50))
    # SciPy's statistic is of the Gumbel distribution that it fits by likelihood.
    tail = gumbel_by_likelihood(sample)
    distribution = stats.gumbel_r(*map(float, (tail.location, tail.scale)))
    count = np.arange(1, 51)
    below, above = distribution.logcdf(sample), distribution.logsf(sample[::-1])
    assert float(anderson_darling(sample, tail)) == pytest.approx(-50 - np.sum((2 * count - 1) * (below + above)) / 50)


def test_a_sample_of_the_distribution_is_not_rejected_and_another_is() -> None:
    generator = np.random.default_rng(8)
    own = np.sort(generator.gumbel(size=1000))
    other = np.sort(np.concatenate([generator.normal(0, 0.1, 150), generator.normal(5, 0.1, 150)]))
    good, bad = (goodness(sample, gumbel_by_l_moments, seed=0) for sample in (own, other))
    assert good.p_value > 0.05
    assert good.correlation > 0.99
    assert bad.p_value < 0.01
    assert bad.anderson_darling > good.anderson_darling


def test_p_values_of_samples_of_the_distribution_are_spread_evenly() -> None:
    generator = np.random.default_rng(6)
    found = [goodness(np.sort(generator.gumbel(size=60)), gumbel_by_l_moments, seed).p_value for seed in range(60)]
    assert stats.kstest(found, "uniform").pvalue > 0.01


def test_a_search_that_fails_gives_no_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise stats.FitError("no maximum")

    monkeypatch.setattr("dlbench.analysis.tails.genextreme.fit", fail)
    assert math.isnan(float(gev_by_likelihood(np.arange(10.0)).shape))
