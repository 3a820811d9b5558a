"""Mixture entropy, its thirds and its bounds."""

from __future__ import annotations

import math
from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbench.allocators.mixture import entropy, least_even, most_even, subset_sums, third, vertex

Jobs = list[tuple[int, tuple[int, ...]]]
"""GPUs and feasible strategies of each job."""


def claims(jobs: Jobs, strategies: int) -> list[int]:
    """For each set of strategies the GPUs of the jobs that only they can have, by the definition."""
    return [
        sum(gpus for gpus, able in jobs if all(subset >> strategy & 1 for strategy in able))
        for subset in range(2**strategies)
    ]


def totals(jobs: Jobs, strategies: int) -> set[tuple[int, ...]]:
    """GPUs per strategy of every assignment."""
    found = set()
    for chosen in product(*(able for _, able in jobs)):
        gpus = [0] * strategies
        for (size, _), strategy in zip(jobs, chosen, strict=True):
            gpus[strategy] += size
        found.add(tuple(gpus))
    return found


def feasible_sets(strategies: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.sets(st.integers(0, strategies - 1), min_size=1).map(lambda able: tuple(sorted(able)))


JOBS = st.lists(st.tuples(st.integers(1, 40), feasible_sets(4)), min_size=1, max_size=6)


def test_the_entropy_is_that_of_the_gpu_shares() -> None:
    assert entropy((8, 8)) == pytest.approx(math.log(2))
    assert entropy((8, 24)) == pytest.approx(math.log(4) / 4 + 3 * math.log(4 / 3) / 4)
    assert entropy((5, 5, 5, 5, 5)) == pytest.approx(math.log(5))


def test_one_strategy_alone_has_no_entropy() -> None:
    assert str(entropy((0, 512, 0))) == "0.0"


@given(gpus=st.lists(st.integers(1, 2000), min_size=2, max_size=6))
def test_the_entropy_is_the_same_to_the_last_bit_in_every_order(gpus: list[int]) -> None:
    assert entropy(gpus) == entropy(sorted(gpus)) == entropy([*gpus, 0])


@pytest.mark.parametrize(
    ("value", "name"),
    [(0, "low"), (0.99, "low"), (1, "medium"), (1.99, "medium"), (2, "high"), (3, "high")],
)
def test_a_range_has_three_equal_parts_and_edges_belong_to_the_upper_one(value: float, name: str) -> None:
    assert third(value, 0, 3) == name
    assert third(1 + value * 2 / 3, 1, 3) == name  # the range of localities


def test_rounding_does_not_move_a_value_from_an_edge() -> None:
    # Two equal shares out of eight strategies: ln 2 is exactly a third of ln 8.
    assert third(entropy((7, 7)), 0, math.log(8)) == "medium"


def test_a_range_of_one_value_is_low() -> None:
    assert third(0.0, 0.0, 0.0) == "low"


def test_subset_sums_follow_the_bits() -> None:
    assert subset_sums((1, 10, 100)) == [0, 1, 10, 11, 100, 101, 110, 111]


def test_in_a_vertex_the_last_takes_all_that_it_can() -> None:
    # 8 GPUs for the first only, 16 for either of the two.
    either = claims([(8, (0,)), (16, (0, 1))], 2)
    assert vertex(either, (0, 1)) == [8, 16]
    assert vertex(either, (1, 0)) == [24, 0]


def test_the_most_even_vector_levels_what_can_be_levelled() -> None:
    # 60 GPUs are bound to the first; the 10 + 20 others meet in the middle of the second and third.
    assert most_even(claims([(60, (0,)), (10, (1,)), (20, (0, 1, 2))], 3)) == [60, 15, 15]


@given(jobs=JOBS)
def test_no_assignment_is_less_even_than_the_least_even_one_which_is_an_assignment(jobs: Jobs) -> None:
    found = totals(jobs, 4)
    least = least_even(claims(jobs, 4))
    assert tuple(least) in found
    assert entropy(least) == pytest.approx(min(map(entropy, found)), abs=1e-12)


@given(jobs=JOBS)
def test_no_assignment_is_more_even_than_the_most_even_vector(jobs: Jobs) -> None:
    most = most_even(claims(jobs, 4))
    assert sum(most) == pytest.approx(sum(gpus for gpus, _ in jobs))
    assert max(map(entropy, totals(jobs, 4))) <= entropy(most) + 1e-12


@given(jobs=JOBS)
def test_in_the_most_even_vector_every_set_of_strategies_has_its_claim(jobs: Jobs) -> None:
    shares = most_even(claims(jobs, 4))
    full = claims(jobs, 4)
    for subset in range(16):
        held = sum(share for strategy, share in enumerate(shares) if subset >> strategy & 1)
        assert held >= full[subset] - 1e-9


@given(jobs=JOBS)
def test_every_vertex_is_an_assignment(jobs: Jobs) -> None:
    found = totals(jobs, 4)
    assert all(tuple(vertex(claims(jobs, 4), order)) in found for order in permutations(range(4)))
