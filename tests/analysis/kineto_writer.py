"""Kineto traces of a small training run whose every time is known.

On each rank a stream computes and another communicates: a collective is entered when the computation before it is over,
and left by all ranks of its group together, a transfer time after the last has entered. Times are nanoseconds of the
Unix epoch, and stand in the file as the writers of different years put them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Form = Literal["old", "epoch", "new", "rocm"]
"""`old`: whole microseconds, old categories, kernels without arguments. `epoch`: three decimals of the epoch.

`new`: relative to a base that stands after the events. `rocm`: as `new`, with HIP calls and kernels without operation.
"""
FORMS: tuple[Form, ...] = ("old", "epoch", "new", "rocm")

EPOCH = 1_694_128_201_000_000_000
"""Begin of every run: 2023-09-07."""
_STREAM, _COMPUTE_STREAM, _PROCESS, _THREAD = 84, 7, 59811, 59976
_NAMES = {"allreduce": "AllReduce", "allgather": "AllGather", "reduce_scatter": "ReduceScatter", "alltoall": "SendRecv"}
_COLLECTIVE_NAMES = {
    "allreduce": "allreduce",
    "allgather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "alltoall": "all_to_allv",
    "send": "send",
}


@dataclass(frozen=True)
class Group:
    """A process group."""

    name: str
    ranks: tuple[int, ...]
    description: str = "undefined"


@dataclass(frozen=True)
class Collective:
    """A collective of the run's program."""

    operation: str
    group: Group
    elements: int = 1024
    transfer: int = 50_000


@dataclass(frozen=True)
class Kernel:
    """A communication kernel of one rank."""

    collective: Collective
    seq: int
    start: int
    end: int
    busy_from: int
    """Begin of the computation before it."""


@dataclass(frozen=True)
class Writing:
    """How a trace is written."""

    form: Form = "new"
    seq: bool = True
    rank_in_metadata: bool = True
    compact: bool = False
    shorten_ranks: bool = False
    """Whether lists of ranks end in an ellipsis, as the long ones do."""
    more_events: Sequence[Mapping[str, Any]] = field(default=())


def run(
    program: Sequence[Collective], compute: Sequence[Mapping[int, int]], delays: Mapping[tuple[int, int], int] = {}
) -> dict[int, list[Kernel]]:
    """Kernels of each rank. `compute[i][rank]` is what it computes before collective i, to which `delays` may add."""
    ranks = sorted({rank for collective in program for rank in collective.group.ranks})
    clock = dict.fromkeys(ranks, EPOCH)
    kernels: dict[int, list[Kernel]] = {rank: [] for rank in ranks}
    seq: dict[str, int] = {}
    for index, collective in enumerate(program):
        group = collective.group
        begin = {rank: clock[rank] for rank in group.ranks}
        enter = {rank: begin[rank] + compute[index][rank] + delays.get((rank, index), 0) for rank in group.ranks}
        leave = max(enter.values()) + collective.transfer
        seq[group.name] = seq.get(group.name, 0) + 1
        for rank in group.ranks:
            kernels[rank].append(Kernel(collective, seq[group.name], enter[rank], leave, begin[rank]))
            clock[rank] = leave
    return kernels


def write_run(folder: Path, kernels: Mapping[int, Sequence[Kernel]], writing: Writing = Writing()) -> list[Path]:
    """Write a trace per rank; their paths."""
    paths = []
    for rank, those in kernels.items():
        path = folder / f"rank{rank}.pt.trace.json"
        path.write_bytes(trace(rank, len(kernels), those, writing))
        paths.append(path)
    return paths


def trace(rank: int, world_size: int, kernels: Sequence[Kernel], writing: Writing = Writing()) -> bytes:
    """Text of a trace."""
    base = 0 if writing.form in ("old", "epoch") else EPOCH - 123_456_789
    events: list[Mapping[str, Any]] = []
    for number, kernel in enumerate(kernels):
        events += _events(kernel, 41_000 + number, writing)
    events += writing.more_events
    # Kineto does not sort: what a GPU does stands after what the CPU did.
    texts = [_text(event, base, writing.form == "old") for event in sorted(events, key=lambda event: event["pid"] == 0)]
    before: dict[str, Any] = {"schemaVersion": 1}
    after: dict[str, Any] = {"traceName": f"rank{rank}.json"}
    if writing.rank_in_metadata:
        groups = {kernel.collective.group for kernel in kernels}
        info = {"backend": "nccl", "rank": rank, "world_size": world_size, "pg_config": _groups(groups)}
        (before if writing.form == "old" else after)["distributedInfo"] = info
    if base:
        after["baseTimeNanoseconds"] = base
    between = "," if writing.compact else ",\n  "
    head, tail = json.dumps(before)[:-1], json.dumps(after)[1:]
    return f'{head}, "traceEvents": [{between.join(["", *texts])[1:]}], {tail}'.encode()


