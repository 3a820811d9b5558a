"""Packing by exhaustive search: finds a placement wherever one exists, in time for small machines only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dlbench.allocators.classes import Spread
from dlbench.allocators.packing import Machine, Packing, Shape

MOST_STEPS = 50_000
"""Blocks that are put somewhere before the search gives up: a fraction of a second."""
MOST_BLOCKS = 40
"""Blocks of all jobs together; with more, no search would end."""


class UndecidedError(Exception):
    """The search ended before it knew."""


def search(machine: Machine, shapes: Sequence[Shape], rng: np.random.Generator) -> Packing | None:
    """The switches of every job's blocks, in random order of trial; None where no packing exists.

    Raises `UndecidedError` after `MOST_STEPS` steps, and at once for more than `MOST_BLOCKS` blocks.
    """
    if sum(len(shape.sizes) for shape in shapes) > MOST_BLOCKS:
        raise UndecidedError
    order = sorted(range(len(shapes)), key=lambda job: (-shapes[job].size, -shapes[job].nodes))
    found = _Search(machine, [shapes[job] for job in order], rng).solve(0)
    if found is None:
        return None
    packing: Packing = [[] for _ in shapes]
    for job, switches in zip(order, found, strict=True):
        packing[job] = switches
    return packing


class _Search:
    """Depth first over the jobs. What was left free where the rest did not fit is remembered, up to symmetry."""

    def __init__(self, machine: Machine, shapes: Sequence[Shape], rng: np.random.Generator) -> None:
        self.shapes = shapes
        self.free: list[int] = machine.free.tolist()
        self.group: list[int] = machine.group.tolist()
        self.order: list[int] = rng.permutation(len(self.free)).tolist()
        self.dead: set[tuple[int, tuple[tuple[int, ...], ...]]] = set()
        self.steps = 0

    def solve(self, job: int) -> Packing | None:
        """Switches for this job and all after it, or None."""
        if job == len(self.shapes):
            return []
        state = job, self._symmetric()
        if state in self.dead:
            return None
        shape = self.shapes[job]
        for switches in self._ways(shape, 0, 0):
            if self._spread(shape, switches) and (rest := self.solve(job + 1)) is not None:
                return [switches, *rest]
        self.dead.add(state)
        return None

    def _symmetric(self) -> tuple[tuple[int, ...], ...]:
        """Free nodes, the same for machines that differ by the names of switches and groups only."""
        groups: dict[int, list[int]] = {}
        for group, free in zip(self.group, self.free, strict=True):
            groups.setdefault(group, []).append(free)
        return tuple(sorted(tuple(sorted(group)) for group in groups.values()))

    def _ways(self, shape: Shape, block: int, first: int) -> Iterator[list[int]]:
        """Switches for the blocks from `block` on, equal blocks in the order of trial; the nodes count as taken."""
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise UndecidedError
        if block == len(shape.sizes):
            yield []
            return
        size = shape.sizes[block]
        start = first if block < shape.full else 0
        for position in range(start, len(self.order)):
            switch = self.order[position]
            if self.free[switch] >= size:
                self.free[switch] -= size
                for others in self._ways(shape, block + 1, position):
                    yield [switch, *others]
                self.free[switch] += size

    def _spread(self, shape: Shape, switches: Sequence[int]) -> bool:
        groups = {self.group[switch] for switch in switches}
        match shape.spread:
            case Spread.L1:
                return True
            case Spread.GROUP:
                return len(groups) == 1 and len(set(switches)) > 1
            case Spread.ACROSS:
                return len(groups) > 1
