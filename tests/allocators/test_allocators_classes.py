"""Placement classes: their names, their scores in the paper, what they need, and the bins of their mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbench.allocators.classes import (
    PAPER_CLASSES,
    PlacementClass,
    PlacementError,
    Spread,
    bin_bounds,
    locality,
    locality_bin,
)
from dlbench.errors import OptionError

SCORES = {
    "intra-l1": 1.0,
    "intra-group-same-l1-4": 1.2,
    "intra-group-same-l1-2": 1.5,
    "intra-group": 2.0,
    "inter-group-same-l1-4": 2.25,
    "inter-group-same-l1-2": 2.5,
    "inter-group": 3.0,
}


def test_the_seven_classes_have_the_scores_of_the_paper_nearest_first() -> None:
    assert {str(placement): placement.score for placement in PAPER_CLASSES} == SCORES
    assert list(SCORES.values()) == sorted(SCORES.values())


@pytest.mark.parametrize("name", [*SCORES, "intra-group-same-l1-3", "inter-group-same-l1-16"])
def test_a_class_is_written_as_it_is_read(name: str) -> None:
    assert str(PlacementClass.parse(name)) == name


def test_the_name_tells_spread_and_block() -> None:
    assert PlacementClass.parse("inter-group-same-l1-16") == PlacementClass(Spread.ACROSS, 16)
    assert PlacementClass.parse("intra-group") == PlacementClass(Spread.GROUP, 1)


@pytest.mark.parametrize(
    "name", ["intra_l1", "", "intra-l1-same-l1-2", "intra-group-same-l1-1", "inter-group-same-l1-"]
)
def test_an_unknown_class_is_answered_with_those_that_there_are(name: str) -> None:
    with pytest.raises(OptionError) as error:
        PlacementClass.parse(name)
    assert str(error.value) == (
        f"unknown placement class {name!r}; valid: intra-l1, intra-group-same-l1-4, intra-group-same-l1-2, "
        "intra-group, inter-group-same-l1-4, inter-group-same-l1-2, inter-group, "
        "or another number of 2 or more at the end"
    )


@given(st.integers(1, 1000), st.sampled_from([Spread.GROUP, Spread.ACROSS]))
def test_larger_blocks_are_never_farther(block: int, spread: Spread) -> None:
    assert PlacementClass(spread, block + 1).score <= PlacementClass(spread, block).score


@given(st.integers(1, 1000), st.integers(1, 1000))
def test_no_class_within_a_group_is_as_far_as_one_across_groups(one: int, other: int) -> None:
    assert 1 < PlacementClass(Spread.GROUP, one).score <= 2 < PlacementClass(Spread.ACROSS, other).score <= 3


@pytest.mark.parametrize(
    ("name", "nodes", "message"),
    [
        ("intra-l1", 0, "job a: 0 nodes are impossible; use 1 or more"),
        ("intra-group", 1, "job a: intra-group needs 2 nodes or more; one node is intra-l1"),
        ("inter-group", 1, "job a: inter-group needs 2 nodes or more; one node is intra-l1"),
        (
            "intra-group-same-l1-4",
            4,
            "job a: intra-group-same-l1-4 needs 5 nodes or more; 4 nodes under one L1 switch are intra-l1",
        ),
    ],
)
def test_a_size_that_cannot_be_of_the_class_is_refused_with_the_reason(name: str, nodes: int, message: str) -> None:
    with pytest.raises(PlacementError) as error:
        PlacementClass.parse(name).check("a", nodes)
    assert str(error.value) == message


@pytest.mark.parametrize(("name", "nodes"), [("intra-l1", 1), ("intra-group", 2), ("inter-group-same-l1-4", 5)])
def test_the_smallest_job_of_a_class_is_fine(name: str, nodes: int) -> None:
    PlacementClass.parse(name).check("a", nodes)


def test_locality_is_the_mean_score() -> None:
    assert locality(map(PlacementClass.parse, ["intra-l1", "intra-group", "inter-group", "inter-group"])) == 2.25


@pytest.mark.parametrize(
    ("mean", "name"),
    [(1.0, "low"), (1.6, "low"), (5 / 3, "medium"), (2.3, "medium"), (7 / 3, "high"), (3.0, "high")],
)
def test_bins_are_the_thirds_from_1_to_3(mean: float, name: str) -> None:
    assert locality_bin(mean) == name


def test_the_bounds_of_the_bins_are_those_thirds() -> None:
    assert [bin_bounds(name) for name in ("low", "medium", "high")] == [
        pytest.approx(bounds) for bounds in [(1, 5 / 3), (5 / 3, 7 / 3), (7 / 3, 3)]
    ]
