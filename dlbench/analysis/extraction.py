"""From one record to its rows in the tables of a campaign."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from operator import add
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from dlbench.errors import one_line
from dlbench.records.measures import TotalEnergy, total_energy
from dlbench.records.reader import Record
from dlbench.records.schema import Header, Iteration
from dlbench.records.throttling import Throttling
from dlbench.records.validator import ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE, accelerator_faults, energy_faults

Columns: TypeAlias = dict[str, NDArray[Any]]
"""Columns of a table, all of one length."""

PER_RANK = ("skew", "runtime", "sync_time", "compute", "overrun", "issue")
"""What an iteration line holds for every rank."""

LABEL = "label_"
"""Prefix of the columns that hold labels."""

_MODE = "mode"
"""Label that says how the batch system gave the nodes: reserved or queue."""

_LARGEST = 2**63 - 1
_LARGEST_INDEX = 2**31 - 1
"""What the tables hold; the integers of a record have no end."""
_SHORTEST, _LONGEST = 1e-9, 1e9
"""Seconds: no clock resolves a shorter iteration, and no run lasts 30 years. Sums and ratios stay far from overflow."""
_FARTHEST = 5e10
"""Seconds from 1970: the years 385 to 3554, which every calendar knows."""

_COPIED = (
    *("run_id", "created", "simulated", "system", "strategy", "replicas", "placement", "dtype", "local_batch"),
    *("microbatches", "sequence_length", "buckets", "units", "scale", "time_scale", "compute", "experiment", "job"),
    *("concurrent_jobs", "seed", "ideal_seconds", "energy_source"),
)
"""Columns of a run that have the name and the value of the header's field."""


class _Delay(msgspec.Struct, frozen=True, order=True):
    """An entry of the option `delay`."""

    rank: int
    op: int
    milliseconds: float


class Unusable(Exception):
    """Why the run of a record cannot count, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A valid run: its row of `runs`, and its columns of the other tables without `run`."""

    path: Path
    row: dict[str, Any]
    iterations: Columns
    ranks: Columns
    classes: Columns
    notes: list[str]

    def __len__(self) -> int:
        return len(self.iterations["start"])


