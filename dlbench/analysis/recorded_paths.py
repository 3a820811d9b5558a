"""The critical paths to the collectives of a recorded run, by the dependencies that its programs have.

A rank performs its ops one after the other. A receive is over once its send has begun, a collective once the last rank
of its group has entered it, and a wait once this is so of all that it completes. Where that was late, the path goes on
with the rank that was, before the op with which it came; so it leads over several ranks. Two paths end where they meet,
or with the begin of the iteration. Nothing here is guessed: idle time is what a rank spent between its ops.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlbench.analysis.columns import counted
from dlbench.analysis.critical_path import Culprit, Explained, Part, Path, Reason, blame, explained, reason
from dlbench.analysis.culprits import IDLE
from dlbench.analysis.programs import Place, Programs
from dlbench.analysis.recorded_places import Places
from dlbench.analysis.timeline import bars
from dlbench.analysis.traces.communication import Codes
from dlbench.records.schema import OpEntry

START = "begin of the iteration"
"""What comes first on a path: a rank that begins late is late from then on."""
_BEGIN = Place(-1, -1)
_PIPELINE = "pipeline"
_LATE_START = "late start"
_FARTHEST = 1e7
"""Seconds from the begin of an iteration, a third of a year."""


class _What(NamedTuple):
    """What ops of one name are, on every rank of a stage: stages of a pipeline do different work under one name."""

    name: str
    kind: str
    stage: int = 0


class _Step(NamedTuple):
    """A stretch of a path."""

    part: Part
    place: Place
    seconds: float


class RecordedPaths:
    """Explains the collectives of the iterations that are added, by group.

    `groups` say where they stand in the programs of the ranks.
    """

    def __init__(self, programs: Programs, world_size: int, groups: Sequence[Places]) -> None:
        self._groups = groups
        self._needs = _Needs(programs, world_size, groups)
        whats: Codes[_What] = Codes()
        self._start = Part(whats[_What(START, _LATE_START)], 0)
        self._parts = _parts(programs, world_size, whats)
        self._whats = list(whats)
        self._reasons: list[list[Reason]] = [[] for _ in groups]
        lengths = np.array([len(programs.of(rank)) for rank in range(world_size)])
        self._performed = np.arange(lengths.max(initial=0)) < lengths[:, np.newaxis]
        self._mended = 0

    def add(self, times: NDArray[np.float64], begins: Sequence[float]) -> None:
        """Explain an iteration by its ops array, shape (ranks, ops, 2), and when each rank began it, in seconds."""
        ordered = _ordered(times, min(begins))
        self._mended += int((ordered != times).any(axis=2)[self._performed].sum())
        moments = _Moments(ordered, begins, self._needs)
        for group, reasons in zip(self._groups, self._reasons, strict=True):
            entered = ordered[list(group.ranks), group.enter, 0]
            ends = zip(
                group.enter.tolist(), entered.argmax(axis=1).tolist(), entered.argmin(axis=1).tolist(), strict=True
            )
            for ops, last, first in ends:
                last_entry, first_entry = (Place(group.ranks[column], ops[column]) for column in (last, first))
                slow, fast = self._until_they_meet(moments, last_entry, first_entry)
                reasons.append(reason(slow, fast, self._culprit(slow, fast), self._class))

    def explained(self) -> list[Explained]:
        """What the paths say of the collectives of each group, in the order of the iterations."""
        return [explained(reasons) for reasons in self._reasons]

    @property
    def notes(self) -> list[str]:
        """What the paths do not have from the record, one line each."""
        if not self._mended:
            return []
        return [f"{counted(self._mended, 'op')} without valid times; critical paths take those of the ops before them"]

    def _until_they_meet(self, moments: _Moments, slow: Place, fast: Place) -> tuple[Path, Path]:
        """The paths to the entries of two ops, as far back as they have nothing in common."""
        ways = _Way(slow), _Way(fast)
        while ways[0].place != ways[1].place:
            way = ways[moments.entered(ways[0].place) < moments.entered(ways[1].place)]
            # Paths to collectives of one iteration have much in common.
            if way.place not in moments.before:
                moments.before[way.place] = self._before(moments, way.place)
            way.go_back(*moments.before[way.place])
        return ways[0].path(), ways[1].path()

    def _before(self, moments: _Moments, place: Place) -> tuple[Place, list[_Step]]:
        """From the entry of an op to that of an op which had to be over before, or to the begin."""
        rank, op = place
        entered, idle = moments.entered(place), self._parts[rank][op]._replace(idle=True)
        if op == 0:
            begun = moments.begins[rank]
            origin, steps = _BEGIN, [(idle, place, entered - begun), (self._start, place, begun - moments.first)]
        else:
            before, left = Place(rank, op - 1), moments.leave[rank][op - 1]
            origin = moments.awaited(before)
            steps = [(idle, place, entered - left), (self._parts[rank][op - 1], before, left - moments.entered(origin))]
        return origin, [_Step(*step) for step in steps if step[-1] > 0]

    def _culprit(self, slow: Path, fast: Path) -> Culprit:
        found = blame(slow, fast)
        if found is None:
            return Culprit()
        what, place = self._whats[found.part.what], slow.places[found.part]
        return Culprit(what.name, self._class(found.part), place.rank, place.op, found.part.idle, found.seconds)

    def _class(self, part: Part) -> str:
        return IDLE if part.idle else self._whats[part.what].kind


class _Way:
    """A path while it is followed back."""

    def __init__(self, place: Place) -> None:
        self.place = place
        """It is back at the entry of this op."""
        self._seconds: dict[Part, float] = {}
        self._places: dict[Part, Place] = {}

    def go_back(self, place: Place, steps: Sequence[_Step]) -> None:
        self.place = place
        for part, at, seconds in steps:
            self._seconds[part] = self._seconds.get(part, 0.0) + seconds
            self._places.setdefault(part, at)

    def path(self) -> Path:
        return Path(self._seconds, self._places)


class _Needs:
    """Ops that must have been entered before others can be over, in sets of which the last counts."""

    def __init__(self, programs: Programs, world_size: int, groups: Sequence[Places]) -> None:
        self.of: dict[Place, list[int]] = {}
        """Numbers of the sets that an op needs."""
        sets = [*_collectives(groups), *_messages(programs, world_size)]
        for number, (_, done) in enumerate(sets):
            for place in done:
                self.of.setdefault(place, []).append(number)
        self._entered = np.array([place for entered, _ in sets for place in entered], dtype=np.int64).reshape(-1, 2)
        self._begins = np.cumsum([0, *(len(entered) for entered, _ in sets)])

    def latest(self, times: NDArray[np.float64]) -> list[Place]:
        """Of each set, the op that was entered last."""
        if not len(self._entered):
            return []
        enter = times[self._entered[:, 0], self._entered[:, 1], 0]
        order = np.lexsort((enter, np.repeat(np.arange(len(self._begins) - 1), np.diff(self._begins))))
        return [Place(*place) for place in self._entered[order[self._begins[1:] - 1]].tolist()]


def _collectives(groups: Sequence[Places]) -> Iterator[tuple[list[Place], list[Place]]]:
    """Of each collective, the ops with which its ranks enter it, and those that complete it."""
    for group in groups:
        for enter, leave in zip(group.enter.tolist(), group.leave.tolist(), strict=True):
            yield [*map(Place, group.ranks, enter)], [*map(Place, group.ranks, leave)]


def _messages(programs: Programs, world_size: int) -> Iterator[tuple[list[Place], list[Place]]]:
    """Of each message, its send, and the receive or the wait that completes it."""
    completed = {link.start: link.end for link in programs.requests(range(world_size))}
    for send, receive in programs.messages(range(world_size)):
        yield [send], [completed.get(receive, receive)]


class _Moments:
    """The times of an iteration, seconds by rank and op."""

    def __init__(self, times: NDArray[np.float64], begins: Sequence[float], needs: _Needs) -> None:
        self.enter: list[list[float]] = times[..., 0].tolist()
        self.leave: list[list[float]] = times[..., 1].tolist()
        self.begins = [min(begin, ops[0]) for begin, ops in zip(begins, self.enter, strict=True)]
        self.first = min(self.begins)
        self.before: dict[Place, tuple[Place, list[_Step]]] = {}
        """Steps that are known: where they lead from each op, and what they pass."""
        self._needs = needs
        self._latest = needs.latest(times)

    def entered(self, place: Place) -> float:
        """When an op was entered."""
        return -math.inf if place == _BEGIN else self.enter[place.rank][place.op]

    def awaited(self, place: Place) -> Place:
        """What an op waited for: itself, or of all that it needs what was entered last, if that was later.

        What was entered only when the op was over, by clocks that differ, it cannot have waited for.
        """
        origin, left = place, self.leave[place.rank][place.op]
        for number in self._needs.of.get(place, ()):
            last = self._latest[number]
            if self.entered(origin) < self.entered(last) < left:
                origin = last
        return origin


def _ordered(times: NDArray[np.float64], begin: float) -> NDArray[np.float64]:
    """The times, none before an earlier one of its rank; what is no time near `begin` has that before or after it."""
    known = np.where(np.abs(times - begin) < _FARTHEST, times, np.nan).reshape(len(times), -1)
    first = np.nan_to_num(np.fmin.reduce(known, axis=1, keepdims=True), nan=begin)
    ordered = np.fmax.accumulate(known, axis=1)
    return np.asarray(np.where(np.isnan(ordered), first, ordered)).reshape(times.shape)


def _parts(programs: Programs, world_size: int, whats: Codes[_What]) -> list[list[Part]]:
    """By rank and op, what it is, and how many of these come before it in the program."""
    known: dict[tuple[int, int], list[Part]] = {}
    found = []
    for rank in range(world_size):
        pipeline = programs.group(_PIPELINE, rank)
        stage = pipeline.index(rank) if pipeline else 0
        ops = programs.of(rank)
        key = id(ops), stage
        if key not in known:
            known[key] = list(_numbered(ops, stage, whats))
        found.append(known[key])
    return found


def _numbered(ops: Sequence[OpEntry], stage: int, whats: Codes[_What]) -> Iterator[Part]:
    seen: dict[int, int] = {}
    for bar in bars(ops):
        what = whats[_What(bar.name, bar.cat.partition(",")[0], stage)]
        yield Part(what, seen.setdefault(what, 0))
        seen[what] += 1
