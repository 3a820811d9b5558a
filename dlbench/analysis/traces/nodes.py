"""What a rank did one after the other: the nodes of its dependency graph, in an order that every dependency keeps.

A node is an event of the GPU, or a slice of a CPU thread. A call that blocks is split in two, or its launch and its
waiting would be a circle: the issue, which is over at once, and the wait, which is over with the call. So is a slice
that woke another thread and went on.

Nodes are numbered by the moment at which what depends on them can go on: an event of the GPU or a wait by its end, a
slice of a thread by its begin, since what it launches or wakes runs before it is over. A GPU event that ended before
its launch began, by clocks that differ, is numbered right behind the launch. No dependency leads from a higher number
to a lower one, so there are no circles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlbench.analysis.culprits import may_wait_for_copy, waits_for_gpu
from dlbench.analysis.traces.events import GPU_CATEGORIES, Events
from dlbench.analysis.traces.format import UNKNOWN
from dlbench.analysis.traces.slices import Slices, exclusive_slices
from dlbench.analysis.traces.threads import NONE, callers

CPU_CATEGORIES = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "python_function")
LAUNCHES = ("cuda_runtime", "cuda_driver")
_GPU, _WAIT, _CPU, _LATE = range(4)
"""Order at one moment: what ends, who waited for it, what begins then, and what should have begun later."""
_JOINS_NS = 50_000
"""Nanoseconds for which a slice goes on after it woke another thread, if it waits for that thread."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Nodes:
    """Nodes of a rank in their order. Arrays have shape (nodes,) where nothing else is said."""

    row: NDArray[np.int64]
    """Row in the events."""
    track: NDArray[np.int32]
    start: NDArray[np.int64]
    """Nanoseconds."""
    end: NDArray[np.int64]
    """Nanoseconds."""
    gpu: NDArray[np.bool_]
    waits: NDArray[np.bool_]
    """Whether it is the wait of a call that blocks."""
    joins: NDArray[np.bool_]
    """Whether it is a wait for another thread, and not for the GPU."""
    launch: NDArray[np.int64]
    """Row of the call that launched it, `NONE` where there is none."""
    caller: NDArray[np.int64]
    """Node of another thread that woke this one, `NONE` where there is none."""
    of_row: NDArray[np.int64]
    """Shape (events,): first node of each event, `NONE` of those that have none."""

    def __len__(self) -> int:
        return len(self.row)


class _Draft(NamedTuple):
    """Nodes before they are in order."""

    row: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    kind: NDArray[np.int64]
    moment: NDArray[np.int64]
    turn: NDArray[np.int64]
    """Order at one moment, within a kind."""


def nodes_of(events: Events) -> Nodes:
    """The nodes of a rank's events."""
    gpu = events.of(*GPU_CATEGORIES)
    launch = calls_by_correlation(events, events.correlation[gpu])
    cpu = events.of(*CPU_CATEGORIES)
    slices = exclusive_slices(cpu, events.track[cpu], events.start[cpu], events.end[cpu])
    waking = callers(events, slices)
    draft, joins = _thread_nodes(events, slices, waking, _blocking(events, gpu, launch))
    parts = [draft, _gpu_nodes(events, gpu, launch)]
    row, start, end, kind, moment, turn = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.lexsort((turn, kind, moment))
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.arange(len(order))
    on_threads = len(order) - len(gpu)
    caller = np.full(len(order), NONE, dtype=np.int64)
    caller[: len(waking)] = np.where(waking == NONE, NONE, number[waking])
    row, kind = row[order], kind[order]
    of_row = np.full(len(events), NONE, dtype=np.int64)
    of_row[row[::-1]] = np.arange(len(row))[::-1]
    return Nodes(
        row=row,
        track=events.track[row],
        start=start[order],
        end=end[order],
        gpu=(kind == _GPU) | (kind == _LATE),
        waits=kind == _WAIT,
        joins=np.concatenate([joins, np.zeros(len(gpu), dtype=np.bool_)])[order],
        launch=np.concatenate([np.full(on_threads, NONE), launch])[order],
        caller=caller[order],
        of_row=of_row,
    )


def _gpu_nodes(events: Events, gpu: NDArray[np.int64], launch: NDArray[np.int64]) -> _Draft:
    end = events.end[gpu]
    launched = np.where(launch == NONE, np.iinfo(np.int64).min, events.start[launch])
    kind = np.where(launched >= end, _LATE, _GPU)
    return _Draft(gpu, events.start[gpu], end, kind, np.maximum(end, launched), np.arange(len(gpu)))


def _thread_nodes(
    events: Events, slices: Slices, waking: NDArray[np.int64], blocks: NDArray[np.bool_]
) -> tuple[_Draft, NDArray[np.bool_]]:
    """Slices, then the issues of calls that block, then what is left of slices that wait for a thread they woke."""
    waits = blocks[slices.row]
    issues = np.flatnonzero(waits & slices.first)
    woken = np.flatnonzero(waking != NONE)
    # Of several threads that a slice woke, it was the first whose waking let it wait.
    cut, first = np.unique(waking[woken], return_index=True)
    since = slices.start[woken[first]]
    longer = (slices.end[cut] > since + _JOINS_NS) & ~waits[cut]
    cut, since = cut[longer], since[longer]
    end = slices.end.copy()
    end[cut] = since
    row = np.concatenate([slices.row, slices.row[issues], slices.row[cut]])
    start = np.concatenate([slices.start, slices.start[issues], since])
    ends = np.concatenate([end, slices.start[issues], slices.end[cut]])
    kinds = [np.where(waits, _WAIT, _CPU), np.full(len(issues), _CPU), np.full(len(cut), _WAIT)]
    kind = np.concatenate(kinds)
    turn = np.concatenate([2 * np.arange(len(slices.row)) + 1, 2 * issues, 2 * cut + 1])
    joins = np.zeros(len(row), dtype=np.bool_)
    joins[len(row) - len(cut) :] = True
    return _Draft(row, start, ends, kind, np.where(kind == _CPU, start, ends), turn), joins


def calls_by_correlation(events: Events, correlation: NDArray[np.int64]) -> NDArray[np.int64]:
    """Row of the first call of the CPU with each correlation, `NONE` where there is none."""
    calls = events.of(*LAUNCHES)
    known = events.correlation[calls]
    ids, first = np.unique(known, return_index=True)
    if not len(ids):
        return np.full(len(correlation), NONE, dtype=np.int64)
    place = np.minimum(np.searchsorted(ids, correlation), len(ids) - 1)
    found = (ids[place] == correlation) & (correlation != UNKNOWN)
    return np.asarray(np.where(found, calls[first[place]], NONE), dtype=np.int64)


def _blocking(events: Events, gpu: NDArray[np.int64], launch: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which events block the thread until something else is done."""
    by_name = np.array([waits_for_gpu(name) for name in events.names], dtype=np.bool_)
    copies = np.array([may_wait_for_copy(name) for name in events.names], dtype=np.bool_)
    blocks = by_name[events.name]
    # A copy of pageable memory is called asynchronous and is not: it is over when the call returns.
    own = launch != NONE
    done = launch[own][events.end[gpu[own]] <= events.end[launch[own]]]
    blocks[done[copies[events.name[done]]]] = True
    return np.asarray(blocks)
