"""`dlbench compare`: whether a second set of runs is slower than a first, so that a script can guard an upgrade.

With `--json` the output is one object: dlbench (version), threshold, seed, min_overlap, a and b (each with paths,
files, runs, notes, excluded), comparison, only_a and only_b (arrays whose objects have the columns of
`dlbench.analysis.compare` as keys), and verdicts (how many configurations have each). What is absent is null.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer

from dlbench import __version__
from dlbench.arguments import ArgumentParser, at_least
from dlbench.cli.forwarding import add_command
from dlbench.cli.selection import add_filters, add_statistics, load_results, results_path
from dlbench.errors import OptionError

if TYPE_CHECKING:
    from dlbench.analysis.campaign import Campaign
    from dlbench.analysis.compare import Comparison

HELP = "Say which configurations are slower in a second set."
EPILOG = """verdicts, from the 95 % interval of B's time over A's (geometric means):
  SAME       it lies within 1/(1+threshold) and 1+threshold
  SLOWER     it lies above that
  FASTER     it lies below that
  AMBIGUOUS  it straddles a limit, or there is none: fewer than 6 iterations

exit code: 1 where a configuration is SLOWER, 2 where the comparison is impossible, else 0

examples:
  dlbench compare before/ after/
  dlbench compare before/ after/ --threshold 0.05 && echo 'no regression'
"""
THRESHOLD = 0.02


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    add_command(app, "compare", HELP, compare)


def compare(argv: Sequence[str]) -> int:
    """Print the comparison; 1 where a configuration is slower, else 0. Raises `UserError` where none is possible."""
    from dlbench.analysis import compare as analysis  # noqa: PLC0415 - pandas takes its time

    arguments = _parser().parse_args(argv)
    a, b = (load_results([path], arguments, "compare") for path in (arguments.a, arguments.b))
    comparison = analysis.compare(
        a, b, threshold=arguments.threshold, seed=arguments.seed, min_overlap=arguments.min_overlap
    )
    if arguments.json:
        from dlbench.analysis.export import json_text  # noqa: PLC0415

        print(json_text(_document(comparison, a, b, arguments)))
    else:
        for line in _lines(comparison, a, b, arguments):
            print(line)
    if comparison.table.empty:
        raise OptionError("nothing was compared: A and B have no configuration in common")
    return int(comparison.slower > 0)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="dlbench compare", description=HELP, epilog=EPILOG)
    for name, which in (("a", "before"), ("b", "after")):
        parser.add_argument(
            name, type=results_path, metavar=name.upper(), help=f"record, or folder to search for *.jsonl: {which}"
        )
    parser.add_argument(
        "--threshold",
        type=at_least(0.0),
        default=THRESHOLD,
        metavar="SHARE",
        help=f"change of the time that does not matter, e.g. 0.05 for 5 %% (default {THRESHOLD})",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    add_filters(parser)
    add_statistics(parser)
    return parser


def _document(comparison: Comparison, a: Campaign, b: Campaign, arguments: argparse.Namespace) -> dict[str, Any]:
    from dlbench.analysis.export import rows  # noqa: PLC0415

    def side(campaign: Campaign, path: object) -> dict[str, Any]:
        counts = {"files": campaign.files, "runs": len(campaign.runs)}
        return {"path": str(path), **counts, "notes": campaign.notes, "excluded": rows(campaign.excluded)}

    return {
        "dlbench": __version__,
        **{name: getattr(arguments, name) for name in ("threshold", "seed", "min_overlap")},
        "a": side(a, arguments.a),
        "b": side(b, arguments.b),
        "verdicts": _verdicts(comparison),
        "comparison": rows(comparison.table),
        "only_a": rows(comparison.only_a),
        "only_b": rows(comparison.only_b),
    }


def _verdicts(comparison: Comparison) -> dict[str, int]:
    """How many configurations have each verdict."""
    from dlbench.analysis.compare import VERDICTS  # noqa: PLC0415

    return {verdict: int((comparison.table["verdict"] == verdict).sum()) for verdict in VERDICTS}


def _lines(comparison: Comparison, a: Campaign, b: Campaign, arguments: argparse.Namespace) -> Iterator[str]:
    from dlbench.analysis.results import COMPARISON, ONLY_A, ONLY_B  # noqa: PLC0415
    from dlbench.analysis.tables import build  # noqa: PLC0415
    from dlbench.analysis.terminal import loaded_lines, text_lines  # noqa: PLC0415

    yield f"# dlbench {__version__} compare, threshold {arguments.threshold:g}"
    for name, path, campaign in (("A", arguments.a, a), ("B", arguments.b, b)):
        yield f"# {name:<10} {path}"
        yield from loaded_lines(campaign)
    tables = ((COMPARISON, comparison.table), (ONLY_A, comparison.only_a), (ONLY_B, comparison.only_b))
    for layout, frame in tables:
        if layout is COMPARISON or len(frame):
            yield "#"
            yield from text_lines(build(layout, frame))
    yield "# " + ", ".join(f"{count} {verdict}" for verdict, count in _verdicts(comparison).items())
