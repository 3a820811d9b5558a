"""How long the design of experiments takes, stage by stage, and how it grows with the machine.

    python benchmarks/allocator.py [--seed 0]

Each row is a set of experiments: patterns of jobs are drawn, strategies are assigned to the jobs in every entropy bin
that the pattern reaches, placement classes in every locality bin, and nodes to all jobs of an experiment at once. What
was placed is verified by the independent code of `achieved`, outside the time. Where the classes that were drawn do not
fit beside each other, others are drawn, in the time; an experiment for which that never succeeds counts as refused. The
last rows are whole plans with their baselines, as `dlbench plan` designs them. Times are medians of three sets, each
drawn anew, in seconds of the process, which others on the machine do not lengthen.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable
from itertools import chain, islice, zip_longest
from typing import NamedTuple

import numpy as np

from dlbench.allocators.achieved import achieved
from dlbench.allocators.assignment import Assignment, sample_assignments
from dlbench.allocators.catalogue import load_catalogue
from dlbench.allocators.classes import PlacementClass, PlacementError
from dlbench.allocators.design import MOST_TRIES, Settings
from dlbench.allocators.design import design as whole_plan
from dlbench.allocators.locality import LocalitySampler
from dlbench.allocators.mixture import BINS
from dlbench.allocators.patterns import Pattern, load_tiers, tier_sampled, uniform
from dlbench.allocators.placement import Request, place
from dlbench.allocators.possible import Possibilities
from dlbench.allocators.rules import load_rules
from dlbench.allocators.topology import Topology, from_system
from dlbench.specs import load_system

STAGES = ("patterns", "assignments", "placements")
REPETITIONS = 3
GPUS_PER_NODE = 4
TIERS = load_tiers("paper")
CATALOGUE = load_catalogue("paper")
RULES = load_rules("paper")

Draw = Callable[[np.random.Generator], list[Pattern]]


class Case(NamedTuple):
    """A set of experiments."""

    name: str
    gpus: int
    draw: Draw
    experiments: int
    bar: float | None = None
    """Seconds that the whole set may take; None for rows that show growth."""


class Experiment(NamedTuple):
    """What later stages go on from."""

    pattern: Pattern
    assignment: Assignment


def tier_patterns(gpus: int, count: int) -> Draw:
    """Draw of `count` tier-sampled patterns."""
    return lambda rng: [tier_sampled(gpus, TIERS, rng) for _ in range(count)]


def uniform_patterns(gpus: int, utilisations: int) -> Draw:
    """Draw of uniform patterns of 16 GPUs a job, which three strategies share, up to the whole machine."""
    return lambda rng: [uniform(gpus, 16, (step + 1) / utilisations) for step in range(utilisations)]


def crowded_patterns(gpus: int, count: int) -> Draw:
    """Draw of patterns of up to 1000 jobs, which have 10 GPUs in the mean."""

    def draw(rng: np.random.Generator) -> list[Pattern]:
        sizes = rng.choice((8, 16, 32), size=(count, 1000), p=(0.85, 0.1, 0.05))
        return [tuple(row[row.cumsum() <= gpus].tolist()) for row in sizes]

    return draw


CASES = (
    Case("paper, tiers", 2040, tier_patterns(2040, 5), 12, bar=1),
    Case("paper, uniform", 2040, uniform_patterns(2040, 8), 25, bar=1),
    Case("200 experiments", 2040, tier_patterns(2040, 5), 200, bar=2),
    Case("1000 jobs", 10_000, crowded_patterns(10_000, 40), 120, bar=10),
    Case("100 000 GPUs", 100_000, tier_patterns(100_000, 40), 120, bar=30),
    *(Case("growth", gpus, tier_patterns(gpus, 5), 12) for gpus in (1000, 4000, 16_000, 64_000, 256_000)),
)


PLANS = (("plan, tiers", 2040, 12), ("plan, tiers", 2040, 200), ("plan, tiers", 10_000, 40))


def machine(gpus: int) -> Topology:
    """As many cells of Leonardo's size as the GPUs need."""
    groups = -(-gpus // (180 * GPUS_PER_NODE))
    return from_system(load_system("leonardo"), gpus=gpus, groups=groups)


def assign(case: Case, patterns: list[Pattern], possible: Possibilities, rng: np.random.Generator) -> list[Experiment]:
    """The case's experiments: patterns and, within a pattern, the entropy bins that it reaches take turns."""
    per_bin = -(-case.experiments // len(patterns))
    turns = []
    for pattern in patterns:
        found, _ = sample_assignments(pattern, possible.strategies(pattern), per_bin, rng)
        turns.append([Experiment(pattern, each) for rank in range(per_bin) for each in found[rank::per_bin]])
    ordered = (experiment for turn in zip_longest(*turns) for experiment in turn if experiment is not None)
    return list(islice(ordered, case.experiments))


class Placed(NamedTuple):
    """An experiment on its nodes."""

    classes: tuple[PlacementClass, ...]
    nodes: tuple[tuple[str, ...], ...]


def place_all(
    experiments: list[Experiment], possible: Possibilities, rng: np.random.Generator
) -> tuple[list[Placed], int]:
    """Nodes for every experiment, its locality bins taking turns, and how many were refused."""
    placed = [place_one(experiment, index, possible, rng) for index, experiment in enumerate(experiments)]
    return [found for found in placed if found], placed.count(None)


def place_one(experiment: Experiment, turn: int, possible: Possibilities, rng: np.random.Generator) -> Placed | None:
    """One experiment in the bin whose turn it is, of those that it reaches."""
    pattern, assignment = experiment
    sampler = LocalitySampler(
        [possible.classes(strategy, size) for strategy, size in zip(assignment.strategies, pattern, strict=True)]
    )
    reached = [name for name in BINS if sampler.reaches(name)]
    for trial in range(MOST_TRIES * len(reached)):
        classes = sampler.draw(reached[(turn + trial // MOST_TRIES) % len(reached)], rng) or ()
        requests = [
            Request(str(job), possible.nodes(size), found)
            for job, (size, found) in enumerate(zip(pattern, classes, strict=True))
        ]
        try:
            return Placed(classes, place(possible.topology, requests, rng))
        except PlacementError:
            continue
    return None


def verify(topology: Topology, placed: list[Placed]) -> None:
    """Every job has its class, and no two of an experiment share a node."""
    for classes, nodes in placed:
        used = list(chain.from_iterable(nodes))
        assert len(set(used)) == len(used)
        assert all(wanted in achieved(topology, found).classes for wanted, found in zip(classes, nodes, strict=True))


class Outcome(NamedTuple):
    """A set that was designed."""

    experiments: list[Experiment]
    refused: int
    seconds: tuple[float, ...]
    """Of every stage."""


def design(case: Case, topology: Topology, seed: int) -> Outcome:
    """A set of experiments on their nodes, verified."""
    rng = np.random.default_rng(seed)
    times = [time.process_time()]
    patterns = case.draw(rng)
    times.append(time.process_time())
    possible = Possibilities(topology, CATALOGUE, RULES)
    experiments = assign(case, patterns, possible, rng)
    times.append(time.process_time())
    placed, refused = place_all(experiments, possible, rng)
    times.append(time.process_time())
    verify(topology, placed)
    return Outcome(experiments, refused, tuple(end - begin for begin, end in zip(times, times[1:], strict=False)))


def row(case: Case, seed: int) -> str:
    """Make the sets of a case; what they are and how long they took."""
    topology = machine(case.gpus)
    sets = [design(case, topology, seed + repetition) for repetition in range(REPETITIONS)]
    experiments = sets[0].experiments
    bins = Counter(experiment.assignment.bin for experiment in experiments)
    covered = "/".join(str(bins[name]) for name in BINS)
    jobs = max(len(experiment.pattern) for experiment in experiments)
    stages = "".join(
        f"{statistics.median(times) * 1e3:>13.2f}" for times in zip(*(s.seconds for s in sets), strict=True)
    )
    total = statistics.median(sum(found.seconds) for found in sets)
    refused = statistics.median(found.refused for found in sets)
    bar = "-" if case.bar is None else f"{case.bar:g}"
    counts = f"{len(experiments):>13}{covered:>17}{refused:>9g}{jobs:>7}"
    return f"{case.name:<16}{case.gpus:>8}{counts}{stages}{total:>8.3f}{bar:>6}"


def plan_row(name: str, gpus: int, experiments: int, seed: int) -> str:
    """Design whole plans: how many baselines they have and how long they took."""
    topology = machine(gpus)
    seconds = []
    for repetition in range(REPETITIONS):
        settings = Settings(
            system="leonardo",
            gpu="a100-64gb",
            catalogue=CATALOGUE,
            rules=RULES,
            tiers=TIERS,
            experiments=experiments,
            seed=seed + repetition,
        )
        begin = time.process_time()
        plan = whole_plan(topology, settings)
        seconds.append(time.process_time() - begin)
    baselines = len(plan.experiments) - experiments
    return f"{name:<16}{gpus:>8}{experiments:>13}{baselines:>17}{statistics.median(seconds):>8.3f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    stages = "".join(f"{stage:>13}" for stage in STAGES)
    units = f"{'[ms]':>13}" * len(STAGES)
    counts = f"{'experiments':>13}{'low/medium/high':>17}{'refused':>9}{'jobs':>7}"
    print(f"# {'set':<16}{'GPUs':>8}{counts}{stages}{'all':>8}{'bar':>6}")
    print(f"# {'':<16}{'':>8}{'':>{len(counts)}}{units}{'[s]':>8}{'[s]':>6}")
    for case in CASES:
        print(f"  {row(case, seed)}", flush=True)
    print(f"# {'set':<16}{'GPUs':>8}{'experiments':>13}{'baselines':>17}{'all [s]':>8}")
    for name, gpus, experiments in PLANS:
        print(f"  {plan_row(name, gpus, experiments, seed)}", flush=True)


if __name__ == "__main__":
    main()
