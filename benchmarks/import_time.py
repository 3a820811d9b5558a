"""Start-up of a rank process: the import of an entry point against the least that any MPI program in Python imports.

The two are timed in turns, each in a fresh process, so that a change of the machine's load meets both. Printed are
the medians and the ratio of the medians; a rank process should stay below 1.3.

    python benchmarks/import_time.py
    python benchmarks/import_time.py --entry fsdp --repetitions 41
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

ENTRY_POINTS = ("dp", "fsdp", "dp_pp", "dp_pp_tp", "dp_pp_ep")
BASELINE = "import numpy; from mpi4py import MPI"


def seconds(program: str) -> float:
    """Wall-clock time of a fresh Python process that runs the program, until its end."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return time.perf_counter() - begin


def interleaved(programs: list[str], repetitions: int) -> list[list[float]]:
    """Times of each program, shape (programs, repetitions). One round before fills the file cache."""
    rounds = [[seconds(program) for program in programs] for _ in range(repetitions + 1)]
    return [list(times) for times in zip(*rounds[1:], strict=True)]


def at_least_15(text: str) -> int:
    """A number of repetitions that gives a median worth printing."""
    if int(text) < 15:
        raise argparse.ArgumentTypeError(f"use 15 or more, found {text}")
    return int(text)


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entry", choices=ENTRY_POINTS, default="dp", help="entry point (default dp)")
    parser.add_argument("--repetitions", type=at_least_15, default=21, help="of each, 15 or more (default 21)")
    arguments = parser.parse_args()

    programs = [BASELINE, f"import dlbench.{arguments.entry}", "pass"]
    results = interleaved(programs, arguments.repetitions)
    print(f"# wall-clock time of a fresh process, {arguments.repetitions} repetitions each, in turns")
    print(f"# {'median [ms]':>12}{'min [ms]':>12}{'max [ms]':>12}  program")
    for program, times in zip(programs, results, strict=True):
        row = (statistics.median(times), min(times), max(times))
        print("  " + "".join(f"{value * 1e3:12.1f}" for value in row) + f"  {program}")
    baseline, entry = (statistics.median(times) for times in results[:2])
    print(f"ratio of the medians: {entry / baseline:.2f} (aim: at most 1.30)")


if __name__ == "__main__":
    main()
