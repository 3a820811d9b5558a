"""The dependency graph of a rank's trace, as small as it can be walked, and the paths in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlbench.analysis.critical_path import Part, Path
from dlbench.analysis.traces.communication import Codes, Communication
from dlbench.analysis.traces.dependencies import critical_parents, launch_times
from dlbench.analysis.traces.events import GPU_CATEGORIES, Events
from dlbench.analysis.traces.nodes import Nodes, nodes_of
from dlbench.analysis.traces.threads import NONE

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_NANOSECOND = 1e-9


class Kind(NamedTuple):
    """What events of one name are, on every rank."""

    name: str
    on: Literal["gpu", "cpu", "communication"]


class Graph:
    """The critical parents of what a rank did. Memory: some 70 bytes for each event."""

    def __init__(self, events: Events, kinds: Codes[Kind]) -> None:
        nodes = nodes_of(events)
        dependencies = critical_parents(events, nodes)
        self.communication: Communication = events.communication
        self.begin = int(nodes.start.min()) if len(nodes) else 0
        """Nanoseconds: of the first event."""
        self._entered = nodes.of_row[events.communication_events]
        self._parent = dependencies.parent.astype(np.int32)
        self._reached = dependencies.reached
        self._start, self._end = nodes.start, nodes.end
        self._row = nodes.row.astype(np.int32)
        self._occurrences = _Occurrences(_kinds(events, kinds), _program_order(events, nodes))

    def before(self, kernels: NDArray[np.int64]) -> NDArray[np.int64]:
        """The last of these communication kernels on the path to each: its place among them, `NONE` where none is."""
        nodes = self._entered[kernels]
        nearest = self._parent.copy()
        nearest[nearest == NONE] = len(nearest)
        nearest = np.append(nearest, len(nearest)).astype(np.int32)
        parent = nearest[nodes]
        nearest[nodes] = nodes
        # Each round doubles the distance that is jumped.
        while (nearest != (further := nearest[nearest])).any():
            nearest = further
        place = np.full(len(nearest), NONE, dtype=np.int64)
        place[nodes] = np.arange(len(nodes))
        return np.asarray(place[nearest[parent]])

    def path(self, kernel: int, begin: int, since: int | None) -> Path:
        """The path to a communication kernel, no farther back than `begin` in nanoseconds.

        Occurrences count from the launch of the communication kernel `since`, or else from the begin of the trace.
        """
        node = self._entered[kernel]
        steps = [int(node), *self._ancestors(int(node), begin)]
        cursor = np.minimum.accumulate(np.maximum(self._reached_by(steps), begin))
        over = np.clip(self._end[steps[1:]], cursor[1:], cursor[:-1])
        busy, idle = over - cursor[1:], cursor[:-1] - over
        idle = np.append(idle, cursor[-1] - begin)
        rows = self._row[steps]
        parts = self._occurrences.since(rows, None if since is None else int(self._row[self._entered[since]]))
        seconds: dict[Part, float] = {}
        for part, cost in _costs(parts, np.append(0, busy), idle):
            seconds[part] = seconds.get(part, 0.0) + cost * _NANOSECOND
        return Path(seconds)

    def _ancestors(self, node: int, begin: int) -> Iterator[int]:
        """Critical parent after critical parent, until the path is back at `begin`."""
        cursor = int(self._start[node])
        parent, reached = self._parent, self._reached
        following = int(parent[node])
        while following != NONE and cursor > begin:
            yield following
            cursor = min(cursor, int(reached[following]))
            following = int(parent[following])

    def _reached_by(self, steps: list[int]) -> NDArray[np.int64]:
        """Nanoseconds at which each step becomes what the path waits for; the collective itself by its entry."""
        reached = self._reached[steps]
        reached[0] = self._start[steps[0]]
        return np.asarray(reached)


def _costs(
    parts: Iterable[tuple[int, int]], busy: NDArray[np.int64], idle: NDArray[np.int64]
) -> Iterator[tuple[Part, int]]:
    """What each step adds, and the idle time before it, where these are not nothing."""
    for (what, occurrence), cost, gap in zip(parts, busy.tolist(), idle.tolist(), strict=True):
        if cost:
            yield Part(what, occurrence), cost
        if gap:
            yield Part(what, occurrence, idle=True), gap


def _kinds(events: Events, kinds: Codes[Kind]) -> NDArray[np.int64]:
    """Number of the kind of each event."""
    on = np.zeros(len(events), dtype=np.int64)
    on[events.of(*GPU_CATEGORIES)] = 1
    on[events.communication_events] = 2
    names = [_ADDRESS.sub("", name) for name in events.names]
    pairs, place = np.unique(events.name.astype(np.int64) * 3 + on, return_inverse=True)
    codes = [kinds[Kind(names[pair // 3], ("cpu", "gpu", "communication")[pair % 3])] for pair in pairs.tolist()]
    return np.array(codes, dtype=np.int64)[place]


def _program_order(events: Events, nodes: Nodes) -> NDArray[np.int64]:
    """Place of each event in the order of the program: an event of the GPU stands where it was launched."""
    moment = events.start.copy()
    gpu = np.flatnonzero(nodes.gpu)
    moment[nodes.row[gpu]] = launch_times(events, nodes)[gpu]
    order = np.argsort(moment, kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return place


class _Occurrences:
    """How often something of a kind came before, in the order of the program."""

    def __init__(self, kind: NDArray[np.int64], place: NDArray[np.int64]) -> None:
        self._kind = kind.astype(np.int32)
        self._place = place.astype(np.int32)
        self._sorted = np.sort(kind * max(1, len(kind)) + place)

    def since(self, rows: NDArray[np.int32], origin: int | None) -> list[tuple[int, int]]:
        """Kind of each event, and its number among those from the event `origin` on."""
        kind = self._kind[rows].astype(np.int64)
        first = 0 if origin is None else int(self._place[origin])
        begins, places = (
            np.searchsorted(self._sorted, kind * len(self._kind) + place) for place in (first, self._place[rows])
        )
        return list(zip(kind.tolist(), (places - begins).tolist(), strict=True))
