"""The job pool on a real SLURM cluster: jobs on their nodes, respawns, failures, and ends that leave nothing behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pool_batches import (
    ENDLESS,
    SMALL,
    ended,
    events,
    job,
    last,
    measured,
    records,
    submit_pool,
    wait_running,
    write_experiment,
)
from testbed import Testbed, wait_until

from dlbench.slurm.pool_log import GivenUp, PoolStarted, Running, Started
from dlbench.slurm.processes import marked


@pytest.fixture(autouse=True)
def nothing_left(cluster: Testbed) -> Iterator[None]:
    """No step and no process of a job outlives a test."""
    yield
    assert wait_until(lambda: cluster.steps() == [] and cluster.tasks() == [], 15), cluster.steps()


def test_jobs_run_side_by_side_on_their_nodes_and_a_failing_one_is_given_up(cluster: Testbed, tmp_path: Path) -> None:
    hung = {**SMALL, "delay": "0:0:60000", "timeout": 1}
    write_experiment(
        tmp_path,
        job("short", ["vnode02", "vnode03"], {**SMALL, "iterations": 5}),
        job("long", ["vnode08", "vnode05"], ENDLESS, "inter-group"),  # against the order of SLURM
        job("hung", ["vnode12"], hung),
    )
    nodes = ["vnode02", "vnode03", "vnode05", "vnode08", "vnode12"]
    batch = submit_pool(cluster, tmp_path, nodes, "--respawns=1")
    assert wait_until(lambda: any(isinstance(event, GivenUp) for event in events(tmp_path)), 60)
    assert wait_until(lambda: len(ended(tmp_path, "short")) >= 2, 30)
    cluster.run("scancel", "--batch", "--signal=USR1", batch)
    assert cluster.wait(batch) == "FAILED"

    end = last(tmp_path)
    assert (end.reason, end.exit_code, end.left) == ("SIGUSR1", 138, [])
    short, long, hanging = end.jobs
    assert short.completed >= 2
    assert (short.failed, short.given_up, long.starts, long.failed, long.given_up) == (0, "", 1, 0, "")
    assert (hanging.starts, hanging.failed, hanging.iterations) == (2, 2, 0)
    assert hanging.given_up.startswith("failed 2 times in a row: hang: rank 0 (vnode12, cpu) is in ")
    assert all("dlbench: FAILED: hang: rank 0 " in run.error for run in ended(tmp_path, "hung"))
    (run,) = ended(tmp_path, "long")
    assert (run.status, run.exit_code) == ("terminated", 143)

    found = records(tmp_path)
    hosts = {record.header.job: record.header.hosts for record in found if record.iterations}
    assert hosts == {
        "short": ["vnode02", "vnode02", "vnode03", "vnode03"],
        "long": ["vnode08", "vnode08", "vnode05", "vnode05"],
    }
    (running,) = (record for record in found if record.header.job == "long")
    assert running.end is not None
    assert running.end.status == "terminated"
    assert running.end.iterations == len(running.iterations)
    assert long.iterations == measured(running) > 10
    assert running.header.concurrent_jobs == 3
    assert (running.header.placement, running.header.labels) == ("inter-group", {"mode": "reserved"})
    long_begin = next(event.time for event in events(tmp_path) if isinstance(event, Running) and event.job == "long")
    overlapping = [one for one in ended(tmp_path, "short") if long_begin < one.time < run.time]
    assert overlapping != []


def test_a_node_that_goes_down_costs_its_job_only(cluster: Testbed, tmp_path: Path) -> None:
    write_experiment(tmp_path, job("well", ["vnode01", "vnode02"], ENDLESS), job("struck", ["vnode04"], ENDLESS))
    batch = submit_pool(cluster, tmp_path, ["vnode01", "vnode02", "vnode04"], "--respawns=1")
    wait_running(tmp_path, "well", "struck")
    cluster.run("scontrol", "update", "NodeName=vnode04", "State=DOWN", "Reason=trial")
    assert wait_until(lambda: any(isinstance(event, GivenUp) for event in events(tmp_path)), 30), events(tmp_path)
    assert ended(tmp_path, "well") == []
    cluster.run("scancel", "--batch", "--signal=USR1", batch)
    cluster.wait(batch)

    end = last(tmp_path)
    assert (end.reason, end.exit_code, end.left) == ("SIGUSR1", 138, [])
    assert [(tally.job, tally.completed, bool(tally.given_up)) for tally in end.jobs] == [
        ("well", 0, False),
        ("struck", 0, True),
    ]
    struck, again = ended(tmp_path, "struck")
    assert (struck.status, struck.reason) == ("failed", "exit code 0: srun: error: Node failure on vnode04")
    assert struck.iterations > 1
    assert (again.status, again.exit_code) == ("failed", 1)
    assert "Requested node configuration is not available" in again.reason
    (run,) = ended(tmp_path, "well")
    assert (run.status, run.reason[:16]) == ("terminated", "SIGTERM on rank ")
    assert {record.header.job for record in records(tmp_path) if record.end} == {"well"}


def test_a_cancelled_batch_job_keeps_every_finished_iteration(cluster: Testbed, tmp_path: Path) -> None:
    write_experiment(tmp_path, job("a", ["vnode01", "vnode02"], ENDLESS), job("b", ["vnode07"], ENDLESS))
    batch = submit_pool(cluster, tmp_path, ["vnode01", "vnode02", "vnode07"])
    wait_running(tmp_path, "a", "b")
    before = {record.header.job: measured(record) for record in records(tmp_path)}
    cluster.run("scancel", batch)
    assert cluster.wait(batch) == "CANCELLED"

    after = {record.header.job: measured(record) for record in records(tmp_path)}
    assert all(after[name] >= before[name] > 1 for name in ("a", "b"))
    end = last(tmp_path)
    assert (end.reason, end.exit_code) == ("SIGTERM", 143)
    assert [(tally.iterations, tally.failed) for tally in end.jobs] == [(after["a"], 0), (after["b"], 0)]


def test_ranks_without_their_srun_and_ranks_that_do_not_end_are_killed(cluster: Testbed, tmp_path: Path) -> None:
    deaf = {**SMALL, "delay": "0:0:600000", "grace": 600}
    write_experiment(tmp_path, job("orphan", ["vnode01"], ENDLESS), job("deaf", ["vnode02"], deaf))
    batch = submit_pool(cluster, tmp_path, ["vnode01", "vnode02"], "--grace=1", "--respawns=0")
    wait_running(tmp_path, "orphan")
    start = next(event for event in events(tmp_path) if isinstance(event, Started) and event.job == "orphan")
    os.kill(min(marked({start.run})), signal.SIGKILL)  # srun, which was there before its ranks
    assert wait_until(lambda: ended(tmp_path, "orphan") != [], 30)
    assert wait_until(lambda: marked({start.run}) == {}, 10)
    assert wait_until(lambda: len(cluster.steps()) == 1, 10)
    cluster.run("scancel", "--batch", "--signal=USR1", batch)
    cluster.wait(batch)

    assert [(run.status, run.exit_code) for run in ended(tmp_path, "orphan")] == [("failed", -signal.SIGKILL)]
    assert [run.status for run in ended(tmp_path, "deaf")] == ["killed"]
    assert last(tmp_path).left == []


def test_slurm_chooses_the_nodes_and_the_pool_says_what_class_they_are(cluster: Testbed, tmp_path: Path) -> None:
    short = {**SMALL, "iterations": 3}
    anywhere = [job("near", [], short, None, gpus=4), job("far", [], short, None, gpus=6)]
    write_experiment(tmp_path, *anywhere, timeout=1, mode="queue")
    nodes = ["vnode01", "vnode02", "vnode03", "vnode04", "vnode10"]
    assert cluster.wait(submit_pool(cluster, tmp_path, nodes, "--extension=50")) == "COMPLETED"

    (start,) = (event for event in events(tmp_path) if isinstance(event, PoolStarted))
    placed = [(facts.job, facts.nodes, facts.placement) for facts in start.jobs]
    assert placed == [("near", nodes[:2], "intra-l1"), ("far", nodes[2:], "inter-group")]
    for record in records(tmp_path):
        assert record.header.labels == {"mode": "queue"}
        assert list(dict.fromkeys(record.header.hosts)) == (nodes[:2] if record.header.job == "near" else nodes[2:])


def test_an_mpi_that_srun_does_not_connect_is_named_once_and_not_tried_again(cluster: Testbed, tmp_path: Path) -> None:
    system = tmp_path / "site.yaml"
    system.write_text(SITE)
    write_experiment(tmp_path, job("alone", ["vnode01"], SMALL), system=str(system))
    assert cluster.wait(submit_pool(cluster, tmp_path, ["vnode01"])) == "FAILED"

    (tally,) = last(tmp_path).jobs
    assert (tally.starts, tally.failed) == (1, 1)
    assert tally.given_up.startswith("exit code 2: MPI sees a world of 1 rank, but SLURM_STEP_NUM_TASKS=2")
    assert "choose the PMI that this MPI was built for" in tally.given_up
    assert list((tmp_path / "results").iterdir()) == []


def test_the_mpiexec_of_mpich_reaches_the_nodes_of_an_allocation(cluster: Testbed, tmp_path: Path) -> None:
    write_experiment(tmp_path, job("spread", ["vnode04", "vnode05"], ENDLESS))
    batch = submit_pool(cluster, tmp_path, ["vnode04", "vnode05"], "--launcher=mpiexec", "--timeout=4", "--extension=0")
    cluster.wait(batch)

    (run,) = ended(tmp_path, "spread")
    assert (run.status, run.reason[:16]) == ("terminated", "SIGUSR1 on rank "), run
    (record,) = records(tmp_path)
    assert record.header.hosts == ["vnode04", "vnode04", "vnode05", "vnode05"]
    assert record.end is not None
    assert last(tmp_path).left == []


SITE = """
name: site
description: "A site whose srun starts ranks that know nothing of each other"
gpu: null
gpus_per_node: null
intra_node: null
network: null
topology: {kind: dragonfly, groups: 2, nodes_per_group: 6, l1_switches_per_group: 2, nodes_per_l1_switch: 3}
scheduler: {partition: main, cpus_per_task: 1, srun_flags: [--mpi=none]}
sources: {topology: trial, scheduler: trial}
"""
