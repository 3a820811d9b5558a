"""Kineto traces of two ranks with nothing but the kernels of one group's all-reduces."""

from __future__ import annotations

import json
from pathlib import Path

KERNEL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def write_trace(path: Path, rank: int, *starts: int) -> None:
    """A trace of kernels that end every millisecond; starts and ends in whole microseconds."""
    args = {"Collective name": "allreduce", "Process Group Name": "0", "Process Group Description": "mesh_dp"}
    args |= {"Process Group Ranks": "[0, 1]", "Group size": 2}  # type: ignore[dict-item]
    events = [
        {"ph": "X", "cat": "kernel", "name": KERNEL, "ts": start, "dur": 1000 * number - start, "args": args}
        for number, start in enumerate(starts, start=1)
    ]
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}))
