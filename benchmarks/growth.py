"""How start-up and the bookkeeping of one iteration grow with the number of ranks.

Start-up: a whole job of one iteration without compute, against a job that only imports NumPy and mpi4py, in turns.
Bookkeeping: what rank 0 does with the rows of an iteration (record line, printed row, stopping rule) at world sizes
that this machine cannot run, with made-up rows. That work lies between iterations, outside the timed region.

    python benchmarks/growth.py
"""

from __future__ import annotations

import contextlib
import io
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from dlbench.records.schema import Backend, ClockModel
from dlbench.runtime.header import build_header
from dlbench.runtime.options import parse_request, run_parser
from dlbench.runtime.reporter import Reporter, utc_now
from dlbench.runtime.rows import RowFormat
from dlbench.slurm.launchers import plan_launch

LIVE_RANKS = (1, 2, 4, 8)
FABRICATED_RANKS = (16, 256, 4096, 65536)
REPETITIONS = 5
BARE = ["-c", "import numpy; from mpi4py import MPI; MPI.COMM_WORLD.Barrier()"]
OURS = ["-m", "dlbench.dp", "--iterations", "1", "--warmup", "0", "--scale", "1e-6", "--compute", "none", "--no-record"]


def job_seconds(ranks: int, program: list[str]) -> float:
    """Wall-clock time of a job, from its launcher's start to its end."""
    launch = plan_launch("auto", ranks, os.environ)
    begin = time.perf_counter()
    subprocess.run(
        [*launch.command, sys.executable, *program],
        env={**os.environ, **launch.environment},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - begin


def start_up() -> None:
    """Print job times over the number of ranks."""
    print("# whole job of one empty iteration, and the same of a bare import")
    print(f"# {'ranks':>6}{'bare [s]':>12}{'dlbench [s]':>14}{'difference [s]':>16}")
    for ranks in LIVE_RANKS:
        pairs = [(job_seconds(ranks, BARE), job_seconds(ranks, OURS)) for _ in range(REPETITIONS)]
        bare, ours = (statistics.median(times) for times in zip(*pairs, strict=True))
        print(f"  {ranks:>6}{bare:>12.2f}{ours:>14.2f}{ours - bare:>16.2f}", flush=True)


def bookkeeping_seconds(ranks: int, folder: Path) -> float:
    """Median time of rank 0's work on one iteration's rows."""
    request = parse_request("dp", run_parser("growth", "dp"), ["--record", str(folder), "--iterations", "1000"])
    zeros = [0.0] * ranks
    header = build_header(
        request,
        request.configuration(ranks),
        created=utc_now(),
        remarks=[],
        hosts=[f"node{rank // 4:05}" for rank in range(ranks)],
        devices=[f"cuda:{rank % 4}" for rank in range(ranks)],
        places=[],
        backend=Backend(name="mpi", library="made up", carrier="MPI_UINT16_T"),
        compute={},
        clock=ClockModel(
            reference=0.0, offset=zeros, drift=zeros, uncertainty=zeros, drift_uncertainty=zeros, unix_epoch=0.0
        ),
        environment={},
        command=[],
    )
    row_format = RowFormat(["allreduce/world"])
    rows = np.abs(np.random.default_rng(0).normal(0.1, 0.001, (ranks, row_format.width)))
    rows[:, 2:4] = 0.0
    times = []
    with contextlib.redirect_stdout(io.StringIO()):
        reporter = Reporter(header, request.run, row_format)
        for _ in range(21):
            begin = time.perf_counter()
            reporter.decide(rows)
            times.append(time.perf_counter() - begin)
        reporter.end(None)
    return statistics.median(times)


def bookkeeping() -> None:
    """Print rank 0's time between iterations over the number of ranks."""
    print("# rank 0 between two iterations: record line, row, stopping rule")
    print(f"# {'ranks':>6}{'time [ms]':>12}{'per rank [us]':>15}")
    with tempfile.TemporaryDirectory() as folder:
        for ranks in FABRICATED_RANKS:
            seconds = bookkeeping_seconds(ranks, Path(folder))
            print(f"  {ranks:>6}{seconds * 1e3:>12.2f}{seconds / ranks * 1e6:>15.2f}", flush=True)


if __name__ == "__main__":
    bookkeeping()
    start_up()
