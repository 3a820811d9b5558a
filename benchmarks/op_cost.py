"""Cost of an op: dlbench's executor against a bare mpi4py loop that makes the same MPI calls.

Both run 50 non-blocking all-reduces and one wait on the same buffers of the same communicator, in turns, so that a
change of the machine's load meets both. Runs under mpiexec; `harness.py` starts it.

    mpiexec -n 2 python benchmarks/op_cost.py
"""

from __future__ import annotations

import gc
import statistics
from time import perf_counter_ns
from typing import Any

from dlbench.comm.library import MPI
from dlbench.comm.mpi import MpiCommunicator
from dlbench.compute.none import NoCompute
from dlbench.runtime.executor import Executor
from dlbench.strategies.layout import Layout
from dlbench.strategies.ops import AllReduce, Buffer, Op, Scope, Wait

BUCKETS = 50
SIZES = ((4096, 400), (2**20, 30))
"""Bytes of a bucket, and rounds."""


def program(elements: int) -> tuple[Op, ...]:
    """The communication of data parallelism, without its compute."""
    buckets = [Buffer(f"gradient[{index}]", elements) for index in range(BUCKETS)]
    starts = [AllReduce(Scope.WORLD, bucket, blocking=False) for bucket in buckets]
    return (*starts, Wait(tuple(bucket.name for bucket in buckets)))


def bare_loop(comm: MPI.Intracomm, executor: Executor) -> int:
    """Nanoseconds of the same calls in the shortest loop that mpi4py allows, descriptors made beforehand."""
    storages: Any = executor.storage.values()  # with the descriptors of the MPI backend's buffers
    pairs = [(storage.send.spec, storage.receive.spec) for storage in storages]
    start, wait_all = comm.Iallreduce, MPI.Request.Waitall
    begin = perf_counter_ns()
    wait_all([start(send, receive) for send, receive in pairs])
    return perf_counter_ns() - begin


def ours(executor: Executor) -> int:
    """Nanoseconds of an iteration of the executor, its clock readings included."""
    executor.reset()
    executor.iterate()
    return executor.end - executor.begin


def measure(comm: MPI.Intracomm, size: int, rounds: int) -> tuple[list[int], list[int]]:
    """Times of the slowest rank, bare and ours, one of each per round, in nanoseconds."""
    layout = Layout(world_size=comm.size)
    executor = Executor(
        program(size // 4),
        layout=layout,
        communicators={Scope.WORLD: MpiCommunicator(comm)},
        compute=NoCompute(),
        dtype="fp32",
    )
    bare, dlbench = [], []
    for number in range(rounds + rounds // 10):
        pair = []
        for name in ("bare", "dlbench")[:: 1 if number % 2 else -1]:
            comm.Barrier()
            pair.append(bare_loop(comm, executor) if name == "bare" else ours(executor))
        slowest = [max(times) for times in zip(*comm.allgather(pair), strict=True)]
        if number >= rounds // 10:
            bare.append(slowest[0 if number % 2 else 1])
            dlbench.append(slowest[1 if number % 2 else 0])
    return bare, dlbench


def main() -> None:
    """Print one row per size."""
    comm = MPI.COMM_WORLD.Dup()
    gc.disable()
    for size, rounds in SIZES:
        bare, dlbench = measure(comm, size, rounds)
        if comm.rank:
            continue
        per_op = [(ours - plain) / BUCKETS for plain, ours in zip(bare, dlbench, strict=True)]
        cells = (
            f"{comm.size}",
            f"{size}",
            *(f"{pick(times) / 1e3:.1f}" for pick in (statistics.median, min) for times in (bare, dlbench)),
            f"{(min(dlbench) - min(bare)) / BUCKETS:.0f}",
            f"{statistics.median(per_op):.0f}",
        )
        print("  " + "".join(f"{cell:>14}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
