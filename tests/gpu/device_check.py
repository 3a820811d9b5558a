"""Shows on one GPU, or two, in under two minutes each, what cannot be shown without one.

    python tests/gpu/device_check.py              on the first GPU that is visible
    python tests/gpu/device_check.py --device 2   on another one
    python tests/gpu/device_check.py --host       on memory of the process, which only shows that the checks run

Where two GPUs are visible, two ranks are started on them for what one cannot show, by the launcher that `dlbench run`
would take (--launcher names another).

Prints a table and OK or FAILED. Exit status: 0 OK, 1 FAILED, 2 no usable GPU, which one line explains.

The checks run in a process of their own, so that a library that hangs or ends the process is a row of the table too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from device_checks import FAILED, GPU, HOST, OK, SKIPPED, Bench, Row, judged, rows, skipped

from dlbench import __version__
from dlbench.accelerator.presence import nccl_version
from dlbench.accelerator.protocol import Driver
from dlbench.errors import PreflightError, UserError
from dlbench.slurm.launchers import plan_launch

LIMIT_SECONDS = 120.0
EXIT_SECONDS = 10.0
_WIDTHS = (42, 62, 28)


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(description="Checks of one GPU and the code that drives it.")
    found.add_argument("--device", type=int, default=0, metavar="N", help="which of the visible GPUs (default 0)")
    found.add_argument(
        "--gpu", default="", metavar="SPEC", help="datasheet to compare with (default: by the GPU's name)"
    )
    found.add_argument("--host", action="store_true", help="memory of the process in the place of a GPU")
    found.add_argument(
        "--launcher", default="auto", metavar="NAME", help="of the two ranks: auto (default), srun, or an mpiexec"
    )
    found.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    found.add_argument("--pair", action="store_true", help=argparse.SUPPRESS)
    return found


def driver(*, host: bool) -> Driver:
    """CuPy's GPUs, or memory of the process."""
    if not host:
        from dlbench.accelerator.cupy_driver import CupyDriver  # noqa: PLC0415

        return CupyDriver()
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from host_device import LIBRARY_VARIABLE, HostDriver  # noqa: PLC0415

    found: Driver = HostDriver.with_stand_in(2) if LIBRARY_VARIABLE in os.environ else HostDriver()
    return found


def head(bench: Bench) -> list[str]:
    """What the table is of."""
    facts = bench.device.facts
    try:
        nccl = nccl_version(bench.driver.nccl().get_version())
    except PreflightError:
        nccl = "none"
    return [
        f"# dlbench {__version__} device check, {datetime.now(UTC).date().isoformat()}",
        f"# device    {facts.label} {facts.name}",
        f"# software  driver {facts.driver}, runtime {facts.runtime}, CuPy {facts.cupy}, NCCL {nccl}",
    ]


def child(arguments: argparse.Namespace, load: Callable[..., Driver] = driver) -> int:
    """Make the checks, and tell the parent of each row."""
    try:
        found = load(host=arguments.host)
        found.count()
        sizes = HOST if arguments.host else GPU
        bench = Bench(driver=found, device=found.open(arguments.device), sizes=sizes, spec=arguments.gpu)
    except UserError as error:
        tell({"refused": str(error)})
        return 2
    for line in head(bench):
        tell({"line": line})
    tell_rows(rows(bench), gpus=found.count())
    return 0


def rank_of_pair(arguments: argparse.Namespace) -> int:
    """Make the checks of two ranks as one of them, and tell the parent of each row."""
    from device_pair import RANK, pair  # noqa: PLC0415 - it starts MPI

    found = pair(partial(driver, host=arguments.host), HOST if arguments.host else GPU, arguments.device)
    if RANK == 0:
        tell_rows(found)
    else:
        list(found)  # its rows are told by rank 0: launchers mix what several ranks write, within lines
    return 0


def tell_rows(found: Iterable[Row], **more: object) -> None:
    """Tell the parent of each row as it comes, and then how many there were."""
    count = 0
    for row in found:
        tell({"row": row})
        count += 1
    tell({"end": count, **more})


def tell(message: dict[str, object]) -> None:
    """One message to the parent."""
    print(json.dumps(message), flush=True)


