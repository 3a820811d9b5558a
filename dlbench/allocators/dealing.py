"""Dealing: places for blocks go to jobs at random, and those of some jobs must lie in more than one container.

A container is a switch or a group. Slots are places for blocks of one size, each named by the container it lies in.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Ints: TypeAlias = "NDArray[np.int64]"

MOST_DEALS = 8
"""Deals to a hand by itself before it exchanges."""
ANYWHERE = -1
"""No container is held yet."""


class Hand(NamedTuple):
    """What a job gets of the slots that are dealt out."""

    slots: int
    divided: bool
    """Whether the slots, with what it holds, must lie in more than one container."""
    held: int
    """Container of a block that it has already, or `ANYWHERE`."""


class StuckError(Exception):
    """A hand all of whose slots lie in one container, and nobody has one to exchange."""

    def __init__(self, hand: int) -> None:
        super().__init__(hand)
        self.hand = hand


def deal(slots: Ints, hands: Sequence[Hand], rng: np.random.Generator, *, in_order: bool) -> list[list[int]]:
    """The slots of each hand, which together must not want more than there are.

    `slots` come in any order. They are dealt in random order, or `in_order`: all of one container before the next, the
    containers in random order. Hands that lie in one container and must not exchange a slot. A hand by itself is dealt
    anew before that: exchanges favour those that only just leave a container.

    Raises `StuckError`.
    """
    for _ in range(MOST_DEALS if len(hands) == 1 else 1):
        ordered = _by_container(slots, rng) if in_order else rng.permutation(slots)
        if not len(confined := _confined(ordered, hands)):
            break
    table = _Table(ordered.tolist(), hands)
    for hand in confined.tolist():
        if not table.exchange(hand, rng):
            raise StuckError(hand)
    return table.dealt()


def _by_container(slots: Ints, rng: np.random.Generator) -> Ints:
    counts = np.bincount(slots)
    order = rng.permutation(len(counts))
    return np.repeat(order, counts[order])


def _confined(slots: Ints, hands: Sequence[Hand]) -> Ints:
    """Hands whose slots, dealt out in turn, all lie in one container and must not."""
    divided, held, counts = np.array([(hand.divided, hand.held, hand.slots) for hand in hands]).T
    ends = np.cumsum(counts)
    dealt, starts = slots[: ends[-1]], ends - counts
    lowest, highest = np.minimum.reduceat(dealt, starts), np.maximum.reduceat(dealt, starts)
    return np.flatnonzero(divided & (lowest == highest) & ((held == ANYWHERE) | (held == lowest)))


class _Table:
    """Slots in the hands of jobs, and after them those that nobody has.

    An exchange never spoils another hand, so that all succeed where there is a slot for each beside the fullest
    container.
    """

    def __init__(self, slots: list[int], hands: Sequence[Hand]) -> None:
        self.slots, self.hands = slots, hands
        ends = list(accumulate(hand.slots for hand in hands))
        self.spans = list(zip([0, *ends], ends, strict=False))
        self.owners = [index for index, hand in enumerate(hands) for _ in range(hand.slots)]

    def dealt(self) -> list[list[int]]:
        """The slots of each hand."""
        return [self.slots[start:end] for start, end in self.spans]

    def exchange(self, hand: int, rng: np.random.Generator) -> bool:
        """Exchange one of the hand's slots for one in another container; False where there is none to be had."""
        start, end = self.spans[hand]
        container = self.slots[start]
        if not self._within(hand, container):
            return True  # an earlier exchange has helped it
        given = int(rng.integers(start, end))
        offset = int(rng.integers(len(self.slots)))
        for step in range(len(self.slots)):
            other = (offset + step) % len(self.slots)
            if self.slots[other] != container and self._gives(other, container):
                self.slots[given], self.slots[other] = self.slots[other], container
                return True
        return False

    def _within(self, hand: int, container: int, without: int | None = None) -> bool:
        """Whether all that the hand has, one slot perhaps left out, lies in the container."""
        start, end = self.spans[hand]
        if self.hands[hand].held not in (ANYWHERE, container):
            return False
        return all(self.slots[slot] == container for slot in range(start, end) if slot != without)

    def _gives(self, slot: int, container: int) -> bool:
        """Whether the slot's owner can do with one in the container in its place."""
        if slot >= len(self.owners) or not self.hands[owner := self.owners[slot]].divided:
            return True
        return not self._within(owner, container, without=slot)
