"""Campaigns on a real SLURM cluster: from a system to the slowdown of its jobs, cancelled and submitted again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from testbed import Testbed, wait_until

SYSTEM = """\
name: virtual
description: Virtual nodes of one machine
gpu: a100
gpus_per_node: 2
intra_node: null
network: null
topology: {kind: dragonfly}
scheduler: {partition: main, cpus_per_task: 1}
sources: {gpu: a test, topology: a test, scheduler: a test}
"""
TIERS = """\
name: tiny
description: Jobs of one node and of two
tiers:
  - {name: small, probability: 0.5, sizes: [2]}
  - {name: large, probability: 0.5, sizes: [4]}
source: a test
"""
CATALOGUE = """\
name: tiny
description: Two strategies with a small model
strategies:
  dp: {model: vit-b}
  fsdp: {model: vit-b}
source: a test
"""
SMALL = ("--scale=0.0001", "--time-scale=0.0001")


class Login:
    """The command line on the login node of the cluster, in a folder of the user's."""

    def __init__(self, cluster: Testbed, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        for name, text in (("virtual", SYSTEM), ("tiers", TIERS), ("catalogue", CATALOGUE)):
            (folder / f"{name}.yaml").write_text(text)

    def dlbench(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dlbench", *arguments]
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.cluster.environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    def submit(self, *options: str) -> subprocess.CompletedProcess[str]:
        return self.dlbench(
            "submit", "--system=virtual.yaml", "--pattern=tier", "--tiers=tiers.yaml", "--catalogue=catalogue.yaml",
            "--patterns=1", "-o", "campaign", *options,
        )  # fmt: skip

    def status(self) -> dict[str, dict[str, Any]]:
        done = self.dlbench("status", "campaign", "--json")
        assert done.returncode == 0, done.stderr
        return {entry["experiment"]: entry for entry in json.loads(done.stdout)}

    def wait(self, *states: str) -> dict[str, dict[str, Any]]:
        """Wait until all experiments are in one of the states."""
        assert wait_until(lambda: {entry["state"] for entry in self.status().values()} <= set(states), 90), self.why()
        return self.status()

    def why(self) -> str:
        files = [*self.folder.glob("campaign/*/slurm-*.out"), *self.folder.glob("campaign/*/logs/*.err")]
        return f"{self.status()} {[file.read_text() for file in files]}"


@pytest.fixture
def login(cluster: Testbed, tmp_path: Path) -> Login:
    return Login(cluster, tmp_path)


def test_a_tier_experiment_and_its_baselines_run_on_their_nodes_and_give_a_slowdown(login: Login) -> None:
    # Runs that are long beside the seconds by which a busy machine starts one job after another: they overlap.
    options = ("--experiments=1", "--timeout=10", "--gpus=12", "--iterations=100000", "--max-seconds=6", *SMALL)
    done = login.submit(*options)
    assert done.returncode == 0, done.stderr
    assert "# topology   SLURM, now: 12 nodes, 24 GPUs" in done.stdout
    statuses = login.wait("completed")
    assert all(entry["iterations"] > 0 and entry["job_id"].isdecimal() for entry in statuses.values())
    assert [entry["kind"] for entry in statuses.values()].count("concurrent") == 1

    slowdowns = json.loads(login.dlbench("analyze", "campaign", "--json").stdout)["slowdown"]
    assert slowdowns
    assert all(found["system"] == "virtual" and found["sigma"] > 0 for found in slowdowns)
    again = login.submit(*options)
    assert f"0 submitted, {len(statuses)} were there" in again.stdout


def test_what_was_cancelled_is_submitted_again_and_nothing_else(login: Login) -> None:
    options = ("--experiments=2", "--timeout=4", "--gpus=8", "--no-baselines", "--iterations=1000000", *SMALL)
    assert login.submit(*options).returncode == 0
    first = login.status()
    name, other = first
    assert wait_until(lambda: login.status()[name]["iterations"] > 0, 60), login.why()
    cancelled = login.dlbench("cancel", "campaign", name)
    assert cancelled.stdout == f"{name}: ending\n"
    assert wait_until(lambda: login.status()[name]["state"] == "cancelled", 60), login.why()
    assert login.status()[name]["iterations"] > 0
    again = login.submit(*options)
    assert "1 submitted, 1 were there" in again.stdout
    assert login.status()[other]["job_id"] == first[other]["job_id"]
    assert login.status()[name]["job_id"] not in {"", first[name]["job_id"]}
    login.dlbench("cancel", "campaign")


def test_slurm_accepts_the_scripts_and_reads_their_values_as_they_were_meant(login: Login) -> None:
    hostile = "a 'b' \"c\" $(d) #e \\f"
    done = login.submit("--experiments=1", "--gpus=8", "--dry-run", f"--account={hostile}")
    assert done.returncode == 0, done.stderr
    for script in login.folder.glob("campaign/*/job.sh"):
        text = script.read_text()
        said = login.cluster.run("sbatch", "--parsable", "--hold", str(script))
        shown = login.cluster.run("scontrol", "show", "job", said.strip())
        assert f"WorkDir={script.parent}" in shown
        assert f"Account={hostile} " in shown
        login.cluster.run("scancel", said.strip())
        script.write_text("".join(line for line in text.splitlines(keepends=True) if "--account" not in line))
        login.cluster.run("sbatch", "--test-only", str(script))


def test_a_reservation_that_does_not_exist_is_refused_in_the_words_of_slurm(login: Login) -> None:
    done = login.submit("--experiments=1", "--gpus=8", "--reservation=nowhere")
    assert (done.returncode, done.stderr) == (2, "dlbench: scontrol failed: Reservation nowhere not found\n")
    tree = f"--topology={login.cluster.folder}/topology.conf"
    done = login.submit("--experiments=1", "--gpus=8", "--reservation=nowhere", tree)
    assert (done.returncode, done.stderr) == (2, "dlbench: scontrol failed: Reservation nowhere not found\n")


def test_jobs_are_placed_on_the_nodes_of_the_reservation(login: Login) -> None:
    nodes = login.cluster.nodes[1:6]
    created = ("ReservationName=ours", "StartTime=now", "Duration=10", "Users=root", f"Nodes={','.join(nodes)}")
    login.cluster.run("scontrol", "create", "reservation", *created)
    try:
        done = login.submit("--experiments=1", "--reservation=ours", "--dry-run")
        assert "# topology   SLURM, now, reservation ours: 5 nodes, 10 GPUs" in done.stdout, done.stderr
        login.cluster.run("sbatch", "--test-only", str(login.folder / "campaign/mix-000/job.sh"))
    finally:
        login.cluster.run("scontrol", "delete", "ReservationName=ours")
