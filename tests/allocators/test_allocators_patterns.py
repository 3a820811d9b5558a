"""Patterns: uniform, and drawn from tiers within a budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbench.allocators.patterns import (
    Tier,
    Tiers,
    doubled,
    for_nodes,
    load_tiers,
    tier_sampled,
    uniform,
)
from dlbench.errors import OptionError, SpecError

PAPER = load_tiers("paper")
CHI_SQUARE_999 = {2: 13.82, 3: 16.27}
"""Quantiles of 99.9 % by degrees of freedom, from tables."""


def tiers(*sizes: tuple[float, tuple[int, ...]]) -> Tiers:
    """Tiers of (probability, sizes)."""
    found = tuple(Tier(name=f"t{n}", probability=p, sizes=members) for n, (p, members) in enumerate(sizes))
    return Tiers(name="mine", description="made up", tiers=found, source="made up")


def chi_square(observed: list[int], expected: list[float]) -> float:
    return sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))


def refusal(call: Callable[[], object]) -> str:
    """What is said about a mistake; one line."""
    with pytest.raises(OptionError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_papers_tiers_are_shipped_as_the_paper_has_them() -> None:
    assert [(tier.name, tier.probability, tier.sizes) for tier in PAPER.tiers] == [
        ("small", 0.75, (8,)),
        ("medium", 0.2, (16, 32, 64, 512)),
        ("large", 0.05, (1024,)),
    ]


def test_the_small_tiers_fit_a_single_machine() -> None:
    small = load_tiers("small")
    assert [(tier.probability, tier.sizes) for tier in small.tiers] == [(0.75, (2,)), (0.2, (4,)), (0.05, (8,))]


def test_on_nodes_of_eight_gpus_the_papers_counts_double() -> None:
    on_lumi = for_nodes(PAPER, 8)
    assert [tier.sizes for tier in on_lumi.tiers] == [(16,), (32, 64, 128, 1024), (2048,)]
    assert [tier.probability for tier in on_lumi.tiers] == [0.75, 0.2, 0.05]


def test_on_nodes_of_four_gpus_they_stay() -> None:
    assert for_nodes(PAPER, 4) == PAPER


def test_what_was_doubled_for_eight_gpus_does_not_double_again() -> None:
    assert for_nodes(doubled(PAPER), 8) == doubled(PAPER)


def test_tiers_for_no_node_in_particular_never_double() -> None:
    assert for_nodes(load_tiers("small"), 8) == load_tiers("small")


@pytest.mark.parametrize(
    ("budget", "size", "utilisation", "jobs"),
    [
        (2040, 8, 1.0, 255),
        (2040, 512, 1.0, 3),
        (2040, 16, 0.5, 63),  # 1020 GPUs, 63.75 jobs
        (100, 1, 0.29, 29),  # 0.29 × 100 is 28.999… in binary
        (10, 1, 0.55, 5),  # not 6, which would be more than was asked for
        (8, 8, 1.0, 1),
    ],
)
def test_a_uniform_pattern_has_as_many_jobs_as_fit(budget: int, size: int, utilisation: float, jobs: int) -> None:
    assert uniform(budget, size, utilisation) == (size,) * jobs


def test_a_uniform_pattern_without_room_for_one_job_is_refused() -> None:
    assert refusal(lambda: uniform(1000, 512, 0.4)) == (
        "no job of 512 GPUs fits 0.4 of 1000 GPUs = 400; use smaller jobs or more GPUs"
    )


@pytest.mark.parametrize("size", [0, -8])
def test_jobs_without_gpus_are_refused(size: int) -> None:
    assert refusal(lambda: uniform(16, size)) == f"jobs of {size} GPUs are impossible; use 1 or more"


@pytest.mark.parametrize(
    ("window", "shown"),
    [
        ((0.0, 1.5), "1.5"),
        ((0.0, 0.0), "0"),
        ((-0.1, 0.5), "-0.1:0.5"),
        ((0.9, 0.8), "0.9:0.8"),
        ((0.0, float("nan")), "nan"),
    ],
)
def test_an_impossible_utilisation_is_refused(window: tuple[float, float], shown: str) -> None:
    message = refusal(lambda: tier_sampled(64, PAPER, np.random.default_rng(0), utilisation=window))
    assert message == f"utilisation {shown} is out of range; use 0 <= low <= high <= 1 and high > 0"


def test_a_budget_without_gpus_is_refused() -> None:
    assert refusal(lambda: tier_sampled(0, PAPER, np.random.default_rng(0))) == (
        "a budget of 0 GPUs is impossible; use 1 or more"
    )


def test_a_budget_below_the_smallest_job_is_refused() -> None:
    assert refusal(lambda: tier_sampled(7, PAPER, np.random.default_rng(0))) == (
        "no job fits 7 of 7 GPUs: the smallest of tiers paper has 8; use other tiers or more GPUs"
    )


def test_tiers_are_drawn_with_their_probabilities() -> None:
    pattern = tier_sampled(4_000_000, PAPER, np.random.default_rng(1))[:30_000]
    count = Counter(pattern)
    observed = [count[8], sum(count[size] for size in (16, 32, 64, 512)), count[1024]]
    assert chi_square(observed, [22_500, 6_000, 1_500]) < CHI_SQUARE_999[2]


def test_the_sizes_of_a_tier_are_drawn_alike() -> None:
    count = Counter(tier_sampled(4_000_000, PAPER, np.random.default_rng(2)))
    medium = [count[size] for size in (16, 32, 64, 512)]
    assert sum(medium) > 5000
    assert chi_square(medium, [sum(medium) / 4] * 4) < CHI_SQUARE_999[3]


def test_draws_that_do_not_fit_leave_the_others_their_proportions() -> None:
    rng = np.random.default_rng(3)
    first = Counter(tier_sampled(32, PAPER, rng)[0] for _ in range(8000))
    # 0.75, 0.05 and 0.05 of the draws, which are 0.85 of all, fit 32 GPUs.
    expected = [8000 * share / 0.85 for share in (0.75, 0.05, 0.05)]
    assert chi_square([first[8], first[16], first[32]], expected) < CHI_SQUARE_999[2]
    assert sum(first[size] for size in (8, 16, 32)) == 8000


def test_a_size_of_two_tiers_has_the_probability_of_both() -> None:
    both = tiers((0.5, (1,)), (0.25, (1, 2)), (0.25, (2,)))
    count = Counter(tier_sampled(30_000, both, np.random.default_rng(4))[:10_000])
    expected = [6250.0, 3750.0]
    assert chi_square([count[1], count[2]], expected) < CHI_SQUARE_999[2]


@given(
    budget=st.integers(1, 3000),
    sizes=st.lists(st.integers(1, 200), min_size=1, max_size=5, unique=True),
    seed=st.integers(0, 2**32),
)
def test_a_pattern_ends_exactly_when_nothing_fits_any_more(budget: int, sizes: list[int], seed: int) -> None:
    budget += min(sizes)
    pattern = tier_sampled(budget, tiers((1.0, tuple(sizes))), np.random.default_rng(seed))
    assert set(pattern) <= set(sizes)
    assert 0 <= budget - sum(pattern) < min(sizes)


def test_a_rare_size_that_alone_fits_is_drawn_without_waiting() -> None:
    rare = tiers((1e-12, (1,)), (1 - 1e-12, (1000,)))
    assert tier_sampled(50, rare, np.random.default_rng(0)) == (1,) * 50


def test_the_window_bounds_what_a_pattern_uses() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        assert 0.3 * 2040 <= sum(tier_sampled(2040, PAPER, rng, utilisation=(0.3, 0.6))) <= 0.6 * 2040


def test_a_pattern_that_ends_below_the_window_is_drawn_again() -> None:
    # 3 + 3 + 3 leaves one GPU of 10, 5 + 5 none; half of the draws begin with either.
    mixed = tiers((0.5, (3,)), (0.5, (5,)))
    rng = np.random.default_rng(6)
    found = {tier_sampled(10, mixed, rng, utilisation=(1.0, 1.0)) for _ in range(20)}
    assert found == {(5, 5)}


def test_a_window_that_no_pattern_reaches_is_refused_with_what_was_reached() -> None:
    threes = tiers((1.0, (3,)))
    assert refusal(lambda: tier_sampled(10, threes, np.random.default_rng(0), utilisation=(0.95, 1.0))) == (
        "100 patterns of tiers mine on 10 GPUs all end below utilisation 0.95; the fullest reaches 9 GPUs = 0.9; "
        "use a wider window"
    )


def test_one_seed_gives_one_pattern_and_another_seed_another() -> None:
    first, again, other = (tier_sampled(2040, PAPER, np.random.default_rng(seed)) for seed in (7, 7, 8))
    assert first == again != other


VALID = """\
name: mine
description: made up
tiers:
  - {name: a, probability: 0.5, sizes: [1]}
  - {name: b, probability: 0.5, sizes: [2, 4]}
