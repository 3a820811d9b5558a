"""Assignments: every reachable entropy bin is filled, and no other."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbench.allocators import assignment
from dlbench.allocators.assignment import Assignment, sample_assignments
from dlbench.allocators.catalogue import feasible_by_size, load_catalogue
from dlbench.allocators.patterns import load_tiers, tier_sampled
from dlbench.errors import OptionError

Feasible = Mapping[int, Sequence[str]]

PAPER = {
    8: ("dp",),
    16: ("dp", "fsdp", "dp_pp"),
    32: ("fsdp", "dp_pp"),
    64: ("dp_pp",),
    256: ("dp_pp_tp",),
    512: ("dp_pp_tp", "dp_pp_ep"),
    1024: ("dp_pp_ep",),
}
"""The paper's concurrent runs at 4 GPUs per node."""
ANY = dict.fromkeys((2, 4, 8), ("dp", "fsdp", "dp_pp", "dp_pp_tp", "dp_pp_ep"))
BINS = ("low", "medium", "high")


def mix(pattern: Sequence[int], strategies: Sequence[str]) -> tuple[tuple[int, str], ...]:
    """The assignment without the order of its jobs."""
    return tuple(sorted(zip(pattern, strategies, strict=True)))


def bin_of(pattern: Sequence[int], strategies: Sequence[str], feasible: Feasible) -> str:
    """Third of [0, ln m] by the definitions, with plain arithmetic."""
    gpus: dict[str, int] = defaultdict(int)
    for size, strategy in zip(pattern, strategies, strict=True):
        gpus[strategy] += size
    total = sum(pattern)
    entropy = sum(-n / total * math.log(n / total) for n in gpus.values())
    greatest = math.log(len({name for size in pattern for name in feasible[size]}))
    if greatest == 0 or entropy < greatest / 3:
        return "low"
    return "medium" if entropy < 2 * greatest / 3 else "high"


def enumerated(pattern: Sequence[int], feasible: Feasible) -> dict[str, set[tuple[tuple[int, str], ...]]]:
    """All assignments by bin, up to the order of their jobs."""
    jobs = Counter(pattern)
    order = sorted(pattern)
    ways = [combinations_with_replacement(sorted(feasible[size]), jobs[size]) for size in sorted(jobs)]
    found: dict[str, set[tuple[tuple[int, str], ...]]] = {name: set() for name in BINS}
    for chosen in product(*ways):
        strategies = [name for names in chosen for name in names]
        found[bin_of(order, strategies, feasible)].add(mix(order, strategies))
    return found


def sample(
    pattern: Sequence[int], feasible: Feasible, per_bin: int, seed: int = 0
) -> tuple[list[Assignment], tuple[str, ...]]:
    return sample_assignments(tuple(pattern), feasible, per_bin, np.random.default_rng(seed))


def check_against_enumeration(pattern: Sequence[int], feasible: Feasible, per_bin: int) -> None:
    """Bins are unreachable iff empty; all samples lie in their bin and differ as far as the bin has different ones."""
    there = enumerated(pattern, feasible)
    found, unreachable = sample(pattern, feasible, per_bin)
    assert unreachable == tuple(name for name in BINS if not there[name])
    sampled: dict[str, Counter[tuple[tuple[int, str], ...]]] = {name: Counter() for name in BINS}
    for one in found:
        sampled[one.bin][mix(pattern, one.strategies)] += 1
    for name in set(BINS) - set(unreachable):
        assert sampled[name].keys() <= there[name]
        assert sampled[name].total() == per_bin
        assert len(sampled[name]) == min(per_bin, len(there[name]))
        assert max(sampled[name].values()) - min(sampled[name].values()) <= 1


@pytest.mark.parametrize("jobs", range(1, 8))
def test_of_every_small_pattern_exactly_the_reachable_bins_are_filled(jobs: int) -> None:
    for pattern in combinations_with_replacement(sorted(PAPER), jobs):
        check_against_enumeration(pattern, PAPER, per_bin=3)


