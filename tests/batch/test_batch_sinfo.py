"""Partitions and node states from what `sinfo` prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from shared_data import shared_file

from dlbench.errors import UserError
from dlbench.slurm.sinfo import Sinfo, SinfoError, State, parse_sinfo, parse_states, read_sinfo
from dlbench.slurm.topology_conf import read_topology

DEFAULT = """\
PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST
boost        up 1-00:00:00      2   idle n[1-2]
boost        up 1-00:00:00      1  down* n3
boost        up 1-00:00:00      2    mix n[4-5]
serial*      up    4:00:00      2   idle login[01-02]
empty        up   infinite      0    n/a
"""

SHORT = """\
boost idle n[1-2]
boost down* n3
boost mix n[4-5]
serial* idle login[01-02]
empty n/a
"""

PER_NODE = """\
NODELIST   NODES PARTITION       STATE CPUS    S:C:T MEMORY TMP_DISK WEIGHT AVAIL_FE REASON
n1             1     boost        idle    4    1:4:1   4000        0      1   (null) none
n2             1     boost       mixed    4    1:4:1   4000        0      1   (null) broken fan, see log
"""


def parsed(text: str) -> Sinfo:
    return parse_sinfo(text, source="sinfo.txt")


def fault(text: str) -> str:
    with pytest.raises(SinfoError) as error:
        parsed(text)
    return str(error.value)


def meeting(state: str, wanted: str) -> list[str]:
    """`["n"]` if a node in the state is one that is wanted."""
    try:
        return parsed(f"p {state} n").nodes(states=parse_states(wanted))
    except SinfoError:
        return []


@pytest.mark.parametrize("text", [DEFAULT, DEFAULT.partition("\n")[2], SHORT, f"PARTITION STATE NODELIST\n{SHORT}"])
def test_the_default_output_and_the_short_one_say_the_same(text: str) -> None:
    found = parsed(text)
    assert found.default == "serial"
    assert list(found.partitions) == ["boost", "serial", "empty"]
    assert found.partitions["boost"] == {
        "n1": State("idle"),
        "n2": State("idle"),
        "n3": State("down", "*"),
        "n4": State("mix"),
        "n5": State("mix"),
    }
    assert found.partitions["empty"] == {}


def test_an_output_with_a_header_is_read_by_its_columns() -> None:
    assert parsed(PER_NODE).partitions == {"boost": {"n1": State("idle"), "n2": State("mix")}}


def test_without_a_star_there_is_no_default_partition() -> None:
    assert parsed("boost idle n1").default is None


def test_nodes_are_chosen_by_partition() -> None:
    assert parsed(DEFAULT).nodes("boost") == ["n1", "n2", "n3", "n4", "n5"]
    assert parsed(DEFAULT).nodes("serial") == ["login01", "login02"]
    assert parsed(DEFAULT).nodes("empty") == []


def test_without_a_partition_the_nodes_of_all_count_once() -> None:
    assert parsed("a idle n[1-2]\nb idle n[2-3]").nodes() == ["n1", "n2", "n3"]


def test_nodes_are_chosen_by_state() -> None:
    assert parsed(DEFAULT).nodes("boost", parse_states("idle,mix")) == ["n1", "n2", "n4", "n5"]
    assert parsed(DEFAULT).nodes(states=parse_states("idle")) == ["n1", "n2", "login01", "login02"]


@pytest.mark.parametrize("state", ["idle", "idle-", "idle~", "idle#", "IDLE", "idle~-"])
def test_a_node_that_a_job_can_get_is_idle(state: str) -> None:
    assert meeting(state, "idle") == ["n"]


@pytest.mark.parametrize("state", ["idle*", "idle$", "idle@", "idle%", "idle!", "idle^", "idle*~", "mix", "alloc"])
def test_a_node_that_no_job_gets_is_not_idle(state: str) -> None:
    assert meeting(state, "idle") == []


def test_a_state_with_its_suffix_asks_for_just_that() -> None:
    assert meeting("down*", "down*") == ["n"]
    assert meeting("down", "down*") == []
    assert meeting("idle~", "idle$,idle~") == ["n"]


@pytest.mark.parametrize(
    ("long", "short"), [("allocated", "alloc"), ("mixed", "mix"), ("draining*", "drng*"), ("completing", "comp")]
)
def test_long_names_of_states_are_the_short_ones(long: str, short: str) -> None:
    assert meeting(long, short) == meeting(short, long) == ["n"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "sinfo.txt: has no partition; expected the output of 'sinfo' or of 'sinfo -h -o \"%P %t %N\"'"),
        ("PARTITION STATE NODELIST\n", "has no partition"),
        ("boost idle n1\n\nboost idle", "sinfo.txt: line 3: expected the output of 'sinfo'"),
        ("boost idle", "found 'boost idle'"),
        (f"{DEFAULT}boost up", "line 7: expected the output of 'sinfo'"),
        ("boost 1dle n1", "line 1: expected a node state such as idle or down*, found '1dle'"),
        ("boost idle n[2-1]", "line 1: host list 'n[2-1]', character 3: the range 2-1 descends"),
        ("p idle n1\np mix n[1-2]", "line 2: node n1 stands in partition p twice"),
    ],
)
def test_what_sinfo_did_not_print_is_refused_with_the_line(text: str, said: str) -> None:
    assert said in fault(text)
    assert "\n" not in fault(text)


def test_an_unknown_partition_is_answered_with_those_there_are() -> None:
    with pytest.raises(SinfoError, match="has no partition 'bost'; it has boost, serial, empty"):
        parsed(DEFAULT).nodes("bost")


def test_where_no_node_is_in_the_states_those_that_there_are_are_named() -> None:
    with pytest.raises(SinfoError, match=r"no node is alloc, drain; the nodes asked for are idle, down\*, mix"):
        parsed(DEFAULT).nodes("boost", parse_states("alloc,drained"))


def test_an_unknown_state_is_answered_with_the_valid_ones() -> None:
    with pytest.raises(SinfoError, match="unknown node state 'idel'; valid: alloc, blocked, .* idle, "):
        parse_states("mix,idel")


@pytest.mark.parametrize("text", ["", ",", " "])
def test_a_list_of_no_states_is_refused(text: str) -> None:
    with pytest.raises(SinfoError, match="expected one or more, such as idle,mix"):
        parse_states(text)


def test_leonardo_offers_3232_booster_nodes_in_20_cells() -> None:
    found = read_sinfo(shared_file("topologies/leonardo_sinfo.txt"))
    assert found.default == "lrd_all_serial"
    booster = found.nodes("boost_usr_prod")
    assert len(booster) == 1 + 1 + 598 + 1449 + 1183
    assert len(found.nodes("boost_usr_prod", parse_states("idle,mix"))) == 1183 + 598
    assert found.partitions["lrd_all_viz"]["viz05"] == State("down", "*")

    machine = read_topology(shared_file("topologies/leonardo_topology.txt"), gpus_per_node=4)
    left = machine.restrict(keep=booster)
    assert len(left.nodes) == 3232
    assert [group.name for group in left.groups] == [f"isw-L2-CELLG{cell}" for cell in range(1, 21)]
    assert max(switch.size for switch in left.switches) == 10


def test_a_missing_file_is_one_line() -> None:
    with pytest.raises(UserError, match="nowhere.txt: no such file or directory; name a file with SLURM's output"):
        read_sinfo(Path("nowhere.txt"))
