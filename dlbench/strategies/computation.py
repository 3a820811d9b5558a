"""What a configuration computes: its phases, and the time of an iteration in which communication is free."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from dlbench.roofline import Phase
from dlbench.strategies.configuration import Configuration
from dlbench.strategies.ops import Compute


class Ideal(NamedTuple):
    """An iteration without time for communication: the floor under every measurement."""

    seconds: float
    samples_per_second: float
    """Local batch × replicas / seconds."""
    bubble: float
    """Part of the iteration in which the busiest stage has nothing to do."""


def phase_table(configuration: Configuration) -> list[tuple[Phase, int]]:
    """Phases of one iteration, each with its count on the rank that runs it most often."""
    counts: Counter[Phase] = Counter()
    for role in configuration.roles():
        counts |= _phases(configuration, role.rank)
    return list(counts.items())


def compute_seconds(configuration: Configuration, rank: int) -> float:
    """Time that a rank computes per iteration."""
    return sum(phase.seconds * count for phase, count in _phases(configuration, rank).items())


def ideal(configuration: Configuration) -> Ideal:
    """The iteration in which every message takes no time.

    A stage computes f for a microbatch forward and 2 f backward. The first of m microbatches passes all stages, and
    each of the others adds one turn of the slowest: Σ 3 f + (m − 1) max 3 f. Without a pipeline that is the compute.
    """
    layout, microbatches = configuration.layout, configuration.workload.microbatches
    stage_ranks = layout.world_size // layout.pp
    per_role = [(compute_seconds(configuration, role.rank), role.ranks) for role in configuration.roles()]
    busiest = max(seconds for seconds, _ in per_role)
    all_stages = sum(seconds * ranks for seconds, ranks in per_role) / stage_ranks
    seconds = (all_stages + (microbatches - 1) * busiest) / microbatches
    samples = configuration.workload.local_batch * layout.replicas
    return Ideal(seconds=seconds, samples_per_second=samples / seconds, bubble=1 - busiest / seconds)


def _phases(configuration: Configuration, rank: int) -> Counter[Phase]:
    return Counter(op.phase for op in configuration.ops(rank) if isinstance(op, Compute))
