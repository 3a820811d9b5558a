"""All measurements of dlbench's own cost; docs/performance.md has figures and what they mean.

    python benchmarks/harness.py                every part
    python benchmarks/harness.py sleep ops      some parts

Parts: sleep (fidelity of sleeps), ops (cost of an op over bare mpi4py), overlap (what progress calls do), growth
(start-up and bookkeeping over ranks), import (start-up of one process), records (reading records), analysis (from the
records of a campaign to its tables), allocator (design and placement of experiments), kineto (reading traces).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from dlbench.slurm.launchers import plan_launch

HERE = Path(__file__).parent


def alone(script: str) -> None:
    """Run a script in one process."""
    subprocess.run([sys.executable, str(HERE / script)], check=True)


def under_mpi(script: str, ranks: int) -> None:
    """Run a script on ranks, launched as `dlbench run` launches."""
    launch = plan_launch("auto", ranks, os.environ)
    subprocess.run(
        [*launch.command, sys.executable, str(HERE / script)],
        env={**os.environ, **launch.environment},
        check=True,
    )


def sleep() -> None:
    """Measured over ideal time, ours and plain."""
    for ranks in (2, 4):
        under_mpi("sleep_fidelity.py", ranks)


def ops() -> None:
    """Cost of an op."""
    print("# 50 non-blocking all-reduces and a wait: times of the slowest rank; bare is the same loop in plain mpi4py")
    upper = ("", "", "median [us]", "", "minimum [us]", "", "per op [ns]", "")
    lower = ("ranks", "bytes", "bare", "dlbench", "bare", "dlbench", "of minima", "median")
    for names in (upper, lower):
        print("# " + "".join(f"{name:>14}" for name in names).rstrip())
    for ranks in (2, 4):
        under_mpi("op_cost.py", ranks)


def overlap() -> None:
    """Effect of progress calls."""
    print("# 10 sleeps, each followed by an all-reduce: median time of the slowest rank [ms]")
    print(f"# {'ranks':>4}{'bytes':>10}{'compute alone':>14}{'poll':>14}{'none':>14}{'blocking':>14}")
    for ranks in (2, 4):
        under_mpi("overlap.py", ranks)


PARTS: dict[str, Callable[[], None]] = {
    "sleep": sleep,
    "ops": ops,
    "overlap": overlap,
    "growth": lambda: alone("growth.py"),
    "import": lambda: alone("import_time.py"),
    "records": lambda: alone("records.py"),
    "analysis": lambda: alone("analysis_load.py"),
    "allocator": lambda: alone("allocator.py"),
    "kineto": lambda: alone("kineto.py"),
}


def main() -> None:
    """Run the parts that were named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.parts if name not in PARTS]:
        parser.error(f"no part {unknown[0]}; there are {', '.join(PARTS)}")
    print(f"# {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}")
    for name in arguments.parts or PARTS:
        print(f"\n## {name}", flush=True)
        PARTS[name]()


if __name__ == "__main__":
    main()
