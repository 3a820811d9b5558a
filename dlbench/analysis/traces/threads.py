"""Which thread of a process wakes which, and waits for it, as the main thread does with that of the backward pass."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dlbench.analysis.traces.events import Events
from dlbench.analysis.traces.slices import Slices

NONE = -1
IDLE_NS = 3_000
"""Nanoseconds without a slice after which a thread may have been woken by another."""


class Threads:
    """Pairs of threads of which the one may wait for the other.

    They are those that arrows between forward and backward join; where there are none, all of a process.
    """

    def __init__(self, events: Events) -> None:
        self._joined = _joined(events)
        self._process = [track.pid for track in events.tracks]

    def pairs(
        self, source: NDArray[np.int32], waiting: NDArray[np.int32]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """For each pair of threads, the places of what may be waited for, and of what may wait, given their threads."""
        places = {thread: np.flatnonzero(source == thread) for thread in np.unique(source).tolist()}
        for thread in np.unique(waiting).tolist():
            those = np.flatnonzero(waiting == thread)
            yield from ((found, those) for other, found in places.items() if self._related(other, thread))

    def _related(self, source: int, waiting: int) -> bool:
        if source == waiting:
            return False
        return (source, waiting) in self._joined if self._joined else self._process[source] == self._process[waiting]


def _joined(events: Events) -> set[tuple[int, int]]:
    """Pairs of threads between which arrows of category `fwdbwd` lead, in both directions."""
    flows = events.flows
    arrows = np.isin(flows.category, [code for code, name in enumerate(events.categories) if name == "fwdbwd"])
    begins, ends = (np.flatnonzero(arrows & (flows.begins == begin)) for begin in (True, False))
    source = dict(zip(flows.id[begins].tolist(), flows.track[begins].tolist(), strict=True))
    pairs = set()
    for number, thread in zip(flows.id[ends].tolist(), flows.track[ends].tolist(), strict=True):
        if number in source and source[number] != thread:
            pairs |= {(source[number], thread), (thread, source[number])}
    return pairs


def callers(events: Events, slices: Slices) -> NDArray[np.int64]:
    """For each slice before which its thread was idle, the slice of another thread that woke it; else `NONE`.

    That is the one which had begun last, if it did so after the thread had become idle: what began before was waiting
    for the thread itself, or has nothing to do with it.
    """
    thread = events.track[slices.row]
    idle_since = np.full(len(thread), np.iinfo(np.int64).min)
    follows = thread[1:] == thread[:-1]
    idle_since[1:][follows] = slices.end[:-1][follows]
    woken = np.flatnonzero(idle_since < slices.start - IDLE_NS)
    found = np.full(len(thread), NONE, dtype=np.int64)
    for sources, waiting in Threads(events).pairs(thread, thread[woken]):
        places = woken[waiting]
        last = np.searchsorted(slices.start[sources], slices.start[places], side="right") - 1
        caller = sources[last]
        begun = slices.start[caller]
        better = (last >= 0) & (begun >= idle_since[places])
        better &= (found[places] == NONE) | (begun > slices.start[found[places]])
        found[places[better]] = caller[better]
    return found
