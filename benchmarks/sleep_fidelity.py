"""How closely phases keep their durations, ours against plain `time.sleep`, and what that costs in CPU time.

    mpiexec -n 2 python benchmarks/sleep_fidelity.py
    mpiexec -n 4 python benchmarks/sleep_fidelity.py --repetitions 41

In each repetition every way of sleeping runs once, in turns, so that other work on the cores meets all of them. Such
work only ever lengthens a sleep: the minimum is what the code can do, the median is what the machine gave it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dlbench.comm.library import MPI
from dlbench.compute.sleep import SleepCompute, set_timer_slack

WORKLOADS = {"2 ms + 50 x 80 us": [2e-3] + [80e-6] * 50, "50 x 4 ms": [4e-3] * 50}
"""Durations of the phases in seconds."""


@dataclass(frozen=True)
class TimedPhase:
    """A phase with a duration and nothing to multiply."""

    seconds: float
    gemms: tuple[tuple[int, int, int, float], ...] = ()


@dataclass(frozen=True)
class Way:
    """A way to spend a workload: the timer slack it sleeps with in nanoseconds (0: the kernel's), and its phases."""

    name: str
    slack: int
    phases: list[Callable[[], None]]


@dataclass(frozen=True)
class Fidelity:
    """Samples of one way on one workload: one per repetition and rank."""

    workload: str
    way: str
    ratio: list[float] = field(default_factory=list)
    """Measured / ideal time."""
    cores: list[float] = field(default_factory=list)
    """CPU seconds per wall second."""


def ways(comm: MPI.Comm, durations: list[float]) -> list[Way]:
    """Ours without requests in flight, ours that drives requests, and plain sleeping."""
    compute = SleepCompute(comm.size / len(os.sched_getaffinity(0)))

    def plain(seconds: float) -> Callable[[], None]:
        return lambda: time.sleep(seconds)

    def poll() -> None:
        comm.Iprobe()

    phases = [TimedPhase(seconds) for seconds in durations]
    return [
        Way("dlbench", 1, [compute.bind(phase) for phase in phases]),
        Way("dlbench, polling", 1, [compute.bind(phase, poll) for phase in phases]),
        Way("time.sleep", 0, [plain(seconds) for seconds in durations]),
    ]


def spend(way: Way) -> tuple[float, float]:
    """Wall and CPU seconds of the phases, one after the other."""
    set_timer_slack(way.slack)
    wall, cpu = time.perf_counter_ns(), time.process_time_ns()
    for phase in way.phases:
        phase()
    return (time.perf_counter_ns() - wall) * 1e-9, (time.process_time_ns() - cpu) * 1e-9


def sleep_fidelity(comm: MPI.Comm, repetitions: int) -> list[Fidelity]:
    """Measure every workload; rank 0 gets the samples of all ranks, the others none. Collective."""
    results = []
    for workload, durations in WORKLOADS.items():
        candidates = ways(comm, durations)
        found = [Fidelity(workload, way.name) for way in candidates]
        for _ in range(repetitions):
            for way, fidelity in zip(candidates, found, strict=True):
                comm.Barrier()
                samples = comm.gather(spend(way)) or []
                fidelity.ratio.extend(wall / sum(durations) for wall, _ in samples)
                fidelity.cores.extend(cpu / wall for wall, cpu in samples)
        results += found
    return results if comm.rank == 0 else []


def print_table(results: list[Fidelity], size: int) -> None:
    """Print one row for each way and workload."""
    print(f"# {size} ranks on {len(os.sched_getaffinity(0))} cores; time as a multiple of the ideal")
    print(f"# {'phases':<20}{'way':<18}{'median':>8}{'minimum':>9}{'CPU s/s':>9}")
    for found in results:
        ratio, cores = statistics.median(found.ratio), statistics.median(found.cores)
        print(f"  {found.workload:<20}{found.way:<18}{ratio:8.3f}{min(found.ratio):9.3f}{cores:9.2f}")


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=21, help="of each way and workload (default 21)")
    repetitions = parser.parse_args().repetitions
    results = sleep_fidelity(MPI.COMM_WORLD, repetitions)
    if results:
        print_table(results, MPI.COMM_WORLD.size)


if __name__ == "__main__":
    main()
