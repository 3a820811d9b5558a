"""Check a run record beyond its types: that its numbers agree with each other.

The checks of one line are generators of texts; an `_Examination` walks the record and puts
the line number to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dlbench.errors import one_line
from dlbench.records.reader import Cut, OpsReader, UnreadableRecord, iterate, read_ops, second_end
from dlbench.records.schema import DTYPE_BYTES, Clock, ClockModel, End, Energy, Header, Iteration, Line, ops_path

RELATIVE_TOLERANCE = 1e-6
ABSOLUTE_TOLERANCE = 5e-9
"""Seconds: what adding rounded clock readings can cost."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that a reader of the record must know."""

    line: int | None
    """Line in the record, from 1; None for the file as a whole or its ops arrays."""
    severity: Literal["error", "note"]
    """A note, e.g. a cut last line, leaves the record valid."""
    text: str
    """One line."""


@dataclass(slots=True, kw_only=True)
class Report:
    """What an examination of a record found."""

    path: Path
    problems: list[Problem] = field(default_factory=list)
    iterations: int = 0
    warmups: int = 0
    end: End | None = None
    """None for a killed run."""

    @property
    def valid(self) -> bool:
        """Whether the record holds no error; that of a killed run can be valid."""
        return all(problem.severity != "error" for problem in self.problems)


def validate(path: Path) -> list[Problem]:
    """Problems of a record and its ops arrays; that the file cannot be read is one of them."""
    return examine(path).problems


def examine(path: Path) -> Report:
    """Validate a record, and count what is in it."""
    examination = _Examination(path)
    try:
        for number, line in enumerate(iterate(path), start=1):
            examination.take(number, line)
        examination.check_end()
        examination.check_ops()
    except UnreadableRecord as error:
        text = error.text if error.path == path else str(error)
        examination.add(error.line, "error", [text])
    return examination.report


class _Examination:
    """A walk along the lines of one record."""

    def __init__(self, path: Path) -> None:
        self.report = Report(path=path)
        self._header: Header
        self._previous: Iteration | None = None
        self._end_line: int | None = None

    def add(self, line: int | None, severity: Literal["error", "note"], texts: Iterable[str]) -> None:
        self.report.problems.extend(Problem(line, severity, one_line(text)) for text in texts)

    def take(self, number: int, line: Line | Cut) -> None:
        match line:
            case Header():
                self._header = line
                self.add(number, "error", _header_faults(line))
            case Iteration():
                self.add(number, "error", _order_faults(line, self._previous))
                self.add(number, "error", _iteration_faults(line, self._header.world_size))
                if line.energy is not None:
                    self.add(number, "error", energy_faults(line.energy, self._header))
                self._previous = line
                self.report.iterations += 1
                self.report.warmups += line.warmup
            case Clock():
                self.add(number, "error", _succession_faults(line.index, self._previous))
                self.add(number, "error", _clock_faults("model", line.model, self._header.world_size))
            case End() if self.report.end is None:
                self.report.end = line
                self._end_line = number
            case End():
                self.add(number, "note", [second_end(line)])
            case Cut():
                self.add(number, "note", [str(line)])

    def check_end(self) -> None:
        """Check the end line against all iterations: those of a failed run can stand behind it."""
        end = self.report.end
        if end is None:
            return
        if end.clock is not None:
            self.add(self._end_line, "error", _clock_faults("clock", end.clock, self._header.world_size))
        if end.iterations != self.report.iterations:
            # A rank that notes a failure for the writer counts what it finished itself, perhaps one more.
            severity: Literal["error", "note"] = "error" if end.status == "completed" else "note"
            text = f"iterations = {end.iterations}, but the record holds {self.report.iterations}"
            self.add(self._end_line, severity, [text])

    def check_ops(self) -> None:
        """Check the ops arrays beside the record, where there are or should be any."""
        path = self.report.path
        if not self._header.op_tables:
            if ops_path(path).exists():
                self.add(None, "error", [f"{ops_path(path).name} lies beside it, but the header has no op_tables"])
            return
        ops = read_ops(path)
        self.add(None, "note", ops.notes)
        missing = self.report.iterations - len(ops)
        if missing > ops.truncated:
            self.add(
                None, "error", [f"{missing} of {self.report.iterations} iterations lack their array in {ops.path.name}"]
            )
        if _covers_all_ranks(self._header):
            self.add(None, "error", _ops_faults(ops, self._header))


def _header_faults(header: Header) -> Iterator[str]:
    ranks = header.world_size
    yield from _length_faults({"hosts": header.hosts, "devices": header.devices}, ranks)
    yield from accelerator_faults(header)
    yield from _clock_faults("clock", header.clock, ranks)
    product = header.replicas * prod(header.degrees.values())
    if product != ranks:
        degrees = "".join(f" × {name} {degree}" for name, degree in header.degrees.items())
        yield f"replicas {header.replicas}{degrees} = {product}, but world_size = {ranks}"
    for scope, group in header.groups.items():
        if ranks % (group.size * group.stride):
            yield f"groups: {scope} of size {group.size} and stride {group.stride} do not divide {ranks} ranks"
    if header.op_tables and not _covers_all_ranks(header):
        yield f"op_tables must name each of the {ranks} ranks once"
    if header.dtype not in DTYPE_BYTES:
        yield f"dtype {header.dtype!r} is unknown; use {', '.join(DTYPE_BYTES)}"
        return
    for row, message in enumerate(header.messages):
        expected = message.elements * DTYPE_BYTES[header.dtype]
        if message.bytes != expected:
            yield (
                f"messages[{row}]: bytes = {message.bytes}, "
                f"but {message.elements} elements of {header.dtype} have {expected}"
            )


