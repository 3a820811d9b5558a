"""What the commands of the analysis have in common: where the records lie, which runs count, and how to count them."""

from __future__ import annotations

import argparse
import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from dlbench.arguments import ArgumentParser, at_least, path, text
from dlbench.errors import OptionError
from dlbench.runtime.streams import say

if TYPE_CHECKING:
    from dlbench.analysis.campaign import Campaign

Progress: TypeAlias = Callable[[int, int], None]
"""Called with what is read, e.g. records, and how much there is."""

MIN_OVERLAP = 0.8
_SECONDS_BETWEEN_LINES = 5.0


def add_results(parser: ArgumentParser) -> None:
    """Add the folders and files to read, as `arguments.results`."""
    parser.add_argument(
        "results", nargs="*", type=results_path, metavar="RESULTS", help="records, or folders to search for *.jsonl"
    )


def add_filters(parser: ArgumentParser) -> None:
    """Add the options that choose runs."""
    group = parser.add_argument_group("which runs")
    for name in ("strategy", "system", "model"):
        group.add_argument(
            f"--{name}",
            action="extend",
            type=names,
            default=[],
            metavar="NAME",
            help=f"only runs of this {name}; may be repeated, or several with commas",
        )
    group.add_argument(
        "--where",
        type=text,
        metavar="EXPRESSION",
        help="only runs for which it holds, over the columns of runs.csv: --where 'gpus >= 64 and dtype == \"bf16\"'",
    )
    group.add_argument(
        "--mix-scaled", action="store_true", help="show scaled runs beside unscaled ones, in rows of their own"
    )
    group.add_argument(
        "--mix-simulated", action="store_true", help="show simulated runs beside live ones, in rows of their own"
    )


def add_output(parser: ArgumentParser, *, plots: bool = False) -> argparse._ArgumentGroup:
    """Add the options that say where tables go, and with `plots` the figures."""
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    group.add_argument("--csv", type=path, metavar="DIR", help="also write every table to DIR/NAME.csv")
    if plots:
        group.add_argument("--plots", type=path, metavar="DIR", help="also draw the figures into DIR")
    return group


def add_seed(parser: ArgumentParser) -> None:
    """Add the seed of the bootstrap, as `arguments.seed`."""
    parser.add_argument(
        "--seed", type=at_least(0), default=0, metavar="N", help="seed of the bootstrap intervals (default 0)"
    )


def add_statistics(parser: ArgumentParser) -> None:
    """Add the options that decide how runs are counted."""
    add_seed(parser)
    parser.add_argument(
        "--min-overlap",
        type=_share,
        default=MIN_OVERLAP,
        metavar="SHARE",
        help="a concurrent iteration counts where this share of the experiment's other jobs ran beside it, averaged "
        f"over its duration; 0 to 1 (default {MIN_OVERLAP})",
    )


def load_results(paths: Sequence[Path], arguments: argparse.Namespace, command: str) -> Campaign:
    """The runs of the records in `paths` that the options choose.

    Raises `OptionError` where no path was named or an option is wrong, `RecordError` where no valid run is left.
    """
    from dlbench.analysis.load import load  # noqa: PLC0415 - pandas takes its time

    if not paths:
        raise OptionError(f"no results were named; use dlbench {command} RESULTS..., with folders or records")
    with progress_shown() as progress:
        campaign = load(paths, progress=progress)
    campaign.require_runs()
    campaign = campaign.select(
        strategy=arguments.strategy, system=arguments.system, model=arguments.model, where=arguments.where
    )
    campaign = campaign.separate(mix_scaled=arguments.mix_scaled, mix_simulated=arguments.mix_simulated)
    campaign.require_runs()
    return campaign


@contextmanager
def progress_shown(noun: str = "records", *, doing: str = "reading", done: str = "read") -> Iterator[Progress]:
    """Progress of long work on stderr: a bar on a terminal, otherwise a line every few seconds."""
    if not sys.stderr.isatty():
        yield _lines(f"{noun} {done}")
        return
    from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn(f"{doing} {noun}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _lines(what: str) -> Progress:
    last = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            say(f"{done} of {total} {what}")

    return show


def results_path(value: str) -> Path:
    """Argument type: where records lie."""
    return Path(path(value))


def names(value: str) -> list[str]:
    """Argument type: names with commas between them."""
    found = [name.strip() for name in value.split(",")]
    if not all(found):
        raise ArgumentTypeError(f"expected names with commas between them, found {value!r}")
    return found


def _share(value: str) -> float:
    share = at_least(0.0)(value)
    if share > 1:
        raise ArgumentTypeError(f"expected a share from 0 to 1, found {value!r}")
    return share
