"""What each node of a rank waited for: the critical parent of each, by the events and times of a trace.

A node waits for the one before it on its stream or thread; an event of the GPU for its launch, and for other streams;
the wait of a call for the GPU or another thread; a thread that was idle for the one that woke it. Of these, that which
was over last is critical, unless the one before on the same track was over less than 3 µs earlier: then it is that.

What a stream waits for on others, traces tell where they hold events of `cuda_sync`. Otherwise it is taken to be the
event that was over last when the waiting one began, which is a guess.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dlbench.analysis.traces.events import Events
from dlbench.analysis.traces.format import UNKNOWN
from dlbench.analysis.traces.nodes import Nodes, calls_by_correlation
from dlbench.analysis.traces.threads import NONE, Threads

SAME_TRACK_NS = 3_000
"""Nanoseconds by which another dependency must be over later than that on the same stream or thread."""
_NEVER = np.iinfo(np.int64).min
_STEPS_BACK = 16
"""GPU events that are passed over to find one that was launched before a wait began."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Dependencies:
    """The critical parents of a rank's nodes. Arrays have shape (nodes,)."""

    parent: NDArray[np.int64]
    """Number of the critical parent, less than the node's own; `NONE` of roots."""
    reached: NDArray[np.int64]
    """Nanoseconds: from when on the node, and not its parent, is what others wait for."""


def critical_parents(events: Events, nodes: Nodes) -> Dependencies:
    """Find the critical parent of each node."""
    before = _before(nodes)
    others = [_launches(nodes), _streams(events, nodes), _awaited(events, nodes), nodes.caller]
    own = np.arange(len(nodes))
    latest = np.where(nodes.waits, nodes.end, nodes.start)
    parent, over = np.full(len(nodes), NONE, dtype=np.int64), np.full(len(nodes), _NEVER)
    for candidate in others:
        usable = (candidate != NONE) & (candidate < own)
        when = np.where(usable, np.minimum(nodes.end[candidate], latest), _NEVER)
        later = when > over
        parent[later], over[later] = candidate[later], when[later]
    near = np.where(before != NONE, np.minimum(nodes.end[before], latest), _NEVER)
    same_track = (before != NONE) & ((parent == NONE) | (near + SAME_TRACK_NS >= over))
    parent = np.where(same_track, before, parent)
    # What launches or wakes others does so while it goes on; all else is over before what depends on it goes on.
    ends_first = (parent != NONE) & (nodes.waits | nodes.gpu[parent])
    reached = np.where(ends_first, np.maximum(nodes.start, nodes.end[parent]), nodes.start)
    return Dependencies(parent=parent, reached=reached)


def _before(nodes: Nodes) -> NDArray[np.int64]:
    """The node before on the same stream or thread."""
    order = np.argsort(nodes.track, kind="stable")
    found = np.full(len(nodes), NONE, dtype=np.int64)
    same = nodes.track[order[1:]] == nodes.track[order[:-1]]
    found[order[1:][same]] = order[:-1][same]
    return found


def _launches(nodes: Nodes) -> NDArray[np.int64]:
    return np.where(nodes.launch != NONE, nodes.of_row[nodes.launch], NONE)


def _streams(events: Events, nodes: Nodes) -> NDArray[np.int64]:
    """What each event of the GPU waits for on other streams."""
    found = np.full(len(nodes), NONE, dtype=np.int64)
    if explicit := list(_explicit(events, nodes)):
        for waiting, awaited in explicit:
            if found[waiting] == NONE or nodes.end[awaited] > nodes.end[found[waiting]]:
                found[waiting] = awaited
        return found
    gpu = np.flatnonzero(nodes.gpu)
    by_end = gpu[np.argsort(nodes.end[gpu], kind="stable")]
    place = np.searchsorted(nodes.end[by_end], nodes.start[gpu], side="right") - 1
    last = by_end[place]
    found[gpu] = np.where((place >= 0) & (nodes.track[last] != nodes.track[gpu]), last, NONE)
    return found


class _Launched:
    """Nodes of each stream in the order of their launches."""

    def __init__(self, events: Events, nodes: Nodes) -> None:
        when = launch_times(events, nodes)
        self._of: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        gpu = np.flatnonzero(nodes.gpu)
        for track in np.unique(nodes.track[gpu]).tolist():
            those = gpu[nodes.track[gpu] == track]
            those = those[np.argsort(when[those], kind="stable")]
            self._of[track] = those, when[those]

    def __contains__(self, track: int) -> bool:
        return track in self._of

    def last_before(self, track: int, moment: int) -> int:
        """The node launched last before a moment."""
        those, when = self._of[track]
        place = int(np.searchsorted(when, moment, side="left")) - 1
        return int(those[place]) if place >= 0 else NONE

    def first_after(self, track: int, moment: int) -> int:
        """The node launched first from a moment on."""
        those, when = self._of[track]
        place = int(np.searchsorted(when, moment, side="left"))
        return int(those[place]) if place < len(those) else NONE


