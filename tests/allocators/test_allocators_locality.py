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
from dlbench.allocators.locality import Choice, LocalitySampler
from dlbench.allocators.mixture import BINS, Bin
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


def draws(choices: Choices, count: int, seed: int = 0) -> dict[Bin, list[Choice]]:
    """So many draws from every bin; none from one that the sampler says is out of reach."""
    sampler, generator = LocalitySampler(choices), rng(seed)
    return {name: [sampler.draw(name, generator) or () for _ in range(count)] for name in BINS if sampler.reaches(name)}


@given(
    st.lists(
        st.lists(st.sampled_from(PAPER_CLASSES), min_size=1, max_size=4, unique=True).map(tuple), min_size=1, max_size=5
    )
)
@settings(max_examples=150, deadline=None)
def test_a_bin_is_reached_exactly_where_a_choice_lies_in_it(choices: Choices) -> None:
    by_enumeration = {locality_bin(locality(choice)) for choice in product(*choices)}
    found = draws(choices, 3)
    assert set(found) == by_enumeration
    sampler = LocalitySampler(choices)
    assert all(sampler.draw(name, rng()) is None for name in set(BINS) - by_enumeration)
    for name, drawn in found.items():
        for choice in drawn:
            assert locality_bin(locality(choice)) == name
            assert all(placement in classes for placement, classes in zip(choice, choices, strict=True))


def test_draws_from_a_bin_with_many_choices_hardly_ever_repeat() -> None:
    found = draws(of(*["dp"] * 20, *["dp_pp"] * 10), 8)
    assert {name: len(set(drawn)) for name, drawn in found.items()} == {"low": 8, "medium": 8, "high": 8}


def test_all_choices_of_two_jobs_are_drawn_equally_often() -> None:
    # Two jobs near, in the middle or far: means 1 and 1.5 twice are low, 2 thrice is medium, 2.5 twice and 3 are high.
    found = draws([(NEAR, MIDDLE, FAR)] * 2, 300)
    for name, means in {"low": {1.0: 1, 1.5: 2}, "medium": {2.0: 3}, "high": {2.5: 2, 3.0: 1}}.items():
        counts = Counter(found[name])  # type: ignore[index]
        assert Counter(map(locality, counts)) == means
        assert all(abs(count - 100) < 33 for count in counts.values())  # four standard deviations


def test_the_medium_bin_of_a_single_fsdp_job_is_out_of_reach() -> None:
    assert set(draws(of("fsdp"), 3)) == {"low", "high"}  # scores 1, 1.5 and 2.5


def test_bins_that_blind_draws_never_hit_are_filled_for_two_hundred_jobs_at_once() -> None:
    # 200 jobs, near or far alike: a mean below 5/3 is nearly five standard deviations away.
    begin = time.process_time()
    found = draws([(NEAR, FAR)] * 200, 5)
    assert time.process_time() - begin < 0.5
    assert {name: {locality_bin(locality(choice)) for choice in drawn} for name, drawn in found.items()} == {
        name: {name} for name in BINS
    }


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
    assert draws(choices, 3, seed=1) == draws(choices, 3, seed=1)
    assert draws(choices, 3, seed=1) != draws(choices, 3, seed=2)


@pytest.mark.parametrize("choices", [[], [(NEAR,), ()]])
def test_no_job_and_a_job_without_a_class_are_refused(choices: Choices) -> None:
    with pytest.raises(OptionError, match="expected jobs, each with a placement class that it can have"):
        LocalitySampler(choices)
