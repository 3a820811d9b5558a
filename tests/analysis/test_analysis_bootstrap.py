"""Bootstrap of iterations that come in runs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from dlbench.analysis.bootstrap import RESAMPLES, expanded_tail, geometric_mean, mean, ratio, student_quantile
from dlbench.analysis.samples import Estimate, Samples, median

Z = 1.959963984540054


def one_run(*values: float) -> Samples:
    return Samples(np.array(values), (len(values),))


def runs(values: NDArray[np.float64]) -> Samples:
    """Samples of shape (runs, iterations)."""
    return Samples(values.ravel(), (values.shape[1],) * values.shape[0])


def width(estimate: Estimate) -> float:
    return estimate.high - estimate.low


def test_the_means_are_those_of_all_iterations_of_all_runs() -> None:
    samples = Samples(np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0]), (2, 4))
    assert mean(samples, 0).value == pytest.approx(63 / 6)
    assert geometric_mean(samples, 0).value == pytest.approx(2**2.5)
    assert median(samples).value == 6


def test_a_ratio_is_that_of_geometric_means_not_a_mean_of_ratios() -> None:
    # GM (1, 4) = 2 and GM (2, 8, 4) = 4; the mean of all ratios would be 0.9
    assert ratio(one_run(1, 4), one_run(2, 8, 4), 0).value == pytest.approx(0.5)


@pytest.mark.parametrize("function", [mean, geometric_mean])
def test_below_six_iterations_there_is_no_interval(function: object) -> None:
    assert callable(function)
    five, six = function(one_run(1, 2, 3, 4, 5), 0), function(one_run(1, 2, 3, 4, 5, 6), 0)
    assert math.isnan(five.low)
    assert math.isnan(five.high)
    assert six.low < six.value < six.high


def test_six_iterations_may_come_from_several_runs() -> None:
    assert not math.isnan(mean(Samples(np.arange(6.0), (2, 2, 2)), 0).low)


def test_a_ratio_has_an_interval_only_where_both_sides_could_have_one() -> None:
    few, enough = one_run(1, 2, 3, 4, 5), one_run(1, 2, 3, 4, 5, 6)
    assert math.isnan(ratio(few, enough, 0).low)
    assert math.isnan(ratio(enough, few, 0).high)
    assert not math.isnan(ratio(enough, enough, 0).low)


def test_of_nothing_there_is_no_number() -> None:
    nothing = Samples(np.array([]), ())
    for estimate in (
        mean(nothing, 0),
        geometric_mean(nothing, 0),
        median(nothing),
        ratio(nothing, one_run(1, 2, 3, 4, 5, 6), 0),
    ):
        assert all(math.isnan(number) for number in estimate)


def test_equal_samples_have_an_interval_without_width() -> None:
    samples = runs(np.full((3, 7), 0.1))
    assert mean(samples, 0) == (pytest.approx(0.1),) * 3
    assert width(mean(samples, 0)) == 0
    assert width(geometric_mean(samples, 0)) == 0
    assert ratio(samples, samples, 0) == (1, 1, 1)


def test_the_interval_is_that_of_all_possible_resamples() -> None:
    values = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    every = np.array(list(itertools.product(values, repeat=6))).mean(axis=1)
    found = mean(one_run(*values), 3)
    # The ends leave out 0.24 % on either side; the third or fourth of 1000 resamples lies between these percentiles.
    assert 0.0003 < np.mean(every < found.low) < 0.011
    assert 0.0003 < np.mean(every > found.high) < 0.011


def test_the_student_quantiles_are_those_of_the_tables() -> None:
    table = {5: 2.571, 9: 2.262, 19: 2.093, 29: 2.045, 100: 1.984}
    for freedom, quantile in table.items():
        assert student_quantile(Z, freedom) == pytest.approx(quantile, rel=2e-3)


def test_the_tails_are_those_that_hesterberg_gives() -> None:
    # Φ(−√(n / (n − 1)) t): 2.8160, 2.3845 and 2.1474 standard deviations
    assert expanded_tail(6) == pytest.approx(0.00243, rel=0.02)
    assert expanded_tail(10) == pytest.approx(0.00855, rel=0.01)
    assert expanded_tail(20) == pytest.approx(0.01588, rel=0.01)
    assert expanded_tail(100_000) == pytest.approx(0.025, rel=1e-3)


def test_with_two_runs_the_interval_reaches_over_all_resamples() -> None:
    assert expanded_tail(2) * RESAMPLES < 0.01


@pytest.mark.parametrize("count", [6, 8, 30])
def test_the_interval_of_one_run_covers_the_mean_of_a_normal_distribution(count: int) -> None:
    assert coverage(count=1, iterations=count, between=0.0) > 0.91


def test_the_interval_of_a_skewed_distribution_covers_its_mean() -> None:
    draws = np.random.default_rng(5).exponential(size=(300, 1, 20))
    found = [mean(runs(draw), 0) for draw in draws]
    assert np.mean([estimate.low <= 1 <= estimate.high for estimate in found]) > 0.88


def test_the_interval_covers_the_geometric_mean_and_the_ratio_of_log_normal_times() -> None:
    draws = np.exp(np.random.default_rng(6).normal(0.5, 0.3, size=(300, 2, 1, 12)))
    means = [geometric_mean(runs(first), 0) for first, _ in draws]
    ratios = [ratio(runs(first), runs(second), 0) for first, second in draws]
    assert 0.91 < np.mean([estimate.low <= math.exp(0.5) <= estimate.high for estimate in means]) < 0.99
    assert 0.91 < np.mean([estimate.low <= 1 <= estimate.high for estimate in ratios]) <= 1


@pytest.mark.parametrize("count", [5, 10, 20])
def test_the_interval_covers_the_mean_where_runs_differ_more_than_their_iterations(count: int) -> None:
    assert coverage(count=count, iterations=8, between=2.0) > 0.9


def test_iterations_taken_for_independent_would_miss_the_mean_of_runs_that_differ() -> None:
    assert coverage(count=10, iterations=8, between=2.0, pooled=True) < 0.65


def test_the_order_statistics_cover_the_median() -> None:
    draws = np.random.default_rng(7).exponential(size=(400, 1, 15))
    found = [median(runs(draw)) for draw in draws]
    assert np.mean([estimate.low <= math.log(2) <= estimate.high for estimate in found]) > 0.93


def coverage(count: int, iterations: int, between: float, *, pooled: bool = False) -> float:
    """How often the interval holds the true mean 0, over 300 sets of runs that differ by `between`."""
    generator = np.random.default_rng(11)
    draws = generator.normal(size=(300, count, iterations)) + between * generator.normal(size=(300, count, 1))
    shaped = draws.reshape(300, 1, -1) if pooled else draws
    found = [mean(runs(draw), 0) for draw in shaped]
    return float(np.mean([estimate.low <= 0 <= estimate.high for estimate in found]))


def test_more_iterations_narrow_the_interval() -> None:
    draw = np.random.default_rng(1).normal(size=(1, 1600))
    assert width(mean(runs(draw), 0)) < width(mean(runs(draw[:, :100]), 0)) / 3


def test_the_same_seed_gives_the_same_interval_and_another_one_not() -> None:
    samples = one_run(1, 2, 3, 4, 5, 6, 7)
    assert mean(samples, 4) == mean(samples, 4)
    assert mean(samples, 4) != mean(samples, 5)


def test_an_interval_does_not_depend_on_what_was_computed_before() -> None:
    samples = one_run(3, 1, 4, 1, 5, 9, 2, 6)
    first = mean(samples, 0)
    geometric_mean(one_run(*range(1, 30)), 0)
    ratio(samples, one_run(*range(1, 9)), 0)
    assert mean(samples, 0) == first


def test_the_sides_of_a_ratio_are_resampled_independently() -> None:
    samples = one_run(1, 2, 4, 8, 16, 32)
    found = ratio(samples, samples, 0)
    assert found.low < 0.5
    assert found.high > 2


def test_samples_too_many_for_one_block_have_the_same_kind_of_interval() -> None:
    draw = np.random.default_rng(2).normal(size=(1, 5000))
    assert width(mean(runs(draw), 0)) == pytest.approx(2 * Z * draw.std() / math.sqrt(5000), rel=0.1)
