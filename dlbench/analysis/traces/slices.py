"""Nested events of CPU threads, cut into time slices that exclude each other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Slices(NamedTuple):
    """What each thread was in, innermost, by thread and time. Arrays have shape (slices,)."""

    row: NDArray[np.int64]
    """Row of the event."""
    start: NDArray[np.int64]
    """Nanoseconds."""
    end: NDArray[np.int64]
    """Nanoseconds."""
    first: NDArray[np.bool_]
    """Whether the event begins with the slice. Every event has such a slice, which can be without length."""


def exclusive_slices(
    rows: NDArray[np.int64], thread: NDArray[np.int32], start: NDArray[np.int64], end: NDArray[np.int64]
) -> Slices:
    """Slices of the events `rows`, which stand by start and the longer first; the other arrays are one per event.

    Where events overlap that should be nested, the time belongs to the one that began last.
    """
    count = len(rows)
    number = np.arange(count)
    empty = start == end
    time = np.concatenate([start, end])
    # At one moment, what ends comes before what begins; an event without length ends right after it began.
    begins_now = np.concatenate([np.ones(count, dtype=np.bool_), empty])
    turn = np.concatenate([2 * number, 2 * number + 1])
    order = np.lexsort((turn, begins_now, time, np.concatenate([thread, thread])))
    opens = order < count
    depth = np.cumsum(np.where(opens, 1, -1))
    inside = _innermost(opens, depth)
    time = time[order]
    until = np.append(time[1:], 0)
    kept = (depth > 0) & (opens | (until > time))
    return Slices(rows[order[inside[kept]] % count], time[kept], until[kept], opens[kept])


def _innermost(opens: NDArray[np.bool_], depth: NDArray[np.int64]) -> NDArray[np.int64]:
    """After each begin or end, the begin that is open last: of the same depth, the last before."""
    by_depth = np.argsort(depth, kind="stable")
    last = np.maximum.accumulate(np.where(opens[by_depth], np.arange(len(depth)), 0))
    inside = np.empty(len(depth), dtype=np.int64)
    inside[by_depth] = by_depth[last]
    return inside
