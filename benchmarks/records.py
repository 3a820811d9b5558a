"""How long reading, validating and writing records takes.

    python benchmarks/records.py [--records 1000] [--ranks 64] [--iterations 20]

Reading is what the analysis does first with the records of a campaign. Writing happens on rank 0 between two timed
iterations; `--writer-ranks` (2048) is the size of that run.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from dlbench.records.reader import read
from dlbench.records.schema import Backend, ClockModel, End, Header, Iteration
from dlbench.records.validator import validate
from dlbench.records.writer import RecordWriter


def header(ranks: int) -> Header:
    """Header of a data-parallel run."""
    clock = ClockModel(
        reference=0.0,
        offset=[1e-3] * ranks,
        drift=[1e-7] * ranks,
        uncertainty=[1e-6] * ranks,
        drift_uncertainty=[1e-8] * ranks,
        unix_epoch=1.7e9,
    )
    return Header(
        run_id="benchmark",
        created="2026-01-02T03:04:05Z",
        strategy="dp",
        model={},
        gpu={},
        world_size=ranks,
        replicas=ranks,
        degrees={},
        dtype="bf16",
        local_batch=16,
        microbatches=1,
        sequence_length=257,
        compute="sleep",
        backend=Backend(name="mpi", library="MPICH", carrier="MPI_UINT16_T"),
        messages=[],
        memory_bytes=0,
        seed=0,
        hosts=[f"nid{rank // 4:06}" for rank in range(ranks)],
        devices=["NVIDIA H100"] * ranks,
        environment={},
        clock=clock,
        packages={},
        command=[],
        options={},
    )


def iterations(ranks: int, count: int) -> list[Iteration]:
    """Iterations of about 10 ms whose times have all their digits, as measured ones have."""
    generator = np.random.default_rng(0)
    found = []
    for index in range(count):
        sync_time, compute, issue, skew = generator.uniform(1e-3, 2e-3, size=(4, ranks))
        share = generator.uniform(size=ranks)
        found.append(
            Iteration(
                index=index,
                warmup=index == 0,
                start=index * 0.01,
                skew=(skew - skew.min()).tolist(),
                runtime=(sync_time + compute + issue + 1e-4).tolist(),
                sync_time=sync_time.tolist(),
                compute=compute.tolist(),
                overrun=[0.0] * ranks,
                issue=issue.tolist(),
                communication={
                    "allreduce/world": (sync_time * share).tolist(),
                    "allgather/shard": (sync_time * (1 - share)).tolist(),
                },
            )
        )
    return found


def write(directory: Path, name: str, ranks: int, lines: list[Iteration]) -> list[float]:
    """Write a record; seconds of each call of `iteration`."""
    seconds = []
    with RecordWriter(directory, name, header(ranks)) as writer:
        for line in lines:
            started = time.perf_counter()
            writer.iteration(line)
            seconds.append(time.perf_counter() - started)
        writer.end(End(status="completed", reason="", iterations=len(lines), ended="2026-01-02T03:05:05Z"))
    return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--writer-ranks", type=int, default=2048)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        lines = iterations(options.ranks, options.iterations)
        for index in range(options.records):
            write(directory, f"run-{index:06}", options.ranks, lines)
        paths = sorted(directory.glob("*.jsonl"))
        size = sum(path.stat().st_size for path in paths)
        print(f"# {len(paths)} records of {options.ranks} ranks x {options.iterations} iterations, {size / 1e6:.1f} MB")
        for task in (read, validate):
            started = time.perf_counter()
            for path in paths:
                task(path)
            seconds = time.perf_counter() - started
            print(f"{task.__name__:<9}{seconds:8.2f} s{size / seconds / 1e6:8.0f} MB/s")
        seconds_each = write(directory, "large", options.writer_ranks, iterations(options.writer_ranks, 20))
        median = statistics.median(seconds_each)
        print(f"iteration of {options.writer_ranks} ranks written in {median * 1e3:.2f} ms (median of 20)")


if __name__ == "__main__":
    main()