def line_of(row: Sequence[str]) -> str:
    """A line of the table; what is too long for its column shifts the rest."""
    cells = [f"{cell:<{width}}" for cell, width in zip(row, _WIDTHS, strict=False)]
    return "  ".join([*cells, row[3]])


def messages(output: IO[str]) -> Iterator[dict[str, object]]:
    """What the child tells; what its libraries print in between is passed on as comments."""
    for line in output:
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if isinstance(message, dict):
            yield message
        elif line.strip():
            print(f"# {line.rstrip()}")


class Ended(NamedTuple):
    """How a process of checks ended."""

    status: int
    seconds: float
    """Since its last message; 0 where that did not come."""
    last: dict[str, Any]


def follow(
    command: Sequence[str], limit: float, found: list[Row], environment: Mapping[str, str] | None = None
) -> Ended:
    """Run checks in other processes, and print and keep their rows as they come."""
    last, ended, before = {}, 0.0, len(found)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        timers = threading.Timer(limit, process.terminate), threading.Timer(limit + EXIT_SECONDS, process.kill)
        for timer in timers:
            timer.start()
        for message in messages(process.stdout or sys.stdin):
            match message:
                case {"line": line}:
                    print(line)
                case {"row": [*cells]}:
                    show(Row(*map(str, cells)), found)
                case {"refused": _} | {"end": _}:
                    last, ended = message, time.perf_counter()
        status = process.wait()
        for timer in timers:
            timer.cancel()
    seen = len(found) - before
    if last.get("end", seen) != seen:
        show(Row("rows", f"{seen} have come", f"{last['end']}", FAILED), found)
    return Ended(status, ended and time.perf_counter() - ended, last)


def show(row: Row, found: list[Row]) -> None:
    """Print a row, and keep it."""
    found or print(line_of(("check", "found", "bound", "verdict")))
    found.append(row)
    print(line_of(row), flush=True)


def check(argv: Sequence[str], limit: float = LIMIT_SECONDS) -> int:
    """Run the checks of one GPU and of two, print the table, and give the exit status."""
    found: list[Row] = []
    alone = follow([sys.executable, __file__, "--child", *argv], limit, found)
    if "refused" in alone.last:
        print(f"device check: {alone.last['refused']}", file=sys.stderr)
        return 2
    show(clean_exit("clean exit", alone.status, alone.seconds), found)
    check_pair(argv, alone.last.get("gpus", 0), limit, found)
    return verdict(found)


def check_pair(argv: Sequence[str], gpus: int, limit: float, found: list[Row]) -> None:
    """Run the checks of two ranks where there are two GPUs for them, and a launcher."""
    if gpus < 2:  # noqa: PLR2004
        show(skipped("two GPUs", "one is visible" if gpus else "the checks of one have not come to their end"), found)
        return
    try:
        launch = plan_launch(parser().parse_args(argv).launcher, 2, os.environ)
    except PreflightError as error:
        show(skipped("two GPUs", str(error)), found)
        return
    command = [*launch.command, sys.executable, __file__, "--pair", *argv]
    ended = follow(command, limit, found, {**launch.environment, **os.environ, **launch.own})
    show(clean_exit("clean exit, two GPUs", ended.status, ended.seconds), found)


def clean_exit(what: str, status: int, seconds: float) -> Row:
    """How a process ended; seconds are those since its last check, 0 where that did not come."""
    how = f"status {status}" + (f" after {seconds:.1f} s" if seconds else " before the last check")
    good = status == 0 and 0 < seconds <= EXIT_SECONDS
    return judged(what, how, f"status 0 within {EXIT_SECONDS:g} s", good)


def verdict(found: Sequence[Row]) -> int:
    """Print the last line, and give the exit status."""
    failed = [row.check for row in found if row.verdict == FAILED]
    left_out = sum(row.verdict.startswith(SKIPPED) for row in found)
    checks = f"{len(found)} checks, {left_out} skipped"
    print(f"{FAILED}: {', '.join(failed)} ({checks})" if failed else f"{OK} ({checks})")
    return 1 if failed else 0


def main(argv: Sequence[str]) -> int:
    """Run the script."""
    arguments = parser().parse_args(argv)
    if arguments.pair:
        return rank_of_pair(arguments)
    return child(arguments) if arguments.child else check(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
