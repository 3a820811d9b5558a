"""Options, a header and rows of a small run, written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from builder import header as small_header
from numpy.typing import NDArray

from dlbench.records.schema import ClockModel, Header
from dlbench.runtime.request import RunOptions

OPTIONS: dict[str, Any] = {
    "iterations": 10,
    "warmup": 1,
    "min_seconds": 0.0,
    "max_seconds": None,
    "until_ci": None,
    "max_iterations": None,
    "compute": "sleep",
    "gemm_precision": "auto",
    "backend": "mpi",
    "buffers": "host",
    "persistent": False,
    "progress": "poll",
    "sync": "barrier",
    "check": False,
    "delay": [],
    "seed": 0,
    "timeout": 600.0,
    "grace": 20.0,
    "record": None,
    "record_ops": False,
    "label": {},
    "system": "",
    "placement": "",
    "experiment": "",
    "job": "",
    "concurrent_jobs": 0,
    "json": False,
}

HEADER: dict[str, Any] = small_header(
    "dp-2-by-hand",
    2,
    buckets=50,
    messages=[
        {
            "operation": "allreduce",
            "scope": "world",
            "group_size": 2,
            "count": 50,
            "elements": 12648090,
            "bytes": 25296180,
            "blocking": False,
        }
    ],
    ideal_seconds=0.00712966,
    memory_bytes=2529617920,
    system="",
    placement="",
    seed=0,
    hosts=["nid1", "nid2"],
    packages={"dlbench": "1.2.3"},
    command=["python", "-m", "dlbench.dp"],
)

CLOCK_MODEL = ClockModel(
    reference=0.0,
    offset=[0.0, 0.0],
    drift=[0.0, 0.0],
    uncertainty=[0.0, 0.0],
    drift_uncertainty=[0.0, 0.0],
    unix_epoch=1.7e9,
)


def options(**changes: Any) -> RunOptions:
    """Options of a run that is not recorded, changed as asked."""
    return msgspec.convert({**OPTIONS, **changes}, RunOptions)


def header(**changes: Any) -> Header:
    """Header of two ranks on two hosts, changed as asked."""
    return msgspec.convert({**HEADER, **changes}, Header)


def rows(*ranks: Sequence[float]) -> NDArray[np.float64]:
    """Rows of all ranks: begin, runtime, late, signal, compute, overrun, issue, then the classes."""
    return np.array(ranks, dtype=np.float64)
