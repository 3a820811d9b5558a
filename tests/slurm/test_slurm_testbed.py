"""The cluster of virtual nodes that the tests bring up, and what is said where it cannot be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import testbed as module
from testbed import CPUS, GPUS, Testbed, missing, wait_until

from dlbench.slurm.topology_conf import parse_topology


def test_every_node_has_a_name_of_its_own_and_its_place_in_the_tree(cluster: Testbed) -> None:
    hosts = cluster.run("srun", "-N12", "hostname").split()
    assert sorted(hosts) == [f"vnode{number:02}" for number in range(1, 13)]
    topology = parse_topology(cluster.run("scontrol", "show", "topology"), gpus_per_node=GPUS, source="testbed")
    assert [[len(switch.nodes) for switch in group.switches] for group in topology.groups] == [[3, 3], [3, 3]]
    assert topology.gpus == 48
    assert cluster.run("sinfo", "-h", "-o", "%c %G").split() == [str(CPUS), f"gpu:{GPUS}"]


def test_a_batch_job_gets_the_nodes_that_it_asks_for_and_leaves_nothing(cluster: Testbed, tmp_path: Path) -> None:
    job = cluster.batch("srun hostname | sort", nodes=["vnode03", "vnode11"], folder=tmp_path)
    assert cluster.wait(job) == "COMPLETED"
    assert set((tmp_path / f"{job}.out").read_text().split()) == {"vnode03", "vnode11"}
    assert wait_until(lambda: cluster.tasks() == [], 10)


def test_without_root_there_is_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert missing() == "a SLURM cluster of virtual nodes needs root"


def test_the_packages_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(module, "_SEARCH", str(tmp_path))
    assert missing().startswith("no munged, slurmctld, slurmd, srun, ")
    assert missing().endswith("; apt-get install munge slurmctld slurmd slurm-client")
