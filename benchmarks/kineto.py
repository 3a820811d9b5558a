"""How fast Kineto traces are read, and with how much memory.

    python benchmarks/kineto.py [--megabytes 100] [--repetitions 3] [--keep trace.json]

Writes a trace as PyTorch 2 does (one rank, layers of CPU ops, launches, kernels, arrows and collectives) and reads it
in processes of their own: `tax` takes the communication kernels, `graph` all events and their dependencies. Where
HolisticTraceAnalysis can be imported, its parser loads the same file. Times are CPU seconds, the best of the
repetitions; memory is the largest resident set of the process, with Python and all that it imports.
"""

from __future__ import annotations

import argparse
import importlib.util
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

_MEGABYTE = 1_000_000
HTA = "hta"
LAYER_OPS = ("aten::linear", "aten::mm", "aten::add_", "aten::native_layer_norm", "aten::scaled_dot_product_attention")


class Reading(NamedTuple):
    """What a process measured."""

    events: int
    seconds: float
    """CPU time."""
    bytes: int
    """Largest resident set of the process."""


def slice_text(category: str, name: str, track: tuple[int, int], begin: int, args: str) -> str:
    """An event of 8.25 us as PyTorch writes it; times in nanoseconds."""
    pid, tid = track
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
        f'    "ts": {begin // 1000}.{begin % 1000:03d}, "dur": 8.250,\n    "args": {{\n      {args}\n    }}\n  }}'
    )


def arrow_text(phase: str, correlation: int, track: tuple[int, int], begin: int) -> str:
    """An end of the arrow from a launch to its kernel."""
    pid, tid = track
    end = ', "bp": "e"' if phase == "f" else ""
    return (
        f'  {{\n    "ph": "{phase}", "id": {correlation}, "pid": {pid}, "tid": {tid}, '
        f'"ts": {begin // 1000}.{begin % 1000:03d},\n    "cat": "ac2g", "name": "ac2g"{end}\n  }}'
    )


def layers() -> Iterator[str]:
    """Events of one layer after the other, without end."""
    host, compute, communication = (4321, 4321), (0, 7), (0, 20)
    begin = 4_900_123_456
    correlation = 1000
    while True:
        for name in LAYER_OPS:
            correlation += 1
            begin += 10_777
            ids = f'"External id": {correlation}, "correlation": {correlation}'
            dims = '"Input Dims": [[4, 2048, 4096], [4096, 4096], []], "Input type": ["c10::BFloat16", "", ""]'
            yield slice_text("cpu_op", name, host, begin, f'"External id": {correlation}, "Ev Idx": 7, {dims}')
            yield slice_text("cuda_runtime", "cudaLaunchKernel", host, begin + 900, f'{ids}, "cbid": 211')
            yield arrow_text("s", correlation, host, begin + 900)
            kernel = (
                f'"queued": 0, "device": 0, "context": 1, "stream": 7, {ids}, "grid": [64, 8, 1], "block": [256, 1, 1]'
            )
            yield slice_text("kernel", f"nvjet_tst_128x256_64x4_{name[6:]}", compute, begin + 4_100, kernel)
            yield arrow_text("f", correlation, compute, begin + 4_100)
        seq = correlation // len(LAYER_OPS)
        group = (
            '"Process Group Name": "1", "Process Group Description": "mesh_tp", "Process Group Ranks": "[0, 1, 2, 3]"'
        )
        sizes = '"In msg nelems": 16777216, "Out msg nelems": 16777216, "Group size": 4, "dtype": "BFloat16"'
        args = f'"External id": 1, {ids}, "Collective name": "_allgather_base", {sizes}, {group}, "Seq": {seq}'
        name = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        yield slice_text("kernel", name, communication, begin + 6_300, args)


def write_trace(path: Path, size: int) -> None:
    """Write a trace of about so many bytes."""
    info = '"distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 4}'
    with path.open("w") as file:
        written = file.write(f'{{\n  "schemaVersion": 1,\n  {info},\n  "traceEvents": [\n')
        for number, event in enumerate(layers()):
            written += file.write(f",\n{event}" if number else event)
            if written >= size:
                break
        file.write('\n  ],\n  "traceName": "rank0.json",\n  "baseTimeNanoseconds": 1758000000000000000\n}')