@pytest.mark.parametrize("jobs", range(1, 6))
def test_of_every_small_pattern_on_one_machine_exactly_the_reachable_bins_are_filled(jobs: int) -> None:
    for pattern in combinations_with_replacement(sorted(ANY), jobs):
        check_against_enumeration(pattern, ANY, per_bin=2)


@pytest.mark.parametrize("jobs", range(1, 7))
def test_mixes_that_give_each_strategy_the_same_gpus_by_other_jobs_are_told_apart(jobs: int) -> None:
    for pattern in combinations_with_replacement((1, 2, 4), jobs):
        check_against_enumeration(pattern, dict.fromkeys((1, 2, 4), ("dp", "fsdp")), per_bin=30)


@given(data=st.data())
def test_with_sizes_and_strategies_of_any_kind_exactly_the_reachable_bins_are_filled(data: st.DataObject) -> None:
    names = st.sets(st.sampled_from("abcde"), min_size=1).map(sorted)
    feasible = data.draw(st.dictionaries(st.integers(1, 100), names, min_size=1, max_size=3))
    pattern = data.draw(st.lists(st.sampled_from(sorted(feasible)), min_size=1, max_size=7))
    check_against_enumeration(pattern, feasible, data.draw(st.integers(1, 30)))


def test_two_equal_jobs_have_one_strategy_or_two_and_nothing_between() -> None:
    found, unreachable = sample((32, 32), PAPER, per_bin=2)
    assert unreachable == ("medium",)
    assert [one.bin for one in found] == ["low", "low", "high", "high"]
    assert {one.strategies for one in found[:2]} == {("fsdp", "fsdp"), ("dp_pp", "dp_pp")}
    assert [one.entropy for one in found[2:]] == [pytest.approx(math.log(2))] * 2


def test_the_strategies_of_the_mix_are_those_feasible_for_at_least_one_job() -> None:
    # dp 8 and dp_pp 64: H = ln(9)/9 + 8/9 ln(9/8) = 0.3488 = 0.503 ln 2, so m = 2 makes it medium.
    found, unreachable = sample((8, 64), PAPER, per_bin=1)
    assert unreachable == ("low", "high")
    assert [(one.bin, round(one.entropy, 4)) for one in found] == [("medium", 0.3488)]


def test_a_mix_of_one_strategy_is_low_and_reaches_nothing_else() -> None:
    found, unreachable = sample((8, 8, 8), PAPER, per_bin=4)
    assert unreachable == ("medium", "high")
    assert found == [Assignment(("dp", "dp", "dp"), 0.0, "low")] * 4


def test_strategies_stand_in_the_order_of_the_pattern() -> None:
    pattern = (64, 8, 512, 8, 16, 1024, 32, 16)
    found, _ = sample(pattern, PAPER, per_bin=5)
    for one in found:
        assert all(name in PAPER[size] for size, name in zip(pattern, one.strategies, strict=True))


def test_of_equal_jobs_each_is_as_likely_to_get_a_strategy() -> None:
    # One job has another strategy than the two others: H = ln(3)/3 + 2/3 ln(3/2) = 0.637 = 0.918 ln 2, which is high.
    firsts: Counter[int] = Counter()
    for seed in range(600):
        (one,) = (one for one in sample((32, 32, 32), PAPER, 1, seed)[0] if one.bin == "high")
        (lone,) = (name for name, count in Counter(one.strategies).items() if count == 1)
        firsts[one.strategies.index(lone)] += 1
    assert sum((firsts[place] - 200) ** 2 / 200 for place in range(3)) < 13.82  # chi-square, 2 degrees, 99.9 %


SLOTS: dict[str, tuple[tuple[int, ...], Feasible]] = {
    "one machine": ((2,) * 150 + (4,) * 40 + (8,) * 10, ANY),
    "paper": ((8,) * 60 + (16,) * 59 + (32,) * 40 + (512,) * 40 + (1024,), PAPER),
    "one size": ((16,) * 200, PAPER),
}


