"""Assignments: which strategy each job of a pattern runs, sampled evenly over low, medium and high mixture entropy.

Assignments drawn blindly have nearly all about the same entropy. Here each is aimed at an entropy of its bin and
built by a depth-first search, which leaves a branch as soon as the bounds of `mixture` exclude the bin. Jobs of one
size are alike, so the search decides how many of them each strategy gets: its depth grows with the number of sizes,
not of jobs.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from dlbench.allocators.mixture import BINS, Bin, entropy, least_even, most_even, subset_sums, third, vertex
from dlbench.errors import OptionError

if TYPE_CHECKING:
    import numpy as np

    from dlbench.allocators.patterns import Pattern

MOST_STEPS = 20_000
"""Branches that the search looks at per bin: a second or two. The paper's patterns take some tens per assignment."""
_TOLERANCE = 1e-9
_BISECTIONS = 30

_Counts: TypeAlias = tuple[int, ...]
"""Jobs that get the strategy of each choice."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A strategy for every job of a pattern."""

    strategies: tuple[str, ...]
    """In the pattern's order."""
    entropy: float
    """Mixture entropy in nats."""
    bin: Bin
    """Third of [0, ln m] in which the entropy lies."""


def sample_assignments(
    pattern: Pattern, feasible: Mapping[int, Sequence[str]], per_bin: int, rng: np.random.Generator
) -> tuple[list[Assignment], tuple[Bin, ...]]:
    """`per_bin` assignments for every entropy bin that the pattern can reach, and the bins that it cannot.

    `feasible` has the strategies of every size. The m strategies of the mix are those that are feasible for at least
    one job; the bins are the thirds of [0, ln m]. With m = 1 there is only the entropy 0, in the low bin.

    Two assignments are the same where jobs of one size have swapped their strategies. Those of a bin all differ;
    where the bin has fewer than `per_bin`, each of them comes equally often, give or take one.

    A bin is unreachable if no assignment lies in it; the search is exhaustive. Only where it has looked at
    `MOST_STEPS` branches of a bin without an end does it take what it has found for all there is.

    Raises `OptionError` for a pattern without jobs, a job without a strategy, or `per_bin` below 1.
    """
    if per_bin < 1:
        raise OptionError(f"{per_bin} assignments per bin are too few; use 1 or more")
    if not pattern:
        raise OptionError("the pattern has no job; use more GPUs or smaller jobs")
    for size in pattern:
        if not feasible.get(size):
            raise OptionError(f"no strategy is feasible for a job of {size} GPUs; use other sizes")
    mix = _Mix(pattern, feasible)
    assignments: list[Assignment] = []
    unreachable: list[Bin] = []
    for name in BINS:
        found = _sample_bin(mix, name, per_bin, rng)
        if not found:
            unreachable.append(name)
        assignments += [mix.assignment(counts, rng) for counts in found]
    return assignments, tuple(unreachable)


def _sample_bin(mix: _Mix, name: Bin, per_bin: int, rng: np.random.Generator) -> list[_Counts]:
    """Distinct counts within the bin, as many as asked for if there are; repeated in turns if not, none if none."""
    search = _Search(mix, name)
    seen: dict[_Counts, None] = {}
    while len(seen) < per_bin:
        fresh = (counts for counts in search.leaves(rng) if counts not in seen)
        if (counts := next(fresh, None)) is None:
            break
        seen[counts] = None
    found = list(seen)
    return [found[index % len(found)] for index in range(per_bin)] if found else []


class _Choice(NamedTuple):
    """How many of the jobs of a size, out of those that are left, get a strategy."""

    size: int
    strategy: int
    jobs: int | None
    """Jobs of the size, at the first choice about it."""
    others: tuple[int, ...]
    """Strategies that can have the rest; none: this one takes it."""
    later: list[int]
    """Claims of all smaller sizes together."""


class _Node(NamedTuple):
    """An assignment in the making. What can become of it depends on nothing else."""

    depth: int
    """Choices made."""
    left: int
    """Jobs of the present size that are still to be assigned."""
    gpus: tuple[int, ...]
    """GPUs that each strategy has got."""


class _Mix:
    """A pattern's jobs by size, and the choices that make an assignment of it, largest size first."""

    def __init__(self, pattern: Pattern, feasible: Mapping[int, Sequence[str]]) -> None:
        self.pattern = pattern
        self.jobs = Counter(pattern)
        sizes = sorted(self.jobs, reverse=True)
        self.names = sorted({name for size in sizes for name in feasible[size]})
        self.greatest = math.log(len(self.names))
        index = {name: position for position, name in enumerate(self.names)}
        self.choices: list[_Choice] = []
        claims = [0] * 2 ** len(self.names)
        for size in reversed(sizes):
            able = sorted({index[name] for name in feasible[size]})
            self.choices[:0] = [
                _Choice(size, strategy, None if rank else self.jobs[size], tuple(able[rank + 1 :]), claims)
                for rank, strategy in enumerate(able)
            ]
            claims = _claimed(claims, able, size * self.jobs[size])
        self.claims = claims
        self.root = _Node(0, 0, (0,) * len(self.names))

    def left(self, node: _Node) -> int:
        """Jobs that the node's next choice is about."""
        jobs = self.choices[node.depth].jobs
        return node.left if jobs is None else jobs

    def child(self, node: _Node, count: int) -> _Node:
        """The node after `count` jobs got the strategy of the next choice."""
        choice = self.choices[node.depth]
        gpus = list(node.gpus)
        gpus[choice.strategy] += count * choice.size
        return _Node(node.depth + 1, self.left(node) - count, tuple(gpus))

    def claims_of(self, node: _Node) -> list[int]:
        """Claims on the GPUs of the whole pattern, those assigned so far included."""
        last = self.choices[node.depth - 1]
        claims = _claimed(last.later, last.others, last.size * node.left) if node.left else last.later
        return [claim + got for claim, got in zip(claims, subset_sums(node.gpus), strict=True)]

    def assignment(self, counts: _Counts, rng: np.random.Generator) -> Assignment:
        """The counts dealt to the jobs, at random among those of one size."""
        hands: dict[int, list[str]] = {size: [] for size in self.jobs}
        gpus = [0] * len(self.names)
        for choice, count in zip(self.choices, counts, strict=True):
            hands[choice.size] += [self.names[choice.strategy]] * count
            gpus[choice.strategy] += count * choice.size
        dealt = {size: iter(rng.permutation(len(hand)).tolist()) for size, hand in hands.items()}
        strategies = tuple(hands[size][next(dealt[size])] for size in self.pattern)
        value = entropy(gpus)
        return Assignment(strategies, value, third(value, 0, self.greatest))


