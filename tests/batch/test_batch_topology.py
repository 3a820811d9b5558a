"""Topologies from `scontrol show topology` and topology.conf: small ones by hand, and that of Leonardo."""

from __future__ import annotations

from pathlib import Path

import pytest
from shared_data import shared_file

from dlbench.allocators.topology import Topology, TopologyError, irregular
from dlbench.errors import UserError
from dlbench.slurm.topology_conf import TOP, parse_topology, read_topology

TREE = """\
SwitchName=core Level=2 LinkSpeed=1 Nodes=n[1-8] Switches=g[0-1]
SwitchName=g0 Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=l[0-1]
SwitchName=g1 Level=1 LinkSpeed=1 Nodes=n[5-8] Switches=l[2-3]
SwitchName=l0 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=l1 Level=0 LinkSpeed=1 Nodes=n[3-4]
SwitchName=l2 Level=0 LinkSpeed=1 Nodes=n[5-6]
SwitchName=l3 Level=0 LinkSpeed=1 Nodes=n[7-8]
"""

Shape = dict[str, dict[str, str]]

TREE_SHAPE: Shape = {"g0": {"l0": "n1 n2", "l1": "n3 n4"}, "g1": {"l2": "n5 n6", "l3": "n7 n8"}}


def parsed(text: str) -> Topology:
    return parse_topology(text, gpus_per_node=4, source="topology.conf")


def shape(text: str) -> Shape:
    """Nodes by switch by group."""
    groups = parsed(text).groups
    return {group.name: {switch.name: " ".join(switch.nodes) for switch in group.switches} for group in groups}


def fault(text: str) -> str:
    with pytest.raises(TopologyError) as error:
        parsed(text)
    return str(error.value)


def test_the_switches_above_the_leaves_are_the_groups_whatever_is_above_them() -> None:
    assert shape(TREE) == TREE_SHAPE
    assert parsed(TREE).name == "topology.conf"
    assert parsed(TREE).gpus == 32


def test_topology_conf_says_the_same_without_levels_and_in_any_order_of_keys_and_case() -> None:
    text = """
    # two groups
    switchname=l0 NODES=n[1-2]
    Nodes=n[3-4] SwitchName=l1   # the second leaf
    SWITCHNAME = l2  Nodes = "n[5-6]" LinkSpeed=100
    SwitchName=l3 \\
        Nodes=n[7,\\
8]
    SwitchName=g0 Switches=l0,l1
    SwitchName=g1 Switches=l[2-3]
    SwitchName=core Switches=g0,g1
    """
    assert shape(text) == TREE_SHAPE


def test_line_ends_of_windows_and_a_last_line_without_one_are_fine() -> None:
    assert shape(TREE.replace("\n", "\r\n").rstrip()) == TREE_SHAPE


def test_an_empty_value_is_no_value() -> None:
    assert shape("SwitchName=g Nodes= Switches=l\nSwitchName=l Nodes=n1 Switches=\n") == {"g": {"l": "n1"}}


def test_leaf_switches_under_nothing_are_one_group() -> None:
    assert shape("SwitchName=a Nodes=n[1-2]\nSwitchName=b Nodes=n3") == {TOP: {"a": "n1 n2", "b": "n3"}}


def test_leaf_switches_under_nothing_do_not_mix_with_a_switch_of_the_groups_name() -> None:
    groups = parsed(f"SwitchName=a Nodes=n1\nSwitchName=b Nodes=n2\nSwitchName={TOP} Switches=b").groups
    assert [[switch.name for switch in group.switches] for group in groups] == [["a"], ["b"]]


def test_one_switch_above_the_leaves_is_one_group() -> None:
    assert shape("SwitchName=t Switches=a,b\nSwitchName=a Nodes=n1\nSwitchName=b Nodes=n2") == {
        "t": {"a": "n1", "b": "n2"}
    }


def test_leaves_at_different_depths_belong_to_what_is_right_above_them() -> None:
    text = "SwitchName=t Switches=a,g\nSwitchName=g Switches=b\nSwitchName=a Nodes=n1\nSwitchName=b Nodes=n2"
    assert shape(text) == {"t": {"a": "n1"}, "g": {"b": "n2"}}


def test_a_node_under_two_switches_hangs_on_the_pair() -> None:
    text = """\
SwitchName=x0 Nodes=n[1-4]
SwitchName=x1 Nodes=n[1-4]
SwitchName=x2 Nodes=n[5-8]
SwitchName=x3 Nodes=n[5-8]
SwitchName=g0 Switches=x[0-3]
"""
    assert shape(text) == {"g0": {"x0+x1": "n1 n2 n3 n4", "x2+x3": "n5 n6 n7 n8"}}


def test_nodes_on_one_switch_of_a_pair_only_are_not_on_the_pair() -> None:
    text = "SwitchName=a Nodes=n[1-3]\nSwitchName=b Nodes=n[2-4]\nSwitchName=g Switches=a,b"
    assert shape(text) == {"g": {"a": "n1", "a+b": "n2 n3", "b": "n4"}}


def test_leaves_under_two_spines_are_one_group() -> None:
    text = "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n2\nSwitchName=s0 Switches=a,b\nSwitchName=s1 Switches=a,b"
    assert shape(text) == {"s0+s1": {"a": "n1", "b": "n2"}}


