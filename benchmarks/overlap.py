"""What driving MPI's progress during compute does to overlap: `--progress poll` against `none`.

The program is that of data parallelism: after each of 10 sleeps an all-reduce starts, which the next sleeps should
hide. Both ways run in turns on the same buffers. Sequential is the same work with blocking all-reduces.

    mpiexec -n 2 python benchmarks/overlap.py
"""

from __future__ import annotations

import os
import statistics

from dlbench.comm.library import MPI
from dlbench.comm.mpi import MpiCommunicator
from dlbench.compute.sleep import SleepCompute
from dlbench.roofline import Phase
from dlbench.runtime.executor import Executor
from dlbench.strategies.layout import Layout
from dlbench.strategies.ops import AllReduce, Buffer, Compute, Op, Scope, Wait

BUCKETS = 10
CASES = ((2**18, 1e-3), (2**20, 2e-3))
"""Bytes of a bucket, and seconds of its compute."""
ROUNDS = 40


def program(elements: int, seconds: float, *, blocking: bool) -> tuple[Op, ...]:
    """One iteration: the last compute has the wait behind it, so it hides the second to last all-reduce."""
    phase = Compute(Phase("backward", 0.0, 0.0, seconds, ()))
    buckets = [Buffer(f"gradient[{index}]", elements) for index in range(BUCKETS)]
    ops: list[Op] = []
    for bucket in buckets:
        ops += [phase, AllReduce(Scope.WORLD, bucket, blocking=blocking)]
    return tuple(ops) if blocking else (*ops, Wait(tuple(bucket.name for bucket in buckets)))


def main() -> None:
    """Print one row per case."""
    world = MPI.COMM_WORLD.Dup()
    communicator = MpiCommunicator(world.Dup())
    compute = SleepCompute(world.size / len(os.sched_getaffinity(0)))
    for size, seconds in CASES:
        executors = {
            name: Executor(
                program(size // 4, seconds, blocking=blocking),
                layout=Layout(world_size=world.size),
                communicators={Scope.WORLD: communicator},
                compute=compute,
                dtype="fp32",
                progress=progress,
            )
            for name, blocking, progress in (
                ("poll", False, communicator.progress),
                ("none", False, None),
                ("sequential", True, None),
            )
        }
        times: dict[str, list[float]] = {name: [] for name in executors}
        for number in range(ROUNDS + 5):
            for name, executor in executors.items():
                world.Ibarrier().Wait()
                executor.reset()
                executor.iterate()
                slowest = max(world.allgather((executor.end - executor.begin) * 1e-6))
                if number >= 5:
                    times[name].append(slowest)
        if world.rank == 0:
            medians = "".join(f"{statistics.median(samples):>14.2f}" for samples in times.values())
            print(f"{world.size:>6}{size:>10}{BUCKETS * seconds * 1e3:>14.1f}{medians}", flush=True)


if __name__ == "__main__":
    main()