@pytest.mark.parametrize("name", SLOTS)
def test_two_hundred_jobs_fill_every_bin_with_different_mixes_in_well_under_a_second(name: str) -> None:
    pattern, feasible = SLOTS[name]
    begin = time.perf_counter()
    found, unreachable = sample(pattern, feasible, per_bin=10)
    seconds = time.perf_counter() - begin
    assert unreachable == ()
    assert [one.bin for one in found] == [bin_of(pattern, one.strategies, feasible) for one in found]
    assert Counter(one.bin for one in found) == dict.fromkeys(BINS, 10)
    assert len({mix(pattern, one.strategies) for one in found}) == 30
    assert seconds < 0.5


def test_entropies_spread_over_the_whole_of_a_bin() -> None:
    pattern, feasible = SLOTS["one machine"]
    found, _ = sample(pattern, feasible, per_bin=60)
    width = math.log(5) / 3
    for position, name in enumerate(BINS):
        within = [one.entropy / width - position for one in found if one.bin == name]
        assert all(sum(low <= value < low + 1 / 3 for value in within) >= 6 for low in (0, 1 / 3, 2 / 3))


def test_every_strategy_gets_to_dominate_a_low_mix() -> None:
    pattern, feasible = SLOTS["one machine"]
    found, _ = sample(pattern, feasible, per_bin=60)
    dominant = Counter(Counter(one.strategies).most_common(1)[0][0] for one in found if one.bin == "low")
    assert dominant.keys() == set(ANY[2])
    assert min(dominant.values()) >= 4


def test_a_thousand_jobs_take_no_longer_than_two_hundred() -> None:
    pattern = tuple(np.repeat((8, 16, 32, 64, 512), (700, 150, 100, 45, 5)).tolist())
    begin = time.perf_counter()
    found, unreachable = sample(pattern, PAPER, per_bin=4)
    assert time.perf_counter() - begin < 0.5
    assert len(found) == 4 * (3 - len(unreachable))


def test_a_gap_that_one_huge_job_leaves_is_found_among_millions_of_assignments() -> None:
    # Even if all else, 4 % of the GPUs, is spread over the four other strategies: H = 0.96 ln(1/0.96) + 0.04 ln(100)
    # = 0.223, below ln(5)/3 = 0.536.
    pattern = (9600,) + (2,) * 200
    _, unreachable = sample(pattern, {9600: ANY[2][:2], 2: ANY[2]}, per_bin=2)
    assert unreachable == ("medium", "high")


def test_many_sizes_do_not_exhaust_the_stack() -> None:
    sizes = tuple(range(1, 401))
    found, unreachable = sample(sizes, dict.fromkeys(sizes, ANY[2]), per_bin=1)
    assert len(found) == 3
    assert unreachable == ()


def test_a_search_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignment, "MOST_STEPS", 0)
    assert sample((16,) * 5, PAPER, per_bin=1) == ([], BINS)


@pytest.mark.parametrize("seed", [0, 1])
def test_one_seed_gives_the_same_assignments_byte_for_byte(seed: int) -> None:
    pattern, feasible = SLOTS["paper"]
    assert repr(sample(pattern, feasible, 3, seed)) == repr(sample(pattern, feasible, 3, seed))
    assert sample(pattern, feasible, 3, seed) != sample(pattern, feasible, 3, seed + 10)


def test_patterns_drawn_from_the_papers_tiers_are_assigned_by_its_catalogue() -> None:
    rng = np.random.default_rng(11)
    pattern = tier_sampled(2040, load_tiers("paper"), rng)
    feasible = feasible_by_size(pattern, 4, load_catalogue("paper"))
    found, unreachable = sample_assignments(pattern, feasible, 4, rng)
    assert len(found) == 4 * (3 - len(unreachable)) > 0
    assert feasible == {size: PAPER[size] for size in set(pattern)}


@pytest.mark.parametrize(
    ("pattern", "per_bin", "said"),
    [
        ((), 1, "the pattern has no job; use more GPUs or smaller jobs"),
        ((8,), 0, "0 assignments per bin are too few; use 1 or more"),
        ((8, 24), 1, "no strategy is feasible for a job of 24 GPUs; use other sizes"),
    ],
)
def test_what_cannot_be_assigned_is_refused(pattern: tuple[int, ...], per_bin: int, said: str) -> None:
    with pytest.raises(OptionError) as caught:
        sample(pattern, PAPER, per_bin)
    assert str(caught.value) == said
