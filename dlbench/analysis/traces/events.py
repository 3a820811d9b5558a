"""All events of one rank's trace as columns: what a dependency graph is made of."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlbench.analysis.traces.communication import (
    Codes,
    Communication,
    CommunicationColumns,
    base_nanoseconds,
    rank_of,
)
from dlbench.analysis.traces.format import NO_TIME, UNKNOWN, Args, Event, integer, nanoseconds
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
_NO_ARGS = Args()


class Track(NamedTuple):
    """Where events follow each other: a thread of a process, or a stream of a device."""

    pid: int | str
    tid: int | str


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

    path: Path
    rank: int | None
    world_size: int | None
    names: list[str]
    categories: list[str]
    """In the new spelling."""
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
        self._names: Codes[str] = Codes()
        self._categories: Codes[str] = Codes()
        self._tracks: Codes[Track] = Codes()
        self._codes = array("i")
        self._times = array("q")
        self._ids = array("q")
        self._flow_codes = array("i")
        self._flows = array("q")
        self._waits = array("q")
        self._communication = CommunicationColumns()
        self._communication_events = array("q")
        self._count = 0

    def add(self, batch: list[Event]) -> None:
        slices = [event for event in batch if event.ph == _SLICE]
        for event in slices:
            args = event.args or _NO_ARGS
            self._codes.extend((self._names[str(event.name)], self._category(event), self._track(event)))
            self._ids.extend((integer(args.correlation), integer(args.external_id)))
        self._times.frombytes(nanoseconds([time for event in slices for time in (event.ts, event.dur)]).tobytes())
        self._add_communication(slices)
        self._add_waits(slices)
        self._add_flows([event for event in batch if event.ph in (_FLOW_START, _FLOW_END)])
        self._count += len(slices)

    def of(self, reader: TraceReader) -> Events:
        start, duration = np.array(self._times, dtype=np.int64).reshape(-1, 2).T
        timed = (start != NO_TIME) & (duration >= 0)
        order = np.flatnonzero(timed)[np.lexsort((-duration[timed], start[timed]))]
        row = np.full(len(start), UNKNOWN, dtype=np.int64)
        row[order] = np.arange(len(order))
        communication, kept = self._communication.of(reader)
        notes = communication.notes
        if lost := len(start) - len(order):
            notes = [*notes, f"{reader.path}: {lost} events without a valid ts and dur were dropped"]
        base = base_nanoseconds(reader.metadata)
        codes = np.array(self._codes, dtype=np.int32).reshape(-1, 3)[order]
        ids = np.array(self._ids, dtype=np.int64).reshape(-1, 2)[order]
        rank, world_size = rank_of(reader.metadata)
        return Events(
            path=reader.path,
            rank=rank,
            world_size=world_size,
            names=list(self._names),
            categories=list(self._categories),
            tracks=list(self._tracks),
            name=codes[:, 0],
            category=codes[:, 1],
            track=codes[:, 2],
            start=start[order] + base,
            duration=duration[order],
            correlation=ids[:, 0],
            external_id=ids[:, 1],
            flows=self._flows_of(base),
            waits=self._waits_of(row),
            communication=communication,
            communication_events=row[np.array(self._communication_events, dtype=np.int64)[kept]],
            notes=notes,
        )

    def _category(self, event: Event) -> int:
        given = str(event.cat)
        return self._categories[_CATEGORIES.get(given, given)]

    def _track(self, event: Event) -> int:
        return self._tracks[Track(_identity(event.pid), _identity(event.tid))]

    def _add_communication(self, slices: list[Event]) -> None:
        places = [place for place, event in enumerate(slices) if self._communicates(event)]
        self._communication.add([slices[place] for place in places])
        self._communication_events.extend(self._count + place for place in places)

    def _add_waits(self, slices: list[Event]) -> None:
        for place, event in enumerate(slices):
            args = event.args
            if args is not None and (args.wait_on_stream is not None or args.wait_on_correlation is not None):
                waited = integer(args.wait_on_stream), integer(args.wait_on_correlation)
                self._waits.extend((self._count + place, *waited))

    def _add_flows(self, ends: list[Event]) -> None:
        for event in ends:
            self._flow_codes.extend((event.ph == _FLOW_START, self._category(event), self._track(event)))
        times = nanoseconds([event.ts for event in ends]).tolist()
        for event, time in zip(ends, times, strict=True):
            self._flows.extend((integer(event.id), time))

    def _flows_of(self, base: int) -> Flows:
        codes = np.array(self._flow_codes, dtype=np.int32).reshape(-1, 3)
        values = np.array(self._flows, dtype=np.int64).reshape(-1, 2)
        usable = (values[:, 0] != UNKNOWN) & (values[:, 1] != NO_TIME)
        codes, values = codes[usable], values[usable]
        return Flows(
            id=values[:, 0],
            begins=codes[:, 0] > 0,
            category=codes[:, 1],
            track=codes[:, 2],
            time=values[:, 1] + base,
        )

    def _waits_of(self, row: NDArray[np.int64]) -> Waits:
        waits = np.array(self._waits, dtype=np.int64).reshape(-1, 3)
        waits = waits[row[waits[:, 0]] != UNKNOWN]
        return Waits(event=row[waits[:, 0]], stream=waits[:, 1], correlation=waits[:, 2])


def _identity(value: Any) -> int | str:
    """A process, thread, device or stream; what is neither number nor text is told apart by how it looks."""
    return value if isinstance(value, int | str) else str(value)
