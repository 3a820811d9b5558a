"""The class that a list of nodes has: cases by hand, and the definitions word for word."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import machine, regular

from dlbench.allocators.achieved import achieved
from dlbench.allocators.classes import PlacementClass, PlacementError, Spread
from dlbench.allocators.topology import Topology, TopologyError

SMALL = machine([4, 4, 4], [4, 4, 4])


def under(places: str) -> list[str]:
    """The next free node under each of the switches in turn, such as `g0s0 g0s1`."""
    switches = places.split()
    return [f"{switch}n{switches[:index].count(switch)}" for index, switch in enumerate(switches)]


@pytest.mark.parametrize(
    ("switches", "tightest"),
    [
        ("g0s0", "intra-l1"),
        ("g0s0 g0s0 g0s0", "intra-l1"),
        ("g0s0 g0s1", "intra-group"),
        ("g0s0 g1s0", "inter-group"),
        ("g0s0 g0s0 g0s1", "intra-group-same-l1-2"),
        ("g0s0 g0s1 g0s1", "intra-group"),
        ("g0s0 g0s0 g0s1 g0s1", "intra-group-same-l1-2"),
        ("g0s0 g0s1 g0s0 g0s1", "intra-group"),
        ("g0s0 g0s0 g0s1 g0s1 g0s0 g0s0", "intra-group-same-l1-2"),
        ("g0s0 g0s0 g0s0 g0s0 g0s1", "intra-group-same-l1-4"),
        ("g0s0 g0s0 g0s0 g0s0 g0s1 g0s1 g0s1 g0s1 g0s2", "intra-group-same-l1-4"),
        ("g0s0 g0s0 g0s0 g0s1", "intra-group"),
        ("g0s0 g0s0 g0s0 g0s1 g0s1 g0s1", "intra-group"),
        ("g0s0 g0s0 g1s0 g1s0", "inter-group-same-l1-2"),
        ("g0s0 g0s0 g0s0 g0s0 g1s2 g1s2", "inter-group-same-l1-4"),
        ("g0s0 g0s0 g0s1 g1s0", "inter-group"),
        ("g0s0 g0s1 g0s2 g1s0", "inter-group"),
    ],
)
def test_the_tightest_class_of_the_paper_is_found(switches: str, tightest: str) -> None:
    assert str(achieved(SMALL, under(switches)).tightest) == tightest


def test_all_classes_that_a_list_satisfies_are_told_with_blocks_of_any_size() -> None:
    nodes = under("g0s0 g0s0 g0s0 g0s0 g0s1 g0s1")
    assert list(map(str, achieved(SMALL, nodes).classes)) == [
        "intra-group-same-l1-4",
        "intra-group-same-l1-2",
        "intra-group",
    ]
    nodes = under("g0s0 g0s0 g0s0 g1s1 g1s1 g1s1")
    assert list(map(str, achieved(SMALL, nodes).classes)) == ["inter-group-same-l1-3", "inter-group"]


def test_the_rank_order_counts() -> None:
    nodes = under("g0s0 g0s0 g0s1 g0s1")
    mixed = [nodes[0], nodes[2], nodes[1], nodes[3]]
    assert str(achieved(SMALL, mixed).tightest) == "intra-group"


def by_definition(topology: Topology, nodes: list[str]) -> set[str]:
    """The classes, each checked by the sentence that defines it."""
    places = [topology.location(node) for node in nodes]
    if len(set(places)) == 1:
        return {"intra-l1"}
    spread = "intra-group" if len({group for group, _ in places}) == 1 else "inter-group"
    blocks = {
        f"{spread}-same-l1-{size}"
        for size in range(2, len(nodes))
        if all(len(set(places[start : start + size])) == 1 for start in range(0, len(nodes), size))
    }
    return {spread} | blocks


@given(st.permutations(regular(2, 3, 4).nodes), st.integers(1, 24), st.booleans())
def test_classes_are_those_of_the_definitions(nodes: list[str], count: int, ordered: bool) -> None:
    topology = regular(2, 3, 4)
    chosen = sorted(nodes[:count]) if ordered else nodes[:count]
    found = achieved(topology, chosen)
    assert {str(placement) for placement in found.classes} == by_definition(topology, chosen)
    assert found.tightest in found.classes


@given(st.integers(1, 24))
def test_whole_switches_in_order_are_as_tight_as_blocks_can_be(count: int) -> None:
    found = achieved(regular(2, 3, 4), regular(2, 3, 4).nodes[:count]).tightest
    if count <= 4:
        assert found == PlacementClass(Spread.L1)
    else:
        assert found == PlacementClass(Spread.GROUP if count <= 12 else Spread.ACROSS, 4)


def test_an_unknown_node_is_refused_by_its_name() -> None:
    with pytest.raises(TopologyError, match="topology made has no node 'g0s0n9'; did you mean"):
        achieved(SMALL, ["g0s0n0", "g0s0n9"])


def test_a_node_that_is_listed_twice_is_refused() -> None:
    with pytest.raises(PlacementError) as error:
        achieved(SMALL, ["g0s0n0", "g0s1n0", "g0s0n0"])
    assert str(error.value) == "node 'g0s0n0' is listed twice; expected every node of a job once"


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(PlacementError) as error:
        achieved(SMALL, [])
    assert str(error.value) == "a list of no nodes has no placement class; expected one node or more"


def test_ten_thousand_nodes_are_classified_at_once() -> None:
    large = regular(10, 100, 10)
    nodes = list(np.random.default_rng(1).permutation(large.nodes))
    assert str(achieved(large, nodes).tightest) == "inter-group"
