"""Inputs that are records of runs, or the Kineto traces of a job."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from dlbench.arguments import ArgumentParser, more_than, text
from dlbench.cli.selection import results_path
from dlbench.errors import OptionError

_ENDINGS = (".json", ".json.gz")
_MICROSECOND = 1e-6


def add_inputs(parser: ArgumentParser) -> None:
    """Add the files and folders to read, as `arguments.inputs`."""
    parser.add_argument(
        "inputs",
        nargs="*",
        type=results_path,
        metavar="INPUT",
        help="records NAME.jsonl of runs with --record-ops or folders of them; or traces of a job, one file per rank "
        "(.json, .json.gz), or their folder",
    )


def add_traces(parser: ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options that traces take, `tolerance` in microseconds and `kernel`; the group in which help has them."""
    group = parser.add_argument_group("traces")
    group.add_argument(
        "--tolerance",
        type=more_than(0.0),
        metavar="US",
        help="microseconds between the first and the last rank to leave a collective; more refuses its group (default "
        "100: raise it where ranks of several nodes read different clocks)",
    )
    group.add_argument(
        "--kernel",
        action="append",
        type=text,
        default=[],
        metavar="PATTERN",
        help="further kernels that communicate: a regular expression, searched in the name; may be repeated",
    )
    return group


def check_kind(arguments: argparse.Namespace, traces: bool) -> None:
    """Raise `OptionError` where an option is for inputs of the other kind."""
    options = ("strategy", "system", "model", "where") if traces else ("tolerance", "kernel")
    for name in options:
        if getattr(arguments, name):
            raise OptionError(f"--{name} has no meaning for {'traces' if traces else 'records'}; leave it out")


def tolerance_seconds(arguments: argparse.Namespace, default: float) -> float:
    """What `--tolerance` says, in seconds."""
    return default if arguments.tolerance is None else float(arguments.tolerance) * _MICROSECOND


def trace_files(inputs: Sequence[Path]) -> list[Path]:
    """Trace files of the inputs, none where they are records.

    Raises `OptionError` where they are of both kinds, or there are none.
    """
    if not inputs:
        raise OptionError("no inputs were named; give records of runs with --record-ops, or traces, or folders of them")
    found = {place: _traces_of(place) for place in inputs}
    traces = [place for place, files in found.items() if files]
    records = [place for place, files in found.items() if not files]
    if traces and records:
        raise OptionError(f"{records[0]} holds records and {traces[0]} traces; give either")
    return [file for files in found.values() for file in files]


def _traces_of(place: Path) -> list[Path]:
    """The trace, or the traces of a folder by the numbers in their names, unless it has records."""
    if not place.is_dir():
        return [place] if place.name.endswith(_ENDINGS) else []
    files = [file for file in place.iterdir() if file.name.endswith(_ENDINGS)]
    return [] if next(place.rglob("*.jsonl"), None) else sorted(files, key=_by_numbers)


def _by_numbers(file: Path) -> list[int | str]:
    """Order of names in which rank2 comes before rank10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", file.name)]