def read_tax(path: Path) -> int:
    """Communication kernels; number of all events."""
    from dlbench.analysis.traces.communication import communication  # noqa: PLC0415

    assert communication(path).notes == []
    return 0


def read_graph(path: Path) -> int:
    """All events, and the dependency graph of the rank."""
    from dlbench.analysis.traces.communication import Codes  # noqa: PLC0415
    from dlbench.analysis.traces.events import events  # noqa: PLC0415
    from dlbench.analysis.traces.graph import Graph  # noqa: PLC0415

    found = events(path)
    assert found.notes == []
    Graph(found, Codes())
    return len(found) + len(found.flows.id)


def read_hta(path: Path) -> int:
    """What HolisticTraceAnalysis loads of a trace."""
    from hta.common.trace_parser import parse_trace_dataframe  # noqa: PLC0415
    from hta.configs.parser_config import ParserConfig  # noqa: PLC0415

    return len(parse_trace_dataframe(str(path), ParserConfig.get_default_cfg())[1])


READERS: dict[str, Callable[[Path], int]] = {"tax": read_tax, "graph": read_graph, HTA: read_hta}


def measure(name: str, path: Path, empty: Path) -> Reading:
    """Read a trace in this process, after one without content to have everything imported."""
    READERS[name](empty)
    begin = time.process_time()
    events = READERS[name](path)
    seconds = time.process_time() - begin
    return Reading(events, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def measured(name: str, path: Path, empty: Path) -> Reading:
    """What a process of its own measures."""
    command = [sys.executable, __file__, "--reader", name, str(path), str(empty)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return msgspec.json.decode(printed.splitlines()[-1], type=Reading)


def best(found: Sequence[Reading]) -> Reading:
    """The shortest time and the largest memory."""
    return Reading(found[0].events, min(each.seconds for each in found), max(each.bytes for each in found))


def compare(path: Path, empty: Path, repetitions: int) -> None:
    """Print a row per reader; they take turns."""
    size = path.stat().st_size
    names = [name for name in READERS if name != HTA or importlib.util.find_spec(HTA)]
    rounds = [{name: measured(name, path, empty) for name in names} for _ in range(repetitions)]
    readings = {name: best([each[name] for each in rounds]) for name in names}
    events = readings["graph"].events
    print(f"# {size / _MEGABYTE:.1f} MB, {events} events")
    print(f"# {'':<8}{'CPU [s]':>10}{'MB/s':>8}{'events/s':>12}{'memory [MB]':>13}{'of file':>9}  bar")
    bars = {"tax": "100 MB/s, 500 000 events/s, 300 MB", "graph": "2 times the file"}
    for name, (_, seconds, memory) in readings.items():
        print(
            f"  {name:<8}{seconds:>10.2f}{size / seconds / _MEGABYTE:>8.0f}{events / seconds:>12.0f}"
            f"{memory / _MEGABYTE:>13.1f}{memory / size:>9.2f}  {bars.get(name, '')}"
        )
    if HTA in readings:
        ratios = {name: readings[HTA].seconds / readings[name].seconds for name in ("tax", "graph")}
        print("# faster than HolisticTraceAnalysis: " + ", ".join(f"{name} {by:.1f}" for name, by in ratios.items()))
    else:
        print("# HolisticTraceAnalysis is not installed here")


def main() -> None:
    """Measure, or be the process that is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="write the trace here and keep it")
    parser.add_argument("--reader", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.reader:
        name, path, empty = options.reader
        print(msgspec.json.encode(measure(name, Path(path), Path(empty))).decode())
        return
    with tempfile.TemporaryDirectory() as folder:
        path = options.keep or Path(folder) / "rank0.json"
        empty = Path(folder) / "empty.json"
        write_trace(path, int(options.megabytes * _MEGABYTE))
        write_trace(empty, 50_000)
        compare(path, empty, options.repetitions)


if __name__ == "__main__":
    main()
