"""`dlbench analyze`: the tables of a campaign, printed, as one JSON document, or as files.

The keys of the JSON document stand in `dlbench.analysis.export.document`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dlbench import __version__
from dlbench.arguments import ArgumentParser, path
from dlbench.cli.forwarding import add_command
from dlbench.cli.selection import add_filters, add_output, add_results, add_statistics, load_results

if TYPE_CHECKING:
    from dlbench.analysis.results import Results

HELP = "Print times, communication, scaling and slowdown of runs."
EPILOG = """A time is that of the slowest rank; warm-ups never count; runs are pooled only where all factors are equal.
low and high end the 95 % interval of the number before them.

examples:
  dlbench analyze results/                                      every record below a folder
  dlbench analyze a/ b/ --strategy dp,fsdp --where 'gpus >= 64'
  dlbench analyze results/ --json | jq .slowdown                SI units, null for what is absent
  dlbench analyze results/ --csv tables/                        a file a table, with runs and iterations
"""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    add_command(app, "analyze", HELP, analyze)


def analyze(argv: Sequence[str]) -> None:
    """Print or write what the command line asks for; raises `UserError` where it asks for something impossible."""
    from dlbench.analysis.export import document, json_text, write_csv, write_parquet  # noqa: PLC0415 - takes its time
    from dlbench.analysis.results import evaluate  # noqa: PLC0415

    arguments = _parser().parse_args(argv)
    campaign = load_results(arguments.results, arguments, "analyze")
    results = evaluate(campaign, seed=arguments.seed, min_overlap=arguments.min_overlap)
    written: list[Path] = []
    if arguments.csv:
        written += write_csv(results, Path(arguments.csv))
    if arguments.parquet:
        written += write_parquet(results, Path(arguments.parquet))
    if arguments.json:
        print(json_text(document(results)))
        return
    for line in _lines(results, written):
        print(line)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="dlbench analyze", description=HELP, epilog=EPILOG)
    add_results(parser)
    add_filters(parser)
    add_statistics(parser)
    add_output(parser).add_argument(
        "--parquet", type=path, metavar="DIR", help="also write every table to DIR/NAME.parquet; needs pyarrow"
    )
    return parser


def _lines(results: Results, written: Sequence[Path]) -> Iterator[str]:
    from dlbench.analysis.terminal import comment, loaded_lines, text_lines  # noqa: PLC0415

    yield f"# dlbench {__version__} analyze"
    yield from loaded_lines(results.campaign)
    for statement in results.statements():
        if statement.values:
            yield from comment(str(statement))
    for table in results.tables():
        yield "#"
        yield from text_lines(table)
    if written:
        yield "#"
        yield from (f"# written    {file}" for file in written)
