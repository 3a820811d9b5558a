"""The allocator's view of a machine: made from a spec, cut down, and asked where a node is."""

from __future__ import annotations

import copy
import os
import pickle
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbench.allocators.topology import Group, Switch, Topology, TopologyError, from_system, irregular, usual_size
from dlbench.specs import SystemSpec, load_system

SMALL = Topology(
    "small",
    (
        Group("g0", (Switch("s0", ("a1", "a2")), Switch("s1", ("a3",)))),
        Group("g1", (Switch("s2", ("b1", "b2")),)),
    ),
    gpus_per_node=4,
)


def names(topology: Topology) -> dict[str, dict[str, list[str]]]:
    return {group.name: {switch.name: list(switch.nodes) for switch in group.switches} for group in topology.groups}


def with_topology(system: str, **changes: Any) -> SystemSpec:
    """A shipped system with another topology."""
    spec = load_system(system)
    return msgspec.structs.replace(spec, topology=msgspec.structs.replace(spec.topology, **changes))


def test_nodes_stand_in_the_order_of_switches_and_groups() -> None:
    assert SMALL.nodes == ("a1", "a2", "a3", "b1", "b2")
    assert [switch.name for switch in SMALL.switches] == ["s0", "s1", "s2"]
    assert [group.size for group in SMALL.groups] == [3, 2]
    assert SMALL.gpus == 20


def test_a_node_is_located_by_group_and_by_switch_within_the_group() -> None:
    assert [SMALL.location(node) for node in SMALL.nodes] == [(0, 0), (0, 0), (0, 1), (1, 0), (1, 0)]


def test_topologies_of_the_same_parts_are_equal_and_travel_between_processes() -> None:
    same = pickle.loads(pickle.dumps(SMALL))
    assert same == copy.deepcopy(SMALL) == SMALL
    assert hash(same) == hash(SMALL)
    assert same.location("b2") == (1, 0)


@pytest.mark.parametrize(
    ("groups", "gpus_per_node", "said"),
    [
        ((), 4, "topology t has no node; it needs one"),
        ((Group("g", (Switch("s", ()),)),), 4, "topology t has no node; it needs one"),
        ((Group("g", (Switch("s", ("n",)), Switch("r", ("n",)))),), 4, "expected every node once, found 'n' 2 times"),
        ((Group("g", (Switch("s", ("n",)),)),), 0, "topology t: expected 1 GPU per node or more, found 0"),
    ],
)
def test_what_is_no_machine_is_refused(groups: tuple[Group, ...], gpus_per_node: int, said: str) -> None:
    with pytest.raises(TopologyError, match=said):
        Topology("t", groups, gpus_per_node)


def test_keeping_nodes_keeps_the_order_of_the_topology_and_drops_what_is_empty() -> None:
    assert names(SMALL.restrict(keep=["b2", "a3", "a1"])) == {"g0": {"s0": ["a1"], "s1": ["a3"]}, "g1": {"s2": ["b2"]}}
    assert names(SMALL.restrict(keep=["b1"])) == {"g1": {"s2": ["b1"]}}


def test_dropping_nodes_leaves_the_others() -> None:
    assert names(SMALL.restrict(drop=["a3", "b1"])) == {"g0": {"s0": ["a1", "a2"]}, "g1": {"s2": ["b2"]}}
    assert names(SMALL.restrict(keep=["a1", "a3"], drop=["a1", "b1"])) == {"g0": {"s1": ["a3"]}}
    assert SMALL.restrict() == SMALL


def test_what_is_left_is_located_anew() -> None:
    left = SMALL.restrict(drop=["a1", "a2"])
    assert (left.location("a3"), left.location("b1")) == ((0, 0), (1, 0))
    with pytest.raises(TopologyError, match="topology small has no node 'a1'; its nodes are a3 to b2"):
        left.location("a1")


@pytest.mark.parametrize(
    ("keep", "drop", "said"),
    [
        ([], [], "topology small: no node is left of 5; keep one or more"),
        (["a1"], ["a1"], "no node is left of 5"),
        (None, ["a1", "a2", "a3", "b1", "b2"], "no node is left of 5"),
        (["a1", "b1", "a1"], [], "a list of nodes must name each once, found 'a1' 2 times"),
        (None, ["a1", "a1"], "a list of nodes must name each once, found 'a1' 2 times"),
        (["b9"], [], "topology small has no node 'b9'; its nodes are a1 to b2"),
        (["a1", "b9", "x"], [], r"topology small has no node 'b9' \(and 1 more\); its nodes are"),
        (None, ["login"], "topology small has no node 'login'; its nodes are a1 to b2"),
    ],
)
def test_a_wrong_list_of_nodes_is_one_line(keep: list[str] | None, drop: list[str], said: str) -> None:
    with pytest.raises(TopologyError, match=said):
        SMALL.restrict(keep, drop)


def test_an_unknown_node_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(TopologyError, match="topology nvl72 has no node 'g00s00n1'; did you mean 'g00s00n1[0-7]'"):
        from_system(load_system("nvl72")).restrict(drop=["g00s00n1"])