EXPECTED = "expected 'SwitchName=NAME Nodes=LIST' or 'SwitchName=NAME Switches=LIST'"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", f"topology.conf: has no switch with nodes; {EXPECTED}"),
        ("# nothing\n", "has no switch with nodes"),
        ("\n\nSwitchName=a", f"topology.conf: line 3: has no Nodes or Switches; {EXPECTED}"),
        ("Nodes=n1", f"line 1: has no SwitchName; {EXPECTED}"),
        ("SwitchName=a Nodes=n1\nrubbish on a line", f"line 2: {EXPECTED}, found 'rubbish on a line'"),
        ("SwitchName=a Nodes=n1 n2", "line 1: expected 'SwitchName=NAME Nodes=LIST'"),
        ("SwitchName=a Nodes=n1 n2", "found 'n2'"),
        ('SwitchName=a Nodes="n1', "found 'Nodes=\"n1'"),
        ("SwitchName=a Noodes=n1", "line 1: unknown key Noodes; did you mean Nodes?"),
        ("BlockName=b1 Nodes=n1", "unknown key BlockName; valid are SwitchName, Nodes, Switches, Level, LinkSpeed"),
        ("SwitchName=a Nodes=n1 nodes=n2", "line 1: Nodes stands twice; write it once"),
        ("SwitchName=a Nodes=n[3-1]", "line 1: at Nodes: host list 'n[3-1]', character 3: the range 3-1 descends"),
        ("SwitchName=a Nodes=n[1-3],n2", "line 1: Nodes has n2 twice; name it once"),
        ("SwitchName=a Nodes=n1\n\n#\nSwitchName=a Nodes=n2", "line 4: switch a has a line already; merge it with"),
        (
            "SwitchName=a Nodes=n1\nSwitchName=g Switches=a,isw1",
            "line 2: Switches names isw1, which has no line; valid are a, g",
        ),
        (
            "SwitchName=leaf0 Nodes=n1\nSwitchName=g Switches=lef0",
            "line 2: Switches names lef0, which has no line; did you mean leaf0?",
        ),
        (
            "SwitchName=x Nodes=n1\nSwitchName=a Switches=b\nSwitchName=b Switches=a",
            "a switch is beneath itself: a > b > a",
        ),
        (
            "SwitchName=a Nodes=n[1-2]\nSwitchName=g Switches=a Nodes=n[1-3]",
            "line 2: n3 is under g but under none of its Switches; name it in the Nodes of one of them",
        ),
    ],
)
def test_a_malformed_file_is_one_line_with_its_number_and_what_would_be_right(text: str, said: str) -> None:
    assert said in fault(text)
    assert "\n" not in fault(text)


def test_a_fault_in_continued_lines_is_at_the_first_of_them() -> None:
    assert "line 2: unknown key Nods" in fault("# one\nSwitchName=a \\\n  Nods=n1")


def test_an_edge_of_a_thousand_switches_is_not_listed_in_an_error() -> None:
    leaves = "\n".join(f"SwitchName=s{index} Nodes=n{index}" for index in range(1000))
    assert "valid are s0, s1, s2, s3, s4, …" in fault(f"{leaves}\nSwitchName=g Switches=qqq")


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "no such file or directory"), (b"\xff\xfe", "not UTF-8 text (byte 0)"), (b"", "has no switch with nodes")],
)
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "topology.conf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match="topology.conf: ") as error:
        read_topology(path, gpus_per_node=4)
    assert said in str(error.value)


def test_a_folder_is_no_topology(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a directory; name a file with SLURM's output"):
        read_topology(tmp_path, gpus_per_node=4)


@pytest.fixture(scope="module")
def leonardo() -> Topology:
    return read_topology(shared_file("topologies/leonardo_topology.txt"), gpus_per_node=4)


BOOSTER = [f"lrdn{number:04}" for number in range(1, 3457)]


def test_leonardo_has_22_cells_and_a_group_of_login_and_visualisation_nodes(leonardo: Topology) -> None:
    assert len(leonardo.groups) == 23
    assert len(leonardo.nodes) == 4992 + 32
    assert {group.name for group in leonardo.groups} == {"isws-L2", *(f"isw-L2-CELLG{cell}" for cell in range(1, 23))}


def test_the_booster_of_leonardo_is_19_cells_of_18_switches_of_10_nodes_and_a_part_of_a_mixed_cell(
    leonardo: Topology,
) -> None:
    booster = leonardo.restrict(keep=BOOSTER)
    assert (len(booster.nodes), booster.gpus) == (3456, 13824)
    assert [group.size for group in booster.groups] == [180] * 19 + [36]
    assert [len(group.switches) for group in booster.groups] == [18] * 19 + [6]
    assert [(group.name, group.size) for group in irregular(booster.groups)] == [("isw-L2-CELLG20", 36)]
    assert [(switch.name, switch.size) for switch in irregular(booster.switches)] == [
        ("isw110102", 2),
        ("isw110104", 6),
        ("isw110202", 2),
        ("isw110204", 6),
    ]


def test_a_node_of_leonardo_is_found_under_its_switch(leonardo: Topology) -> None:
    group, switch = leonardo.location("lrdn0027")
    assert leonardo.groups[group].name == "isw-L2-CELLG1"
    assert leonardo.groups[group].switches[switch].name == "isw10102"
