"""What a plan costs: time of a job by the roofline, of an experiment, and node-hours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache

from dlbench.allocators.experiment import Experiment, Job, Plan
from dlbench.specs import load_gpu, load_model
from dlbench.strategies import configure
from dlbench.strategies.computation import ideal
from dlbench.strategies.options import DEFAULT_GPU, workload_options

START_SECONDS = 60
"""For launching the ranks and making their communicators."""
SLOWEST = 3
"""Times the roofline that a run may take. Those that take longest spend up to half of it in communication in the paper;
beside other jobs that may double."""
WINDOW_SECONDS = 240
"""Time for which jobs run side by side: the paper's."""
_HOUR = 3600


def job_seconds(job: Job, gpu: str | None) -> float:
    """Time that a run of the job computes: the floor under what it takes.

    `gpu` names the machine's GPU, which an option of the job overrides. Raises `OptionError` or `LayoutError` for
    options and sizes that the strategy does not allow, `SpecError` for an unknown model or GPU.
    """
    options = {name.replace("-", "_"): value for name, value in job.options.items()}
    own = tuple(sorted(workload_options(options).items()))
    seconds = _iteration_seconds(job.strategy, job.model, job.gpus, str(options.get("gpu") or gpu or DEFAULT_GPU), own)
    return seconds * (_count(options, "iterations", 10) + _count(options, "warmup", 1))


def timeout_seconds(jobs: Iterable[Job], gpu: str | None) -> int:
    """Time for an experiment: the paper's four minutes, and longer where a job needs it to finish once."""
    slowest = max(job_seconds(job, gpu) for job in jobs)
    return max(WINDOW_SECONDS, math.ceil(START_SECONDS + SLOWEST * slowest))


def node_hours(plan: Plan, experiment: Experiment) -> float:
    """Node-hours of an experiment, whose jobs, also one alone, run again and again until its timeout."""
    return experiment.nodes(plan.gpus_per_node) * experiment.timeout_seconds / _HOUR


@lru_cache(maxsize=1024)
def _iteration_seconds(
    strategy: str, model: str, gpus: int, gpu: str, own: tuple[tuple[str, int | float | str], ...]
) -> float:
    options: dict[str, object] = dict(own)
    return ideal(
        configure(strategy, world_size=gpus, model=load_model(model), gpu=load_gpu(gpu), **options)  # type: ignore[arg-type]
    ).seconds


def _count(options: Mapping[str, object], name: str, default: int) -> int:
    return int(str(options.get(name, default)))
