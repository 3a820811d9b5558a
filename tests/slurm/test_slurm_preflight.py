"""The preflight in batch jobs of a real SLURM cluster: on an experiment's nodes, and under srun, right and wrong."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from pool_batches import SMALL, job, write_experiment
from testbed import Testbed

PREFLIGHT = shlex.join([sys.executable, "-m", "dlbench", "preflight"])
NODES = ["vnode02", "vnode03", "vnode08"]


def preflight(cluster: Testbed, folder: Path, command: str, nodes: list[str]) -> tuple[str, list[str]]:
    """State of a batch job that runs the command, and the lines of its output."""
    state = cluster.wait(cluster.batch(f"exec {command}", nodes=nodes, folder=folder))
    (output,) = folder.glob("*.out")
    return state, output.read_text().splitlines()


def rows(lines: list[str]) -> list[list[str]]:
    """Host, ranks and devices of each row of the table."""
    return [line.split()[:3] for line in lines if line.startswith("  vnode")]


def test_all_nodes_of_an_experiment_are_checked(cluster: Testbed, tmp_path: Path) -> None:
    short = {**SMALL, "iterations": 5}
    write_experiment(tmp_path, job("a", ["vnode08", "vnode03"], short, "inter-group"), job("b", ["vnode02"], short))

    state, lines = preflight(cluster, tmp_path, f"{PREFLIGHT} {tmp_path} --launcher auto", NODES)

    assert state == "COMPLETED", lines
    assert [row[:2] for row in rows(lines)] == [["vnode02", "0-1"], ["vnode03", "2-3"], ["vnode08", "4-5"]]
    assert "# ranks      6 on 3 hosts" in "\n".join(lines)
    assert (
        "warning: hosts: vnode02, vnode03, vnode08 are one machine: their ranks share its cores and its network"
        in lines
    )
    assert lines[-1] == "OK"


def test_a_rank_of_srun_starts_no_others(cluster: Testbed, tmp_path: Path) -> None:
    srun = "srun --mpi=pmi2 -K1 -N 2 -n 4 --ntasks-per-node=2"
    state, lines = preflight(cluster, tmp_path, f"{srun} {PREFLIGHT} --ranks-per-node 2", NODES[:2])

    assert state == "COMPLETED", lines
    assert [row[:2] for row in rows(lines)] == [["vnode02", "0-1"], ["vnode03", "2-3"]]


def test_ranks_dealt_out_to_the_nodes_in_turn_stop_the_job(cluster: Testbed, tmp_path: Path) -> None:
    srun = "srun --mpi=pmi2 -K1 -N 2 -n 4 -m cyclic"
    state, lines = preflight(cluster, tmp_path, f"{srun} {PREFLIGHT}", NODES[:2])

    assert state == "FAILED"
    assert [line.partition(": ranks")[0] for line in lines if line.startswith("error")] == [
        "error: rank order: host vnode02 has 2 ranks (0,2)",
        "error: rank order: host vnode03 has 2 ranks (1,3)",
    ]


def test_the_wrong_pmi_stops_the_job_with_the_remedy(cluster: Testbed, tmp_path: Path) -> None:
    srun = "srun --mpi=none -K1 -N 2 -n 4 --ntasks-per-node=2"
    state, lines = preflight(cluster, tmp_path, f"{srun} {PREFLIGHT}", NODES[:2])

    assert state == "FAILED"
    (line,) = [line for line in lines if line.startswith("dlbench: ")]
    assert line.startswith("dlbench: MPI sees a world of 1 rank, but SLURM_STEP_NUM_TASKS=4: ")
    assert "--mpi=pmi2" in line
