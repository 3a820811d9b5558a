"""Plans: experiments as they are run, job by job and node by node, and their files.

A plan `NAME.yaml` or `NAME.json` has everything that a campaign is made of. The same plan gives the same bytes, and
what is read is checked as a whole: a plan that is accepted can be run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from dlbench.allocators.classes import PATTERN
from dlbench.allocators.mixture import Bin
from dlbench.errors import OptionError, SpecError
from dlbench.files import new_file
from dlbench.quantities import counted
from dlbench.specs.check import NonNegative, Positive, Text, require
from dlbench.specs.reading import convert, read_yaml
from dlbench.strategies import get_strategy

VERSION = 1
LARGEST_YAML = 5_000_000
"""Bytes, read in some ten seconds. A plan of 12 experiments on 500 nodes has about 200 000; JSON has no limit."""

ClassName: TypeAlias = Annotated[
    str, Meta(pattern=PATTERN, description="a placement class such as intra-l1 or inter-group-same-l1-2")
]
FileName: TypeAlias = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*\Z", description="a name of letters, digits and ._+-")
]
"""Names of experiments and jobs become those of folders, files and steps."""
Option: TypeAlias = Annotated[str | bool | int | float, Meta(description="text, a number, true or false")]
Score: TypeAlias = Annotated[float, Meta(ge=0, description="a number >= 0")]
Version: TypeAlias = Annotated[int, Meta(ge=VERSION, le=VERSION, description=f"the version {VERSION}")]


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run of a strategy."""

    name: FileName
    strategy: Text
    model: Text
    """Name or path of the model."""
    gpus: Positive
    placement: ClassName | None = None
    """Class of the nodes; None where SLURM chooses them."""
    nodes: tuple[Text, ...] = ()
    """In rank order; none where SLURM chooses them."""
    options: dict[str, Option] = {}
    """Further options of `dlbench run`, by their long names without the dashes."""
    seed: NonNegative = 0


class Experiment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Jobs that run at the same time, or one that runs alone."""

    name: FileName
    kind: Literal["concurrent", "baseline"]
    timeout_seconds: Positive
    """When jobs are no longer started again, and those that have run are ended."""
    jobs: tuple[Job, ...]
    entropy: Score | None = None
    """Mixture entropy in nats; None for a baseline."""
    entropy_bin: Bin | None = None
    locality: Score | None = None
    """Mean locality score; None where SLURM chooses the nodes."""
    locality_bin: Bin | None = None

    @property
    def pattern(self) -> tuple[int, ...]:
        """GPUs of every job."""
        return tuple(job.gpus for job in self.jobs)

    def nodes(self, gpus_per_node: int) -> int:
        """Nodes of all jobs together; they share none."""
        return sum(-(-job.gpus // gpus_per_node) for job in self.jobs)


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A set of experiments on one machine.

    Raises `SpecError` for a plan that cannot be run: jobs that share a node, have too few nodes or an unknown strategy.
    """

    version: Version = VERSION
    system: Text
    """Name or path of the system, or where its topology came from."""
    mode: Literal["reserved", "queue"]
    """reserved: every job has its nodes; queue: SLURM chooses them."""
    seed: NonNegative
    gpus: Positive
    """GPUs that the experiments may use together."""
    gpus_per_node: Positive
    notes: tuple[str, ...] = ()
    """What the plan lacks of what was asked for, and why."""
    experiments: tuple[Experiment, ...]

    def __post_init__(self) -> None:
        _check_unique("experiments", [experiment.name for experiment in self.experiments])
        for index, experiment in enumerate(self.experiments):
            _check_experiment(self, experiment, f"experiments[{index}]")

    def content(self) -> str:
        """How many experiments of each kind it has, in words."""
        kinds = Counter(experiment.kind for experiment in self.experiments)
        return f"{counted(kinds['concurrent'], 'concurrent experiment')}, {counted(kinds['baseline'], 'baseline')}"


