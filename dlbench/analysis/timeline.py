"""A run as a timeline: a trace that Perfetto and chrome://tracing open, from a record with ops.

A process is a host, a thread a rank. On a rank's track stand its iterations, in each its ops. Arrows lead from a send
to the receive of its message, and from the start of a non-blocking collective to the wait that completes it. Where a
receive began before the send, a bar `transfer` in it, which begins with the send, parts the transfer from the waiting
for a late sender.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from dlbench.analysis.programs import Link, Place, Programs, communication_class
from dlbench.analysis.trace_events import ArrowEnd, ArrowStart, Event, Metadata, Slice, TraceFile, new_trace
from dlbench.analysis.writing import same_file
from dlbench.errors import OptionError
from dlbench.quantities import duration
from dlbench.records.reader import OpsReader, UnreadableRecord, iterate, read_ops
from dlbench.records.schema import DTYPE_BYTES, Clock, ClockModel, Header, Iteration, OpEntry, ops_path

_OPERATIONS = {
    "allreduce": "all-reduce",
    "allgather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "alltoall": "all-to-all",
    "recv": "receive",
}
_TIMES = ("runtime", "sync_time", "compute", "overrun", "issue")
_CLOCK = ("offset", "drift", "uncertainty", "drift_uncertainty")
_NANOSECONDS = 1e9
_LONGEST = 2.0**53
"""Nanoseconds that a JSON number holds exactly: 104 days."""
_NOTEWORTHY_SHIFT = 1e-6
"""Seconds by which the ops of a rank are moved apart without a note; rounding costs some nanoseconds."""


@dataclass(slots=True, kw_only=True)
class Shown:
    """What a trace shows."""

    iterations: range
    ranks: list[int]
    ops: int = 0
    messages: int = 0
    """Arrows from a send to its receive."""
    requests: int = 0
    """Arrows from the start of a non-blocking collective to its wait."""
    clock_error_seconds: float = 0.0
    """Largest bound on the error of a rank's times."""
    shift_seconds: float = 0.0
    """Largest shift of a time, where ops of one rank would overlap."""
    early_messages: int = 0
    """Messages that arrived before they were sent, by the ranks' clocks."""
    notes: list[str] = field(default_factory=list)
    """What a reader of the trace must know, a line each."""


def write_timeline(
    record: Path, output: Path, *, iterations: tuple[int, int | None] = (0, None), ranks: Sequence[range] = ()
) -> Shown:
    """Write the trace of a record's ops to `output`, compressed where that ends in `.gz`.

    `iterations` are the first and the last shown, None for the last that there is; `ranks` are those shown, all by
    default. Time 0 of the trace is the begin of the first iteration shown. One iteration at a time is in memory.

    Raises `RecordError` where the record is damaged or has no ops, `OptionError` where it lacks an iteration or rank
    that was asked for, or the trace cannot be written.
    """
    if any(same_file(output, kept) for kept in (record, ops_path(record))):
        raise OptionError(f"{output} belongs to the record; name another file for the trace")
    ops = read_ops(record)
    header = cast(Header, next(iterate(record)))
    shown = Shown(
        iterations=_chosen_iterations(iterations, ops),
        ranks=_chosen_ranks(ranks, header.world_size),
        notes=list(ops.notes),
    )
    timeline = _Timeline(record, header, shown)
    with new_trace(output) as trace:
        timeline.begin(trace)
        for line, clock, position in _lines(record, header.clock):
            if position in shown.iterations:
                timeline.add(trace, line, ops[position], clock)
        timeline.end(trace)
    return shown


def _chosen_iterations(chosen: tuple[int, int | None], ops: OpsReader) -> range:
    if not len(ops):
        raise UnreadableRecord(ops.path, "holds no whole array: the run was killed in its first iteration")
    first, last = chosen[0], len(ops) - 1 if chosen[1] is None else chosen[1]
    if max(first, last) >= len(ops):
        raise OptionError(f"iteration {max(first, last)} is not in {ops.path}; it holds 0 to {len(ops) - 1}")
    return range(first, last + 1)


