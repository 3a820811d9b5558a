"""Whether a straggler persists: both tests against exact values, and the verdict in words."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbench.analysis.persistence import (
    Verdict,
    binomial_tail,
    expected_runs,
    number_of_runs,
    p_text,
    persistence,
    runs_p,
    runs_variance,
)

SEQUENCES = st.lists(st.integers(0, 3), min_size=2, max_size=7)


def runs_in_all_orders(sequence: list[int]) -> list[int]:
    return [number_of_runs(np.array(order)) for order in itertools.permutations(sequence)]


@pytest.mark.parametrize(("sequence", "runs"), [([], 0), ([2], 1), ([2, 2, 2], 1), ([0, 1, 1, 0], 3), ([0, 1, 2], 3)])
def test_a_run_is_a_stretch_of_one_rank(sequence: list[int], runs: int) -> None:
    assert number_of_runs(np.array(sequence)) == runs


@given(SEQUENCES)
def test_mean_and_variance_of_the_number_of_runs_are_those_of_all_orders(sequence: list[int]) -> None:
    counts = [sequence.count(rank) for rank in set(sequence)]
    runs = runs_in_all_orders(sequence)
    assert expected_runs(counts) == pytest.approx(np.mean(runs))
    assert runs_variance(counts) == pytest.approx(np.var(runs), abs=1e-9)


@given(st.integers(1, 40), st.integers(0, 40), st.floats(0.05, 0.95))
def test_the_tail_is_the_sum_of_the_binomial_terms(trials: int, least: int, probability: float) -> None:
    least = min(least, trials)
    terms = (
        math.comb(trials, k) * probability**k * (1 - probability) ** (trials - k) for k in range(least, trials + 1)
    )
    assert binomial_tail(least, trials, probability) == pytest.approx(sum(terms), rel=1e-9)


def test_the_tail_of_a_million_trials_neither_overflows_nor_vanishes() -> None:
    assert binomial_tail(500_000, 1_000_000, 0.5) == pytest.approx(0.5004, abs=1e-4)
    assert binomial_tail(1_000_000, 1_000_000, 0.5) == 0.0


def test_the_p_value_of_the_runs_is_that_of_all_orders() -> None:
    sequence = [0, 0, 0, 0, 1, 1, 1, 1]
    runs = runs_in_all_orders(sequence)
    exact = 2 * sum(count <= 2 for count in runs) / len(runs)  # 2 of the 70 orders have two runs
    assert exact == pytest.approx(4 / 70)
    assert runs_p(np.array(sequence), seed=0) == pytest.approx(exact, abs=0.03)


def test_a_long_sequence_takes_the_normal_distribution() -> None:
    ranks = np.random.default_rng(1).integers(4, size=501)
    permuted, normal = runs_p(ranks[:500], seed=0), runs_p(ranks, seed=0)
    assert normal == pytest.approx(permuted, abs=0.08)
    assert runs_p(np.repeat(np.arange(4), 200), seed=0) < 1e-9
    assert runs_p(np.arange(600), seed=0) == 1.0  # every order has as many


def test_the_same_seed_gives_the_same_p_value() -> None:
    sequence = [0, 1, 1, 0, 2, 2, 1, 0]
    assert persistence(sequence, 3, seed=5) == persistence(sequence, 3, seed=5)


def test_one_rank_that_is_always_last_persists() -> None:
    found = persistence([2] * 12, 4, seed=0)
    assert (found.verdict, found.straggler, found.share) == (Verdict.PERSISTS, 2, 1.0)
    assert found.p == pytest.approx(4 * 0.25**12)
    assert found.words() == "rank 2 is last in 12 of 12 (p < 0.001): it persists"


def test_a_rank_that_is_last_more_often_than_the_others_persists() -> None:
    found = persistence([2, 2, 2, 0, 2, 2, 3, 2, 2, 1, 2, 2], 4, seed=0)
    assert (found.verdict, found.times, found.count) == (Verdict.PERSISTS, 9, 12)
    terms = (math.comb(12, k) * 3 ** (12 - k) for k in range(9, 13))
    # 7 runs, of which chance gives 1 + 12 - 84 / 12 = 6: all collectives count.
    assert (found.stretches, found.expected_stretches) == (7, 6.0)
    assert found.p == pytest.approx(4 * sum(terms) / 4**12)


def test_stragglers_that_come_as_they_may_wander() -> None:
    found = persistence(np.random.default_rng(0).integers(4, size=60).tolist(), 4, seed=0)
    assert found.verdict is Verdict.WANDERS
    assert "it wanders" in found.words()


def test_a_rank_that_stays_last_for_a_while_does_not_persist() -> None:
    found = persistence([0] * 25 + [1] * 15 + [2] * 10 + [3] * 10, 4, seed=0)
    assert (found.verdict, found.stretches) == (Verdict.STRETCHES, 4)
    assert found.p > 0.05  # though 25 of 60 independent collectives would be significant
    assert 4 * binomial_tail(25, 60, 0.25) < 0.05
    assert found.words() == (
        "rank 0 is last most often, in 25 of 60 (p = 1.000): no rank persists, but one stays last for a while, "
        "4 stretches where chance gives 43.5 (p = 0.002)"
    )


def test_ranks_that_take_turns_alternate() -> None:
    found = persistence([0, 1] * 15, 2, seed=0)
    assert (found.verdict, found.stretches, found.expected_stretches) == (Verdict.ALTERNATES, 30, 16.0)
    assert "seldom stays last" in found.words()


@pytest.mark.parametrize("stragglers", [[], [1], [1] * 5])
def test_fewer_than_six_are_too_few_to_tell(stragglers: list[int]) -> None:
    found = persistence(stragglers, 4, seed=0)
    assert found.verdict is Verdict.UNKNOWN
    assert math.isnan(found.p)
    assert math.isnan(found.stretches_p)
    assert found.words() == f"{len(stragglers)} resolved stragglers are too few to tell whether one persists"


def test_none_has_no_share_and_no_rank() -> None:
    found = persistence([], 4, seed=0)
    assert (found.straggler, found.times, found.stretches) == (-1, 0, 0)
    assert math.isnan(found.share)


def test_of_two_ranks_that_are_equally_often_last_the_lower_is_named() -> None:
    assert persistence([3, 1, 3, 1, 0, 2], 4, seed=0).straggler == 1


def test_chance_is_called_a_persisting_straggler_in_a_twentieth_of_the_cases_at_most() -> None:
    generator = np.random.default_rng(7)
    verdicts = [persistence(generator.integers(4, size=40).tolist(), 4, seed=0).verdict for _ in range(300)]
    assert verdicts.count(Verdict.PERSISTS) <= 0.05 * 300


@pytest.mark.parametrize(("p", "text"), [(0.5, "p = 0.500"), (0.001, "p = 0.001"), (0.0009, "p < 0.001")])
def test_small_p_values_are_not_told_apart(p: float, text: str) -> None:
    assert p_text(p) == text


@given(st.lists(st.integers(0, 4), min_size=6, max_size=30), st.permutations(range(5)))
def test_renamed_ranks_have_the_same_verdict(stragglers: list[int], names: list[int]) -> None:
    before = persistence(stragglers, 5, seed=0)
    after = persistence([names[rank] for rank in stragglers], 5, seed=0)
    assert (after.verdict, after.times, after.p) == (before.verdict, before.times, before.p)
    assert (after.stretches, after.stretches_p) == (before.stretches, before.stretches_p)
