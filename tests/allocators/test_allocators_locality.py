"""Classes for the jobs of an experiment: every locality bin that can be reached is, however rare by blind draws."""

from __future__ import annotations

import time
from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlbench.allocators.classes import PAPER_CLASSES, PlacementClass, locality, locality_bin
from dlbench.allocators.locality import LocalitySampler, sample_classes
from dlbench.allocators.mixture import BINS
from dlbench.allocators.rules import load_rules
from dlbench.errors import OptionError

Choices = list[tuple[PlacementClass, ...]]

NEAR, MIDDLE, FAR = map(PlacementClass.parse, ["intra-l1", "intra-group", "inter-group"])


def of(*strategies: str) -> Choices:
    """Classes that the paper's rules give to jobs of these strategies."""
    rules = load_rules("paper")
    return [rules.rule(strategy).placements() for strategy in strategies]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@given(
    st.lists(
        st.lists(st.sampled_from(PAPER_CLASSES), min_size=1, max_size=4, unique=True).map(tuple), min_size=1, max_size=5
    )
)
@settings(max_examples=150, deadline=None)
def test_a_bin_is_reached_exactly_where_a_choice_lies_in_it(choices: Choices) -> None:
    by_enumeration = {locality_bin(locality(choice)) for choice in product(*choices)}
    found, unreachable = sample_classes(choices, 3, rng())
    assert set(found) == by_enumeration
    assert set(unreachable) == set(BINS) - by_enumeration
    for name, drawn in found.items():
        assert len(set(drawn)) == len(drawn) <= 3
        for choice in drawn:
            assert locality_bin(locality(choice)) == name
            assert all(placement in classes for placement, classes in zip(choice, choices, strict=True))


def test_as_many_different_choices_as_are_asked_for_come_from_every_bin() -> None:
    found, unreachable = sample_classes(of(*["dp"] * 20, *["dp_pp"] * 10), 8, rng())
    assert unreachable == ()
    assert {name: len(set(drawn)) for name, drawn in found.items()} == {"low": 8, "medium": 8, "high": 8}


def test_a_bin_with_fewer_choices_than_asked_for_gives_them_all() -> None:
    # Two jobs near, in the middle or far: means 1 and 1.5 twice are low, 2 thrice is medium, 2.5 twice and 3 are high.
    found, _ = sample_classes([(NEAR, MIDDLE, FAR)] * 2, 10, rng())
    assert {name: Counter(map(locality, drawn)) for name, drawn in found.items()} == {
        "low": {1.0: 1, 1.5: 2},
        "medium": {2.0: 3},
        "high": {2.5: 2, 3.0: 1},
    }


def test_the_medium_bin_of_a_single_fsdp_job_is_out_of_reach() -> None:
    found, unreachable = sample_classes(of("fsdp"), 3, rng())
    assert unreachable == ("medium",)  # scores 1, 1.5 and 2.5
    assert set(found) == {"low", "high"}


def test_bins_that_blind_draws_never_hit_are_filled_for_two_hundred_jobs_at_once() -> None:
    # 200 jobs, near or far alike: a mean below 5/3 is nearly five standard deviations away.
    begin = time.process_time()
    found, unreachable = sample_classes([(NEAR, FAR)] * 200, 5, rng())
    assert time.process_time() - begin < 0.5
    assert unreachable == ()
    assert [len(found[name]) for name in BINS] == [5, 5, 5]


def test_means_are_spread_over_the_whole_bin() -> None:
    sampler = LocalitySampler([(NEAR, MIDDLE, FAR)] * 100)
    means = [locality(sampler.draw("low", rng(seed)) or ()) for seed in range(200)]
    assert min(means) < 1.1 and max(means) > 1.6
    assert sum(mean < 4 / 3 for mean in means) in range(70, 131)  # half of 200, within four standard deviations


def test_every_job_has_its_share_of_near_and_far_places() -> None:
    sampler = LocalitySampler([(NEAR, FAR)] * 10)
    drawn = [sampler.draw("medium", rng(seed)) or () for seed in range(400)]
    shares = [sum(choice[job] == FAR for choice in drawn) / 400 for job in range(10)]
    assert all(abs(share - 0.5) < 0.1 for share in shares)


def test_all_near_and_all_far_are_reached_too() -> None:
    assert locality_bin(locality(LocalitySampler([(NEAR,)] * 5).draw("low", rng()) or ())) == "low"
    assert LocalitySampler([(FAR,)] * 5).draw("high", rng()) == (FAR,) * 5
    assert LocalitySampler([(FAR,)] * 5).draw("low", rng()) is None
    assert not LocalitySampler([(FAR,)] * 5).reaches("medium")


def test_the_same_seed_gives_the_same_choices() -> None:
    choices = of("dp", "fsdp", "dp_pp", "dp")
    assert sample_classes(choices, 3, rng(1)) == sample_classes(choices, 3, rng(1))
    assert sample_classes(choices, 3, rng(1)) != sample_classes(choices, 3, rng(2))


def test_jobs_without_a_class_and_impossible_numbers_are_refused() -> None:
    with pytest.raises(OptionError, match="expected jobs, each with a placement class that it can have"):
        sample_classes([(NEAR,), ()], 1, rng())
    with pytest.raises(OptionError, match="expected jobs, each with"):
        sample_classes([], 1, rng())
    with pytest.raises(OptionError, match="0 placements per bin are too few; use 1 or more"):
        sample_classes([(NEAR,)], 0, rng())
