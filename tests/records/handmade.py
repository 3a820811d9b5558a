"""A small record of 2 ranks written by hand, and ways to change it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from builder import header

CLOCK = {
    "reference": 0.0,
    "offset": [0.0, 0.5],
    "drift": [0.0, 0.0],
    "uncertainty": [0.0, 1e-6],
    "drift_uncertainty": [0.0, 1e-5],
    "unix_epoch": 1.7e9,
}

HEADER: dict[str, Any] = header(
    "dp-2",
    2,
    gpu={"name": "Grün"},
    hosts=["nid1", "nid2"],
    clock=CLOCK,
    packages={"numpy": "2.0"},
    command=["python", "-m", "dlbench.dp"],
    options={"iterations": 2},
)

WARMUP: dict[str, Any] = {
    "kind": "iteration",
    "index": 0,
    "warmup": True,
    "start": 10.0,
    "skew": [0.0, 0.001],
    "runtime": [0.5, 0.5],
    "sync_time": [0.1, 0.2],
    "compute": [0.3, 0.25],
    "overrun": [0.0, 0.0],
    "issue": [0.01, 0.01],
    "communication": {"allreduce/world": [0.1, 0.2]},
}

COUNTED: dict[str, Any] = WARMUP | {"index": 1, "warmup": False, "start": 11.0}

LATER_CLOCK = CLOCK | {"reference": 10.6, "drift": [0.0, 2e-6], "drift_uncertainty": [0.0, 2e-7]}

RESYNCHRONISED: dict[str, Any] = {"kind": "clock", "index": 1, "model": LATER_CLOCK}
"""Stands between the two iterations, where it stands."""

END: dict[str, Any] = {
    "kind": "end",
    "status": "completed",
    "reason": "1 iteration measured",
    "iterations": 2,
    "ended": "2026-01-02T03:05:05Z",
}

WHOLE = (HEADER, WARMUP, COUNTED, END)

ACCELERATOR: dict[str, Any] = {
    "name": "NVIDIA H100 80GB HBM3",
    "uuid": "GPU-1",
    "pci": "0000:3B:00.0",
    "driver": "12.8",
    "runtime": "12.6",
    "cupy": "14.2.0",
    "memory_bytes": 85520809984,
}

ENERGY: dict[str, Any] = {
    "joules": [150.0, None],
    "seconds": [0.5, None],
    "sm_mhz": [1980.0, 1755.0],
    "memory_mhz": [2619.0, 2619.0],
    "power_limit_watts": [700.0, 700.0],
    "throttle": [1, 4],
}
"""Rank 1's GPU tells its clocks, but no energy."""

METERED = HEADER | {"accelerators": [ACCELERATOR, ACCELERATOR | {"uuid": "GPU-2"}], "energy_source": "counter"}

OP_TABLES = [
    {"ranks": [0], "ops": [{"op": "compute", "name": "forward", "seconds": 0.3}, {"op": "wait", "requests": ["g0"]}]},
    {"ranks": [1], "ops": [{"op": "compute", "name": "forward", "seconds": 0.3}]},
]
"""Rank 0 performs two ops, rank 1 one: arrays of shape (2, 2, 2) with one padded op."""

WITH_OPS = HEADER | {"op_tables": OP_TABLES}


def text(*lines: dict[str, Any]) -> bytes:
    """The lines as they stand in a file: kind first, no blanks, UTF-8."""
    return b"".join(json.dumps(line, separators=(",", ":"), ensure_ascii=False).encode() + b"\n" for line in lines)


def write(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_bytes(text(*lines))
    return path
