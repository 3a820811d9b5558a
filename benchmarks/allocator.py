"""How long the design of experiments takes, stage by stage, and how it grows with the machine.

    python benchmarks/allocator.py [--seed 0]

Each row is a set of experiments: patterns of jobs are drawn, and strategies are assigned to the jobs in every entropy
bin that the pattern reaches. Times are medians of three sets, each drawn anew.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable
from itertools import islice, zip_longest
from typing import NamedTuple

import numpy as np

from dlbench.allocators.assignment import Assignment, sample_assignments
from dlbench.allocators.catalogue import feasible_by_size, load_catalogue
from dlbench.allocators.mixture import BINS
from dlbench.allocators.patterns import Pattern, load_tiers, tier_sampled, uniform

STAGES = ("patterns", "assignments")
REPETITIONS = 3
GPUS_PER_NODE = 4
TIERS = load_tiers("paper")
CATALOGUE = load_catalogue("paper")

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


def assign(case: Case, patterns: list[Pattern], rng: np.random.Generator) -> list[Experiment]:
    """The case's experiments: patterns and, within a pattern, the entropy bins that it reaches take turns."""
    per_bin = -(-case.experiments // len(patterns))
    turns = []
    for pattern in patterns:
        feasible = feasible_by_size(pattern, GPUS_PER_NODE, CATALOGUE)
        found, _ = sample_assignments(pattern, feasible, per_bin, rng)
        turns.append([Experiment(pattern, each) for rank in range(per_bin) for each in found[rank::per_bin]])
    ordered = (experiment for turn in zip_longest(*turns) for experiment in turn if experiment is not None)
    return list(islice(ordered, case.experiments))


def design(case: Case, seed: int) -> tuple[list[Experiment], dict[str, float]]:
    """A set of experiments, and the seconds of each stage."""
    rng = np.random.default_rng(seed)
    begin = time.perf_counter()
    patterns = case.draw(rng)
    drawn = time.perf_counter()
    experiments = assign(case, patterns, rng)
    assigned = time.perf_counter()
    return experiments, {"patterns": drawn - begin, "assignments": assigned - drawn}


def row(case: Case, seed: int) -> str:
    """Make the sets of a case; what they are and how long they took."""
    sets = [design(case, seed + repetition) for repetition in range(REPETITIONS)]
    experiments = sets[0][0]
    bins = Counter(experiment.assignment.bin for experiment in experiments)
    covered = "/".join(str(bins[name]) for name in BINS)
    jobs = max(len(experiment.pattern) for experiment in experiments)
    stages = "".join(f"{statistics.median(found[stage] for _, found in sets) * 1e3:>13.2f}" for stage in STAGES)
    total = statistics.median(sum(found.values()) for _, found in sets)
    bar = "-" if case.bar is None else f"{case.bar:g}"
    return f"{case.name:<16}{case.gpus:>8}{len(experiments):>13}{covered:>17}{jobs:>7}{stages}{total:>8.3f}{bar:>6}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    stages = "".join(f"{stage:>13}" for stage in STAGES)
    units = f"{'[ms]':>13}" * len(STAGES)
    print(f"# {'set':<16}{'GPUs':>8}{'experiments':>13}{'low/medium/high':>17}{'jobs':>7}{stages}{'all':>8}{'bar':>6}")
    print(f"# {'':<16}{'':>8}{'':>13}{'':>17}{'':>7}{units}{'[s]':>8}{'[s]':>6}")
    for case in CASES:
        print(f"  {row(case, seed)}", flush=True)


if __name__ == "__main__":
    main()
