"""Start-up of a rank process: its imports against the least that any MPI program in Python imports.

An entry point such as `dlbench.dp` imports little until its watchdog runs, and then `dlbench.runtime.rank`; both count.

The two are timed in turns, each in a fresh process, so that a change of the machine's load meets both. Printed are
the medians of wall-clock and CPU time and the ratios of the medians; a rank process should stay below 1.3. On a busy
machine CPU time is the steadier of the two.

    python benchmarks/import_time.py
    python benchmarks/import_time.py --repetitions 41
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

BASELINE = "import numpy; from mpi4py import MPI"
RANK = "import dlbench.dp, dlbench.runtime.rank"
# As installed by pip, which compiles what it installs; the round before the measured ones does it for a checkout.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


class Times(NamedTuple):
    """Seconds from the start of a process to its end."""

    wall: float
    cpu: float


def timed(program: str) -> Times:
    """Times of a fresh Python process that runs the program."""
    begin, cpu_before = time.perf_counter(), children_cpu_seconds()
    subprocess.run([sys.executable, "-c", program], check=True, env=ENVIRONMENT)
    return Times(wall=time.perf_counter() - begin, cpu=children_cpu_seconds() - cpu_before)


def children_cpu_seconds() -> float:
    """CPU time of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def interleaved(programs: list[str], repetitions: int) -> list[Times]:
    """Median times of each program. One round before fills the file cache and compiles to bytecode."""
    rounds = [[timed(program) for program in programs] for _ in range(repetitions + 1)]
    return [
        Times(*(statistics.median(values) for values in zip(*runs, strict=True)))
        for runs in zip(*rounds[1:], strict=True)
    ]


def at_least_15(text: str) -> int:
    """A number of repetitions that gives a median worth printing."""
    if int(text) < 15:
        raise argparse.ArgumentTypeError(f"use 15 or more, found {text}")
    return int(text)


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=at_least_15, default=21, help="of each, 15 or more (default 21)")
    arguments = parser.parse_args()

    programs = [BASELINE, RANK, "pass"]
    medians = interleaved(programs, arguments.repetitions)
    print(f"# medians over {arguments.repetitions} fresh processes each, in turns")
    print(f"#{'wall [ms]':>11}{'CPU [ms]':>12}  program")
    for program, median in zip(programs, medians, strict=True):
        print(f"{median.wall * 1e3:12.1f}{median.cpu * 1e3:12.1f}  {program}")
    baseline, rank = medians[:2]
    print(f"{rank.wall / baseline.wall:12.2f}{rank.cpu / baseline.cpu:12.2f}  ratio (aim: at most 1.30)")


if __name__ == "__main__":
    main()
