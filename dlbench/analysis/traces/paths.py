"""The critical paths of all collectives of a job's traces, and the culprit of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import numpy as np

from dlbench.analysis.critical_path import Culprit, Explained, Part, Path, Reason, blame, explained, reason
from dlbench.analysis.culprits import COMMUNICATION, IDLE, CulpritClasses
from dlbench.analysis.traces.alignment import TOLERANCE, Alignment
from dlbench.analysis.traces.collectives import Collectives, in_time
from dlbench.analysis.traces.communication import Codes
from dlbench.analysis.traces.graph import Graph, Kind
from dlbench.analysis.traces.threads import NONE

_FARTHEST = 8
"""Collectives that a window goes back where paths have none in common: a CPU that runs ahead of its GPU waits for
nothing, so its path misses them all."""
_MOST_STEPS = 64
"""Collectives of a path that are tried for one in common."""


class _Origin(NamedTuple):
    """Where the paths to a collective begin: its group, and its place there.

    Where the group is `NONE`, the place is the moment, in nanoseconds, at which the traces begin.
    """

    group: int
    place: int


class TracePaths:
    """Explains the collectives of an alignment by the graphs of its ranks, which number kinds of events alike."""

    def __init__(
        self,
        alignment: Alignment,
        graphs: Mapping[int, Graph],
        kinds: Codes[Kind],
        classes: CulpritClasses,
        tolerance: float = TOLERANCE,
    ) -> None:
        self._groups = alignment.groups
        self._kernels = alignment.kernels
        self._graphs = graphs
        self._kinds = list(kinds)
        self._classes = classes
        self._tolerance = tolerance * 1e9
        self._in_time = in_time(alignment.groups)

    def explained(self) -> list[Explained]:
        """What the paths say, by group."""
        return [self._group(number, collectives) for number, collectives in enumerate(self._groups)]

    @cached_property
    def _numbers(self) -> dict[tuple[int, int], int]:
        """Number of each collective among all, by time."""
        return {place: number for number, place in enumerate(self._in_time)}

    @cached_property
    def _before(self) -> dict[int, dict[int, int]]:
        """By rank and number of a collective: number of the last one on the path to it, `NONE` where none is."""
        found = {}
        for rank, graph in self._graphs.items():
            numbers = [
                (number, self._kernels[group][index, self._groups[group].ranks.index(rank)])
                for number, (group, index) in enumerate(self._in_time)
                if rank in self._groups[group].ranks
            ]
            if numbers:
                own, kernels = (np.array(values, dtype=np.int64) for values in zip(*numbers, strict=True))
                place = graph.before(kernels)
                earlier = np.where(place == NONE, NONE, own[place])
                found[rank] = dict(zip(own.tolist(), earlier.tolist(), strict=True))
        return found

    def _group(self, group: int, collectives: Collectives) -> Explained:
        slowest, fastest = (pick(collectives.durations, axis=1) for pick in (np.argmin, np.argmax))
        columns = zip(slowest.tolist(), fastest.tolist(), strict=True)
        return explained([self._reason(group, index, *those) for index, those in enumerate(columns)])

    def _reason(self, group: int, index: int, slowest: int, fastest: int) -> Reason:
        """What the paths of two columns of a group say of a collective."""
        origin = self._origin(group, index)
        if origin is None:
            return Reason()
        slow, fast = (self._path(group, index, column, origin) for column in (slowest, fastest))
        return reason(slow, fast, self._culprit(slow, fast, self._groups[group].ranks[slowest]), self._class)

    def _origin(self, group: int, index: int) -> _Origin | None:
        """Where the window of a collective begins: with the last one that the paths of all ranks have in common.

        None of the first, unless the traces begin together.
        """
        ranks, number = self._groups[group].ranks, self._numbers[group, index]
        if origin := self._common(ranks, number) or self._earlier(ranks, number):
            return origin
        begins = [self._graphs[rank].begin for rank in ranks]
        return _Origin(NONE, max(begins)) if max(begins) - min(begins) <= self._tolerance else None

    def _path(self, group: int, index: int, column: int, origin: _Origin) -> Path:
        rank = self._groups[group].ranks[column]
        graph, kernel = self._graphs[rank], int(self._kernels[group][index, column])
        if origin.group == NONE:
            return graph.path(kernel, origin.place, None)
        since = int(self._kernels[origin.group][origin.place, self._groups[origin.group].ranks.index(rank)])
        return graph.path(kernel, int(graph.communication.end[since]), since)

    def _common(self, ranks: Sequence[int], number: int) -> _Origin | None:
        """The last collective on the paths of all ranks: of their last ones, the latest gives way until all agree."""
        numbers = [self._before[rank][number] for rank in ranks]
        for _ in range(_MOST_STEPS):
            if min(numbers) == NONE:
                return None
            if min(numbers) == max(numbers):
                return _Origin(*self._in_time[numbers[0]])
            latest = numbers.index(max(numbers))
            numbers[latest] = self._before[ranks[latest]][numbers[latest]]
        return None

    def _earlier(self, ranks: Sequence[int], number: int) -> _Origin | None:
        """A collective some way back in which all of the ranks took part, whether or not their paths met it."""
        shared = (
            _Origin(*place)
            for place in reversed(self._in_time[max(0, number - _MOST_STEPS) : number])
            if set(ranks) <= set(self._groups[place[0]].ranks)
        )
        found = list(islice(shared, _FARTHEST))
        return found[-1] if found else None

    def _culprit(self, slow: Path, fast: Path, rank: int) -> Culprit:
        found = blame(slow, fast)
        if found is None:
            return Culprit()
        part = found.part
        return Culprit(self._kinds[part.what].name, self._class(part), rank, part.occurrence, part.idle, found.seconds)

    def _class(self, part: Part) -> str:
        if part.idle:
            return IDLE
        kind = self._kinds[part.what]
        return COMMUNICATION if kind.on == "communication" else self._classes.of(kind.name, kind.on)
