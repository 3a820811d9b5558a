"""When a run has measured enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from handmade_run import options
from hypothesis import given
from hypothesis import strategies as st

from dlbench.runtime.stopping import StoppingRule


def stop_after(seconds: Sequence[float], **changes: Any) -> tuple[int, str]:
    """Iterations after which the rule stops, and why; fails where it never does."""
    rule = StoppingRule(options(**changes))
    for count, duration in enumerate(seconds, start=1):
        rule.add(duration)
        if rule.finished():
            return count, rule.reason()
    pytest.fail(f"went on after {len(seconds)} iterations")


def test_without_further_goals_exactly_the_iterations_are_measured() -> None:
    assert stop_after([1.0] * 20, iterations=3) == (3, "3 iterations measured")


def test_one_iteration_is_said_in_the_singular() -> None:
    assert stop_after([1.0], iterations=1) == (1, "1 iteration measured")


def test_nothing_is_decided_before_the_first_measured_iteration() -> None:
    assert not StoppingRule(options(iterations=1, until_ci=0.5)).finished()


def test_min_seconds_goes_on_beyond_the_iterations() -> None:
    # 0.5 s each: the ninth makes 4.5 s.
    assert stop_after([0.5] * 20, iterations=3, min_seconds=4.2) == (9, "9 iterations measured")


def test_iterations_go_on_beyond_min_seconds() -> None:
    assert stop_after([5.0] * 20, iterations=4, min_seconds=4.2) == (4, "4 iterations measured")


def test_max_seconds_ends_the_run_and_names_the_iterations_that_are_missing() -> None:
    assert stop_after([2.0] * 20, iterations=10, max_seconds=5) == (
        3,
        "3 iterations measured: --max-seconds 5 came before --iterations 10",
    )


def test_max_seconds_reached_together_with_the_goal_leaves_nothing_missing() -> None:
    assert stop_after([1.0] * 20, iterations=5, max_seconds=5) == (5, "5 iterations measured")


def test_equal_times_are_tight_as_soon_as_six_samples_allow_an_interval() -> None:
    assert stop_after([1.0] * 20, iterations=1, until_ci=0.02) == (
        6,
        "6 iterations measured, median known within ±0.00%",
    )


def test_five_samples_are_never_tight() -> None:
    assert stop_after([1.0] * 5, iterations=1, until_ci=0.5, max_iterations=5) == (
        5,
        "5 iterations measured: --max-iterations 5 came before --until-ci 0.5 (too few samples for an interval)",
    )


def test_the_goal_is_the_longer_side_of_the_interval_over_the_median() -> None:
    # Six samples: the interval is from the smallest to the largest, 1 % below the median and 2 % above it.
    samples = [0.99, 1.02, 1.0, 1.0, 1.0, 1.0]
    assert stop_after(samples, iterations=6, until_ci=0.0201) == (
        6,
        "6 iterations measured, median known within ±2.00%",
    )


def test_more_samples_make_the_interval_tight() -> None:
    # With nine samples the interval leaves out the smallest and the largest, so the outliers no longer count.
    samples = [0.5, 1.5, *[1.0] * 10]
    assert stop_after(samples, iterations=6, until_ci=0.02)[0] == 9


def test_what_never_becomes_tight_ends_at_the_ceiling_with_the_achieved_width() -> None:
    # Ten samples: the interval goes from the second smallest to the second largest, 0.5 to 1.5 around 1.0.
    assert stop_after([0.5, 1.5] * 10, iterations=6, until_ci=0.02, max_iterations=10) == (
        10,
        "10 iterations measured: --max-iterations 10 came before --until-ci 0.02 (median known within ±50.00%)",
    )


def test_the_ceiling_without_an_option_is_a_thousand() -> None:
    count, reason = stop_after([0.5, 1.5] * 600, iterations=6, until_ci=1e-9)
    assert count == 1000
    assert "--max-iterations 1000" in reason


def test_more_than_a_thousand_iterations_can_be_asked_for() -> None:
    assert options(iterations=2000).ceiling == 2000
    assert options(iterations=2000, until_ci=0.1).ceiling == 2000


def test_min_seconds_alone_has_no_ceiling() -> None:
    # 0.25 ms each: 20 001 iterations make more than 5 s.
    assert stop_after([0.25e-3] * 30_000, min_seconds=5.0001)[0] == 20_001


def test_the_interval_is_looked_at_when_a_tenth_more_is_measured() -> None:
    # With 23 samples the interval goes from the 7th to the 17th, both 1, and is tight. Looks are at 20, 22 and 25.
    samples = [*[0.5] * 6, *[1.0] * 8, *[1.5] * 6, *[1.0] * 5]
    assert stop_after(samples, iterations=20, until_ci=0.3)[0] == 25


def test_the_reason_counts_what_was_measured_after_the_decision_too() -> None:
    rule = StoppingRule(options(iterations=1, min_seconds=1.5))
    for seconds in (1.0, 1.0, 1.0):
        rule.add(seconds)
    assert rule.reason() == "3 iterations measured"


def test_every_missed_goal_is_named() -> None:
    _, reason = stop_after([1.0] * 9, iterations=5, min_seconds=50, until_ci=0.1, max_seconds=60, max_iterations=7)
    assert reason == "7 iterations measured: --max-iterations 7 came before --min-seconds 50"
    _, reason = stop_after([10.0] * 3, iterations=5, until_ci=0.1, max_seconds=20)
    assert reason == (
        "2 iterations measured: --max-seconds 20 came before --iterations 5 and "
        "--until-ci 0.1 (too few samples for an interval)"
    )


@given(
    seconds=st.lists(st.floats(1e-6, 100), min_size=1, max_size=40),
    iterations=st.integers(1, 30),
    min_seconds=st.floats(0, 50),
    max_seconds=st.floats(50, 100) | st.none(),
)
def test_no_rule_stops_early_without_naming_a_ceiling(
    seconds: list[float], iterations: int, min_seconds: float, max_seconds: float | None
) -> None:
    rule = StoppingRule(
        options(iterations=iterations, min_seconds=min_seconds, max_seconds=max_seconds, max_iterations=35)
    )
    total = 0.0
    for count, duration in enumerate(seconds, start=1):
        rule.add(duration)
        total += duration
        finished = rule.finished()
        reached = count >= iterations and total >= min_seconds
        at_ceiling = count >= 35 or (max_seconds is not None and total >= max_seconds)
        assert finished == (reached or at_ceiling)
        assert not finished or ("came before" in rule.reason()) == (not reached)
