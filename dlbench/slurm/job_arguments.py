"""What the runs of a job are told: one place that builds it, and has it checked as the ranks will check it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dlbench.allocators.experiment import Experiment, Job, Plan
from dlbench.errors import OptionError, SpecError, UserError
from dlbench.runtime.config_file import mapping_arguments
from dlbench.runtime.options import check_request, parse_request, run_parser
from dlbench.runtime.request import RunRequest
from dlbench.specs import SystemSpec, load_system

RESULTS = "results"
GRACE_SECONDS = 25.0
"""In which the pool lets its runs end, unless it is told otherwise."""
_GRACE_SHARE = 0.8
"""Part of the pool's grace in which a run must finish its iteration; in the rest it ends."""
_OF_THE_POOL = ("model", "record", "experiment", "job", "placement", "concurrent-jobs", "seed")
"""Options by which the pool and the analysis find the records of a job, and what is beside it."""
_SEED_BITS = 63
"""Of the largest seed that a run takes."""


@dataclass(frozen=True, slots=True)
class JobArguments:
    """What the jobs of an experiment in `folder` have in common."""

    plan: Plan
    experiment: Experiment
    folder: Path
    grace_seconds: float = GRACE_SECONDS
    """Of the pool."""

    def of(self, job: Job, placement: str) -> tuple[list[str], RunRequest]:
        """Options of every run of the job, the seed aside, where its own win, and what the first run asks for.

        Raises `UserError` for what no rank would accept.
        """
        for name in job.options:
            if _long_name(name) in _OF_THE_POOL:
                raise OptionError(f"options: {name} is set by the pool for every run; leave it out")
        parser = run_parser(f"dlbench.{job.strategy}", job.strategy)
        given = {
            "model": job.model,
            "record": str(self.folder / RESULTS),
            "experiment": _experiment_id(self.plan, self.experiment),
            "job": job.name,
            "placement": placement or None,
            "concurrent-jobs": len(self.experiment.jobs),
            "system": self.plan.system if find_system(self.plan.system) else None,
            "label": {"mode": self.plan.mode},
            "grace": f"{_GRACE_SHARE * self.grace_seconds:g}",
        }
        options = [*mapping_arguments(given, parser), *mapping_arguments(job.options, parser)]
        request = parse_request(job.strategy, parser, [*options, seed_option(job.seed)])
        check_request(request, job.gpus)
        return options, request


def seed_option(seed: int, attempt: int = 1) -> str:
    """Every attempt, counted from 1, has a seed of its own, from the job's upwards."""
    return f"--seed={seed + attempt - 1}"


def check_plan(plan: Plan, folder: Path, source: Path | None = None) -> None:
    """Raise `OptionError` for the first job that no rank would accept; `source` is the file that the plan is from.

    The experiments have their folders in `folder`. Jobs that differ only in name, place and seed are checked once.
    """
    seen: set[str] = set()
    for experiment in plan.experiments:
        arguments = JobArguments(plan, experiment, folder / experiment.name)
        for job in experiment.jobs:
            kind = repr((job.strategy, job.model, job.gpus, job.options, job.seed.bit_length() > _SEED_BITS))
            if kind in seen:
                continue
            seen.add(kind)
            try:
                arguments.of(job, job.placement or "")
            except UserError as error:
                where = f"{source}: " if source else ""
                raise OptionError(f"{where}experiment {experiment.name}, job {job.name}: {error}") from None


def find_system(name: str) -> SystemSpec | None:
    """The system of a plan; None where the plan was made for the topology in a file."""
    try:
        return load_system(name)
    except SpecError:
        return None


def _long_name(option: str) -> str:
    return option.replace("_", "-").removeprefix("no-")


def _experiment_id(plan: Plan, experiment: Experiment) -> str:
    """Name of the experiment in its records: another set has a `mix-000` too, and must not pass for the same."""
    content = msgspec.json.encode((plan.system, plan.mode, experiment))
    return f"{experiment.name}-{hashlib.sha256(content).hexdigest()[:8]}"
