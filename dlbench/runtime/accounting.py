"""Accounting: from the clock readings around every op to the times that a record holds.

sync_time of a rank = blocking communications + waits for non-blocking ones (each communication class by itself); the
time to start a non-blocking communication is `issue`, the phases are `compute`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from dlbench.strategies.ops import COLLECTIVES, Compute, Op, Wait, communication_class

COMPUTE = "compute"
ISSUE = "issue"
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
    return tuple(category for category in found if category not in (COMPUTE, ISSUE))


class Accounting:
    """Sums the ops of one rank's iteration by category.

    `classes` is the same on all ranks, whether or not this rank's program has each of them.
    """

    def __init__(self, program: Sequence[Op], classes: Sequence[str]) -> None:
        order = {category: index for index, category in enumerate((COMPUTE, ISSUE, *classes))}
        self._category = np.array([order[category] for category in categories(program)], dtype=np.intp)
        self._categories = len(order)

    def seconds(self, enter: Sequence[int], leave: Sequence[int]) -> NDArray[np.float64]:
        """Seconds of compute, of issue and of each class, shape (2 + classes,), from readings in nanoseconds."""
        durations = np.array(leave, dtype=np.int64) - np.array(enter, dtype=np.int64)
        sums = np.bincount(self._category, weights=durations * _NANOSECOND, minlength=self._categories)
        return sums.astype(np.float64, copy=False)
