"""Packing: how many nodes of each switch go to which job. Counts only; `placement` has the names.

A job is a number of equal blocks and perhaps a shorter one, each of which lies under one L1 switch, and a rule about
what they share. One attempt goes from the outside in, at random but never into a corner that can be foreseen:

1. Jobs that stay within a group, largest first, choose it, each of the groups that still have room being as likely.
2. Jobs across groups take the places that are left, all alike.
3. Within a group, blocks choose their switches, largest blocks first.

Room is counted for every block size at once: a switch of f free nodes has f // b places for blocks of b. Where sizes
divide each other, as powers of two do, blocks that were placed largest first take their share of these places wherever
they lie (Coffman, Garey and Johnson, "Bin packing with divisible item sizes", 1987), so the counts do not deceive.
Otherwise an attempt may fail where another succeeds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from dlbench.allocators.classes import PlacementClass, Spread
from dlbench.allocators.dealing import ANYWHERE, Hand, StuckError, deal

if TYPE_CHECKING:
    from numpy.typing import NDArray

Ints: TypeAlias = "NDArray[np.int64]"


class Shape(NamedTuple):
    """What is packed: `full` blocks of `size` nodes and, where `rest` is not 0, a last one of `rest` nodes."""

    spread: Spread
    size: int
    full: int
    rest: int

    @classmethod
    def of(cls, placement: PlacementClass, nodes: int) -> Shape:
        """Shape of a job."""
        size = nodes if placement.spread is Spread.L1 else placement.block
        return cls(placement.spread, size, *divmod(nodes, size))

    @property
    def nodes(self) -> int:
        """Nodes of all blocks."""
        return self.size * self.full + self.rest

    @property
    def sizes(self) -> tuple[int, ...]:
        """Nodes of every block, in rank order."""
        return (self.size,) * self.full + (self.rest,) * (self.rest > 0)

    def places(self, size: int) -> int:
        """Places for blocks of that size that the job takes."""
        return self.full * (self.size // size) + self.rest // size

    @property
    def divided(self) -> int:
        """Largest size of which a block surely lies outside any one container of those that the job is spread over."""
        return self.rest if self.full == 1 else self.size


Packing: TypeAlias = list[list[int]]
"""For every job the switch of each of its blocks, in rank order."""


class NoRoomError(Exception):
    """A job that has no place beside those that were placed before it."""

    def __init__(self, job: int, size: int, wanted: int, free: int) -> None:
        super().__init__(job)
        self.job, self.size, self.wanted, self.free = job, size, wanted, free


@dataclass(frozen=True)
class Machine:
    """Free nodes of every switch, and the group of every switch; switches of one group follow each other."""

    free: Ints
    group: Ints

    @cached_property
    def bounds(self) -> Ints:
        """First switch of each group, and at the end the number of switches."""
        return np.searchsorted(self.group, np.arange(self.group[-1] + 2))

    @property
    def groups(self) -> int:
        """Number of groups."""
        return len(self.bounds) - 1

    def places(self, size: int) -> Ints:
        """Places for blocks of that size in each group."""
        return self._per_group(np.add, self.free // size)

    def places_beside_fullest(self, size: int) -> Ints:
        """The same, without the switch of each group that has most of them."""
        return self.places(size) - self._per_group(np.maximum, self.free // size)

    def holds(self, shape: Shape) -> NDArray[np.bool_]:
        """Which groups could hold the job under more than one of their switches, if it were alone."""
        places, all_places = self.free // shape.size, self.places(shape.size)
        if not shape.rest:
            return (all_places >= shape.full) & (self.places_beside_fullest(shape.size) > 0)
        # The rest under each switch in turn: the blocks must fit beside it, one of them under another switch.
        others = all_places[self.group] - places
        here = (self.free - shape.rest) // shape.size
        fits = (self.free >= shape.rest) & (others + here >= shape.full) & (others > 0)
        return np.asarray(self._per_group(np.logical_or, fits), dtype=np.bool_)

    def _per_group(self, reduce: np.ufunc, values: NDArray[np.generic]) -> Ints:
        reduced: Ints = reduce.reduceat(values, self.bounds[:-1])
        return reduced


def pack(machine: Machine, shapes: Sequence[Shape], rng: np.random.Generator, *, tight: bool = False) -> Packing:
    """One attempt; `tight` fills one group and one switch after the other in place of choosing among all.

    Raises `NoRoomError` with the first job that found no place.
    """
    return _Attempt(machine, shapes, rng, tight).packing()


class _Item(NamedTuple):
    """Blocks of one size and one job that go to one group."""

    job: int
    blocks: int


class _Attempt:
    def __init__(self, machine: Machine, shapes: Sequence[Shape], rng: np.random.Generator, tight: bool) -> None:
        self.machine, self.shapes, self.rng, self.tight = machine, shapes, rng, tight
        self.sizes = sorted({1} | {size for shape in set(shapes) for size in (shape.size, shape.rest) if size})[::-1]
        self.room = np.array([machine.places(size) for size in self.sizes]).T
        """Places left in each group for blocks of each size, shape (groups, sizes)."""
        self.apart = np.array([machine.places_beside_fullest(size) for size in self.sizes]).T
        """Those of them that jobs under more than one switch can still count on, beside the fullest switch."""
        self.items: list[dict[int, list[_Item]]] = [defaultdict(list) for _ in range(machine.groups)]
        """What goes to each group, by size."""

    def packing(self) -> Packing:
        """The switch of every block."""
        self._choose_groups()
        self._go_across()
        return self._choose_switches()

    def _need(self, shape: Shape) -> Ints:
        """Places of each size that the job takes."""
        return np.array([shape.places(size) for size in self.sizes])

    def _divides(self, shape: Shape) -> Ints:
        """1 for each size of which the job must have a block beside those in its fullest container."""
        return np.array([int(size <= shape.divided) for size in self.sizes])

    def _choose_groups(self) -> None:
        """A group for every job that stays in one, largest first."""
        bound = [job for job, shape in enumerate(self.shapes) if shape.spread is not Spread.ACROSS]
        across = [shape for shape in self.shapes if shape.spread is Spread.ACROSS]
        kinds = {shape: self._kind(shape) for shape in dict.fromkeys(self.shapes[job] for job in bound)}
        reserve = _Reserve(self.room, list(map(self._need, across)), list(map(self._divides, across)))
        self.rng.shuffle(bound)
        for job in sorted(bound, key=[-shape.nodes for shape in self.shapes].__getitem__):
            shape = self.shapes[job]
            kind = kinds[shape]
            fits = kind.able & (self.room >= kind.need).all(axis=1) & (self.apart >= kind.divides).all(axis=1)
            group = self._drawn(fits, shape)
            if across and group is not None and not reserve.keeps(group, kind.need):
                group = self._drawn(fits & reserve.kept(kind.need), shape)
            if group is None:
                raise NoRoomError(job, shape.size, shape.full, int(self._places(shape.size).max()))
            self._bind(job, group, kind)
            reserve.total -= kind.need

    def _kind(self, shape: Shape) -> _Kind:
        if shape.spread is Spread.L1:
            able = np.ones(self.machine.groups, dtype=np.bool_)
            return _Kind(self._need(shape), np.zeros(len(self.sizes), dtype=np.int64), able)
        return _Kind(self._need(shape), self._divides(shape), self.machine.holds(shape))

    def _drawn(self, fits: NDArray[np.bool_], shape: Shape) -> int | None:
        """One of the groups that fit, if any: any of them, or for a job of one block, any of its places in them."""
        if self.tight and fits.any():
            return int(np.where(fits, self.room[:, -1], np.iinfo(np.int64).max).argmin())
        chances = (fits * self._places(shape.size) if shape.spread is Spread.L1 else fits).cumsum()
        if not chances[-1]:
            return None
        return int(chances.searchsorted(self.rng.random() * chances[-1], side="right"))

    def _bind(self, job: int, group: int, kind: _Kind) -> None:
        shape = self.shapes[job]
        self.room[group] -= kind.need
        self.apart[group] -= kind.divides
        self.items[group][shape.size].append(_Item(job, shape.full))
        if shape.rest:
            self.items[group][shape.rest].append(_Item(job, 1))

    def _places(self, size: int) -> Ints:
        """Blocks of the size that each group can still take, blocks of smaller sizes considered."""
        taken = [size // smaller for smaller in self.sizes]
        first = self.sizes.index(size)
        left: Ints = (self.room[:, first:] // taken[first:]).min(axis=1)
        return np.maximum(left, 0)

    def _go_across(self) -> None:
        """Groups for the blocks of the jobs that are in several, largest blocks first."""
        first: dict[int, int] = {}
        for size in self.sizes:
            items = list(self._items_across(size))
            if not items:
                continue
            slots = np.repeat(np.arange(self.machine.groups), self._places(size))
            dealt = self._deal(slots, items, size, Spread.ACROSS, first)
            for item, groups in zip(items, dealt, strict=True):
                first.setdefault(item.job, groups[0])
                for group, count in Counter(groups).items():
                    self.items[group][size].append(_Item(item.job, count))
            taken = np.bincount(list(chain.from_iterable(dealt)), minlength=self.machine.groups)
            self.room -= np.outer(taken, [size // smaller for smaller in self.sizes])

    def _items_across(self, size: int) -> Iterable[_Item]:
        for job, shape in enumerate(self.shapes):
            if shape.spread is Spread.ACROSS:
                if shape.size == size:
                    yield _Item(job, shape.full)
                if shape.rest == size:
                    yield _Item(job, 1)

    def _choose_switches(self) -> Packing:
        """Switches for the blocks in each group, largest blocks first."""
        full: Packing = [[] for _ in self.shapes]
        rest: Packing = [[] for _ in self.shapes]
        held: dict[int, int] = {}
        for by_size, (first, last) in zip(self.items, pairwise(self.machine.bounds.tolist()), strict=True):
            free = self.machine.free[first:last].copy()
            for size in sorted(by_size, reverse=True):
                slots = np.repeat(np.arange(last - first), free // size)
                dealt = self._deal(slots, by_size[size], size, Spread.GROUP, held)
                for item, switches in zip(by_size[size], dealt, strict=True):
                    held.setdefault(item.job, switches[0])
                    blocks = full if size == self.shapes[item.job].size else rest
                    blocks[item.job] += [first + switch for switch in switches]
                free -= size * np.bincount(list(chain.from_iterable(dealt)), minlength=last - first)
        for job, shape in enumerate(self.shapes):
            if shape.spread is Spread.ACROSS:  # they come group by group
                self.rng.shuffle(full[job])
        return [blocks + last for blocks, last in zip(full, rest, strict=True)]

    def _deal(
        self, slots: Ints, items: Sequence[_Item], size: int, spread: Spread, held: dict[int, int]
    ) -> list[list[int]]:
        """The slots for each item, those of jobs with that spread in several containers."""
        hands = []
        for item in items:
            shape = self.shapes[item.job]
            whole = shape.size == size
            divided = shape.spread is spread and (shape.full > 1) is whole
            hands.append(Hand(item.blocks, divided, ANYWHERE if whole else held.get(item.job, ANYWHERE)))
        if (lacking := sum(hand.slots for hand in hands) - len(slots)) > 0:
            last = items[-1]
            raise NoRoomError(last.job, size, last.blocks, max(0, last.blocks - lacking))
        try:
            return deal(slots, hands, self.rng, in_order=self.tight)
        except StuckError as error:
            raise NoRoomError(items[error.hand].job, size, items[error.hand].blocks, 0) from None


class _Kind(NamedTuple):
    """What jobs of one shape that stay within a group ask of it."""

    need: Ints
    """Places of each size."""
    divides: Ints
    """Of these, what must lie beside the fullest switch."""
    able: NDArray[np.bool_]
    """Groups that could hold the job alone."""


class _Reserve:
    """Room that jobs across groups need, while jobs within a group choose theirs."""

    def __init__(self, room: Ints, needs: Sequence[Ints], divides: Sequence[Ints]) -> None:
        self.room = room
        self.total = room.sum(axis=0)
        self.need = sum(needs, start=np.zeros_like(self.total))
        self.outside = sum(divides, start=np.zeros_like(self.total))
        """Places that must lie outside any one group: one for each job."""

    def keeps(self, group: int, need: Ints) -> bool:
        """Whether `kept` has the group."""
        most = self.room.max(axis=0)
        if not (self.total - need - most >= self.outside).all():  # so much is not needed, but it is quickly seen
            return bool(self.kept(need)[group])
        return bool((self.total - need >= self.need).all())

    def kept(self, need: Ints) -> NDArray[np.bool_]:
        """Groups from which a job can take what it needs so that the others still find enough, and in two groups."""
        total = self.total - need
        if (total < self.need).any():
            return np.zeros(len(self.room), dtype=np.bool_)
        ascending = np.sort(self.room, axis=0)
        second = ascending[-2] if len(self.room) > 1 else np.zeros_like(total)
        most_elsewhere = np.where(self.room == ascending[-1], second, ascending[-1])
        most = np.maximum(most_elsewhere, self.room - need)
        return np.asarray((total - most >= self.outside).all(axis=1), dtype=np.bool_)
