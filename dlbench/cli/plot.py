"""`dlbench plot`: the figures of a campaign as files for a paper, and what the runs do not allow to be drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from dlbench.arguments import ArgumentParser, path
from dlbench.cli.forwarding import add_command
from dlbench.cli.selection import add_filters, add_results, add_statistics, load_results, names
from dlbench.errors import one_line

HELP = "Draw figures for print: communication, scaling, slowdown."
DEFAULT_FORMATS = "pdf,svg,png"
EXAMPLES = """examples:
  dlbench plot results/ -o figures
  dlbench plot results/ -o figures --only scaling --format pdf --strategy dp,fsdp

Figures: communication, scaling, slowdown, stability, breakdown, tax, tax-map, tax-paths, extremes, bandwidth. Each has
its caption in NAME.txt. Figures are 3.4 or 7 inches wide, the columns of a paper, and the same runs give the same
files.

Exit code: 0 something was drawn, 1 the runs allow none of the figures, 2 something in the command line is wrong.
"""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    add_command(app, "plot", HELP, plot)


def plot(argv: Sequence[str]) -> int:
    """Draw, print the files and why others are missing, and return the exit code; raises `UserError`."""
    from dlbench.analysis.plots import check_figures, check_formats, figures, save  # noqa: PLC0415 - matplotlib is slow
    from dlbench.analysis.results import evaluate  # noqa: PLC0415
    from dlbench.analysis.terminal import loaded_lines  # noqa: PLC0415

    arguments = _parser().parse_args(argv)
    check_figures(arguments.only)
    check_formats(arguments.format)
    folder = Path(arguments.output)
    campaign = load_results(arguments.results, arguments, "plot")
    results = evaluate(campaign, seed=arguments.seed, min_overlap=arguments.min_overlap)
    drawing = figures(results, only=arguments.only)
    for line in loaded_lines(campaign):
        print(line)
    for file in save(drawing.plots, folder, arguments.format):
        print(file)
    for left_out in drawing.left_out:
        print(f"# not drawn: {one_line(str(left_out))}")
    return 0 if drawing.plots else 1


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="dlbench plot", description=HELP, epilog=EXAMPLES)
    add_results(parser)
    parser.add_argument(
        "-o", "--output", type=path, default="figures", metavar="DIR", help="folder to write to (default figures)"
    )
    parser.add_argument(
        "--format",
        type=names,
        default=DEFAULT_FORMATS,
        metavar="NAMES",
        help=f"file formats with commas between them (default {DEFAULT_FORMATS})",
    )
    parser.add_argument(
        "--only",
        action="extend",
        type=names,
        default=[],
        metavar="NAME",
        help="only this figure; may be repeated, or several with commas",
    )
    add_filters(parser)
    add_statistics(parser)
    return parser
