"""`dlbench pool` on this machine: real MPI jobs side by side, and no process after them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from launch import Mpi

from dlbench.allocators.experiment import Experiment, Job, Plan, write_plan
from dlbench.records.reader import Record, read
from dlbench.records.validator import validate
from dlbench.slurm.pool_log import Ended, PoolEnded, Running, Started, read_pool_log
from dlbench.slurm.processes import marked

SMALL: dict[str, str | int | float] = {"scale": 0.0001, "time-scale": 0.0001}
SHORT = {**SMALL, "iterations": 3}
ENDLESS = {**SMALL, "iterations": 1_000_000}


def experiment(folder: Path, timeout: int, **options: dict[str, str | int | float]) -> Path:
    """An experiment of jobs of 2 ranks; the first is DP, the others FSDP."""
    jobs = tuple(
        Job(
            name=name,
            strategy="fsdp" if index else "dp",
            model="vit-b",
            gpus=2,
            placement="intra-l1",
            nodes=(f"slot{2 * index:03}", f"slot{2 * index + 1:03}"),
            options=chosen,
        )
        for index, (name, chosen) in enumerate(options.items())
    )
    trial = Experiment(name="trial", kind="concurrent", timeout_seconds=timeout, jobs=jobs)
    gpus = 2 * len(jobs)
    plan = Plan(system="local", mode="reserved", seed=1, gpus=gpus, gpus_per_node=1, experiments=(trial,))
    write_plan(plan, folder / "experiment.yaml")
    return folder


@contextmanager
def started(mpi: Mpi, folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A pool that runs; when the block is left nothing of it may run any more."""
    command = [mpi.python, "-m", "dlbench", "pool", str(folder), "--launcher=mpiexec", "--json", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
    runs = {event.run for event in read_pool_log(folder / "pool.log") if isinstance(event, Started)}
    assert marked(runs) == {}


def outcome(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The document that a pool prints in the end, with its exit code."""
    stdout, stderr = process.communicate(timeout=60)
    assert stdout, stderr
    document: dict[str, Any] = json.loads(stdout)
    assert document["exit_code"] == process.returncode
    assert document["left"] == []
    return document


def valid_records(folder: Path) -> dict[str, list[Record]]:
    """The records by job, none with an error."""
    found: dict[str, list[Record]] = {}
    for path in sorted((folder / "results").glob("*.jsonl")):
        assert [problem.text for problem in validate(path) if problem.severity == "error"] == []
        record = read(path)
        found.setdefault(record.header.job, []).append(record)
    for records in found.values():
        records.sort(key=lambda record: record.header.seed)  # names do not tell runs of one second apart
    return found


def wait_running(folder: Path, jobs: int) -> None:
    """Wait until the ranks of so many jobs run."""
    deadline = monotonic() + 30
    while sum(isinstance(event, Running) for event in read_pool_log(folder / "pool.log")) < jobs:
        assert monotonic() < deadline, [path.read_text() for path in (folder / "logs").glob("*.err")]
        sleep(0.05)
    sleep(0.3)


def test_jobs_run_side_by_side_until_the_timeout_and_each_at_least_once(mpi: Mpi, tmp_path: Path) -> None:
    folder = experiment(tmp_path, 1, a=SHORT, b=SHORT)
    with started(mpi, folder, "--extension=50") as process:
        document = outcome(process)

    assert document["exit_code"] == 0
    records = valid_records(folder)
    for tally in document["jobs"]:
        own = records[tally["job"]]
        complete = [record for record in own if record.end and record.end.status == "completed"]
        assert tally["completed"] == len(complete) >= 1
        measured = [iteration for record in own for iteration in record.iterations if not iteration.warmup]
        assert (tally["failed"], tally["iterations"]) == (0, len(measured))
        for seed, header in enumerate(record.header for record in own):
            assert (header.experiment[:6], header.system, header.concurrent_jobs) == ("trial-", "local", 2)
            assert (header.placement, header.labels, header.seed) == ("intra-l1", {"mode": "reserved"}, seed)
    begins = [event for event in read_pool_log(folder / "pool.log") if isinstance(event, Started)]
    assert [begin.job for begin in begins[:2]] == ["a", "b"]


def test_a_signal_to_the_pool_lets_every_run_finish_its_iteration(mpi: Mpi, tmp_path: Path) -> None:
    folder = experiment(tmp_path, 60, a=ENDLESS, b=ENDLESS)
    with started(mpi, folder) as process:
        wait_running(folder, 2)
        process.send_signal(signal.SIGTERM)
        document = outcome(process)

    assert (document["reason"], document["exit_code"]) == ("SIGTERM", 143)
    assert [len(records) for records in valid_records(folder).values()] == [1, 1]
    for records in valid_records(folder).values():
        (end,) = (record.end for record in records)
        assert end is not None
        assert (end.status, end.reason[:15]) == ("terminated", "SIGUSR1 on rank")


def test_a_launcher_that_is_killed_is_started_again_without_its_old_ranks(mpi: Mpi, tmp_path: Path) -> None:
    folder = experiment(tmp_path, 60, a=ENDLESS)
    with started(mpi, folder) as process:
        wait_running(folder, 1)
        (start,) = (event for event in read_pool_log(folder / "pool.log") if isinstance(event, Started))
        os.kill(min(marked({start.run})), signal.SIGKILL)
        wait_running(folder, 2)
        assert marked({start.run}) == {}
        process.send_signal(signal.SIGINT)
        outcome(process)

    killed, ended = (event for event in read_pool_log(folder / "pool.log") if isinstance(event, Ended))
    assert (killed.status, killed.exit_code) == ("failed", -signal.SIGKILL)
    assert killed.iterations > 0
    assert ended.status == "terminated"
    assert isinstance(read_pool_log(folder / "pool.log")[-1], PoolEnded)
