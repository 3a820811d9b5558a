"""`dlbench validate`: checks that files are run records whose numbers agree with each other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from dlbench.errors import RecordError, one_line
from dlbench.records.publish import PUBLISHED
from dlbench.records.validator import Report, examine


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(validate)


def validate(
    records: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RECORD", help="Records, or folders to search for *.jsonl.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array, one object a record.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of a record's lines.")] = False,
) -> None:
    """Check run records: types, lengths, and whether the times add up.

    The record of a killed run is valid; what is missing is said.

    Exit code: 0 all valid, 1 a record is invalid, 2 a path does not exist or nothing was found.

    Example: dlbench validate results/ other/dp-8.jsonl
    """
    if schema:
        print(PUBLISHED.read_text(encoding="utf-8"), end="")
        return
    reports: list[Report] = []
    for path in _found(records or []):
        reports.append(examine(path))
        if not as_json:
            _print(reports[-1])
    if as_json:
        rows = [_row(report) for report in reports]
        print(msgspec.json.format(msgspec.json.encode(rows), indent=2).decode())
    if not all(report.valid for report in reports):
        raise typer.Exit(1)


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
