"""Medians with distribution-free intervals."""

from __future__ import annotations

import math
import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbench.errors import OptionError
from dlbench.statistics import (
    Interval,
    Summary,
    geometric_mean,
    median_interval,
    relative_reach,
    summarise,
)

samples = st.lists(st.floats(1e-6, 1e6), min_size=6, max_size=80)


def ranks(count: int, confidence: float = 0.95) -> tuple[int, int] | None:
    """Which order statistics bound the interval, from 1."""
    interval = median_interval(range(1, count + 1), confidence)
    return None if interval is None else (int(interval.low), int(interval.high))


@pytest.mark.parametrize(
    ("count", "expected", "coverage"),
    [
        (6, (1, 6), 1 - 2 * 1 / 64),
        (7, (1, 7), 1 - 2 * 1 / 128),
        (8, (1, 8), 1 - 2 * 1 / 256),
        (9, (2, 8), 1 - 2 * (1 + 9) / 512),
        (10, (2, 9), 1 - 2 * (1 + 10) / 1024),
        (20, (6, 15), 1 - 2 * (1 + 20 + 190 + 1140 + 4845 + 15504) / 2**20),
    ],
)
def test_the_bounds_are_order_statistics_of_known_coverage(
    count: int, expected: tuple[int, int], coverage: float
) -> None:
    interval = median_interval(range(1, count + 1))
    assert ranks(count) == expected
    assert interval is not None
    assert interval.coverage == pytest.approx(coverage, rel=1e-14)


def test_the_coverages_of_six_and_ten_samples_are_those_of_the_tables() -> None:
    six, ten = median_interval(range(6)), median_interval(range(10))
    assert six is not None
    assert ten is not None
    assert six.coverage == pytest.approx(0.96875, rel=1e-14)
    assert ten.coverage == pytest.approx(0.978515625, rel=1e-14)


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_below_six_samples_there_is_no_interval(count: int, confidence: float) -> None:
    assert median_interval(range(count), confidence) is None


def test_a_higher_confidence_takes_more_samples() -> None:
    # 1 − 2/2⁷ = 0.984 and 1 − 2/2⁸ = 0.992
    assert ranks(7, 0.99) is None
    assert ranks(8, 0.99) == (1, 8)


def test_a_coverage_that_is_just_reached_counts() -> None:
    assert ranks(6, 1 - 2 / 64) == (1, 6)
    assert ranks(10, 1 - 22 / 1024) == (2, 9)


@pytest.mark.parametrize("count", [6, 11, 50, 101, 400])
def test_the_coverage_agrees_with_exact_arithmetic(count: int) -> None:
    found = ranks(count)
    interval = median_interval(range(count))
    assert found is not None
    assert interval is not None
    outside = [
        Fraction(2 * sum(math.comb(count, k) for k in range(rank)), 2**count) for rank in (found[0], found[0] + 1)
    ]
    assert interval.coverage == pytest.approx(float(1 - outside[0]), rel=1e-13)
    assert outside[0] <= Fraction(1, 20) < outside[1], "the narrowest interval that covers enough"
    assert found[0] + found[1] == count + 1


def test_many_samples_agree_with_the_normal_approximation_and_are_fast() -> None:
    started = time.perf_counter()
    found = ranks(100_000)
    assert time.perf_counter() - started < 1
    assert found is not None
    half_width = 1.959964 * math.sqrt(100_000) / 2
    assert found[0] == pytest.approx(50_000 - half_width, abs=1.5)
    assert found[1] == pytest.approx(50_001 + half_width, abs=1.5)


@pytest.mark.parametrize("count", [6, 15, 40])
def test_the_interval_encloses_the_true_median_as_often_as_it_says(count: int) -> None:
    # Skewed samples: an exponential distribution, whose median is ln 2.
    trials = 4000
    draws = np.random.default_rng(20260102).exponential(size=(trials, count))
    intervals = [median_interval(draw) for draw in draws]
    coverage = intervals[0].coverage if intervals[0] else math.nan
    hits = sum(interval is not None and interval.low <= math.log(2) <= interval.high for interval in intervals)
    deviation = math.sqrt(coverage * (1 - coverage) / trials)
    assert hits / trials == pytest.approx(coverage, abs=4 * deviation)


@given(values=samples, seed=st.integers(0, 100))
def test_the_order_of_samples_does_not_matter(values: list[float], seed: int) -> None:
    shuffled = np.random.default_rng(seed).permutation(values)
    assert median_interval(shuffled) == median_interval(values)


@given(values=samples, exponent=st.integers(-20, 20))
def test_the_interval_scales_with_the_samples(values: list[float], exponent: int) -> None:
    # A power of two scales floats exactly.
    before, after = summarise(values), summarise([value * 2.0**exponent for value in values])
    assert before.interval is not None
    assert after.interval is not None
    assert after.interval.low == before.interval.low * 2.0**exponent
    assert after.interval.high == before.interval.high * 2.0**exponent
    assert after.median == before.median * 2.0**exponent


@given(values=samples)
def test_the_interval_lies_around_the_median_and_within_the_samples(values: list[float]) -> None:
    summary = summarise(values)
    assert summary.interval is not None
    assert summary.minimum <= summary.interval.low <= summary.median
    assert summary.median <= summary.interval.high <= summary.maximum
    assert summary.interval.coverage >= 0.95


def test_a_summary_is_five_numbers() -> None:
    found = summarise([5.0, 1.0, 4.0, 2.0, 3.0, 10.0])
    assert (found.count, found.median, found.minimum, found.maximum) == (6, 3.5, 1.0, 10.0)
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == (1.0, 10.0)


def test_a_summary_of_few_samples_has_no_interval() -> None:
    assert summarise([2.0, 4.0]) == Summary(count=2, median=3.0, interval=None, minimum=2.0, maximum=4.0)


def test_the_reach_is_the_longer_side_of_the_interval_over_the_median() -> None:
    assert relative_reach(Interval(low=9.0, high=13.0, coverage=0.95), median=10.0) == pytest.approx(0.3)
    assert relative_reach(Interval(low=-13.0, high=-9.0, coverage=0.95), median=-10.0) == pytest.approx(0.3)


def test_without_an_interval_or_a_median_nothing_is_narrow_enough() -> None:
    assert relative_reach(None, median=10.0) == math.inf
    assert relative_reach(Interval(low=-1.0, high=1.0, coverage=0.95), median=0.0) == math.inf


def test_the_geometric_mean_is_the_root_of_the_product() -> None:
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert geometric_mean([1.0, 3.0, 9.0]) == pytest.approx(3.0)
    assert geometric_mean([1e200, 1e300, 1e-200]) == pytest.approx(1e100)


@pytest.mark.parametrize("bad", [[], [0.0, 1.0], [-1.0], [math.nan], [math.inf]])
def test_a_geometric_mean_needs_positive_samples(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="samples"):
        geometric_mean(bad)


@pytest.mark.parametrize("bad", [[], [1.0, math.nan], [[1.0, 2.0]]])
def test_samples_that_are_no_finite_list_are_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="samples must be"):
        summarise(bad)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0, math.nan])
def test_a_confidence_is_between_zero_and_one(confidence: float) -> None:
    with pytest.raises(OptionError, match=r"is impossible; use a number between 0 and 1, e\.g\. 0\.95"):
        median_interval(range(10), confidence)
