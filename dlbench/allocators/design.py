"""Design: from a machine to a plan, with every pair of entropy and locality that can be reached covered alike.

Patterns (how large) → assignments (which strategy) → placement classes (how near) → nodes; and for every job that
occurs its baseline: the same strategy, model, GPUs and class alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from dlbench.allocators.assignment import Assignment, sample_assignments
from dlbench.allocators.catalogue import Catalogue, feasible_by_size
from dlbench.allocators.classes import PlacementClass, PlacementError, locality
from dlbench.allocators.estimate import timeout_seconds
from dlbench.allocators.experiment import Experiment, Job, Option, Plan
from dlbench.allocators.locality import Choice, LocalitySampler
from dlbench.allocators.mixture import BINS, Bin
from dlbench.allocators.patterns import FULL, Pattern, Tiers, for_nodes, tier_sampled, uniform
from dlbench.allocators.placement import Request, place
from dlbench.allocators.possible import Possibilities
from dlbench.allocators.rules import Rules
from dlbench.allocators.topology import Topology
from dlbench.errors import OptionError

MOST_TRIES = 5
"""Choices of classes that are tried for an experiment before its bins count as impossible to place."""
_LARGEST_SEED = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is asked of a plan."""

    system: str
    gpu: str | None
    """GPU spec for the roofline; None: that of `dlbench run`."""
    catalogue: Catalogue
    rules: Rules
    tiers: Tiers | None = None
    """Sizes of tier-sampled patterns; None for uniform ones."""
    sizes: tuple[int, ...] = ()
    """GPUs of a job in uniform patterns: each size makes a pattern at every utilisation."""
    patterns: int = 5
    """Patterns that are drawn from the tiers, or utilisations of uniform ones."""
    utilisation: tuple[float, float] = FULL
    """Window of tier-sampled patterns; least and largest utilisation of uniform ones, 0 for even steps from 0 on."""
    experiments: int = 12
    """Concurrent ones."""
    gpus: int | None = None
    """GPUs that jobs may use together; None: all of the topology."""
    mode: Literal["reserved", "queue"] = "reserved"
    baselines: bool = True
    options: Mapping[str, Option] = field(default_factory=dict)
    """Options of every run. They win over what the rules say."""
    seed: int = 0


def _alone(concurrent: Sequence[Experiment]) -> list[str]:
    """A note of the experiments in which nothing runs beside a job."""
    names = [experiment.name for experiment in concurrent if len(experiment.jobs) == 1]
    if not names:
        return []
    return [f"of one job, so beside no other, and no slowdown can show: {', '.join(names)}"]


def design(topology: Topology, settings: Settings) -> Plan:
    """The plan: same topology, same settings, same plan.

    What cannot be had, a bin that no assignment reaches or jobs that find no place beside each other, is in its notes.

    Raises `OptionError` for a budget that the topology does not have, patterns without jobs, or sizes that no strategy
    runs on; `PlacementError` where a size has no class here, or not a single experiment can be placed.
    """
    _check(topology, settings)
    designer = _Designer(topology, settings)
    concurrent = designer.concurrent()
    baselines = designer.baselines(concurrent) if settings.baselines else []
    return Plan(
        system=settings.system,
        mode=settings.mode,
        seed=settings.seed,
        gpus=designer.budget,
        gpus_per_node=topology.gpus_per_node,
        notes=(*designer.possible.notes, *designer.notes, *_alone(concurrent)),
        experiments=(*concurrent, *baselines),
    )


def _check(topology: Topology, settings: Settings) -> None:
    if settings.gpus is not None and not 1 <= settings.gpus <= topology.gpus:
        raise OptionError(
            f"{settings.gpus} GPUs are out of range; use 1 to {topology.gpus}, which topology {topology.name} has"
        )
    for name, count in (("patterns", settings.patterns), ("experiments", settings.experiments)):
        if count < 1:
            raise OptionError(f"{count} {name} are no plan; use 1 or more")
    if settings.tiers is None and not settings.sizes:
        raise OptionError("uniform patterns need the GPUs of a job; name one size or more")


class _Candidate(NamedTuple):
    """A pattern with its strategies, and the classes that can be drawn for them."""

    number: int
    """Of the pattern."""
    pattern: Pattern
    assignment: Assignment
    sampler: LocalitySampler | None
    """None where SLURM chooses the nodes."""


