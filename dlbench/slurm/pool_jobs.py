"""What a job pool runs: the jobs of one experiment with their nodes and command lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlbench.allocators.achieved import achieved
from dlbench.allocators.experiment import Experiment, Job, Plan, read_plan
from dlbench.errors import OptionError, PreflightError, RunError, SpecError, UserError
from dlbench.slurm.job_arguments import JobArguments, find_system, seed_option
from dlbench.slurm.launchers import blas_threads
from dlbench.slurm.steps import SlurmJob, slurm_output
from dlbench.slurm.topology_conf import parse_topology
from dlbench.specs import SystemSpec

EXPERIMENT_FILE = "experiment.yaml"
LOGS = "logs"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolJob:
    """A job that is started again and again on the same nodes."""

    name: str
    strategy: str
    gpus: int
    per_node: int
    """Ranks per node."""
    nodes: tuple[str, ...]
    """In rank order; none: on this host."""
    placement: str
    seed: int
    options: tuple[str, ...]
    """Of every run, the seed aside."""
    environment: Mapping[str, str]

    def program(self, attempt: int) -> list[str]:
        """Command line of a rank in an attempt, counted from 1."""
        return [sys.executable, "-m", f"dlbench.{self.strategy}", *self.options, seed_option(self.seed, attempt)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolExperiment:
    """An experiment in its folder, ready to be run."""

    name: str
    folder: Path
    timeout_seconds: float
    jobs: tuple[PoolJob, ...]
    srun_flags: tuple[str, ...] = ()
    """What srun needs at this site."""

    @property
    def ranks(self) -> int:
        """Of all jobs together."""
        return sum(job.gpus for job in self.jobs)


def load_experiment(folder: Path, environment: Mapping[str, str], grace_seconds: float) -> PoolExperiment:
    """The experiment in a folder, its nodes in this allocation, and its jobs checked: each can be run.

    Raises `UserError` with the file and the job that is wrong.
    """
    plan = read_plan(folder / EXPERIMENT_FILE)
    if len(plan.experiments) != 1:
        raise SpecError(f"{folder / EXPERIMENT_FILE}: expected one experiment, found {len(plan.experiments)}")
    (experiment,) = plan.experiments
    system = find_system(plan.system)
    scheduler = system.scheduler if system else None
    arguments = JobArguments(plan, experiment, folder, grace_seconds)
    placed = _placed(plan, experiment, system, SlurmJob.of(environment))
    return PoolExperiment(
        name=experiment.name,
        folder=folder,
        timeout_seconds=experiment.timeout_seconds,
        jobs=tuple(_job(arguments, *one) for one in placed),
        srun_flags=scheduler.srun_flags if scheduler else (),
    )


Placed = tuple[Job, tuple[str, ...], str]
"""A job, its nodes in rank order, and its placement class."""


def _placed(plan: Plan, experiment: Experiment, system: SystemSpec | None, slurm: SlurmJob | None) -> Iterator[Placed]:
    """Every job with its nodes: those of the plan, or in mode queue those that SLURM has given, in its order."""
    if system and system.topology.kind == "single-node":
        # Nodes of a plan for one machine are places for a rank, not hosts.
        return ((job, (), job.placement or "") for job in experiment.jobs)
    if slurm is None:
        raise PreflightError(
            f"experiment {experiment.name} is for the nodes of {plan.system}; run it inside a SLURM allocation there"
        )
    if plan.mode == "queue":
        return _dealt(plan, experiment, slurm)
    return _reserved(experiment, slurm)


def _reserved(experiment: Experiment, slurm: SlurmJob) -> Iterator[Placed]:
    allocated = set(slurm.nodes)
    for job in experiment.jobs:
        for node in job.nodes:
            if node not in allocated:
                raise PreflightError(
                    f"job {job.name}: node {node} is not in SLURM job {slurm.id}, which has "
                    f"{len(slurm.nodes)} nodes; submit the experiment with its own nodes"
                )
        yield job, job.nodes, job.placement or ""


def _dealt(plan: Plan, experiment: Experiment, slurm: SlurmJob) -> Iterator[Placed]:
    counts = [-(-job.gpus // plan.gpus_per_node) for job in experiment.jobs]
    if sum(counts) > len(slurm.nodes):
        raise PreflightError(
            f"experiment {experiment.name} needs {sum(counts)} nodes, and SLURM job {slurm.id} has {len(slurm.nodes)}"
        )
    left = iter(slurm.nodes)
    dealt = [tuple(next(left) for _ in range(count)) for count in counts]
    yield from zip(experiment.jobs, dealt, _achieved(dealt, plan.gpus_per_node), strict=True)


def _achieved(dealt: Sequence[tuple[str, ...]], gpus_per_node: int) -> list[str]:
    """The class that each list of nodes happens to have; empty where SLURM knows no topology."""
    try:
        text = slurm_output(["scontrol", "show", "topology"])
        topology = parse_topology(text, gpus_per_node=gpus_per_node, source="scontrol show topology")
        return [str(achieved(topology, nodes).tightest) for nodes in dealt]
    except (RunError, UserError):
        return [""] * len(dealt)


def _job(arguments: JobArguments, job: Job, nodes: tuple[str, ...], placement: str) -> PoolJob:
    """The job with its command line. Raises `OptionError` for one that no rank would accept."""
    try:
        options, request = arguments.of(job, placement)
    except UserError as error:
        raise OptionError(f"{arguments.folder / EXPERIMENT_FILE}: job {job.name}: {error}") from None
    gemm = request.run.compute == "gemm" and "OMP_NUM_THREADS" not in os.environ
    per_node = min(job.gpus, arguments.plan.gpus_per_node)
    beside = per_node if nodes else sum(arguments.experiment.pattern)
    return PoolJob(
        name=job.name,
        strategy=job.strategy,
        gpus=job.gpus,
        per_node=per_node,
        nodes=nodes,
        placement=placement,
        seed=job.seed,
        options=tuple(options),
        environment=blas_threads(beside) if gemm else {},
    )
