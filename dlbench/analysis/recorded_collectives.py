"""The collectives of a run, from the ops that its ranks recorded.

A non-blocking collective is entered with the op that starts it, since from then on the others need not wait for this
rank. Sends and receives are no collectives: a pipeline's stage waits for another by design.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dlbench.analysis.critical_path import Explained
from dlbench.analysis.programs import Programs
from dlbench.analysis.recorded_paths import RecordedPaths
from dlbench.analysis.recorded_places import Places, places
from dlbench.analysis.timeline import ranks_text
from dlbench.analysis.traces.collectives import Collectives
from dlbench.records.reader import OpsReader, Record, UnreadableRecord, read, read_ops
from dlbench.records.schema import DTYPE_BYTES, Iteration

_FARTHEST = 1e7
"""Seconds from the begin of an iteration: a third of a year."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recorded:
    """The collectives of one operation in one group, of all measured iterations one after the other."""

    name: str
    """Communication class, operation/scope."""
    collectives: Collectives
    """Times in seconds of the global clock."""
    iteration: NDArray[np.int32]
    """Shape (collectives,): index of the iteration, warm-ups counted."""
    blocked: NDArray[np.float64]
    """Shape (collectives, ranks): when the rank began to do nothing but wait for the end of the collective."""
    explained: Explained | None = None
    """Why the last rank came late, where that was asked for."""


def recorded_collectives(
    path: Path, *, progress: Callable[[int, int], None] | None = None, paths: bool = True
) -> tuple[list[Recorded], list[str]]:
    """The collectives of the record `path` by class and group, of several ranks, and what was dropped from its ops.

    `progress` is called with the iterations that are read and those that there are; `paths` says whether to explain why
    ranks came late. Raises `RecordError` where the record is damaged, has no ops, or its ranks do not perform the same
    collectives.
    """
    record = read(path)
    ops = read_ops(path)
    programs = Programs(path, record.header)
    if record.header.dtype not in DTYPE_BYTES:
        raise UnreadableRecord(path, f"dtype {record.header.dtype!r} is unknown; use {', '.join(DTYPE_BYTES)}")
    groups = list(places(record, programs))
    measured = [(number, line) for number, line in enumerate(record.iterations[: len(ops)]) if not line.warmup]
    times: list[list[NDArray[np.float64]]] = [[] for _ in groups]
    explainer = RecordedPaths(programs, record.header.world_size, groups) if paths else None
    errors = []
    for done, (number, line) in enumerate(measured, start=1):
        array = ops[number]
        errors.append(_clock_error(record, line))
        for place, parts in zip(groups, times, strict=True):
            parts.append(_checked(place.times(array), ops, line))
        if explainer is not None:
            explainer.add(array, _begins(record, line))
        if progress is not None:
            progress(done, len(measured))
    indices = [line.index for _, line in measured]
    reasons = [None] * len(groups) if explainer is None else explainer.explained()
    found = [
        _recorded(place, np.array(parts), np.array(errors), indices, DTYPE_BYTES[record.header.dtype], reason)
        for place, parts, reason in zip(groups, times, reasons, strict=True)
        if parts
    ]
    mended = [] if explainer is None else explainer.notes
    return found, [f"{path}: {note}" for note in (*ops.notes, *mended)]


def _recorded(
    place: Places,
    times: NDArray[np.float64],
    errors: NDArray[np.float64],
    indices: list[int],
    element_bytes: int,
    reason: Explained | None,
) -> Recorded:
    """The iterations of a group as one; `times` of shape (iterations, 3, collectives, ranks), `errors` per rank."""
    iterations, _, count, size = times.shape
    enter, leave, blocked = times.transpose(1, 0, 2, 3).reshape(3, iterations * count, size)
    ranks = np.array(place.ranks)
    return Recorded(
        name=place.name,
        collectives=Collectives(
            group=f"{place.scope} {ranks_text(place.ranks)}",
            ranks=tuple(place.ranks),
            operations=tuple(entry.op for entry in place.entries) * iterations,
            names=tuple(entry.name for entry in place.entries) * iterations,
            bytes=np.tile(np.array([entry.elements for entry in place.entries], np.int64) * element_bytes, iterations),
            enter=enter,
            leave=leave,
            # A double far from 0 has fewer digits than the clock.
            error=np.repeat(errors[:, ranks], count, axis=0) + np.spacing(np.abs(enter)),
        ),
        iteration=np.repeat(np.array(indices, dtype=np.int32), count),
        blocked=blocked,
        explained=reason,
    )


def _begins(record: Record, line: Iteration) -> list[float]:
    """When each rank began an iteration."""
    if len(line.skew) != record.header.world_size:
        raise UnreadableRecord(
            record.path, f"iteration {line.index}: skew is not one of {record.header.world_size} ranks"
        )
    return [line.start + skew for skew in line.skew]


def _clock_error(record: Record, line: Iteration) -> list[float]:
    """Per rank, bound on the error of the times of an iteration."""
    world_size, clock = record.header.world_size, record.clock(line.index)
    lengths = {len(values) for values in (clock.offset, clock.drift, clock.uncertainty, clock.drift_uncertainty)}
    if lengths != {world_size}:
        raise UnreadableRecord(record.path, f"iteration {line.index}: the clock is not one of {world_size} ranks")
    try:
        errors = clock.error(line.start)
    except OverflowError:  # numbers that no clock has
        errors = []
    if not errors or not all(error < _FARTHEST for error in errors):
        raise UnreadableRecord(record.path, f"iteration {line.index}: no clock has the errors of its clock model")
    return errors


def _checked(times: NDArray[np.float64], ops: OpsReader, line: Iteration) -> NDArray[np.float64]:
    """The times, shape (3, collectives, ranks). Raises `UnreadableRecord` where no clock can have shown them."""
    # NaN is not close to anything, either.
    if not (np.abs(times - line.start) < _FARTHEST).all():
        where = f"iteration {line.index}: a collective"
        raise UnreadableRecord(ops.path, f"{where} has no times, or times months from those of the iteration")
    if (times[1] < times[0]).any():
        raise UnreadableRecord(ops.path, f"iteration {line.index}: a collective ends before it begins")
    return times
