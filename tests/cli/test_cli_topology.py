"""`dlbench topology`: a machine as text and as JSON, restricted, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from shared_data import shared_file

from dlbench.cli import main as command_line

CONF = """\
SwitchName=l0 Nodes=n[1-3]
SwitchName=l1 Nodes=n[4-6]
SwitchName=l2 Nodes=n[7-9]
SwitchName=l3 Nodes=n10
SwitchName=g0 Switches=l[0-1]
SwitchName=g1 Switches=l[2-3]
"""

SINFO = """\
PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST
boost*       up 1-00:00:00      7   idle n[1-3,5-8]
boost*       up 1-00:00:00      1  down* n4
debug        up 1-00:00:00      2    mix n[9-10]
"""

Answer = tuple[int, str, str]


@pytest.fixture
def dlbench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """Run `dlbench topology` where topology.conf and sinfo.txt are; gives exit code, stdout and stderr."""
    (tmp_path / "topology.conf").write_text(CONF)
    (tmp_path / "sinfo.txt").write_text(SINFO)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["dlbench", "topology", *arguments])
        with pytest.raises(SystemExit) as end:
            command_line.main()
        printed = capsys.readouterr()
        return int(end.value.code or 0), printed.out, printed.err

    return run


def shown(answer: Answer) -> list[list[str]]:
    """Words of each line; nothing went wrong."""
    assert (answer[0], answer[2]) == (0, "")
    return [line.split() for line in answer[1].splitlines()]


def hosts(answer: Answer) -> dict[str, dict[str, str]]:
    """Host lists by switch by group, of the JSON."""
    assert (answer[0], answer[2]) == (0, "")
    groups = json.loads(answer[1])["groups"]
    return {group["name"]: {switch["name"]: switch["hosts"] for switch in group["switches"]} for group in groups}


def test_a_file_is_shown_with_counts_sizes_and_irregularities(dlbench: Any) -> None:
    assert shown(dlbench("topology.conf", "--gpus-per-node", "4")) == [
        ["#", "topology", "topology.conf"],
        ["#", "nodes", "10"],
        ["#", "gpus", "40,", "4", "per", "node"],
        ["#", "groups", "2,", "of", "4/5/6", "nodes", "(minimum/median/maximum)"],
        ["#", "switches", "4,", "of", "1/3/3", "nodes"],
        ["#", "irregular", "1", "of", "2", "groups", "have", "not", "6", "nodes:", "g1", "(4)"],
        ["#", "irregular", "1", "of", "4", "switches", "have", "not", "3", "nodes:", "l3", "(1)"],
        ["group", "switches", "nodes", "gpus", "nodes/switch"],
        ["g0", "2", "6", "24", "3/3/3"],
        ["g1", "2", "4", "16", "1/2/3"],
    ]


def test_a_file_does_not_know_its_gpus(dlbench: Any) -> None:
    lines = shown(dlbench("topology.conf"))
    assert ["#", "gpus", "not", "in", "the", "file;", "--gpus-per-node", "N", "counts", "them"] in lines
    assert lines[-1] == ["g1", "2", "4", "-", "1/2/3"]
    assert json.loads(dlbench("topology.conf", "--json")[1])["gpus"] is None


def test_a_system_is_shown_by_its_name(dlbench: Any) -> None:
    lines = shown(dlbench("leonardo"))
    assert ["#", "gpus", "13680,", "4", "per", "node"] in lines
    assert ["#", "switches", "342,", "of", "10/10/10", "nodes"] in lines
    assert "irregular" not in {word for line in lines for word in line}
    assert lines[-1] == ["g18", "18", "180", "720", "10/10/10"]


def test_of_many_irregular_switches_the_first_are_named(dlbench: Any) -> None:
    irregular = next(line for line in shown(dlbench("lumi")) if "irregular" in line)
    assert irregular[2:8] == ["24", "of", "384", "switches", "have", "not"]
    assert irregular[-5:] == ["g07s15", "(4)", "and", "16", "more"]


def test_json_holds_the_nodes_as_host_lists(dlbench: Any) -> None:
    document = json.loads(dlbench("topology.conf", "--gpus-per-node", "4", "--json")[1])
    assert document["nodes"] == 10
    assert (document["gpus"], document["gpus_per_node"]) == (40, 4)
    assert document["groups"][1] == {
        "name": "g1",
        "nodes": 4,
        "switches": [{"name": "l2", "nodes": 3, "hosts": "n[7-9]"}, {"name": "l3", "nodes": 1, "hosts": "n10"}],
    }
    assert (document["irregular_groups"], document["irregular_switches"]) == (["g1"], ["l3"])


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (["--nodes", "n[5-7]"], {"g0": {"l1": "n[5-6]"}, "g1": {"l2": "n7"}}),
        (["--exclude", "n[1-8]"], {"g1": {"l2": "n9", "l3": "n10"}}),
        (["--nodes", "n[5-7]", "--exclude", "n[6,10]"], {"g0": {"l1": "n5"}, "g1": {"l2": "n7"}}),
        (["--sinfo", "sinfo.txt", "--partition", "debug"], {"g1": {"l2": "n9", "l3": "n10"}}),
        (["--sinfo", "sinfo.txt", "--states", "mix,down*"], {"g0": {"l1": "n4"}, "g1": {"l2": "n9", "l3": "n10"}}),
        (
            ["--sinfo", "sinfo.txt", "--partition", "boost", "--states", "idle", "--nodes", "n[3-10]"],
            {"g0": {"l0": "n3", "l1": "n[5-6]"}, "g1": {"l2": "n[7-8]"}},
        ),
    ],
)
def test_a_restriction_leaves_what_meets_all_of_it(
    dlbench: Any, options: list[str], left: dict[str, dict[str, str]]
) -> None:
    assert hosts(dlbench("topology.conf", "--json", *options)) == left


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["leonrdo"], "unknown system 'leonrdo'; did you mean 'leonardo'? valid: alps, "),
        (["leonrdo"], "or the path of a YAML file or of a topology file"),
        (["./nowhere"], "nowhere: no such file or directory; name a file with SLURM's output"),
        (["alps"], "system alps does not say its groups"),
        (["nowhere.yaml"], "nowhere.yaml: no such file or directory"),
        (["sinfo.txt"], "sinfo.txt: line 1: expected 'SwitchName=NAME Nodes=LIST'"),
        (["topology.conf", "--nodes", ""], "--nodes: the list is empty; name one node or more"),
        (["topology.conf", "--nodes", "n[2-1]"], "--nodes: host list 'n[2-1]', character 3: the range 2-1 descends"),
        (["topology.conf", "--nodes", "n1,n1"], "must name each once, found 'n1' 2 times"),
        (["topology.conf", "--exclude", "m1"], "topology topology.conf has no node 'm1'; its nodes are n1 to n10"),
        (["topology.conf", "--exclude", "n[1-10]"], "no node is left of 10"),
        (["topology.conf", "--partition", "boost"], "--partition needs --sinfo FILE"),
        (["topology.conf", "--states", "idle"], "--states needs --sinfo FILE"),
        (["topology.conf", "--sinfo", "sinfo.txt", "--partition", "bost"], "has no partition 'bost'; it has boost, d"),
        (["topology.conf", "--sinfo", "sinfo.txt", "--states", "idel"], "unknown node state 'idel'; valid: alloc"),
        (["topology.conf", "--sinfo", "sinfo.txt", "--states", "alloc"], "no node is alloc; the nodes asked for are"),
        (["topology.conf", "--sinfo", "topology.conf"], "topology.conf: line 1: expected the output of 'sinfo'"),
        (["leonardo", "--sinfo", "sinfo.txt"], "sinfo.txt: 10 of its nodes are not in topology leonardo, such as n1;"),
        (["topology.conf", "--gpus-per-node", "0"], "expected 1 GPU per node or more, found 0"),
        (["leonardo", "--gpus-per-node", "4"], "system leonardo says its GPUs per node itself"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(dlbench: Any, arguments: list[str], said: str) -> None:
    exit_code, out, err = dlbench(*arguments)
    assert (exit_code, out) == (2, "")
    assert err.startswith("dlbench: ")
    assert err.count("\n") == 1
    assert said in err


def test_leonardo_is_shown_from_its_own_words(dlbench: Any) -> None:
    topology = str(shared_file("topologies/leonardo_topology.txt"))
    sinfo = str(shared_file("topologies/leonardo_sinfo.txt"))
    lines = shown(dlbench(topology, "--sinfo", sinfo, "--partition", "boost_usr_prod", "--gpus-per-node", "4"))
    assert ["#", "nodes", "3232"] in lines
    assert ["#", "gpus", "12928,", "4", "per", "node"] in lines
    assert [line[0] for line in lines[-20:]] == [f"isw-L2-CELLG{cell}" for cell in range(1, 21)]