source: made up
"""


def complaint(tmp_path: Path, text: str) -> str:
    """What is said about a file, after its name."""
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        load_tiers(str(path))
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value).removeprefix(f"{path}: ")


def test_tiers_of_ones_own_are_read_by_path(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(VALID)
    assert load_tiers(str(tmp_path / "mine.yaml")).weights() == [(1, 0.5), (2, 0.25), (4, 0.25)]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("0.5, sizes: [1]", "0.4, sizes: [1]", "at tiers: expected probabilities that add up to 1, found 0.9"),
        ("[1]", "[]", "at tiers a, sizes: expected at least one, found none"),
        ("[2, 4]", "[2, 2]", "at tiers b, sizes: expected each once, found [2, 2]"),
        ("name: b", "name: a", "at tiers: expected each name once, found a, a"),
        ("[1]", "[0]", "at tiers[0].sizes[0]: expected an integer >= 1, found 0"),
        ("sizes: [1]", "size: [1]", "at tiers[0].size: unknown key 'size'; did you mean 'sizes'? "),
        ("description: made up\n", "", "at description: missing; expected text"),
    ],
)
def test_a_mistake_in_a_tiers_file_is_named_with_its_place(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert complaint(tmp_path, VALID.replace(old, new)).startswith(said)


def test_unknown_tiers_are_answered_with_those_that_exist() -> None:
    with pytest.raises(SpecError) as caught:
        load_tiers("papr")
    assert str(caught.value) == (
        "unknown tiers 'papr'; did you mean 'paper'? valid: paper, small; or the path of a YAML file"
    )
