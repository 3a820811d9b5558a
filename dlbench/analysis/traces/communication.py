"""The communication kernels of one rank's trace, at a memory that does not grow with the rest of the file."""

from __future__ import annotations

import re
from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from dlbench.analysis.traces.format import NO_ARGS, NO_TIME, UNKNOWN, Args, Event, counted, integer, nanoseconds
from dlbench.analysis.traces.kernels import CommunicationKernels, message_bytes, operation
from dlbench.analysis.traces.reader import TraceReader
from dlbench.errors import one_line

T = TypeVar("T", bound=Hashable)

_NANOSECONDS_PER_MICROSECOND = 1000


class Group(NamedTuple):
    """A process group as the arguments of a kernel, and the trace's metadata, describe it; equal on all its ranks."""

    name: str = ""
    """"" where kernels name no group."""
    description: str = ""
    """What the group is for, e.g. `mesh_tp`."""
    ranks: tuple[int, ...] = ()
    """Empty where they are unknown."""
    size: int = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Communication:
    """Communication kernels of a rank, ordered by their start. Arrays have shape (kernels,)."""

    path: Path
    rank: int | None
    """As the metadata says, None where it does not."""
    world_size: int | None
    groups: list[Group]
    operations: list[str]
    names: list[str]
    group: NDArray[np.int32]
    """Index into `groups`; so are `operation` and `name`."""
    operation: NDArray[np.int32]
    name: NDArray[np.int32]
    start: NDArray[np.int64]
    """Nanoseconds; of the Unix epoch if the writer did so."""
    end: NDArray[np.int64]
    seq: NDArray[np.int64]
    """Number within the process group, `UNKNOWN` where there is none."""
    bytes: NDArray[np.int64]
    """Size of the message, `UNKNOWN` where it is."""
    resolution: int
    """Nanoseconds: 1000 where the times are whole microseconds."""
    notes: list[str]
    """What was dropped or mended, one line each."""


class Codes(dict[T, int]):
    """Numbers values in the order in which they first come: `codes[value]`, and `list(codes)` has them by number."""

    def __missing__(self, value: T) -> int:
        self[value] = number = len(self)
        return number


def communication(path: Path, kernels: CommunicationKernels | None = None) -> Communication:
    """Read the communication kernels of a trace. Raises `UnreadableTrace` where it is none."""
    kernels = kernels or CommunicationKernels()
    reader = TraceReader(path)
    columns = CommunicationColumns()
    for batch in reader.batches():
        columns.add([event for event in batch if kernels(event)])
    return columns.of(reader)[0]


def rank_of(metadata: dict[str, Any]) -> tuple[int | None, int | None]:
    """Rank and world size, each None where the metadata lacks it."""
    info = metadata.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    rank, size = integer(info.get("rank")), integer(info.get("world_size"))
    return (None if rank == UNKNOWN else rank), (None if size == UNKNOWN else size)


def base_nanoseconds(metadata: dict[str, Any]) -> int:
    """What the times in the file are relative to."""
    base = integer(metadata.get("baseTimeNanoseconds", 0))
    return 0 if base == UNKNOWN else base


def valid_times(start: NDArray[np.int64], duration: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which events have a time: 0 stands for one that the profiler did not know."""
    return np.asarray((start != NO_TIME) & (start != 0) & (duration >= 0))


def lost_times(reader: TraceReader, number: int, noun: str) -> str:
    """A note on events that `valid_times` leaves out."""
    return one_line(f"{reader.path}: {counted(number, noun)} without a valid ts and dur dropped")


class CommunicationColumns:
    """Columns of the communication kernels read so far, in the order of the file."""

    def __init__(self) -> None:
        self._groups: Codes[Group] = Codes()
        self._operations: Codes[str] = Codes()
        self._names: Codes[str] = Codes()
        self._codes = array("i")
        self._times = array("q")
        self._numbers = array("q")
        self._fractions = False

    def add(self, events: list[Event]) -> None:
        """Append communication kernels."""
        for event in events:
            args = event.args or NO_ARGS
            self._codes.append(self._groups[_group(args)])
            self._codes.append(self._operations[operation(event)])
            self._codes.append(self._names[str(event.name)])
            self._numbers.append(integer(args.seq))
            self._numbers.append(message_bytes(args))
            self._fractions = self._fractions or b"." in bytes(event.ts)
        times = [time for event in events for time in (event.ts, event.dur)]
        self._times.frombytes(nanoseconds(times).tobytes())

    def of(self, reader: TraceReader) -> tuple[Communication, NDArray[np.int64]]:
        """The kernels by start, once the trace is read, and the place of each in the order of the file."""
        start, duration = np.array(self._times, dtype=np.int64).reshape(-1, 2).T
        codes = np.array(self._codes, dtype=np.int32).reshape(-1, 3)
        numbers = np.array(self._numbers, dtype=np.int64).reshape(-1, 2)
        timed = valid_times(start, duration)
        order = np.flatnonzero(timed)[np.argsort(start[timed], kind="stable")]
        notes = reader.notes
        if lost := len(start) - len(order):
            notes.append(lost_times(reader, lost, "communication kernel"))
        rank, world_size = rank_of(reader.metadata)
        start = start[order] + base_nanoseconds(reader.metadata)
        found = Communication(
            path=reader.path,
            rank=rank,
            world_size=world_size,
            groups=_described(list(self._groups), reader.metadata),
            operations=list(self._operations),
            names=list(self._names),
            group=codes[order, 0],
            operation=codes[order, 1],
            name=codes[order, 2],
            start=start,
            end=start + duration[order],
            seq=numbers[order, 0],
            bytes=numbers[order, 1],
            resolution=1 if self._fractions else _NANOSECONDS_PER_MICROSECOND,
            notes=notes,
        )
        return found, order


def _group(args: Args) -> Group:
    name = "" if args.group is None else str(args.group)
    description = "" if args.description is None else str(args.description)
    return Group(name, description, ranks_of(args.ranks), integer(args.group_size))


def ranks_of(value: Any) -> tuple[int, ...]:
    """Ranks in a list or the text of one; none where the text was cut with an ellipsis."""
    if isinstance(value, str):
        if "..." in value:
            return ()
        value = [int(digits) for digits in re.findall(r"\d{1,9}", value)]
    if not isinstance(value, Sequence):
        return ()
    ranks = tuple(integer(rank) for rank in value)
    return () if UNKNOWN in ranks else ranks


def _described(groups: list[Group], metadata: dict[str, Any]) -> list[Group]:
    """The groups with what the metadata knows better: the ranks of a long list, a size, a description."""
    info = metadata.get("distributedInfo")
    entries = info.get("pg_config") if isinstance(info, dict) else None
    if isinstance(entries, str):
        entries = _list_in(entries)
    known: dict[str, dict[str, Any]] = {}
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict):
            known[str(entry.get("pg_name"))] = entry
    return [_completed(group, known.get(group.name, {})) for group in groups]


def _list_in(text: str) -> Any:
    """The value of a JSON text, None where it is none."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None


def _completed(group: Group, entry: dict[str, Any]) -> Group:
    ranks = group.ranks or ranks_of(entry.get("ranks"))
    size = max(group.size, integer(entry.get("pg_size")), len(ranks) or UNKNOWN)
    return Group(group.name, group.description or str(entry.get("pg_desc") or ""), ranks, size)
