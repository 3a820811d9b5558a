"""All events of one rank's trace as columns: what a dependency graph is made of."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dlbench.analysis.traces.communication import (
    Codes,
    Communication,
    CommunicationColumns,
    base_nanoseconds,
    lost_times,
    valid_times,
)
from dlbench.analysis.traces.format import NO_ARGS, NO_TIME, UNKNOWN, Event, integer, nanoseconds
from dlbench.analysis.traces.kernels import CommunicationKernels
from dlbench.analysis.traces.reader import TraceReader

GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
"""What a GPU executes; their track is (device, stream)."""

_CATEGORIES = {
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Runtime": "cuda_runtime",
    "Operator": "cpu_op",
}
"""Old spellings."""
_SLICE, _FLOW_START, _FLOW_END = "X", "s", "f"


Identity: TypeAlias = int | float | str | None


class Track(NamedTuple):
    """Where events follow each other: a thread of a process, or a stream of a device."""

    pid: Identity
    tid: Identity


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flows:
    """Ends of arrows between events, e.g. of category `fwdbwd`. Arrays have shape (ends,)."""

    id: NDArray[np.int64]
    """Both ends of an arrow have the same; it can be used again later."""
    begins: NDArray[np.bool_]
    """Whether the arrow begins here, or ends."""
    category: NDArray[np.int32]
    track: NDArray[np.int32]
    time: NDArray[np.int64]
    """Nanoseconds."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Waits:
    """Waits of a stream for another (`cuda_sync`), where the profiler wrote them. Arrays have shape (waits,)."""

    event: NDArray[np.int64]
    """Row in the events."""
    stream: NDArray[np.int64]
    """Stream that is waited for, `UNKNOWN` where only the record is given."""
    correlation: NDArray[np.int64]
    """Correlation of the call that recorded what is waited for, `UNKNOWN` where only the stream is given."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Events:
    """Slices of a rank by start, the longer first, so that what encloses stands before what is enclosed.

    Arrays have shape (events,); `name`, `category` and `track` are indices into the lists.
    """

    names: list[str]
    categories: list[str]
    """In the new spelling; one that the file spells in two ways stands twice."""
    tracks: list[Track]
    name: NDArray[np.int32]
    category: NDArray[np.int32]
    track: NDArray[np.int32]
    start: NDArray[np.int64]
    """Nanoseconds, as in `Communication`."""
    duration: NDArray[np.int64]
    """Nanoseconds."""
    correlation: NDArray[np.int64]
    """What a GPU event shares with its launch, and several GPU events with each other; else `UNKNOWN`."""
    external_id: NDArray[np.int64]
    """What a CPU op shares with what it launched, within this rank."""
    flows: Flows
    waits: Waits
    communication: Communication
    """With the rank, where the metadata names it."""
    communication_events: NDArray[np.int64]
    """Row in the events of each communication kernel."""
    notes: list[str]
    """What was dropped or mended, one line each."""

    def __len__(self) -> int:
        return len(self.start)

    @property
    def end(self) -> NDArray[np.int64]:
        """Nanoseconds."""
        return self.start + self.duration

    def of(self, *categories: str) -> NDArray[np.int64]:
        """Rows of the events of these categories."""
        codes = [code for code, name in enumerate(self.categories) if name in categories]
        return np.flatnonzero(np.isin(self.category, codes))


def events(path: Path, kernels: CommunicationKernels | None = None) -> Events:
    """Read all events of a trace. Raises `UnreadableTrace` where it is none."""
    columns = _Columns(kernels or CommunicationKernels())
    reader = TraceReader(path)
    for batch in reader.batches():
        columns.add(batch)
    return columns.of(reader)


class _Columns:
    """Columns of the events read so far, in the order of the file."""

    def __init__(self, kernels: CommunicationKernels) -> None:
        self._communicates = kernels
        self._names: Codes[str | None] = Codes()
        self._categories: Codes[str | None] = Codes()
        self._tracks: Codes[tuple[Identity, Identity]] = Codes()
        self._slices = _Places()
        self._durations = array("q")
        self._name = array("i")
        self._correlation = array("q")
        self._external_id = array("q")
        self._ends = _Places()
        self._begins = array("b")
        self._flow_id = array("q")
        self._waits = array("q")
        self._communication = CommunicationColumns()
        self._communication_events = array("q")

    def add(self, batch: list[Event]) -> None:
        """Append a batch."""
        slices = [event for event in batch if event.ph == _SLICE]
        self._add_communication(slices)
        self._add_waits(slices)
        self._add_places(self._slices, slices)
        names = self._names
        args = [event.args or NO_ARGS for event in slices]
        self._name.extend([names[event.name] for event in slices])
        self._durations.frombytes(nanoseconds([event.dur for event in slices]).tobytes())
        self._correlation.extend(_integers([each.correlation for each in args]))
        self._external_id.extend(_integers([each.external_id for each in args]))
        if ends := [event for event in batch if event.ph in (_FLOW_START, _FLOW_END)]:
            self._add_places(self._ends, ends)
            self._begins.extend([event.ph == _FLOW_START for event in ends])
            self._flow_id.extend(_integers([event.id for event in ends]))

    def of(self, reader: TraceReader) -> Events:
        """The events by start, once the trace is read."""
        start, duration = _int64(self._slices.time), _int64(self._durations)
        timed = valid_times(start, duration)
        order = np.flatnonzero(timed)[np.lexsort((-duration[timed], start[timed]))]
        row = np.full(len(start), UNKNOWN, dtype=np.int64)
        row[order] = np.arange(len(order))
        communication, kept = self._communication.of(reader)
        notes = communication.notes
        if lost := len(start) - len(order):
            notes = [*notes, lost_times(reader, lost, "event")]
        base = base_nanoseconds(reader.metadata)
        categories = [_CATEGORIES.get(name or "", name or "") for name in self._categories]
        return Events(
            names=[name or "" for name in self._names],
            categories=categories,
            tracks=[Track(*track) for track in self._tracks],
            name=_int32(self._name)[order],
            category=_int32(self._slices.category)[order],
            track=_int32(self._slices.track)[order],
            start=start[order] + base,
            duration=duration[order],
            correlation=_int64(self._correlation)[order],
            external_id=_int64(self._external_id)[order],
            flows=self._flows(base),
            waits=self._waits_of(row),
            communication=communication,
            communication_events=row[_int64(self._communication_events)[kept]],
            notes=notes,
        )

    def _add_places(self, places: _Places, events: list[Event]) -> None:
        categories, tracks = self._categories, self._tracks
        places.category.extend([categories[event.cat] for event in events])
        places.track.extend([tracks[event.pid, event.tid] for event in events])
        places.time.frombytes(nanoseconds([event.ts for event in events]).tobytes())

    def _add_communication(self, slices: list[Event]) -> None:
        count, communicates = len(self._name), self._communicates
        places = [place for place, event in enumerate(slices) if communicates(event)]
        self._communication.add([slices[place] for place in places])
        self._communication_events.extend([count + place for place in places])

    def _add_waits(self, slices: list[Event]) -> None:
        count = len(self._name)
        for place, event in enumerate(slices):
            if event.cat == "cuda_sync" and event.args is not None:
                waited = integer(event.args.wait_on_stream), integer(event.args.wait_on_correlation)
                if waited != (UNKNOWN, UNKNOWN):
                    self._waits.extend((count + place, *waited))

    def _flows(self, base: int) -> Flows:
        ids, time = _int64(self._flow_id), _int64(self._ends.time)
        usable = (ids != UNKNOWN) & (time != NO_TIME)
        return Flows(
            id=ids[usable],
            begins=np.array(self._begins, dtype=np.bool_)[usable],
            category=_int32(self._ends.category)[usable],
            track=_int32(self._ends.track)[usable],
            time=time[usable] + base,
        )

    def _waits_of(self, row: NDArray[np.int64]) -> Waits:
        waits = _int64(self._waits).reshape(-1, 3)
        waits = waits[row[waits[:, 0]] != UNKNOWN]
        return Waits(event=row[waits[:, 0]], stream=waits[:, 1], correlation=waits[:, 2])


class _Places:
    """What slices and ends of arrows have in common."""

    def __init__(self) -> None:
        self.category = array("i")
        self.track = array("i")
        self.time = array("q")


def _integers(values: list[Any]) -> list[int]:
    return [UNKNOWN if value is None else integer(value) for value in values]


def _int64(values: array[int]) -> NDArray[np.int64]:
    return np.frombuffer(values, dtype=np.int64)


def _int32(values: array[int]) -> NDArray[np.int32]:
    return np.frombuffer(values, dtype=np.int32)
