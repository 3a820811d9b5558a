"""How long it takes, and how much memory, to get from the records of a campaign to its tables.

    python benchmarks/analysis_load.py [--experiments 450] [--runs 6000] [--ranks 64] [--iterations 8] [--growth 1 2 4]

Writes a campaign of the size of a paper's into a temporary folder, and copies of that size beside it for the growth:
experiments of concurrent jobs and a tenth of the runs as baselines, of 16 hosts with 4 GPUs each (at 64 ranks). Every
size is analysed in a process of its own, whose CPU time (with its start) and largest resident memory are shown; the
files are in the page cache.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle, product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from records import header as small_header

from dlbench.analysis.campaign import Campaign
from dlbench.analysis.load import load
from dlbench.analysis.metrics import relevance, summary
from dlbench.analysis.scaling import scaling
from dlbench.analysis.slowdown import slowdown
from dlbench.records.schema import Backend, ClockModel, End, Header, Iteration, Message

CLASSES = {
    "dp": ("allreduce/world",),
    "fsdp": ("allgather/shard", "reduce_scatter/shard", "allreduce/replica"),
    "dp_pp": ("send/pipeline", "recv/pipeline", "allreduce/replica"),
    "dp_pp_tp": ("allreduce/tensor", "send/pipeline", "recv/pipeline", "allreduce/replica"),
    "dp_pp_ep": ("alltoall/expert", "send/pipeline", "recv/pipeline", "allreduce/replica"),
}
SYSTEMS = ("leonardo", "alps", "jupiter")
PLACEMENTS = ("intra-l1", "intra-group", "inter-group")
MODES = ("reserved", "queue")
VARIANTS = 8
"""Different sets of times of a strategy and size: as many digits to read as if all were different."""
CONCURRENT_SHARE = 0.9
SECONDS_BETWEEN_EXPERIMENTS = 3600.0

encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Size:
    """A campaign."""

    experiments: int
    runs: int
    ranks: int
    iterations: int


@dataclass(frozen=True)
class Job:
    """What a run runs, and where."""

    system: str
    strategy: str
    placement: str
    ranks: int


def header(job: Job) -> Header:
    """Header with what a live run notes."""
    operations = [name.split("/") for name in CLASSES[job.strategy]]
    return replace(
        small_header(job.ranks),
        run_id="",
        strategy=job.strategy,
        model={"name": "vit-h", "hidden_size": 1280, "layers": 32, "heads": 16, "parameters": 632404480},
        gpu={"name": "h100", "peak_flops": {"bf16": 9.89e14}, "memory_bandwidth": 3.35e12, "memory_bytes": 80 * 10**9},
        backend=Backend(name="mpi", library="MPICH Version: 5.0.2", carrier="MPI_UINT16_T", launcher="srun"),
        messages=[
            Message(
                operation=operation,
                scope=scope,
                group_size=job.ranks,
                count=50,
                elements=12648089,
                bytes=25296178,
                blocking=False,
            )
            for operation, scope in operations
        ],
        ideal_seconds=0.0123,
        memory_bytes=2529617920,
        system=job.system,
        placement=job.placement,
        devices=["NVIDIA GH200 120GB"] * job.ranks,
        environment={f"SLURM_VARIABLE_{number}": "x" * 40 for number in range(40)},
        clock=clock(job.ranks),
        packages={"dlbench": "0.1.0", "python": "3.12.3", "numpy": "2.4.6", "mpi4py": "4.1.2"},
        command=["python", "-m", "dlbench.dp", "--record", "results"],
        options={"sync": "barrier", "progress": "poll", **{f"option_{number}": number for number in range(30)}},
    )


def clock(ranks: int) -> ClockModel:
    """A clock model with all its digits."""
    offset, drift, uncertainty, rate = np.random.default_rng(0).uniform(1e-7, 1e-6, size=(4, ranks)).tolist()
    return ClockModel(
        reference=512.25,
        offset=offset,
        drift=drift,
        uncertainty=uncertainty,
        drift_uncertainty=rate,
        unix_epoch=1.7e9,
    )


def iterations(job: Job, count: int, seed: int) -> list[Iteration]:
    """Iterations of about a second, one of warm-up, whose times have all their digits."""
    generator = np.random.default_rng(seed)
    names = CLASSES[job.strategy]
    found = []
    for index in range(count):
        compute, issue, skew = generator.uniform(0.1, 0.2, size=(3, job.ranks))
        classes = generator.uniform(0.1, 0.5, size=(len(names), job.ranks)) / len(names)
        sync_time = classes.sum(axis=0)
        found.append(
            Iteration(
                index=index,
                warmup=index == 0,
                start=float(index),
                skew=((skew - skew.min()) * 1e-3).tolist(),
                runtime=(sync_time + compute + issue).tolist(),
                sync_time=sync_time.tolist(),
                compute=compute.tolist(),
                overrun=(issue * 1e-2).tolist(),
                issue=(issue * 1e-1).tolist(),
                communication=dict(zip(names, classes.tolist(), strict=True)),
            )
        )
    return found


class Writer:
    """Writes runs; what they have in common is made once."""

    def __init__(self, size: Size) -> None:
        self._jobs = cycle(
            Job(system, strategy, placement, ranks)
            for placement, strategy, ranks, system in product(
                PLACEMENTS, CLASSES, (size.ranks // 2, size.ranks, size.ranks * 3 // 2), SYSTEMS
            )
        )
        self._iterations = size.iterations
        self._headers: dict[Job, Header] = {}
        self._lines: dict[tuple[str, int, int], bytes] = {}

    def write(self, folder: Path, number: int, unix_epoch: float, **placed: Any) -> None:
        """A completed run of the next job; `placed` are fields of the header that place it in an experiment."""
        job = next(self._jobs)
        run_id = f"{job.strategy}-{job.ranks}-{number:06}"
        plain = self._header(job)
        first = replace(plain, run_id=run_id, clock=replace(plain.clock, unix_epoch=unix_epoch), **placed)
        last = End(status="completed", reason="as asked", iterations=self._iterations, ended="2026-01-02T04:04:05Z")
        lines = (encode(first), self._iteration_lines(job, number % VARIANTS), encode(last), b"")
        (folder / f"{run_id}.jsonl").write_bytes(b"\n".join(lines))

    def _header(self, job: Job) -> Header:
        if job not in self._headers:
            self._headers[job] = header(job)
        return self._headers[job]

    def _iteration_lines(self, job: Job, variant: int) -> bytes:
        key = job.strategy, job.ranks, variant
        if key not in self._lines:
            self._lines[key] = b"\n".join(map(encode, iterations(job, self._iterations, variant)))
        return self._lines[key]


def write_campaign(folder: Path, size: Size, copy: int) -> int:
    """Write a campaign whose runs differ in number and time from those of other copies; its bytes."""
    writer = Writer(size)
    first = copy * size.runs
    concurrent = int(size.runs * CONCURRENT_SHARE)
    for number in range(concurrent):
        experiment = number * size.experiments // concurrent
        name = f"experiment-{copy}-{experiment:04}"
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        begin = 1.7e9 + (copy * size.experiments + experiment) * SECONDS_BETWEEN_EXPERIMENTS
        mode = MODES[experiment % len(MODES)]
        writer.write(place, first + number, begin, experiment=name, job=f"job-{number}", labels={"mode": mode})
    alone = folder / "baselines"
    alone.mkdir(parents=True, exist_ok=True)
    for number in range(concurrent, size.runs):
        writer.write(alone, first + number, 1.69e9, concurrent_jobs=1, labels={"mode": MODES[0]})
    return sum(path.stat().st_size for path in folder.rglob("*.jsonl"))


STAGES: dict[str, Callable[[Campaign], object]] = {
    "summary": lambda campaign: summary(campaign, seed=0),
    "relevance": lambda campaign: relevance(campaign, seed=0),
    "scaling": lambda campaign: scaling(campaign, seed=0),
    "slowdown": lambda campaign: slowdown(campaign, seed=0),
}


def analyse(folders: list[Path]) -> dict[str, float]:
    """Seconds of every stage and of all, those of the CPU, and the largest resident memory of this process in bytes."""
    started = time.perf_counter()
    campaign = load(folders)
    seconds = {"load": time.perf_counter() - started}
    for name, stage in STAGES.items():
        started = time.perf_counter()
        stage(campaign)
        seconds[name] = time.perf_counter() - started
    usage = resource.getrusage(resource.RUSAGE_SELF)
    total = {"all": sum(seconds.values()), "CPU": usage.ru_utime + usage.ru_stime}
    return {**seconds, **total, "peak": usage.ru_maxrss * 1024}


def analyse_apart(folders: list[Path]) -> dict[str, float]:
    """`analyse` in a process of its own."""
    command = [sys.executable, __file__, "--analyse", *map(str, folders)]
    printed = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    found: dict[str, float] = msgspec.json.decode(printed)
    return found


def measure(size: Size, growth: list[int]) -> None:
    """Write, analyse and print."""
    with tempfile.TemporaryDirectory() as root:
        copies = [Path(root, f"copy-{copy}") for copy in range(max(growth))]
        volumes = [write_campaign(folder, size, copy) for copy, folder in enumerate(copies)]
        print(
            f"# {size.experiments} experiments of {size.runs} runs, {size.ranks} ranks x {size.iterations} iterations"
        )
        names = ("load", *STAGES, "all", "CPU")
        print(
            f"# {'size':>4}{'runs':>8}{'MB':>8}"
            + "".join(f"{name + ' [s]':>15}" for name in names)
            + f"{'peak [MB]':>11}"
        )
        for times in growth:
            found = analyse_apart(copies[:times])
            peak = found.pop("peak")
            row = f"{times:>5}x{times * size.runs:>8}{sum(volumes[:times]) / 1e6:>8.0f}"
            print(row + "".join(f"{value:>15.2f}" for value in found.values()) + f"{peak / 1e6:>11.0f}", flush=True)


def main() -> None:
    """Measure, or be the process that is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=450)
    parser.add_argument("--runs", type=int, default=6000)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--growth", type=int, nargs="+", default=[1, 2, 4], metavar="TIMES")
    parser.add_argument("--analyse", type=Path, nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.analyse:
        print(msgspec.json.encode(analyse(options.analyse)).decode())
    else:
        measure(Size(options.experiments, options.runs, options.ranks, options.iterations), options.growth)


if __name__ == "__main__":
    main()
