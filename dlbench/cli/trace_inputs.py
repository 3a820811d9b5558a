"""Inputs that are records of runs, or the Kineto traces of a job."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dlbench.arguments import ArgumentParser, more_than, text
from dlbench.cli.selection import results_path
from dlbench.errors import OptionError
from dlbench.quantities import counted

if TYPE_CHECKING:
    from dlbench.analysis.campaign import Campaign

_ENDINGS = (".json", ".json.gz")
_EXPECTED = "records of runs with --record-ops, or traces, or folders of them"
_EXPECTED_OF_ANY = "records of runs, or traces, or folders of them"
_KEYS = (b'"traceEvents"', b'"schemaVersion"')
"""What a trace begins with, and other files of that ending do not."""
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


def add_critical_path(parser: ArgumentParser) -> None:
    """Add `--no-critical-path`, as `arguments.critical_path`."""
    parser.add_argument(
        "--no-critical-path",
        action="store_false",
        dest="critical_path",
        help="do not look for what made ranks late: faster, and of traces only collectives are kept, not every event "
        "(some 100 bytes each)",
    )


def check_kind(arguments: argparse.Namespace, traces: bool) -> None:
    """Raise `OptionError` where an option is for inputs of the other kind."""
    options = ("strategy", "system", "model", "where") if traces else ("tolerance", "kernel")
    for name in options:
        if getattr(arguments, name):
            raise OptionError(f"--{name} has no meaning for {'traces' if traces else 'records'}; leave it out")


def tolerance_seconds(arguments: argparse.Namespace, default: float) -> float:
    """What `--tolerance` says, in seconds."""
    return default if arguments.tolerance is None else float(arguments.tolerance) * _MICROSECOND


def records_and_traces(inputs: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Records, or folders of them, and trace files; beside records, what is neither is among these.

    Raises `OptionError` where there are no inputs, or none of either kind, and `RecordError` for what does not exist.
    """
    recorded = {place: _holds_records(place, _EXPECTED_OF_ANY) for place in inputs}
    if not any(recorded.values()):
        return [], trace_files(inputs, _EXPECTED_OF_ANY)
    found = {place: [] if recorded[place] else _traces_in(place) for place in inputs}
    traces = {place: files for place, files in found.items() if any(map(_is_trace, files))}
    return [place for place in inputs if place not in traces], [file for files in traces.values() for file in files]


def trace_files(inputs: Sequence[Path], expected: str = _EXPECTED) -> list[Path]:
    """Trace files of the inputs, none where they are records; `expected` is what errors ask for.

    Raises `OptionError` where they are of both kinds, or there are none, and `RecordError` for what does not exist.
    """
    if not inputs:
        raise OptionError(f"no inputs were named; give {expected}")
    found = {place: _traces_of(place, expected) for place in inputs}
    traces = [place for place, files in found.items() if files]
    records = [place for place, files in found.items() if not files]
    if traces and records:
        raise OptionError(f"{records[0]} holds records and {traces[0]} traces; give either")
    return [file for files in found.values() for file in files]


def record_notes(inputs: Sequence[Path], campaign: Campaign) -> list[str]:
    """What a reader of the numbers must know of the records in the inputs, and what was left out, one line each."""
    excluded = (f"left out: {reason}" for reason in campaign.reasons())
    return [*overlooked(inputs), *campaign.notes, *excluded]


def overlooked(inputs: Sequence[Path], read: Sequence[Path] = ()) -> list[str]:
    """A line for each folder of records that has traces, too, beside those that are `read`."""
    known = set(map(os.path.realpath, read))
    notes = []
    for folder in (place for place in inputs if place.is_dir() and _has_records(place)):
        traces = [file for file in _below(folder) if os.path.realpath(file) not in known and _is_trace(file)]
        if traces:
            which = f"{traces[0]}{' …' if len(traces) > 1 else ''}"
            notes.append(f"{folder}: records were read, but not {counted(len(traces), 'trace')}; name them: {which}")
    return notes


def _traces_of(place: Path, expected: str) -> list[Path]:
    """The trace, or the traces of a folder by the numbers in their names, unless it has records."""
    if _holds_records(place, expected):
        return []
    if found := _traces_in(place):
        return found
    files = _below(place)
    hint = f"there are some below it; name their folder: {files[0].parent}" if files else f"name {expected}"
    raise OptionError(f"{place} holds neither records nor traces; {hint}")


def _holds_records(place: Path, expected: str) -> bool:
    """Whether it is a folder with records, or by its name no trace. Raises `RecordError` where nothing is there."""
    from dlbench.analysis.search import is_folder  # noqa: PLC0415

    return _has_records(place) if is_folder(place, expected) else not place.name.endswith(_ENDINGS)


def _traces_in(place: Path) -> list[Path]:
    """The file itself, or those right in the folder that have the names of traces."""
    return [file for file in _below(place) if file.parent == place] if place.is_dir() else [place]


def _has_records(folder: Path) -> bool:
    return next(folder.rglob("*.jsonl"), None) is not None


def _below(folder: Path) -> list[Path]:
    """Files in a folder and below that have the names of traces, in the order of their numbers."""
    return sorted((file for file in folder.rglob("*.json*") if file.name.endswith(_ENDINGS)), key=_by_numbers)


def _is_trace(file: Path) -> bool:
    """Whether a file begins as a trace does."""
    from dlbench.analysis.traces.source import Source, UnreadableTrace  # noqa: PLC0415

    try:
        begin = next(Source(file).blocks(), b"")
    except UnreadableTrace:
        return False
    return any(key in begin for key in _KEYS)


def _by_numbers(file: Path) -> list[int | str]:
    """Order of names in which rank2 comes before rank10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", file.name)]