def times(record: Record) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Unix times at which each iteration of a record began and ended, by the clock model in force.

    Raises `Unusable` for times that no clock can have shown.
    """
    lines = record.iterations
    starts = np.array([record.clock(line.index).unix_epoch + line.start for line in lines])
    lasted = [max(map(add, line.skew, line.runtime), default=0.0) for line in lines]
    if any(abs(time) > _FARTHEST for time in (*starts, *lasted)):
        raise Unusable("the Unix times of its iterations are impossible; see unix_epoch of its clock, and start")
    return starts, starts + np.array(lasted)


def extract(record: Record) -> Run:
    """The rows of a record. Raises `Unusable` where its run cannot count."""
    row = {**described(record.path, record.header), **_ended(record)}
    _check_header(record, row)
    lines = record.iterations
    for line in lines:
        _check_iteration(line, record.header)
    _check_order(lines)
    index = np.array([line.index for line in lines], dtype=np.int32)
    warmup = np.array([line.warmup for line in lines])
    per_rank = dict(zip(PER_RANK, _per_rank(lines), strict=True))
    _check_parts(lines, per_rank)
    starts, ends = times(record)
    row |= {"warmups": warmup.sum(), "measured": (~warmup).sum(), "begin": starts.min(), "end": ends.max()}
    count, ranks = per_rank["runtime"].shape
    classes = _classes(lines, per_rank["runtime"])
    position = classes.pop("position")
    return Run(
        path=record.path,
        row=row,
        iterations={
            **{"iteration": index, "warmup": warmup, "start": starts, "end": ends},
            **_measures(per_rank, row["samples"]),
            "late": np.array([len(line.late) for line in lines], dtype=np.int32),
            **_energy(lines),
        },
        ranks={
            "iteration": np.repeat(index, ranks),
            "warmup": np.repeat(warmup, ranks),
            "rank": np.tile(np.arange(ranks, dtype=np.int32), count),
            **{name: values.ravel() for name, values in per_rank.items()},
        },
        classes={"iteration": index[position], "warmup": warmup[position], **classes},
        notes=_notes(record),
    )


def _check_header(record: Record, row: dict[str, Any]) -> None:
    if record.end is not None and record.end.status == "failed":
        raise Unusable(f"failed: {record.end.reason}")
    if all(line.warmup for line in record.iterations):
        raise Unusable(f"no measured iteration; {len(record.iterations)} of warm-up")
    for fault in accelerator_faults(record.header):
        raise Unusable(fault)
    for name, value in row.items():
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise Unusable(f"{name} = {value} is too large; the tables hold integers of 64 bits")
    if row["ideal_seconds"] > _LONGEST:
        raise Unusable(f"ideal_seconds = {row['ideal_seconds']:g} is impossible; no run lasts {_LONGEST:g} s")


def _check_iteration(line: Iteration, header: Header) -> None:
    ranks = header.world_size
    lists = {name: getattr(line, name) for name in PER_RANK} | line.communication
    for name, values in lists.items():
        if len(values) != ranks:
            raise Unusable(f"iteration {line.index}: {name} has {len(values)} entries for {ranks} ranks")
        if max(values) > _LONGEST:
            raise Unusable(f"iteration {line.index}: {name} holds {max(values):g} s; no run lasts {_LONGEST:g} s")
    shortest = min(line.runtime)
    if shortest < _SHORTEST:
        where = f"iteration {line.index}: rank {line.runtime.index(shortest)}"
        raise Unusable(f"{where} has a runtime of {shortest:g} s; it must be {_SHORTEST:g} s or longer")
    if line.index > _LARGEST_INDEX:
        raise Unusable(f"iteration {line.index}: the index is too large; the tables hold integers of 32 bits")
    for fault in energy_faults(line.energy, header) if line.energy else ():
        raise Unusable(f"iteration {line.index}: {fault}")


def _check_order(lines: list[Iteration]) -> None:
    for previous, line in pairwise(lines):
        if line.index <= previous.index:
            raise Unusable(f"iteration {line.index} comes after iteration {previous.index}; each must be there once")


def _check_parts(lines: list[Iteration], per_rank: Columns) -> None:
    """Without this, a damaged record can have a communication fraction above 100 %."""
    parts = per_rank["sync_time"] + per_rank["compute"] + per_rank["overrun"] + per_rank["issue"]
    excess = parts - per_rank["runtime"] * (1 + RELATIVE_TOLERANCE) - ABSOLUTE_TOLERANCE
    if not (excess <= 0).all():
        position, rank = np.unravel_index(np.argmax(excess), excess.shape)
        raise Unusable(
            f"iteration {lines[position].index}: rank {rank} has sync_time + compute + overrun + issue = "
            f"{parts[position, rank]:g} s in a runtime of {per_rank['runtime'][position, rank]:g} s"
        )


def _per_rank(lines: list[Iteration]) -> NDArray[np.float64]:
    """Shape (columns of `PER_RANK`, iterations, ranks)."""
    return np.array([[getattr(line, name) for line in lines] for name in PER_RANK])


def _measures(per_rank: Columns, samples: int) -> Columns:
    """`dlbench.records.measures` of all iterations at once."""
    runtime = per_rank["runtime"]
    seconds = runtime.max(axis=1)
    return {
        "seconds": seconds,
        "throughput": samples / seconds,
        "communication": (per_rank["sync_time"] / runtime).max(axis=1),
        "hidden": ((per_rank["overrun"] + per_rank["issue"]) / runtime).max(axis=1),
        "skew": per_rank["skew"].max(axis=1),
    }


def _energy(lines: list[Iteration]) -> Columns:
    """Energy and time of all GPUs together, NaN where one does not tell."""
    unknown = TotalEnergy(np.nan, np.nan)
    totals = np.array([total_energy(line.energy) or unknown for line in lines])
    return dict(zip(TotalEnergy._fields, totals.T, strict=True))


def _classes(lines: list[Iteration], runtime: NDArray[np.float64]) -> Columns:
    """One row per iteration and class; `position` is that of the iteration in `lines`."""
    position = np.repeat(np.arange(len(lines)), [len(line.communication) for line in lines])
    names = [one_line(name) for line in lines for name in line.communication]
    seconds = np.array([values for line in lines for values in line.communication.values()])
    seconds = seconds.reshape(len(names), runtime.shape[1])
    return {
        "position": position,
        "name": np.array(names, dtype=object),
        "seconds": seconds.max(axis=1),
        "mean": seconds.mean(axis=1),
        "share": (seconds / runtime[position]).max(axis=1),
    }


def fields(header: Header, names: Iterable[str]) -> dict[str, Any]:
    """Fields of a header, texts on one line."""
    return _printable({name: getattr(header, name) for name in names})


def _printable(row: dict[str, Any]) -> dict[str, Any]:
    return {name: one_line(value) if isinstance(value, str) else value for name, value in row.items()}


def described(path: Path, header: Header) -> dict[str, Any]:
    """The run's row as far as its header tells it."""
    row: dict[str, Any] = {
        **{name: getattr(header, name) for name in _COPIED},
        **{name: header.degrees.get(name, 1) for name in ("pp", "tp", "ep", "sharding")},
        **{name: str(header.options.get(name, "")) for name in ("buffers", "sync", "progress")},
        **{LABEL + one_line(name): value for name, value in header.labels.items() if name != _MODE},
        "path": str(path),
        "model": str(header.model.get("name", "")),
        "gpu": str(header.gpu.get("name", "")),
        "gpus": header.world_size,
        "backend": header.backend.name,
        "library": header.backend.library,
        "delay": _delay(header.options.get("delay")),
        "specs": _figures(header.model, header.gpu),
        "precision": str(header.options.get("compute_precision", "")),
        "persistent": header.backend.persistent,
        "mode": header.labels.get(_MODE, ""),
        "nodes": len(set(header.hosts)),
        "samples": header.local_batch * header.replicas,
        "has_ops": bool(header.op_tables),
    }
    return _printable(row)


