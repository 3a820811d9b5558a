"""`dlbench report`: one HTML file that says what a campaign measured, to be read, printed and passed on."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import typer

from dlbench.arguments import ArgumentParser, path, text
from dlbench.cli.forwarding import add_command
from dlbench.cli.selection import add_filters, add_results, add_statistics, load_results
from dlbench.errors import OptionError

HELP = "Write runs up in one HTML file: tables, figures, factors."
_RECORD_ENDINGS = (".jsonl", ".ops.npy")
EXAMPLES = """examples:
  dlbench report results/ -o report.html
  dlbench report results/ -o dp.html --strategy dp --title 'Data parallelism on Leonardo'

The file needs no network: figures are inside. It prints on A4.
"""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    add_command(app, "report", HELP, report)


def report(argv: Sequence[str]) -> None:
    """Write the report and print its path; raises `UserError` where that is impossible."""
    from dlbench.analysis.report import render  # noqa: PLC0415 - pandas and matplotlib take their time
    from dlbench.analysis.results import evaluate  # noqa: PLC0415
    from dlbench.analysis.writing import make_folder, new_file, same_file  # noqa: PLC0415

    arguments = _parser().parse_args(argv)
    output = Path(arguments.output)
    _check_output(output)
    campaign = load_results(arguments.results, arguments, "report")
    if any(same_file(output, record) for record in campaign.paths):
        raise OptionError(f"{output} is one of the records; name another file, e.g. -o report.html")
    results = evaluate(campaign, seed=arguments.seed, min_overlap=arguments.min_overlap)
    page = render(results, title=arguments.title, command=shlex.join(["dlbench", "report", *argv]))
    make_folder(output.parent)
    with new_file(output) as file:
        file.write(page.encode())
    print(output)


def _check_output(output: Path) -> None:
    """Raise `OptionError` for what no report may take the place of, before records are read for a long time."""
    if os.path.isdir(output):  # noqa: PTH112 - Path.is_dir raises for a name that is too long
        raise OptionError(f"{output} is a folder; name the file, e.g. -o {output / 'report.html'}")
    if os.path.realpath(output).endswith(_RECORD_ENDINGS):
        raise OptionError(f"{output} has the name of a record; name another file, e.g. -o report.html")


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="dlbench report", description=HELP, epilog=EXAMPLES)
    add_results(parser)
    parser.add_argument(
        "-o", "--output", type=path, default="report.html", metavar="FILE", help="file to write (default report.html)"
    )
    parser.add_argument(
        "--title", type=text, default="Training communication benchmark", metavar="TEXT", help="title of the report"
    )
    add_filters(parser)
    add_statistics(parser)
    return parser
