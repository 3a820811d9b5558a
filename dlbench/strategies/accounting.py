"""Accounting: from the clock readings around every op to the times that a record holds.

- `compute`: the phases. Where they are timed (sleeps), as long as they were meant to be.
- `overrun`: what timed phases took beyond that: late wake-ups, and a library that communicates during a phase and does
  not return in time.
- `issue`: starting non-blocking communications.
- sync_time: blocking communications and waits for non-blocking ones, each communication class by itself.

`overrun` and `issue` are no part of sync_time, whose definition is the published one, but communication can hide there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from dlbench.strategies.ops import COLLECTIVES, Compute, Op, Wait, communication_class

COMPUTE = "compute"
OVERRUN = "overrun"
ISSUE = "issue"
LOCAL = (COMPUTE, OVERRUN, ISSUE)
"""Categories that every rank has; the communication classes follow them."""
_NANOSECOND = 1e-9


def categories(program: Sequence[Op]) -> list[str]:
    """Category of every op: compute, issue, or its communication class; a wait has the class of what it waits for."""
    classes: dict[str, str] = {}
    result: list[str] = []
    for op in program:
        if isinstance(op, Compute):
            result.append(COMPUTE)
        elif isinstance(op, Wait):
            result.append("+".join(dict.fromkeys(classes[name] for name in op.requests)))
        elif isinstance(op, COLLECTIVES) and not op.blocking:
            classes[op.buffer.name] = communication_class(op)
            result.append(ISSUE)
        else:
            result.append(communication_class(op))
    return result


def classes_of(programs: Iterable[Sequence[Op]]) -> tuple[str, ...]:
    """Communication classes of several programs, in order of first appearance."""
    found = dict.fromkeys(category for program in programs for category in categories(program))
    return tuple(category for category in found if category not in LOCAL)


class Accounting:
    """Sums the ops of one rank's iteration by category.

    `classes` is the same on all ranks, whether or not this rank's program has each of them. `timed` says that a phase
    lasts as long as the roofline says, so that what is beyond is overrun.
    """

    def __init__(self, program: Sequence[Op], classes: Sequence[str], *, timed: bool) -> None:
        order = {category: index for index, category in enumerate((*LOCAL, *classes))}
        self._category = np.array([order[category] for category in categories(program)], dtype=np.intp)
        self._categories = len(order)
        unlimited = np.inf
        self._planned = np.array(
            [op.phase.seconds if timed and isinstance(op, Compute) else unlimited for op in program]
        )

    def seconds(self, enter: Sequence[int], leave: Sequence[int]) -> NDArray[np.float64]:
        """Seconds of each of `LOCAL` and of each class, shape (3 + classes,), from readings in nanoseconds."""
        durations = (np.array(leave, dtype=np.int64) - np.array(enter, dtype=np.int64)) * _NANOSECOND
        within = np.minimum(durations, self._planned)
        sums = np.bincount(self._category, weights=within, minlength=self._categories).astype(np.float64, copy=False)
        sums[LOCAL.index(OVERRUN)] = np.sum(durations - within)
        return sums
