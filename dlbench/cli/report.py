"""`dlbench report`: one HTML file that says what a campaign measured, to be read, printed and passed on."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dlbench.arguments import ArgumentParser, path, text
from dlbench.cli.forwarding import add_command
from dlbench.cli.selection import add_filters, add_statistics, load_results, progress_shown, results_path
from dlbench.cli.trace_inputs import (
    add_critical_path,
    add_traces,
    check_kind,
    overlooked,
    records_and_traces,
    tolerance_seconds,
)
from dlbench.errors import OptionError

if TYPE_CHECKING:
    from dlbench.analysis.campaign import Campaign
    from dlbench.analysis.trace_results import TraceResults

HELP = "Write runs or traces up in one HTML file: tables, figures, factors."
_RECORD_ENDINGS = (".jsonl", ".ops.npy")
EXAMPLES = """examples:
  dlbench report results/ -o report.html
  dlbench report results/ -o dp.html --strategy dp --title 'Data parallelism on Leonardo'
  dlbench report traces/rank*.json.gz -o tax.html     # Kineto traces: who made everybody wait, and why
  dlbench report results/ traces/ -o both.html

The file needs no network: figures are inside. It prints on A4.
"""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    add_command(app, "report", HELP, report)


def report(argv: Sequence[str]) -> None:
    """Write the report and print its path; raises `UserError` where that is impossible."""
    arguments = _parser().parse_args(argv)
    from dlbench.analysis.report import render  # noqa: PLC0415 - pandas and matplotlib take their time
    from dlbench.analysis.results import evaluate  # noqa: PLC0415
    from dlbench.analysis.writing import make_folder, new_file, same_file  # noqa: PLC0415

    output = Path(arguments.output)
    _check_output(output)
    records, traces = _inputs(arguments)
    campaign = _campaign(records, traces, arguments) if records else None
    read = {"records": () if campaign is None else campaign.paths, "traces": traces}
    for kind, files in read.items():
        if any(same_file(output, file) for file in files):
            raise OptionError(f"{output} is one of the {kind}; name another file, e.g. -o report.html")
    results = None
    if campaign is not None:
        results = evaluate(
            campaign, seed=arguments.seed, min_overlap=arguments.min_overlap, critical_path=arguments.critical_path
        )
    traced = _traced(traces, arguments) if traces else None
    page = render(results, traced, title=arguments.title, command=shlex.join(["dlbench", "report", *argv]))
    make_folder(output.parent)
    with new_file(output) as file:
        file.write(page.encode())
    print(output)


def _inputs(arguments: argparse.Namespace) -> tuple[list[Path], list[Path]]:
    """Records and traces. Raises `OptionError` where none are named, or an option is for the kind that is not there."""
    if not arguments.results:
        raise OptionError("no results were named; use dlbench report RESULTS..., with folders, records or traces")
    records, traces = records_and_traces(arguments.results)
    if not (records and traces):
        check_kind(arguments, bool(traces))
    return records, traces


def _campaign(records: Sequence[Path], traces: Sequence[Path], arguments: argparse.Namespace) -> Campaign:
    """The runs, with a note where traces lie beside them that are not among the inputs."""
    campaign = load_results(records, arguments, "report")
    return replace(campaign, notes=[*overlooked(records, traces), *campaign.notes])


def _traced(traces: Sequence[Path], arguments: argparse.Namespace) -> TraceResults:
    from dlbench.analysis.culprits import CulpritClasses  # noqa: PLC0415 - pandas takes its time
    from dlbench.analysis.tax_sources import tax_of_traces  # noqa: PLC0415
    from dlbench.analysis.trace_results import TraceResults  # noqa: PLC0415
    from dlbench.analysis.traces.alignment import TOLERANCE  # noqa: PLC0415

    with progress_shown("traces") as progress:
        taxes = tax_of_traces(
            traces,
            seed=arguments.seed,
            tolerance=tolerance_seconds(arguments, TOLERANCE),
            patterns=arguments.kernel,
            progress=progress,
            explain=CulpritClasses() if arguments.critical_path else None,
        )
    return TraceResults(taxes=taxes)


def _check_output(output: Path) -> None:
    """Raise `OptionError` for what no report may take the place of, before records are read for a long time."""
    if os.path.isdir(output):  # noqa: PTH112 - Path.is_dir raises for a name that is too long
        raise OptionError(f"{output} is a folder; name the file, e.g. -o {output / 'report.html'}")
    if os.path.realpath(output).endswith(_RECORD_ENDINGS):
        raise OptionError(f"{output} has the name of a record; name another file, e.g. -o report.html")


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="dlbench report", description=HELP, epilog=EXAMPLES)
    parser.add_argument(
        "results",
        nargs="*",
        type=results_path,
        metavar="RESULTS",
        help="records, or folders to search for *.jsonl; and traces of one PyTorch job, one file per rank (.json, "
        ".json.gz), or their folder; either or both",
    )
    parser.add_argument(
        "-o", "--output", type=path, default="report.html", metavar="FILE", help="file to write (default report.html)"
    )
    parser.add_argument(
        "--title", type=text, default="Training communication benchmark", metavar="TEXT", help="title of the report"
    )
    add_statistics(parser)
    add_critical_path(parser)
    add_filters(parser)
    add_traces(parser)
    return parser
