"""Experiments for the cluster of the tests, and batch jobs that run their pool."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from testbed import Testbed, wait_until

from dlbench.allocators.experiment import Experiment, Job, Plan, write_plan
from dlbench.records.reader import Record, read
from dlbench.records.validator import validate
from dlbench.slurm.pool_log import Ended, Event, PoolEnded, Running, read_pool_log

SMALL: dict[str, Any] = {"scale": 0.0001, "time-scale": 0.0001, "buckets": 8}
"""Options of DP that keep an iteration below some milliseconds."""
ENDLESS = {**SMALL, "iterations": 1_000_000}


def job(name: str, nodes: list[str], options: dict[str, Any], placement: str | None = "intra-l1", gpus: int = 0) -> Job:
    """A job of two ranks on each of its nodes, or of `gpus` ranks."""
    return Job(
        name=name,
        strategy="dp",
        model="vit-b",
        gpus=gpus or 2 * len(nodes),
        placement=placement,
        nodes=tuple(nodes),
        options=options,
        seed=10,
    )


def write_experiment(
    folder: Path, *jobs: Job, timeout: int = 60, mode: str = "reserved", system: str = "testbed"
) -> None:
    """Write an experiment of jobs with two GPUs a node."""
    experiment = Experiment(name="trial", kind="concurrent", timeout_seconds=timeout, jobs=jobs)
    gpus = sum(job.gpus for job in jobs)
    plan = Plan(system=system, mode=mode, seed=1, gpus=gpus, gpus_per_node=2, experiments=(experiment,))  # type: ignore[arg-type]
    write_plan(plan, folder / "experiment.yaml")


def submit_pool(cluster: Testbed, folder: Path, nodes: list[str], *options: str) -> str:
    """Id of a batch job that runs the pool of the experiment in `folder` on these nodes."""
    command = shlex.join([sys.executable, "-m", "dlbench", "pool", str(folder), *options])
    return cluster.batch(f"exec {command}", "--no-kill", nodes=nodes, folder=folder)


def events(folder: Path) -> list[Event]:
    """What the pool has logged so far."""
    return read_pool_log(folder / "pool.log")


def ended(folder: Path, name: str) -> list[Ended]:
    """The runs of a job that are over."""
    return [event for event in events(folder) if isinstance(event, Ended) and event.job == name]


def last(folder: Path) -> PoolEnded:
    """The end of the pool."""
    event = events(folder)[-1]
    assert isinstance(event, PoolEnded), event
    return event


def wait_running(folder: Path, *names: str) -> None:
    """Wait until the ranks of these jobs iterate."""

    def iterating() -> bool:
        running = {event.job for event in events(folder) if isinstance(event, Running)}
        # A record is no whole one yet while its header is being written.
        written = [path for path in (folder / "results").glob("*.jsonl") if path.read_bytes().count(b"\n") > 1]
        counts = [measured(record) for record in map(read, written) if record.header.job in names]
        return running.issuperset(names) and len(counts) == len(names) and min(counts) > 1

    assert wait_until(iterating, 30), [*events(folder), *(path.read_text() for path in folder.glob("logs/*.err"))]


def measured(record: Record) -> int:
    """Iterations that count: no warm-ups."""
    return sum(not iteration.warmup for iteration in record.iterations)


def records(folder: Path) -> list[Record]:
    """The records of an experiment; the validator finds no error in any."""
    paths = sorted((folder / "results").glob("*.jsonl"))
    wrong = [problem.text for path in paths for problem in validate(path) if problem.severity == "error"]
    assert wrong == []
    return [read(path) for path in paths]