def accelerator_faults(header: Header) -> Iterator[str]:
    """Faults of the GPUs that a header names."""
    if header.accelerators:
        yield from _length_faults({"accelerators": header.accelerators}, header.world_size)


def _covers_all_ranks(header: Header) -> bool:
    named = [rank for table in header.op_tables for rank in table.ranks]
    # The length first: a damaged world size can be larger than any memory.
    return len(named) == header.world_size and sorted(named) == list(range(header.world_size))


def _clock_faults(key: str, model: ClockModel, ranks: int) -> Iterator[str]:
    names = ("offset", "drift", "uncertainty", "drift_uncertainty")
    return _length_faults({f"{key}.{name}": getattr(model, name) for name in names}, ranks)


def _length_faults(lists: Mapping[str, Sequence[object]], ranks: int) -> Iterator[str]:
    for name, values in lists.items():
        if len(values) != ranks:
            yield f"{name} is a list of {len(values)}, but world_size = {ranks}"


def _succession_faults(index: int, previous: Iteration | None) -> Iterator[str]:
    expected = 0 if previous is None else previous.index + 1
    if index != expected:
        yield f"index = {index}, but {expected} comes next"


def _order_faults(iteration: Iteration, previous: Iteration | None) -> Iterator[str]:
    yield from _succession_faults(iteration.index, previous)
    if previous is None:
        return
    if iteration.warmup and not previous.warmup:
        yield "a warm-up iteration comes after a counted one; warm-ups come first"
    if iteration.start < previous.start:
        yield f"start = {iteration.start} lies before the previous iteration's, {previous.start}"


def _iteration_faults(iteration: Iteration, ranks: int) -> Iterator[str]:
    for rank in iteration.late:
        if rank >= ranks:
            yield f"late names rank {rank}; the last rank is {ranks - 1}"
    lists = {name: getattr(iteration, name) for name in ("skew", "runtime", "sync_time", "compute", "overrun", "issue")}
    lists |= {f"communication.{name}": values for name, values in iteration.communication.items()}
    lengths = list(_length_faults(lists, ranks))
    yield from lengths
    if not lengths:
        yield from _time_faults(iteration)


def _time_faults(iteration: Iteration) -> Iterator[str]:
    first = min(iteration.skew)
    if first > ABSOLUTE_TOLERANCE:
        yield f"the smallest skew is {first}; the first rank's is 0"
    sync_time = np.array(iteration.sync_time)
    classes = sum(map(np.array, iteration.communication.values()), np.zeros_like(sync_time))
    for rank in np.flatnonzero(np.abs(classes - sync_time) > _tolerance(sync_time)):
        yield f"rank {rank}: the communication classes add up to {classes[rank]}, but sync_time = {sync_time[rank]}"
    runtime = np.array(iteration.runtime)
    parts = sync_time + np.array(iteration.compute) + np.array(iteration.overrun) + np.array(iteration.issue)
    for rank in np.flatnonzero(parts > runtime + _tolerance(runtime)):
        yield f"rank {rank}: sync_time + compute + overrun + issue = {parts[rank]} exceeds runtime = {runtime[rank]}"


def energy_faults(energy: Energy, header: Header) -> Iterator[str]:
    """Faults of the energy of an iteration, by itself and beside the header."""
    lists = {f"energy.{name}": getattr(energy, name) for name in Energy.__struct_fields__}
    lengths = list(_length_faults(lists, header.world_size))
    yield from lengths
    if lengths:
        return
    for rank, (joules, seconds) in enumerate(zip(energy.joules, energy.seconds, strict=True)):
        if joules is not None and not seconds:
            yield f"rank {rank}: energy.joules = {joules} need energy.seconds above 0"
    if not header.energy_source and any(joules is not None for joules in energy.joules):
        yield "energy.joules are there, but the header's energy_source is empty"


def _tolerance(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    return RELATIVE_TOLERANCE * seconds + ABSOLUTE_TOLERANCE


def _ops_faults(ops: OpsReader, header: Header) -> Iterator[str]:
    """Faults of the arrays: (ranks, ops, 2), NaN exactly where a rank's program has ended, leave after enter."""
    lengths = np.empty(header.world_size, dtype=np.intp)
    for table in header.op_tables:
        lengths[table.ranks] = len(table.ops)
    performed = np.arange(ops.shape[1]) < lengths[:, np.newaxis]
    for iteration, array in enumerate(ops):
        where = f"{ops.path.name}: iteration {iteration}"
        wrong = np.argwhere(np.isfinite(array) != performed[:, :, np.newaxis])
        if len(wrong):
            rank, op, _ = wrong[0]
            yield f"{where}, rank {rank}, op {op}: NaN must stand exactly behind the rank's {lengths[rank]} ops"
        backwards = np.argwhere(array[:, :, 1] < array[:, :, 0])
        if len(backwards):
            rank, op = backwards[0]
            yield f"{where}, rank {rank}, op {op}: leave lies before enter"
