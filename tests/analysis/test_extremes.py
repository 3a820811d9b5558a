"""Extreme value fits of block times: what they estimate, predict, check, warn of and refuse."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dlbench.analysis.block_times import BlockTimes
from dlbench.analysis.extremes import GEV, GUMBEL, HEAVY, LIGHT, OPEN, Extremes, Prediction, extremes
from dlbench.analysis.samples import Estimate
from dlbench.errors import OptionError, UserError

Cube = NDArray[np.float64]
"""x[c, j, r] in seconds."""


def normal(*shape: int, seed: int = 1) -> Cube:
    return np.random.default_rng(seed).normal(1.0, 0.1, size=shape)


def fitted(cube: Cube, **options: Any) -> Extremes:
    return extremes(BlockTimes.of_array(cube), **options)


def prediction(found: Extremes, ranks: int, distribution: str) -> Prediction:
    (only,) = [each for each in found.predictions if (each.ranks, each.distribution) == (ranks, distribution)]
    return only


def test_block_time_and_spread_are_the_mean_and_the_standard_deviation_of_each_block() -> None:
    cube = normal(3, 20, 8) * np.array([1.0, 2.0, 5.0])[:, np.newaxis, np.newaxis]
    found = fitted(cube)
    assert found.block_seconds.value == pytest.approx(cube.mean())
    assert found.spread.value == pytest.approx(np.mean([block.std(ddof=1) for block in cube]))


def test_the_spread_within_instances_leaves_aside_how_they_differ() -> None:
    cube = normal(1, 40, 8) + np.arange(40.0)[np.newaxis, :, np.newaxis]
    found = fitted(cube, centring="instance")
    assert found.spread.value == pytest.approx(math.sqrt(cube.var(axis=2, ddof=1).mean()))
    assert fitted(cube).spread.value == pytest.approx(cube.std(ddof=1))


def test_one_instance_has_a_maximum_per_disjoint_group() -> None:
    found = fitted(normal(2, 20, 11), group_size=4)  # two groups of 4, and 3 ranks over
    assert len(found.maxima) == 2 * 20 * 2
    assert (np.diff(found.maxima) >= 0).all()


def test_the_scores_of_groups_of_all_ranks_are_those_of_the_definition() -> None:
    cube = normal(1, 30, 4)
    scores = (cube[0].max(axis=1) - cube.mean()) / cube.std(ddof=1)
    assert fitted(cube).maxima == pytest.approx(np.sort(scores))
    within = math.sqrt(cube.var(axis=2, ddof=1).mean())
    scores = (cube[0].max(axis=1) - cube[0].mean(axis=1)) / within
    assert fitted(cube, centring="instance").maxima == pytest.approx(np.sort(scores))


@pytest.mark.parametrize("centring", ["pooled", "instance"])
def test_in_groups_of_the_fitted_size_the_prediction_is_the_measured_mean_wait(centring: str) -> None:
    cube = normal(1, 30, 8)
    found = fitted(cube, centring=centring)
    for name in (GUMBEL, GEV):
        each = prediction(found, 4, name)
        # L-moments keep the mean, and the means of the groups average to that of all ranks.
        assert each.tau.value == pytest.approx(each.measured.value)
        assert each.error.value == pytest.approx(0, abs=1e-9)


def test_the_measured_wait_of_all_ranks_is_the_largest_block_time_less_the_mean() -> None:
    cube = normal(2, 20, 16)
    found = fitted(cube)
    waits = (cube.max(axis=2) - cube.mean(axis=2)).mean()
    assert prediction(found, 16, GEV).measured.value == pytest.approx(waits)
    assert math.isnan(prediction(found, 32, GEV).measured.value)


def test_the_waits_in_the_collectives_stand_beside_the_prediction_for_all_ranks() -> None:
    times = BlockTimes.of_array(normal(1, 40, 8))
    times.waits[:] = np.linspace(0.1, 0.3, 40)
    found = extremes(times)
    assert prediction(found, 8, GUMBEL).waits == pytest.approx(0.2)
    assert math.isnan(prediction(found, 4, GUMBEL).waits)


def test_of_normal_block_times_the_gev_predicts_64_ranks_and_gumbel_overestimates() -> None:
    found = fitted(normal(4, 40, 64), predict=[64])
    gev, gumbel = prediction(found, 64, GEV), prediction(found, 64, GUMBEL)
    assert abs(gev.error.value) < 0.03
    assert gumbel.error.low > 0.05
    assert found.tail == LIGHT
    light = "Gumbel overestimates: the tail is light (ξ below 0), so expect shorter waits than it predicts"
    assert gumbel.reason == found.fits[GUMBEL].reason == light
    assert gev.reason == ""
    # 64 normal ranks wait 2.3439 standard deviations on average.
    assert gev.tau.value == pytest.approx(0.23439, rel=0.05)


def test_gumbel_is_called_a_lower_bound_where_the_shape_is_above_0_with_its_interval() -> None:
    found = fitted(np.random.default_rng(2).pareto(3, size=(4, 60, 32)))
    assert found.fits[GEV].shape.low > 0
    assert found.tail == HEAVY
    heavy = "Gumbel is a lower bound: the tail is heavy (ξ above 0), so expect waits as long as it predicts, or longer"
    assert prediction(found, 8, GUMBEL).reason == found.fits[GUMBEL].reason == heavy


@pytest.mark.parametrize("parent", ["normal", "pareto"])
def test_up_to_twice_the_fitted_groups_both_fits_predict_the_same(parent: str) -> None:
    """The mean of the larger of two draws is λ1 + λ2, whatever the shape."""
    cube = normal(1, 40, 12) if parent == "normal" else np.random.default_rng(2).pareto(3, size=(1, 40, 12))
    found = fitted(cube, predict=[4, 8, 12])
    tau = {(each.ranks, each.distribution): each.tau.value for each in found.predictions}
    assert tau[4, GUMBEL] == pytest.approx(tau[4, GEV])
    assert tau[8, GUMBEL] == pytest.approx(tau[8, GEV])
    assert tau[12, GUMBEL] != pytest.approx(tau[12, GEV], rel=1e-3)


@pytest.mark.parametrize(
    ("ranks", "way"), [(4, "a run of more ranks"), (5, "--group-size 2"), (8, "--group-size 2"), (9, None)]
)
def test_ranks_that_cannot_tell_which_fit_is_right_are_a_note_that_says_what_can(ranks: int, way: str | None) -> None:
    same = "block times: up to 2 times the fitted groups, Gumbel and GEV predict the same"
    said = [f"{same}, so {ranks} ranks cannot tell which is right; {way} can"] if way else []
    assert list(fitted(normal(1, 40, ranks)).notes) == said


def test_blocks_whose_tails_differ_are_a_note_with_the_error_at_the_fitted_size() -> None:
    wide = 10 * np.random.default_rng(3).uniform(size=(1, 60, 12))
    narrow = 0.1 * np.random.default_rng(4).pareto(2.5, size=(1, 60, 12))
    found = fitted(np.concatenate([wide, narrow]))
    error = prediction(found, 4, GEV).error.value
    assert abs(error) > 0.05
    said = "blocks of more spread have other tails than those of less, so predictions start"
    assert found.notes == (
        f"block times: {said} {100 * abs(error):.0f} % too {'high' if error > 0 else 'low'} in groups of the fitted "
        "size",
    )


def test_a_tail_that_is_heavy_by_what_ranks_share_makes_no_bound_of_gumbel() -> None:
    """Some iterations are ten times as long on all ranks: the maxima are heavy, the waits are not."""
    slow = np.random.default_rng(5).lognormal(0, 1.2, size=(1, 60, 1))
    cube = slow * np.random.default_rng(6).normal(1, 0.1, size=(4, 60, 32))
    found = fitted(cube)
    assert found.tail == HEAVY
    gumbel = prediction(found, 32, GUMBEL)
    assert gumbel.error.low > 0
    assert gumbel.reason.startswith("Gumbel is no bound: measured waits are shorter than it predicts")
    (note,) = found.notes
    common, hint = note.split(", ")
    assert re.fullmatch(
        r"block times: 9\d % of the variance of block times is common to the ranks of an instance", common
    )
    assert hint == "so nobody waits for it; dlbench extremes --centring instance leaves it out"
    apart = fitted(cube, centring="instance")
    assert not any("centring" in said for said in (*apart.notes, *(each.reason for each in apart.predictions)))
    assert abs(prediction(apart, 32, GEV).error.value) < abs(prediction(found, 32, GEV).error.value)


def rare_and_frequent(instances: int) -> Cube:
    """Of 4 ranks one always takes 1 s longer in block 0, and in every tenth instance one takes 100 s longer in block 1.

    Shape (2, instances, 4).
    """
    cube = np.zeros((2, instances, 4))
    cube[0, :, 0] = 1.0
    cube[1, ::10, 0] = 100.0
    return cube


@pytest.mark.parametrize("predict", [[], [64]])
def test_gumbel_is_no_bound_where_groups_of_the_fitted_size_wait_less_than_it_predicts(predict: list[int]) -> None:
    found = fitted(rare_and_frequent(120), predict=predict)
    assert found.tail == HEAVY
    no_bound = "Gumbel is no bound: measured waits are shorter than it predicts, although the tail looks heavy"
    assert found.fits[GUMBEL].reason == no_bound
    assert all(no_bound in each.reason for each in found.predictions if each.distribution == GUMBEL)
    assert {each.ranks for each in found.predictions} == set(predict or [4, 8, 16, 32, 64])


def test_the_error_at_the_fitted_size_is_that_of_one_sample_of_scores() -> None:
    """Shares of slow ranks are 1/4 and 1/40, so s is √3 / 4 and 100 √39 / 40; maxima lie at √3, and at √39 or −1/√39.

    The waits are 3/4 s, and 97.5 s in a tenth of the instances of block 1, where maxima of the others are 0 s:
    10 − 2.5 = 7.5 s.
    """
    scores = (math.sqrt(3) + 0.1 * math.sqrt(39) - 0.9 / math.sqrt(39)) / 2
    spread = (math.sqrt(3) / 4 + 100 * math.sqrt(39) / 40) / 2
    each = prediction(fitted(rare_and_frequent(120)), 4, GUMBEL)
    assert each.measured.value == pytest.approx((0.75 + 7.5) / 2)
    assert each.error.value == pytest.approx(spread * scores / 4.125 - 1)
    assert each.error.low > 0


def test_an_interval_that_was_widened_to_its_estimate_is_told_from_others() -> None:
    found = fitted(np.random.default_rng(3).pareto(1.5, size=(30, 8, 4)), predict=[64])
    assert found.fits[GEV].shape.one_sided
    assert prediction(found, 64, GEV).tau.one_sided
    (note,) = (note for note in found.notes if "resamples" in note)
    assert re.fullmatch(
        r"block times: intervals? of .*GEV ξ.* ends? at the estimate: nearly all resamples lie on one side of it", note
    )
    for each in found.predictions:
        assert each.tau.one_sided == ("interval of wait ends at the estimate" in each.reason)
    assert not any("resamples" in note for note in fitted(normal(1, 40, 12)).notes)


@pytest.mark.parametrize(
    ("estimate", "one_sided"),
    [
        (Estimate(1.0, 1.0, 2.0), True),
        (Estimate(1.0, 0.5, 1.0), True),
        (Estimate(1.0, 0.5, 2.0), False),
        (Estimate(0.0, 0.0, 0.0), False),
        (Estimate(2e-16, 1e-16, 2e-16), False),  # rounding
        (Estimate(1.0), False),
        (Estimate(math.nan), False),
    ],
)
def test_one_sided_intervals_end_at_the_estimate(estimate: Estimate, one_sided: bool) -> None:
    assert estimate.one_sided == one_sided


def test_where_the_interval_of_the_shape_holds_0_gumbel_is_no_bound() -> None:
    found = fitted(np.random.default_rng(3).standard_t(5, size=(1, 40, 8)))
    shape = found.fits[GEV].shape
    assert shape.low < 0 < shape.high
    assert found.tail == OPEN
    said = "Gumbel is no bound: the interval of ξ holds 0, so waits may be shorter or longer than it predicts"
    assert prediction(found, 8, GUMBEL).reason == said


def test_beyond_16_times_the_fitted_groups_a_prediction_is_called_an_extrapolation() -> None:
    found = fitted(normal(1, 40, 8), predict=[64, 68])
    assert "extrapolation" not in prediction(found, 64, GEV).reason
    far = prediction(found, 68, GEV)
    assert far.reason.startswith("an extrapolation beyond k = 16")
    assert far.tau.low < far.tau.value < far.tau.high


def test_a_tail_without_a_mean_predicts_nothing_by_likelihood_and_says_so() -> None:
    found = fitted(1e-6 * np.random.default_rng(4).pareto(0.5, size=(1, 100, 16)), centring="instance", predict=[16])
    assert float(found.fits[GEV].likelihood.shape) < 1  # z-scores of an instance are bounded
    found = fitted(1e-6 * np.random.default_rng(4).pareto(0.4, size=(1, 400, 4)), predict=[16])
    assert float(found.fits[GEV].likelihood.shape) >= 1
    each = prediction(found, 16, GEV)
    assert math.isnan(each.likelihood)
    assert "by likelihood the shape ξ is 1 or more: such a tail has no mean" in each.reason


def test_by_default_groups_double_up_to_16_times_and_hold_all_ranks() -> None:
    assert [each.ranks for each in fitted(normal(1, 40, 24)).predictions][::2] == [4, 8, 16, 24, 32, 64]


def test_predictions_scale_with_the_unit_of_time() -> None:
    cube = normal(2, 30, 16)
    seconds, milliseconds = fitted(cube), fitted(1000 * cube)
    for one, other in zip(seconds.predictions, milliseconds.predictions, strict=True):
        assert np.array(other.tau) == pytest.approx(1000 * np.array(one.tau))
        assert np.array(other.error) == pytest.approx(np.array(one.error), nan_ok=True, abs=1e-9)


def test_blocks_of_different_length_are_one_sample_of_z_scores() -> None:
    cube = normal(1, 60, 16)
    scaled = np.concatenate([cube, 10 * cube + 3])
    assert fitted(scaled).fits[GEV].shape.value == pytest.approx(fitted(cube).fits[GEV].shape.value, abs=0.1)


def test_what_all_ranks_of_an_instance_share_is_no_matter_with_instance_centring() -> None:
    cube = normal(1, 60, 16)
    slow = cube + np.random.default_rng(9).normal(0, 1, size=(1, 60, 1))
    same, moved = (fitted(each, centring="instance") for each in (cube, slow))
    assert prediction(moved, 64, GEV).tau.value == pytest.approx(prediction(same, 64, GEV).tau.value)
    assert fitted(slow).spread.value > 5 * same.spread.value


def test_the_same_seed_gives_the_same_numbers_and_another_does_not() -> None:
    cube = normal(1, 40, 16)
    first, again, other = (fitted(cube, seed=seed) for seed in (0, 0, 1))
    assert _equal(first, again)
    assert not _equal(first, other)


def _equal(one: Extremes, other: Extremes) -> bool:
    pairs = zip(one.predictions, other.predictions, strict=True)
    return all(np.array_equal(a.tau, b.tau) for a, b in pairs)


def test_slow_iterations_are_resampled_as_a_whole() -> None:
    """Blocks of an iteration that are slow together leave the interval as wide as one block would."""
    slow = np.abs(np.random.default_rng(5).normal(1, 0.3, size=(1, 30, 1)))
    cube = slow * np.random.default_rng(6).normal(1, 0.1, size=(10, 30, 8))
    together = BlockTimes.of_array(cube)
    apart = BlockTimes.of_array(cube)
    apart.iteration[:] = np.arange(len(apart))
    widths = [each.block_seconds.high - each.block_seconds.low for each in map(extremes, (together, apart))]
    assert widths[0] > 2 * widths[1]


def test_intervals_hold_the_true_wait_about_as_often_as_they_say() -> None:
    """Normal ranks in groups of 8 wait 1.42360 standard deviations; the GEV of groups of 4 is right there to 1 %."""
    held = 0
    for seed in range(25):
        tau = prediction(fitted(normal(1, 40, 16, seed=100 + seed), predict=[8]), 8, GEV).tau
        held += tau.low < 0.142360 < tau.high
    assert held >= 20


def test_where_iterations_are_too_few_their_blocks_are_taken_as_independent_and_that_is_said() -> None:
    found = fitted(normal(20, 5, 12))
    said = "block times: fewer than 6 iterations: intervals take blocks as independent"
    assert found.notes == (said,)
    assert found.spread.low < found.spread.value < found.spread.high
    assert fitted(normal(20, 6, 12)).notes == ()


@pytest.mark.filterwarnings("error")
@settings(max_examples=15, deadline=None)
@given(
    ranks=st.integers(2, 9),
    instances=st.integers(30, 40),
    digits=st.integers(0, 3),
    heavy=st.booleans(),
    centring=st.sampled_from(["pooled", "instance"]),
    seed=st.integers(0, 1000),
)
def test_whatever_was_measured_there_is_a_fit_or_one_line(
    ranks: int, instances: int, digits: int, heavy: bool, centring: str, seed: int
) -> None:
    """Times of few digits are equal on several ranks; those of a heavy tail spread over many decades."""
    generator = np.random.default_rng(seed)
    cube = generator.pareto(0.3, (1, instances, ranks)) if heavy else generator.gamma(2.0, size=(1, instances, ranks))
    try:
        found = fitted(np.round(cube, digits), group_size=2, centring=centring)
    except UserError as error:
        assert "\n" not in str(error)
        return
    for each in found.predictions:
        # The longest time can be that of a rank which fills no group.
        assert each.tau.value > 0 or ranks % 2
        assert not each.tau.low > each.tau.value
        assert not each.tau.high < each.tau.value


@pytest.mark.parametrize(
    ("cube", "said"),
    [
        (normal(1, 29, 4), "block times: 29 blocks were measured; a tail takes 30 or more"),
        (normal(2, 40, 1), "block times: block times of one rank, which waits for nobody; give those of a group"),
        (
            np.ones((2, 40, 4)),
            "block times: all ranks have the same block times, so nobody waits and there is no tail",
        ),
        (
            np.where(np.arange(320).reshape(2, 40, 4) == 166, np.nan, normal(2, 40, 4)),
            "block times: block 1, rank 2 of the group: nan is no block time; leave it out",
        ),
        (
            np.where(np.arange(320).reshape(2, 40, 4) == 3, 1e300, normal(2, 40, 4)),
            "block times: block 0, rank 3 of the group: 1e+300 is no block time; leave it out",
        ),
        (
            np.where(np.arange(320).reshape(2, 40, 4) == 0, np.inf, normal(2, 40, 4)),
            "block times: block 0, rank 0 of the group: inf is no block time; leave it out",
        ),
        (
            np.concatenate([np.ones((1, 40, 4)), normal(1, 40, 4)])[:, :29],
            "block times: 29 blocks differ between ranks; a tail takes 30 or more",
        ),
    ],
)
def test_block_times_that_allow_no_fit_are_refused_in_one_line(cube: Cube, said: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(said)}$"):
        fitted(cube)


def test_a_block_that_always_takes_the_same_time_is_left_out_and_said() -> None:
    alone = normal(1, 40, 12)
    found = fitted(np.concatenate([np.full((1, 40, 12), 0.5), alone]))
    assert found.notes == ("block times: block 0 takes the same time on all ranks and was left out",)
    assert found.spread.value == pytest.approx(fitted(alone).spread.value)


def test_an_array_of_another_shape_is_refused() -> None:
    with pytest.raises(
        UserError, match=re.escape("times: block times have shape (blocks, instances, ranks), not (4, 8)")
    ):
        BlockTimes.of_array(np.ones((4, 8)), "times")


def test_two_ranks_can_only_be_fitted_as_a_pair() -> None:
    said = "block times: groups of 4 ranks cannot be made of 2; use --group-size 2"
    with pytest.raises(OptionError, match=f"^{said}$"):
        fitted(normal(1, 40, 2))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"group_size": 1}, "group size 1 is impossible: a rank waits for another; use 2 or more"),
        ({"group_size": 9}, "block times: groups of 9 ranks cannot be made of 8; use --group-size 8 or less"),
        ({"predict": [8, 2]}, "2 ranks are less than the fitted groups of 4; predict 4 or more"),
    ],
)
def test_impossible_groups_are_refused_in_one_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=f"^{re.escape(said)}$"):
        fitted(normal(1, 40, 8), **options)
