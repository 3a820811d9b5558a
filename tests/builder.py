"""Small run records written by hand: what a test does not name has a plain value."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Table = Sequence[Sequence[float]]
"""One row per iteration, one entry per rank, in seconds."""

UNIX_EPOCH = 1.7e9
"""Unix time of global time 0 in every record."""


def header(run_id: str, ranks: int, **changes: Any) -> dict[str, Any]:
    """The header line of a run of DP on `ranks` ranks; `changes` replace or add keys."""
    zeros = [0.0] * ranks
    clock = {"reference": 0.0, "offset": zeros, "drift": zeros, "uncertainty": zeros, "drift_uncertainty": zeros}
    return {
        "kind": "header",
        "schema_version": 1,
        "run_id": run_id,
        "created": "2026-01-02T03:04:05Z",
        "strategy": "dp",
        "model": {"name": "vit-h", "parameters": 632404480},
        "gpu": {"name": "b200"},
        "world_size": ranks,
        "replicas": ranks,
        "degrees": {},
        "groups": {"world": {"size": ranks, "stride": 1}},
        "dtype": "bf16",
        "local_batch": 16,
        "microbatches": 1,
        "sequence_length": 257,
        "buckets": 1,
        "compute": "sleep",
        "backend": {"name": "mpi", "library": "MPICH 5.0.2", "carrier": "MPI_UINT16_T"},
        "messages": [
            {
                "operation": "allreduce",
                "scope": "world",
                "group_size": ranks,
                "count": 1,
                "elements": 1000,
                "bytes": 2000,
                "blocking": False,
            }
        ],
        "memory_bytes": 4000,
        "system": "leonardo",
        "placement": "intra-l1",
        "seed": 7,
        "hosts": [f"node{rank // 4}" for rank in range(ranks)],
        "devices": ["cpu"] * ranks,
        "environment": {},
        "clock": clock | {"unix_epoch": UNIX_EPOCH},
        "packages": {},
        "command": [],
        "options": {"sync": "barrier", "progress": "poll"},
    } | changes


def iterations(  # noqa: PLR0913 - the columns of an iteration, by keyword
    runtime: Table,
    sync_time: Table,
    *,
    warmups: int = 0,
    start: float = 100.0,
    gap: float = 0.0,
    skew: Table | None = None,
    compute: Table | None = None,
    overrun: Table | None = None,
    issue: Table | None = None,
    communication: dict[str, Table] | None = None,
    joules: Sequence[Sequence[float | None]] | None = None,
    throttle: Sequence[Sequence[int]] | None = None,
) -> list[dict[str, Any]]:
    """Iteration lines that follow each other with `gap` seconds between them, from global time `start` on.

    `sync_time` is all of class allreduce/world unless `communication` says otherwise. With `joules`, every reading
    comes as long after the one before as the iteration took.
    """
    zeros = [[0.0] * len(row) for row in runtime]
    classes = communication or {"allreduce/world": sync_time}
    skews = skew or zeros
    lines = []
    for index, times in enumerate(runtime):
        lines.append(
            {
                "kind": "iteration",
                "index": index,
                "warmup": index < warmups,
                "start": start,
                "skew": list(skews[index]),
                "runtime": list(times),
                "sync_time": list(sync_time[index]),
                "compute": list((compute or zeros)[index]),
                "overrun": list((overrun or zeros)[index]),
                "issue": list((issue or zeros)[index]),
                "communication": {name: list(table[index]) for name, table in classes.items()},
            }
        )
        if joules:
            lines[-1]["energy"] = energy(joules[index], times, throttle[index] if throttle else [0] * len(times))
        start += max(late + time for late, time in zip(skews[index], times, strict=True)) + gap
    return lines


def energy(joules: Sequence[float | None], seconds: Sequence[float], throttle: Sequence[int]) -> dict[str, Any]:
    """What the GPUs of an iteration say; one without joules says nothing but its reasons."""
    told = [used is not None for used in joules]
    return {
        "joules": list(joules),
        "seconds": [time if there else None for time, there in zip(seconds, told, strict=True)],
        **{name: [1980.0 if there else None for there in told] for name in ("sm_mhz", "memory_mhz")},
        "power_limit_watts": [700.0 if there else None for there in told],
        "throttle": list(throttle),
    }


def end(count: int, status: str = "completed", reason: str = "as asked", **changes: Any) -> dict[str, Any]:
    """The end line of a run of `count` iterations, warm-up included."""
    ended = {"iterations": count, "ended": "2026-01-02T03:05:05Z"}
    return {"kind": "end", "status": status, "reason": reason, **ended, **changes}


def write_lines(path: Path, *lines: dict[str, Any]) -> Path:
    """A record of these lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def write_run(
    folder: Path,
    run_id: str,
    runtime: Table,
    sync_time: Table | None = None,
    *,
    measured_as: dict[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """A completed record `folder/run_id.jsonl`.

    `measured_as` are keywords of `iterations`, `changes` those of the header. Without `sync_time`, a fifth of each
    runtime.
    """
    sync = sync_time or [[time / 5 for time in row] for row in runtime]
    lines = iterations(runtime, sync, **(measured_as or {}))
    return write_lines(folder / f"{run_id}.jsonl", header(run_id, len(runtime[0]), **changes), *lines, end(len(lines)))