def _claimed(claims: list[int], able: Sequence[int], gpus: int) -> list[int]:
    """Claims with those of further jobs, which only the strategies in `able` can have."""
    mask = sum(1 << strategy for strategy in able)
    return [claim + gpus * (subset & mask == mask) for subset, claim in enumerate(claims)]


@dataclass(slots=True)
class _Frame:
    """A node of the search, and the counts that it has not tried."""

    node: _Node
    counts: Iterator[int]
    fertile: bool = False
    """Whether an assignment of the bin has been found below."""


@dataclass
class _Search:
    """All assignments of a pattern whose entropy lies in a bin."""

    mix: _Mix
    name: Bin
    barren: set[_Node] = field(default_factory=set)
    """Nodes below which nothing lies in the bin."""
    steps: int = 0

    def __post_init__(self) -> None:
        position, width = BINS.index(self.name), self.mix.greatest / 3
        self.edges = (position * width, (position + 1) * width)
        self.even = most_even(self.mix.claims)
        self.uneven = least_even(self.mix.claims)
        self.reachable = self._overlaps(entropy(self.uneven), entropy(self.even))

    def leaves(self, rng: np.random.Generator) -> Iterator[_Counts]:
        """Counts within the bin, each once, first those near GPUs per strategy that are drawn at random."""
        if not self.reachable:
            return
        aim = self._aim(rng)
        path: list[int] = []
        stack = [self._frame(self.mix.root, aim)]
        while stack and self.steps < MOST_STEPS:
            frame = stack[-1]
            count = next(frame.counts, None)
            if count is None:
                self._leave(stack)
                del path[-1:]
                continue
            child = self.mix.child(frame.node, count)
            if not self._fits(child):
                continue
            if child.depth == len(self.mix.choices):
                frame.fertile = True
                yield (*path, count)
            else:
                path.append(count)
                stack.append(self._frame(child, aim))

    def _leave(self, stack: list[_Frame]) -> None:
        frame = stack.pop()
        if not frame.fertile:
            self.barren.add(frame.node)
        elif stack:
            stack[-1].fertile = True

    def _frame(self, node: _Node, aim: Sequence[float]) -> _Frame:
        """The node with its counts, nearest first to what spreads the jobs as the strategies lack GPUs."""
        choice, left = self.mix.choices[node.depth], self.mix.left(node)
        if not choice.others:
            return _Frame(node, iter((left,)))
        lacks = [max(0.0, aim[strategy] - node.gpus[strategy]) for strategy in (choice.strategy, *choice.others)]
        wanted = left * lacks[0] / total if (total := math.fsum(lacks)) else left / len(lacks)
        below = math.floor(wanted)
        downwards, upwards = range(below, -1, -1), range(below + 1, left + 1)
        return _Frame(node, heapq.merge(downwards, upwards, key=lambda count: abs(count - wanted)))

    def _fits(self, node: _Node) -> bool:
        """Whether the bin may be reached from the node: certain for a complete assignment, else by the bounds."""
        if node in self.barren:
            return False
        self.steps += 1
        if node.depth == len(self.mix.choices):
            return third(entropy(node.gpus), 0, self.mix.greatest) == self.name
        claims = self.mix.claims_of(node)
        return self._overlaps(entropy(least_even(claims)), entropy(most_even(claims)))

    def _overlaps(self, least: float, greatest: float) -> bool:
        return least <= self.edges[1] + _TOLERANCE and greatest >= self.edges[0] - _TOLERANCE

    def _aim(self, rng: np.random.Generator) -> list[float]:
        """GPUs of each strategy, at an entropy drawn evenly from the reachable part of the bin.

        From a random mixture of vertices it goes towards the most even vector or towards an uneven vertex, whichever
        leads to that entropy.
        """
        low = max(self.edges[0], entropy(self.uneven))
        target = low + rng.random() * (min(self.edges[1], entropy(self.even)) - low)
        vertices = [vertex(self.mix.claims, rng.permutation(len(self.even)).tolist()) for _ in range(3)]
        weights = rng.dirichlet([1.0] * len(vertices)).tolist()
        start = [sum(w * g for w, g in zip(weights, gpus, strict=True)) for gpus in zip(*vertices, strict=True)]
        if entropy(start) < target:
            return _between(start, self.even, target)
        uneven = vertices[0] if entropy(vertices[0]) <= target else self.uneven
        return _between(uneven, start, target)


def _between(low: Sequence[float], high: Sequence[float], target: float) -> list[float]:
    """Point on the way from `low` to `high` whose entropy is the target, which lies between theirs."""

    def point(way: float) -> list[float]:
        return [(1 - way) * a + way * b for a, b in zip(low, high, strict=True)]

    below, above = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (below + above) / 2
        if entropy(point(middle)) < target:
            below = middle
        else:
            above = middle
    return point(above)