def compressed(text: bytes) -> bytes:
    return gzip.compress(text, mtime=0)


def _groups(groups: set[Group]) -> list[dict[str, Any]]:
    return [
        {"pg_name": group.name, "pg_desc": group.description, "pg_size": len(group.ranks), "ranks": list(group.ranks)}
        for group in sorted(groups, key=lambda group: group.name)
    ]


def _events(kernel: Kernel, correlation: int, writing: Writing) -> list[dict[str, Any]]:
    """Computation, launch, communication kernel, and the annotations that say the same again."""
    old, hip = writing.form == "old", writing.form == "rocm"
    runtime = "Runtime" if old else "cuda_runtime"
    launch = "hipLaunchKernel" if hip else "cudaLaunchKernel"
    cpu = {"pid": _PROCESS, "tid": _THREAD, "ph": "X"}
    begin, width = kernel.busy_from, kernel.start - kernel.busy_from
    annotation = f"nccl:{_COLLECTIVE_NAMES[kernel.collective.operation].strip('_')}"
    ids = {"External id": correlation, "correlation": correlation}
    gemm = "ampere_sgemm_128x64_tn"
    gpu = {"ph": "X", "pid": 0, "cat": "Kernel" if old else "kernel"}
    stream = {"tid": _STREAM, "ts": kernel.start, "dur": kernel.end - kernel.start}
    arguments = {**ids, "device": 0, "stream": _STREAM, **_arguments(kernel, writing)}
    computed = {"tid": _COMPUTE_STREAM, "ts": begin, "dur": width, "args": {"correlation": correlation + 50_000}}
    return [
        {**cpu, "cat": "cpu_op", "name": "c10d::op", "ts": begin, "dur": 9_000, "args": {"External id": correlation}},
        {**cpu, "cat": "user_annotation", "name": annotation, "ts": begin, "dur": 8_000},
        {**cpu, "cat": runtime, "name": launch, "ts": begin, "dur": 7_000, "args": ids},
        {**gpu, "name": gemm, **computed},
        {**gpu, "cat": "gpu_user_annotation", "name": annotation, **stream},
        {**gpu, "name": _kernel_name(kernel.collective.operation, writing.form), **stream, "args": arguments},
    ]


def _kernel_name(operation: str, form: Form) -> str:
    name = _NAMES.get(operation, "SendRecv")
    if form == "rocm":
        return "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
    if form == "old":
        return f"ncclKernel_{name}_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)"
    return f"ncclDevKernel_{name}_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def _arguments(kernel: Kernel, writing: Writing) -> dict[str, Any]:
    if writing.form in ("old", "rocm"):
        return {}
    group, elements = kernel.collective.group, kernel.collective.elements
    ranks = f"[{', '.join(map(str, group.ranks))}]"
    given = {
        "Collective name": _COLLECTIVE_NAMES[kernel.collective.operation],
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "Group size": len(group.ranks),
        "dtype": "BFloat16",
        "Process Group Name": group.name,
        "Process Group Description": group.description,
        "Process Group Ranks": ranks.replace("]", ", ...]") if writing.shorten_ranks else ranks,
    }
    return given | ({"Seq": kernel.seq} if writing.seq else {})


def _text(event: Mapping[str, Any], base: int, whole: bool) -> str:
    """The event, with its times as digits that no float has held."""
    text = json.dumps({**event, "ts": "TS", "dur": "DUR"})
    return text.replace('"TS"', _digits(event["ts"] - base, whole)).replace('"DUR"', _digits(event["dur"], whole))


def _digits(time: int, whole: bool) -> str:
    return str(time // 1000) if whole else f"{time // 1000}.{time % 1000:03d}"
