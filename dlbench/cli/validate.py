"""`dlbench validate`: checks that files are run records whose numbers agree with each other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import typer

from dlbench.arguments import ArgumentParser
from dlbench.cli.forwarding import add_command
from dlbench.cli.selection import results_path
from dlbench.errors import RecordError, one_line
from dlbench.records.publish import PUBLISHED
from dlbench.records.validator import Report, examine

HELP = "Check run records: types, lengths, and whether the times add up."
EPILOG = """The record of a killed run is valid; what is missing is said.

examples:
  dlbench validate results/ other/dp-8.jsonl
  dlbench validate results/ --json | jq '.[] | select(.valid | not) | .path'
  dlbench validate --schema > record.schema.json

exit code: 0 all valid, 1 a record is invalid, 2 a path does not exist or nothing was found"""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    add_command(app, "validate", HELP, validate)


def validate(argv: Sequence[str]) -> int:
    """Check what the command line names; 1 where a record is invalid, else 0. Raises `RecordError` where none is."""
    arguments = _parser().parse_args(argv)
    if arguments.schema:
        print(PUBLISHED.read_text(encoding="utf-8"), end="")
        return 0
    reports: list[Report] = []
    for path in _found(arguments.records):
        reports.append(examine(path))
        if not arguments.json:
            _print(reports[-1])
    if arguments.json:
        rows = [_row(report) for report in reports]
        print(msgspec.json.format(msgspec.json.encode(rows), indent=2).decode())
    return 0 if all(report.valid for report in reports) else 1


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="dlbench validate", description=HELP, epilog=EPILOG)
    parser.add_argument(
        "records", nargs="*", type=results_path, metavar="RECORD", help="records, or folders to search for *.jsonl"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON array, one object a record")
    parser.add_argument("--schema", action="store_true", help="print the JSON Schema of a record's lines")
    return parser


def _found(paths: list[Path]) -> list[Path]:
    """Records named by files and folders, each once."""
    if not paths:
        raise RecordError("no record was named; use dlbench validate RECORD..., with files or folders")
    found: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            raise RecordError(f"{path} does not exist; name a record NAME.jsonl or a folder of records")
        records = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
        if not records:
            raise RecordError(f"{path} holds no record; records are files NAME.jsonl")
        found.update(dict.fromkeys(records))
    return list(found)


def _print(report: Report) -> None:
    path = one_line(str(report.path))
    if report.valid:
        warmups = f"{report.warmups} warm-up{'' if report.warmups == 1 else 's'}"
        iterations = f"{report.iterations} iteration{'' if report.iterations == 1 else 's'}"
        print(f"OK {path}: {iterations} ({warmups}), {_ending(report)}")
    else:
        errors = sum(problem.severity == "error" for problem in report.problems)
        print(f"INVALID {path}: {errors} error{'' if errors == 1 else 's'}")
    for problem in report.problems:
        line = "" if problem.line is None else f"line {problem.line}: "
        print(f"  {problem.severity}: {line}{problem.text}")


def _ending(report: Report) -> str:
    return report.end.status if report.end else "killed (no end line)"


def _row(report: Report) -> dict[str, object]:
    return {
        # JSON is UTF-8, which a file's name need not be.
        "path": os.fsencode(report.path).decode(errors="backslashreplace"),
        "valid": report.valid,
        "iterations": report.iterations,
        "warmups": report.warmups,
        "status": report.end.status if report.end else None,
        "problems": report.problems,
    }