def _chosen_ranks(chosen: Sequence[range], world_size: int) -> list[int]:
    for part in chosen:
        if part[-1] >= world_size:
            raise OptionError(f"rank {part[-1]} is not in the run; it has ranks 0 to {world_size - 1}")
    return sorted(set(chain.from_iterable(chosen or [range(world_size)])))


def _lines(record: Path, clock: ClockModel) -> Iterator[tuple[Iteration, ClockModel, int]]:
    """Each iteration with the clock model in force and its position in the record."""
    position = 0
    for line in iterate(record):
        if isinstance(line, Clock):
            clock = line.model
        elif isinstance(line, Iteration):
            yield line, clock, position
            position += 1


class Bar(NamedTuple):
    """What the bars of an op have in common, whichever rank performs it."""

    entry: OpEntry
    name: str
    cat: str
    args: dict[str, Any]


def bars(entries: Sequence[OpEntry], element_bytes: int = 1) -> list[Bar]:
    """Bars of a program.

    Their categories are compute, or communication classes: behind `issue` that of what is started, behind `wait` those
    of what is waited for.
    """
    classes: dict[str, str] = {}
    bars = []
    for entry in entries:
        if entry.op == "compute":
            bars.append(Bar(entry, entry.name, "compute", {"roofline_seconds": entry.seconds}))
        elif entry.op == "wait":
            awaited = dict.fromkeys(classes[name] for name in entry.requests if name in classes)
            name = " … ".join(dict.fromkeys([*entry.requests[:1], *entry.requests[-1:]]))
            bars.append(Bar(entry, f"wait {name}", ",".join(["wait", *awaited]), {"requests": entry.requests}))
        else:
            classes[entry.name] = communication_class(entry)
            size = {"elements": entry.elements, "bytes": entry.elements * element_bytes}
            name = f"{_OPERATIONS.get(entry.op, entry.op)} {entry.scope} {entry.name}"
            start, issue = ("", "") if entry.blocking else ("start ", "issue,")
            bars.append(Bar(entry, start + name, issue + classes[entry.name], {**size, "blocking": entry.blocking}))
    return bars


class _Track(NamedTuple):
    """An iteration of a rank, in nanoseconds of the trace."""

    begin: int
    end: int
    enter: list[int]
    leave: list[int]