class _Cell(NamedTuple):
    """One of the candidates, and the locality bin that its jobs get; None where SLURM chooses the nodes."""

    position: int
    candidate: _Candidate
    locality: Bin | None

    @property
    def bins(self) -> tuple[Bin, Bin | None]:
        """Entropy and locality."""
        return self.candidate.assignment.bin, self.locality

    @property
    def described(self) -> str:
        """The cell in words."""
        return f"pattern {self.candidate.number + 1} at {self.bins[0]} entropy and {self.locality} locality"


class _Placed(NamedTuple):
    """Classes and nodes of every job."""

    classes: Choice
    nodes: tuple[tuple[str, ...], ...]


class _Designer:
    """Draws what the settings ask for, from one seed in one order."""

    def __init__(self, topology: Topology, settings: Settings) -> None:
        self.topology, self.settings = topology, settings
        self.rng = np.random.default_rng(settings.seed)
        self.budget = topology.gpus if settings.gpus is None else settings.gpus
        self.possible = Possibilities(topology, settings.catalogue, settings.rules)
        self.notes: list[str] = []

    def concurrent(self) -> list[Experiment]:
        """Experiments of jobs side by side: pairs of bins alike often, then patterns, then candidates."""
        cells = self._cells()
        used: Counter[object] = Counter()
        experiments: list[Experiment] = []
        while len(experiments) < self.settings.experiments:
            cell = min(cells, key=lambda cell: [used[key] for key in _keys(cell)])
            try:
                experiments.append(self._experiment(cell, f"mix-{len(experiments):03}"))
            except PlacementError as error:
                self.notes.append(f"{cell.described} is not placed: {error}")
                cells.remove(cell)
                if not cells:
                    raise
            else:
                used.update(_keys(cell))
        return experiments

    def baselines(self, experiments: Sequence[Experiment]) -> list[Experiment]:
        """Every distinct strategy, model, number of GPUs and class, alone."""
        jobs = {
            (job.strategy, job.gpus, job.model, job.placement or ""): job
            for experiment in experiments
            for job in experiment.jobs
        }
        return [self._baseline(jobs[key], f"alone-{index:03}") for index, key in enumerate(sorted(jobs))]

    def _patterns(self) -> list[Pattern]:
        asked, rng = self.settings, self.rng
        if asked.tiers is not None:
            tiers = for_nodes(asked.tiers, self.topology.gpus_per_node)
            return [tier_sampled(self.budget, tiers, rng, utilisation=asked.utilisation) for _ in range(asked.patterns)]
        patterns = [
            uniform(self.budget, size, level) for size in asked.sizes for level in _levels(asked, size / self.budget)
        ]
        return list(dict.fromkeys(patterns))

    def _candidates(self) -> Iterator[_Candidate]:
        """Assignments of every pattern, as many in each entropy bin as the experiments can use."""
        patterns = self._patterns()
        pairs = len(BINS) ** (2 if self.settings.mode == "reserved" else 1)
        per_bin = -(-self.settings.experiments // (pairs * len(patterns)))
        missed: Counter[Bin] = Counter()
        for number, pattern in enumerate(patterns):
            assignments, unreachable = sample_assignments(pattern, self._feasible(pattern), per_bin, self.rng)
            missed.update(unreachable)
            for assignment in assignments:
                yield _Candidate(number, pattern, assignment, self._sampler(pattern, assignment))
        for name, count in missed.items():
            self.notes.append(f"{name} entropy is out of reach of {count} of {len(patterns)} patterns")

    def _feasible(self, pattern: Pattern) -> dict[int, tuple[str, ...]]:
        if self.settings.mode == "reserved":
            return self.possible.strategies(pattern)
        return feasible_by_size(pattern, self.topology.gpus_per_node, self.settings.catalogue)

    def _sampler(self, pattern: Pattern, assignment: Assignment) -> LocalitySampler | None:
        if self.settings.mode == "queue":
            return None
        jobs = zip(assignment.strategies, pattern, strict=True)
        return LocalitySampler([self.possible.classes(strategy, size) for strategy, size in jobs])

    def _cells(self) -> list[_Cell]:
        """Every candidate at every locality that it can have, in random order."""
        cells = []
        for index, candidate in enumerate(self._candidates()):
            if candidate.sampler is None:
                cells.append(_Cell(index, candidate, None))
            else:
                cells += [_Cell(index, candidate, name) for name in BINS if candidate.sampler.reaches(name)]
        self._note_missing({cell.bins for cell in cells})
        return [cells[index] for index in self.rng.permutation(len(cells))]

    def _note_missing(self, reached: set[tuple[Bin, Bin | None]]) -> None:
        if self.settings.mode == "queue":
            return
        entropies = [entropy for entropy in BINS if any(found == entropy for found, _ in reached)]
        for name in BINS:
            lacking = [entropy for entropy in entropies if (entropy, name) not in reached]
            if lacking:
                where = "" if lacking == entropies else f" at {' and '.join(lacking)} entropy"
                self.notes.append(f"{name} locality is out of reach{where}")

    def _experiment(self, cell: _Cell, name: str) -> Experiment:
        """One experiment of the cell. Raises `PlacementError` after `MOST_TRIES` choices of classes."""
        assignment, pattern = cell.candidate.assignment, cell.candidate.pattern
        placed = self._placed(cell)
        jobs = tuple(
            self._job(
                f"j{index:03}",
                assignment.strategies[index],
                size,
                placed.classes[index] if placed else None,
                placed.nodes[index] if placed else (),
            )
            for index, size in enumerate(pattern)
        )
        return Experiment(
            name=name,
            kind="concurrent",
            timeout_seconds=timeout_seconds(
                {(job.strategy, job.gpus): job for job in jobs}.values(), self.settings.gpu
            ),
            jobs=jobs,
            entropy=assignment.entropy,
            entropy_bin=assignment.bin,
            locality=locality(placed.classes) if placed else None,
            locality_bin=cell.locality,
        )

    def _placed(self, cell: _Cell) -> _Placed | None:
        """Classes whose mean lies in the cell's bin, and nodes of these classes; None where SLURM chooses them."""
        _, pattern, _, sampler = cell.candidate
        if sampler is None or cell.locality is None:
            return None
        for trial in range(MOST_TRIES):
            classes = sampler.draw(cell.locality, self.rng)
            requests = [
                Request(f"j{index:03}", self.possible.nodes(size), found)
                for index, (size, found) in enumerate(zip(pattern, classes or (), strict=True))
            ]
            try:
                return _Placed(classes or (), place(self.topology, requests, self.rng))
            except PlacementError:
                if trial == MOST_TRIES - 1:
                    raise
        return None

    def _baseline(self, job: Job, name: str) -> Experiment:
        nodes, found = job.nodes, None
        if job.placement is not None:
            found = PlacementClass.parse(job.placement)
            (nodes,) = place(self.topology, [Request("j000", len(job.nodes), found)], self.rng)
        alone = self._job("j000", job.strategy, job.gpus, found, nodes)
        return Experiment(
            name=name,
            kind="baseline",
            timeout_seconds=timeout_seconds([alone], self.settings.gpu),
            jobs=(alone,),
            locality=found.score if found else None,
        )

    def _job(
        self, name: str, strategy: str, gpus: int, placement: PlacementClass | None, nodes: tuple[str, ...]
    ) -> Job:
        return Job(
            name=name,
            strategy=strategy,
            model=self.settings.catalogue.strategies[strategy].model,
            gpus=gpus,
            placement=None if placement is None else str(placement),
            nodes=nodes,
            options={"iterations": self.settings.rules.rule(strategy).iterations, **self.settings.options},
            seed=int(self.rng.integers(_LARGEST_SEED)),
        )


def _levels(asked: Settings, least: float) -> list[float]:
    """Utilisations of uniform patterns. Where the first is left open, those below `least` hold no job and fall away."""
    low, high = asked.utilisation
    if low:
        return [float(level) for level in np.linspace(high, low, asked.patterns)]
    steps = [high * step / asked.patterns for step in range(1, asked.patterns)]
    return [*(step for step in steps if step >= least), high]


def _keys(cell: _Cell) -> tuple[object, ...]:
    """What is to be used alike often, the most important first."""
    return cell.bins, ("pattern", cell.candidate.number), ("candidate", cell.position), cell[:1] + cell[2:]