def write_plan(plan: Plan, path: Path) -> None:
    """Write the plan as its suffix says, .yaml, .yml or .json: whole, or what was there before stays.

    Raises `SpecError` for another suffix, `OptionError` where it cannot be written.
    """
    content: dict[str, Any] = msgspec.to_builtins(plan)
    text = json.dumps(content, indent=1, ensure_ascii=False) if _is_json(path) else "\n".join(_yaml_lines(content))
    with new_file(path) as file:
        file.write(f"{text}\n".encode())


def read_plan(path: Path) -> Plan:
    """The plan in a file. Raises `SpecError`, which names the file, the place and what would be right."""
    return convert(_read_json(path) if _is_json(path) else _read_yaml(path), Plan, str(path))


def check_suffix(path: Path) -> None:
    """Raise `SpecError` for a name that no plan can have."""
    if path.suffix not in (".yaml", ".yml", ".json"):
        raise SpecError(f"{path}: a plan is a file that ends in .yaml, .yml or .json")


def _is_json(path: Path) -> bool:
    check_suffix(path)
    return path.suffix == ".json"


def _read_json(path: Path) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise SpecError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SpecError(f"{path}: not valid JSON: {error}") from None


def _read_yaml(path: Path) -> Any:
    if path.is_file() and path.stat().st_size > LARGEST_YAML:
        raise SpecError(f"{path}: is larger than {LARGEST_YAML // 10**6} MB, for which YAML is slow; use a .json file")
    return read_yaml(path, LARGEST_YAML)


def _yaml_lines(mapping: Mapping[str, Any]) -> Iterator[str]:
    """Lists of mappings as blocks, all else in one line as JSON, which is YAML: a job's nodes stay together."""
    for key, value in mapping.items():
        if isinstance(value, tuple) and value and isinstance(value[0], dict):
            yield f"{key}:"
            for item in value:
                first, *others = _yaml_lines(item)
                yield f"- {first}"
                yield from (f"  {line}" for line in others)
        else:
            yield f"{key}: {json.dumps(value, ensure_ascii=False)}"


def _check_unique(key: str, names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        name, count = Counter(names).most_common(1)[0]
        require(False, key, "every name once", f"{name!r} {count} times")


def _check_experiment(plan: Plan, experiment: Experiment, key: str) -> None:
    jobs = experiment.jobs
    require(bool(jobs), f"{key}.jobs", "at least one", "none")
    if experiment.kind == "baseline":
        require(len(jobs) == 1, f"{key}.jobs", "one job in a baseline", len(jobs))
    _check_unique(f"{key}.jobs", [job.name for job in jobs])
    used = sum(experiment.pattern)
    require(used <= plan.gpus, f"{key}.jobs", f"at most {plan.gpus} GPUs together, as the plan has", used)
    for index, job in enumerate(jobs):
        _check_job(plan, job, f"{key}.jobs[{index}]")
    _check_shared(jobs, key)


def _check_job(plan: Plan, job: Job, key: str) -> None:
    try:
        get_strategy(job.strategy)
    except OptionError as error:
        raise SpecError(f"at {key}.strategy: {error}") from None
    if plan.mode == "queue":
        require(not job.nodes, f"{key}.nodes", "none in mode queue, where SLURM chooses them", len(job.nodes))
        return
    require(job.placement is not None, f"{key}.placement", "a placement class in mode reserved", "null")
    nodes = -(-job.gpus // plan.gpus_per_node)
    wanted = f"{nodes} for {job.gpus} GPUs at {plan.gpus_per_node} per node"
    require(len(job.nodes) == nodes, f"{key}.nodes", wanted, len(job.nodes))


def _check_shared(jobs: Iterable[Job], key: str) -> None:
    owners: dict[str, int] = {}
    for index, job in enumerate(jobs):
        for node in job.nodes:
            if node in owners:
                where = "twice" if owners[node] == index else f"in jobs[{owners[node]}] too"
                require(False, f"{key}.jobs[{index}].nodes", "every node once in an experiment", f"{node!r} {where}")
            owners[node] = index