class _Timeline:
    """The events of a run: names, iterations, and what is to know in the end."""

    def __init__(self, record: Path, header: Header, shown: Shown) -> None:
        self._record = record
        self._header = header
        self._shown = shown
        self._programs = Programs(record, header)
        self._require_one_per_rank({"hosts": header.hosts})
        if header.dtype not in DTYPE_BYTES:
            raise UnreadableRecord(record, f"dtype {header.dtype!r} is unknown; use {', '.join(DTYPE_BYTES)}")
        # Not the number of a rank: viewers take a thread that has it for the main one, and show it first.
        processes = {host: header.world_size + number for number, host in enumerate(dict.fromkeys(header.hosts))}
        self._process = [processes[host] for host in header.hosts]
        self._bars: dict[int, list[Bar]] = {}
        for table in header.op_tables:
            self._bars |= dict.fromkeys(table.ranks, bars(table.ops, DTYPE_BYTES[header.dtype]))
        messages = list(self._programs.messages(shown.ranks))
        self._messages = len(messages)
        self._links: list[Link] = [*messages, *self._programs.requests(shown.ranks)]
        self._starting: dict[Place, list[int]] = {}
        self._ending: dict[Place, list[int]] = {}
        for number, link in enumerate(self._links):
            self._starting.setdefault(link.start, []).append(number)
            self._ending.setdefault(link.end, []).append(number)
        self._iterations = 0
        self._zero = 0.0
        self._unix_zero = 0.0
        self._previous_end = dict.fromkeys(shown.ranks, 0)

    def begin(self, trace: TraceFile) -> None:
        """Name the tracks, and put them in order."""
        named: set[int] = set()
        for rank in self._shown.ranks:
            process = self._process[rank]
            if process not in named:
                named.add(process)
                trace.add(Metadata("process_name", process, rank, {"name": self._header.hosts[rank]}))
                trace.add(Metadata("process_sort_index", process, rank, {"sort_index": process}))
            trace.add(Metadata("thread_name", process, rank, {"name": f"rank {rank}"}))
            trace.add(Metadata("thread_sort_index", process, rank, {"sort_index": rank}))

    def add(self, trace: TraceFile, line: Iteration, array: NDArray[np.float64], clock: ClockModel) -> None:
        """Write an iteration from its line, its ops array, shape (ranks, ops, 2), and the clock model in force."""
        self._require_one_per_rank({name: getattr(line, name) for name in ("skew", *_TIMES)})
        self._require_one_per_rank({name: getattr(clock, name) for name in _CLOCK})
        if not self._iterations:
            self._zero = line.start + min(line.skew[rank] for rank in self._shown.ranks)
            self._unix_zero = clock.unix_epoch + self._zero
        errors = clock.error(line.start)
        tracks = {rank: self._track(line, rank, array[rank]) for rank in self._shown.ranks}
        for rank, track in tracks.items():
            trace.add(self._iteration(line, rank, track, errors[rank]))
            for event in self._ops(line, rank, tracks):
                trace.add(event)
            self._previous_end[rank] = track.end
            self._shown.clock_error_seconds = max(self._shown.clock_error_seconds, errors[rank])
        self._shown.messages += self._messages
        self._shown.requests += len(self._links) - self._messages
        self._iterations += 1

    def end(self, trace: TraceFile) -> None:
        """End the trace with the facts of the run and what its reader must know."""
        header, shown = self._header, self._shown
        if shown.shift_seconds > _NOTEWORTHY_SHIFT:
            shown.notes.append(f"ops of a rank overlapped and were moved by up to {duration(shown.shift_seconds)}")
        if shown.early_messages:
            shown.notes.append(
                f"messages that arrived before they were sent, by the error of the clocks: {shown.early_messages}"
            )
        if not header.groups:
            shown.notes.append("the record does not say who is in a group: no arrows between ranks")
        trace.close(
            {
                "run_id": header.run_id,
                "created": header.created,
                "strategy": header.strategy,
                "model": header.model.get("name", ""),
                "system": header.system,
                "world_size": header.world_size,
                "simulated": header.simulated,
                "scale": header.scale,
                "time_scale": header.time_scale,
                "unix_seconds_at_zero": self._unix_zero,
                "clock_error_seconds": shown.clock_error_seconds,
                "notes": shown.notes,
            }
        )

    def _require_one_per_rank(self, lists: dict[str, list[Any]]) -> None:
        for name, values in lists.items():
            if len(values) != self._header.world_size:
                text = f"{name} is a list of {len(values)}, but world_size = {self._header.world_size}"
                raise UnreadableRecord(self._record, text)

    def _track(self, line: Iteration, rank: int, times: NDArray[np.float64]) -> _Track:
        """The times of a rank in whole nanoseconds, in order.

        An op lasts one at least: viewers draw no bar without length, and find none for an arrow.
        """
        ops = len(self._bars[rank])
        begin = line.start + line.skew[rank]
        seconds = np.concatenate([[begin], times[:ops].ravel(), [begin + line.runtime[rank]]])
        nanoseconds = (seconds - self._zero) * _NANOSECONDS
        if not (np.abs(nanoseconds) < _LONGEST).all():
            where = f"iteration {line.index}: the ops of rank {rank}"
            raise UnreadableRecord(self._record, f"{where} have no times, or times months from the others'")
        moments = np.concatenate([[self._previous_end[rank]], np.rint(nanoseconds).astype(np.int64)])
        least = np.cumsum([0, 0, *[0, 1] * ops, 0])
        ordered = np.maximum.accumulate(moments - least) + least
        shift = float((ordered - moments).max()) / _NANOSECONDS
        self._shown.shift_seconds = max(self._shown.shift_seconds, shift)
        _, first, *borders, last = ordered.tolist()
        return _Track(first, last, borders[0::2], borders[1::2])

    def _iteration(self, line: Iteration, rank: int, track: _Track, error: float) -> Slice:
        times = {f"{name}_seconds": getattr(line, name)[rank] for name in _TIMES}
        args = {"iteration": line.index, "warmup": line.warmup, **times, "clock_error_seconds": error}
        name = f"{'warm-up' if line.warmup else 'iteration'} {line.index}"
        return self._slice(rank, name, "iteration", (track.begin, track.end), args)

    def _ops(self, line: Iteration, rank: int, tracks: dict[int, _Track]) -> Iterator[Event]:
        track = tracks[rank]
        partners = {scope: self._partners(scope, rank) for scope in {bar.entry.scope for bar in self._bars[rank]}}
        for number, bar in enumerate(self._bars[rank]):
            borders = track.enter[number], track.leave[number]
            args = {"iteration": line.index, "op": number, **bar.args, **partners[bar.entry.scope]}
            peer = self._programs.peer(bar.entry, rank)
            if peer is not None:
                args["peer"] = peer
            yield self._slice(rank, bar.name, bar.cat, borders, args)
            place = Place(rank, number)
            for link in self._starting.get(place, ()):
                yield ArrowStart(*self._arrow(link, rank), ts=borders[0] / 1000)
            for link in self._ending.get(place, ()):
                yield from self._arrival(link, borders, tracks)
        self._shown.ops += len(track.enter)

    def _arrival(self, number: int, borders: tuple[int, int], tracks: dict[int, _Track]) -> Iterator[Event]:
        """The end of an arrow, later than its start, and the transfer in a receive that waited for its sender."""
        (sender, sent), (rank, _) = self._links[number]
        enter, leave = borders
        moment = max(enter, tracks[sender].enter[sent] + 1)
        if moment >= leave:
            self._shown.early_messages += 1
            moment = leave - 1
        elif moment > enter:
            late = {"late_sender_seconds": (moment - enter) / _NANOSECONDS}
            yield self._slice(rank, "transfer", "transfer", (moment, leave), late)
        yield ArrowEnd(*self._arrow(number, rank), ts=moment / 1000)

    def _arrow(self, number: int, rank: int) -> tuple[str, str, int, int, int]:
        """Name, category, number, process and thread of an end of an arrow: the same for both ends but for the last."""
        sender, sent = self._links[number].start
        name = "message" if number < self._messages else "request"
        cat = communication_class(self._bars[sender][sent].entry)
        return name, cat, self._iterations * len(self._links) + number, self._process[rank], rank

    def _slice(self, rank: int, name: str, cat: str, borders: tuple[int, int], args: dict[str, Any]) -> Slice:
        begin, end = borders
        return Slice(name, cat, self._process[rank], rank, begin / 1000, (end - begin) / 1000, args)

    def _partners(self, scope: str, rank: int) -> dict[str, Any]:
        """Who takes part in the communications of a scope."""
        group = self._programs.group(scope, rank)
        return {"ranks": ranks_text(group), "group_size": len(group)} if group else {}


def ranks_text(ranks: range) -> str:
    """Ranks as people write them: `5`, `0-7`, or with a distance between them `0-56:8`."""
    if len(ranks) == 1:
        return f"{ranks[0]}"
    return f"{ranks[0]}-{ranks[-1]}" + (f":{ranks.step}" if ranks.step > 1 else "")