@given(st.sets(st.sampled_from(SMALL.nodes), min_size=1))
def test_keeping_some_is_dropping_the_others(kept: set[str]) -> None:
    left = SMALL.restrict(keep=sorted(kept))
    assert left == SMALL.restrict(drop=sorted(set(SMALL.nodes) - kept))
    assert left.nodes == tuple(node for node in SMALL.nodes if node in kept)
    for node in left.nodes:
        group, switch = left.location(node)
        assert node in left.groups[group].switches[switch].nodes
        assert all(switch.nodes for switch in left.switches)


def switches(*sizes: int) -> list[Switch]:
    return [Switch(f"s{index}", ("n",) * size) for index, size in enumerate(sizes)]


def test_the_usual_size_is_the_most_frequent_and_of_equals_the_larger() -> None:
    assert usual_size(switches(2, 10, 10, 9)) == 10
    assert usual_size(switches(8, 10, 8, 10)) == 10


def test_switches_and_groups_of_another_size_are_irregular() -> None:
    assert [switch.name for switch in irregular(switches(10, 8, 10, 10, 12))] == ["s1", "s4"]
    assert irregular(switches(10, 10)) == ()
    assert [group.name for group in irregular(SMALL.groups)] == ["g1"]


def test_leonardo_by_its_spec_is_19_groups_of_18_switches_of_10_nodes() -> None:
    leonardo = from_system(load_system("leonardo"))
    assert leonardo.name == "leonardo"
    assert [group.size for group in leonardo.groups] == [180] * 19
    assert [switch.size for switch in leonardo.switches] == [10] * (19 * 18)
    assert leonardo.gpus == 19 * 180 * 4
    assert (leonardo.nodes[0], leonardo.nodes[-1]) == ("g00s00n00", "g18s17n09")
    assert leonardo.groups[3].switches[7].name == "g03s07"
    assert leonardo.location("g03s07n02") == (3, 7)


def test_a_group_of_lumi_ends_with_a_switch_pair_that_is_half_full() -> None:
    lumi = from_system(load_system("lumi"))
    assert [switch.size for switch in lumi.groups[0].switches] == [8] * 15 + [4]
    assert lumi.gpus == 24 * 124 * 8


def test_a_rack_is_one_switch() -> None:
    rack = from_system(load_system("nvl72"))
    assert (len(rack.switches), len(rack.nodes), rack.gpus) == (1, 18, 72)


def test_the_first_gpus_of_a_system_fill_group_after_group_and_keep_their_names() -> None:
    part = from_system(load_system("leonardo"), gpus=4 * 195)
    assert [group.size for group in part.groups] == [180, 15]
    assert [switch.size for switch in part.groups[1].switches] == [10, 5]
    assert part.nodes == from_system(load_system("leonardo")).nodes[:195]


def test_switches_are_filled_evenly_where_only_their_number_is_known() -> None:
    spec = with_topology("jupiter", nodes_per_l1_switch=None, nodes_per_group=230)
    assert [switch.size for switch in from_system(spec).groups[0].switches] == [16] * 14 + [6]


def test_a_machine_of_another_size_is_made_by_saying_so() -> None:
    large = from_system(load_system("leonardo"), groups=139)
    assert large.gpus == 139 * 180 * 4
    assert large.nodes[-1] == "g138s17n09"
    alps = from_system(load_system("alps"), groups=2, nodes_per_group=8, nodes_per_switch=4)
    assert [switch.size for switch in alps.switches] == [4] * 4


def test_a_hundred_thousand_gpus_take_a_fraction_of_a_second() -> None:
    start = time.perf_counter()
    from_system(load_system("leonardo"), groups=139)
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize(
    ("system", "gpus", "said"),
    [
        ("leonardo", 13684, "system leonardo has 13680 GPUs; 13684 do not fit, use 1 or more of them"),
        ("leonardo", 0, "0 do not fit"),
        ("leonardo", 10, "10 GPUs are not whole nodes of system leonardo; use a multiple of 4, such as 12"),
        ("dgx-a100", 9, "system dgx-a100 has 8 GPUs; 9 do not fit"),
        ("local", 0, "topology local has no node"),
        ("local", 100_001, "system local would have 100001 nodes; use at most 100000"),
        ("alps", None, "system alps does not say its groups, nodes per group and nodes per L1 switch; use a file"),
    ],
)
def test_a_topology_that_cannot_be_is_one_line(system: str, gpus: int | None, said: str) -> None:
    with pytest.raises(TopologyError, match=said):
        from_system(load_system(system), gpus=gpus)


def test_a_spec_with_more_nodes_than_any_machine_is_refused_before_they_are_named() -> None:
    with pytest.raises(TopologyError, match="system leonardo would have 1800000000 nodes; use at most 100000"):
        from_system(load_system("leonardo"), groups=10**7)


def test_on_one_node_the_unit_of_placement_is_a_gpu() -> None:
    dgx = from_system(load_system("dgx-a100"))
    assert dgx.nodes == tuple(f"slot00{index}" for index in range(8))
    assert (len(dgx.groups), len(dgx.switches), dgx.gpus_per_node) == (1, 1, 1)
    assert from_system(load_system("dgx-a100"), gpus=2).nodes == ("slot000", "slot001")


def test_this_machine_has_a_slot_per_core_or_as_many_as_are_asked() -> None:
    assert len(from_system(load_system("local")).nodes) == len(os.sched_getaffinity(0))
    assert from_system(load_system("local"), gpus=12).nodes[-1] == "slot011"