def launch_times(events: Events, nodes: Nodes) -> NDArray[np.int64]:
    """Shape (nodes,): begin of the launch, or the node's own where it has none."""
    return np.asarray(np.where(nodes.launch == NONE, nodes.start, events.start[nodes.launch]))


def _explicit(events: Events, nodes: Nodes) -> Iterator[tuple[int, int]]:
    """Waiting and awaited nodes, by the waits that the profiler wrote.

    What is launched on a stream after its wait was called waits for what was launched on the other before the record.
    """
    launched = _Launched(events, nodes)
    waits = events.waits
    tracks = {track: code for code, track in enumerate(events.tracks)}
    call = calls_by_correlation(events, events.correlation[waits.event])
    record = calls_by_correlation(events, waits.correlation)
    for row, stream, called, recorded in zip(
        waits.event.tolist(), waits.stream.tolist(), call.tolist(), record.tolist(), strict=True
    ):
        own = int(events.track[row])
        other = tracks.get(events.tracks[own]._replace(tid=stream), NONE)
        if own not in launched or other not in launched or own == other:
            continue
        begin = int(events.start[called if called != NONE else row])
        waiting = launched.first_after(own, begin)
        awaited = launched.last_before(other, int(events.start[recorded]) if recorded != NONE else begin)
        if NONE not in (waiting, awaited) and awaited < waiting:
            yield waiting, awaited


def _awaited(events: Events, nodes: Nodes) -> NDArray[np.int64]:
    """What the wait of each call that blocks waited for."""
    found = np.full(len(nodes), NONE, dtype=np.int64)
    _wait_for_gpu(events, nodes, np.flatnonzero(nodes.waits & ~nodes.joins), found)
    _wait_for_threads(events, nodes, np.flatnonzero(nodes.joins), found)
    return found


def _wait_for_gpu(events: Events, nodes: Nodes, waits: NDArray[np.int64], found: NDArray[np.int64]) -> None:
    """The last event of the GPU, or of the stream that is named, that was launched before and over by the end."""
    gpu = np.flatnonzero(nodes.gpu)
    if not len(gpu):
        return
    by_end = gpu[np.argsort(nodes.end[gpu], kind="stable")]
    launched = launch_times(events, nodes)
    stream = _streams_waited_for(events, nodes, waits, np.unique(nodes.track[gpu]))
    for track in np.unique(stream).tolist():
        those = by_end if track == NONE else by_end[nodes.track[by_end] == track]
        waiting = waits[stream == track]
        place = np.searchsorted(nodes.end[those], nodes.end[waiting], side="right") - 1
        issued = events.start[nodes.row[waiting]]
        for _ in range(_STEPS_BACK):
            place -= (place >= 0) & (launched[those[place]] > issued)
        good = place >= 0
        good[good] = launched[those[place[good]]] <= issued[good]
        found[waiting[good]] = those[place[good]]


def _streams_waited_for(
    events: Events, nodes: Nodes, waits: NDArray[np.int64], streams: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Track of the stream that each call waits for, by the event of `cuda_sync` that it caused; `NONE` for all."""
    tracks = {track: code for code, track in enumerate(events.tracks)}
    named = dict(zip(events.waits.event.tolist(), events.waits.stream.tolist(), strict=True))
    by_correlation = {}
    for row in events.of("cuda_sync").tolist():
        track = events.tracks[events.track[row]]
        stream = named.get(row, UNKNOWN)
        code = tracks.get(track if stream == UNKNOWN else track._replace(tid=stream), NONE)
        by_correlation[int(events.correlation[row])] = code
    by_correlation.pop(UNKNOWN, None)
    codes = [by_correlation.get(each, NONE) for each in events.correlation[nodes.row[waits]].tolist()]
    found = np.array(codes, dtype=np.int64)
    return np.asarray(np.where(np.isin(found, streams), found, NONE))


def _wait_for_threads(events: Events, nodes: Nodes, waits: NDArray[np.int64], found: NDArray[np.int64]) -> None:
    """The slice of another thread that was over last, of those that began during the wait."""
    cpu = np.flatnonzero(~nodes.gpu)
    by_end = cpu[np.argsort(nodes.end[cpu], kind="stable")]
    for sources, waiting in Threads(events).pairs(nodes.track[by_end], nodes.track[waits]):
        places = waits[waiting]
        place = np.searchsorted(nodes.end[by_end[sources]], nodes.end[places], side="right") - 1
        last = by_end[sources[place]]
        better = (place >= 0) & (nodes.start[last] >= nodes.start[places])
        better &= (found[places] == NONE) | (nodes.end[last] > nodes.end[found[places]])
        found[places[better]] = last[better]