def _ended(record: Record) -> dict[str, Any]:
    end = record.end
    return _printable(
        {"status": "killed", "reason": ""} if end is None else {"status": end.status, "reason": end.reason}
    )


def _figures(*specs: dict[str, Any]) -> str:
    """Digest of all that is no text in the specs: two that share a name, but not their figures, differ in it."""
    figures = [{key: value for key, value in spec.items() if isinstance(value, int | float | dict)} for spec in specs]
    for spec in figures:
        spec.pop("source", None)  # where the figures come from
    return hashlib.sha256(msgspec.json.encode(figures, order="deterministic")).hexdigest()[:8]


def _delay(injected: Any) -> str:
    """The delays of a run as `--delay` takes them, by rank and op: `1:8:40 3:0:2.5`; "" of none."""
    try:
        delays = msgspec.convert(injected or [], list[_Delay])
    except msgspec.ValidationError:
        return str(injected)  # not as this version writes it: still no run to pool with others
    return " ".join(f"{each.rank}:{each.op}:{each.milliseconds:.15g}" for each in sorted(delays))


def _notes(record: Record) -> list[str]:
    notes = list(record.notes)
    if record.end is None and not record.truncated:
        notes.append(f"no end line: the run was killed after {len(record.iterations)} iterations")
    notes.extend(_throttling(record))
    return [one_line(f"{record.path}: {note}") for note in notes]


def _throttling(record: Record) -> Iterator[str]:
    """Which GPUs were throttled in measured iterations."""
    throttling = Throttling(record.header.hosts)
    for line in record.iterations:
        if line.energy is not None and not line.warmup and len(line.energy.throttle) == len(record.header.hosts):
            throttling.add(line.energy)
    return throttling.lines()
