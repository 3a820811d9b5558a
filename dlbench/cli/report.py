"""`dlbench report`: one HTML file that says what a campaign measured, to be read, printed and passed on."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import typer

from dlbench.arguments import ArgumentParser, path, text
from dlbench.cli.forwarding import add_command
from dlbench.cli.selection import add_filters, add_results, add_statistics, load_results
from dlbench.errors import OptionError

HELP = "Write runs up in one HTML file: tables, figures, factors."
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

    arguments = _parser().parse_args(argv)
    output = Path(arguments.output)
    if output.is_dir():
        raise OptionError(f"{output} is a folder; name the file, e.g. -o {output / 'report.html'}")
    campaign = load_results(arguments.results, arguments, "report")
    results = evaluate(campaign, seed=arguments.seed, min_overlap=arguments.min_overlap)
    page = render(results, title=arguments.title, command=shlex.join(["dlbench", "report", *argv]))
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(page, encoding="utf-8")
    except OSError as error:
        raise OptionError(f"{output}: cannot be written: {error.strerror}") from None
    print(output)


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
