"""`dlbench tax`: who made everybody wait, from run records with ops or from a job's Kineto traces."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dlbench import __version__
from dlbench.arguments import ArgumentParser, at_least, path
from dlbench.cli.forwarding import add_command
from dlbench.cli.selection import add_filters, add_output, add_seed, load_results, names, progress_shown
from dlbench.cli.trace_inputs import (
    add_critical_path,
    add_inputs,
    add_traces,
    check_kind,
    record_notes,
    tolerance_seconds,
    trace_files,
)
from dlbench.errors import OptionError, one_line

if TYPE_CHECKING:
    from dlbench.analysis.taxes import Taxes

HELP = "Print who made everybody wait in collectives, in runs or traces."
EPILOG = """A rank waits in a collective from its own entry to the last entry of its group; in traces, by as much as its
kernel takes longer than the shortest. tau range, med and mean are the largest, median and mean wait. What the clocks
cannot tell is called unresolved. The culprit of a collective is what took longer on the way of the last rank to it
than on that of the first, by the largest difference on their critical paths.

examples:
  dlbench run dp -n 4 --scale 0.01 --time-scale 0.1 --record-ops && dlbench tax results/
  dlbench tax results/dp-4.jsonl --group allreduce/world --top 3
  dlbench tax traces/rank*.json.gz --csv tables --plots figures
  dlbench tax traces/ --no-critical-path    # the tax alone, at a memory that does not grow with the traces
  dlbench tax results/ --json | jq '.groups[] | .persistence'
"""
_MOST_NOTES = 20


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    add_command(app, "tax", HELP, tax)


def tax(argv: Sequence[str]) -> None:
    """Print or write what the command line asks for; raises `UserError` where it asks for something impossible."""
    arguments = _parser().parse_args(argv)
    from dlbench.analysis.export import json_text, rows, write_frames  # noqa: PLC0415 - pandas takes its time

    taxes = _load(arguments)
    written: list[Path] = []
    if arguments.csv:
        written += write_frames(taxes.frames(), Path(arguments.csv))
    if arguments.plots:
        written += _drawn(taxes, Path(arguments.plots))
    if arguments.json:
        tables = {name: rows(frame) for name, frame in taxes.frames().items() if name != "collectives"}
        print(json_text({**_facts(taxes), **tables, "largest": rows(taxes.largest(arguments.top))}))
        return
    for line in _lines(taxes, arguments.top, written):
        print(line)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="dlbench tax", description=HELP, epilog=EPILOG)
    add_inputs(parser)
    parser.add_argument(
        "--group",
        action="extend",
        type=names,
        default=[],
        metavar="NAME",
        help="only this class, operation, scope or group, e.g. allreduce/world, replica, 'tensor 0-3'; may be repeated",
    )
    parser.add_argument(
        "--top", type=at_least(1), default=10, metavar="N", help="groups, stragglers and collectives shown (default 10)"
    )
    add_critical_path(parser)
    add_seed(parser)
    add_filters(parser)
    add_traces(parser).add_argument(
        "--classes",
        type=path,
        metavar="FILE",
        help="further classes of culprits: YAML with a list classes of name, on (gpu or cpu) and pattern",
    )
    add_output(parser, plots=True)
    return parser


def _load(arguments: argparse.Namespace) -> Taxes:
    """The tax of the inputs. Raises `OptionError` where they or the options are of two kinds."""
    from dlbench.analysis.culprits import CulpritClasses  # noqa: PLC0415
    from dlbench.analysis.tax_sources import require_tax, tax_of_runs, tax_of_traces  # noqa: PLC0415
    from dlbench.analysis.traces.alignment import TOLERANCE  # noqa: PLC0415

    traces = trace_files(arguments.inputs)
    check_kind(arguments, bool(traces))
    if arguments.classes and not (traces and arguments.critical_path):
        raise OptionError("--classes has no meaning without critical paths of traces; leave it out")
    if traces:
        tolerance = tolerance_seconds(arguments, TOLERANCE)
        explain = CulpritClasses(arguments.classes and Path(arguments.classes)) if arguments.critical_path else None
        with progress_shown("traces") as progress:
            taxes = tax_of_traces(
                traces,
                seed=arguments.seed,
                tolerance=tolerance,
                patterns=arguments.kernel,
                progress=progress,
                explain=explain,
            )
    else:
        campaign = load_results(arguments.inputs, arguments, "tax")
        with progress_shown("iterations") as progress:
            found = tax_of_runs(campaign, seed=arguments.seed, progress=progress, paths=arguments.critical_path)
        taxes = require_tax(found, campaign.reasons())
        taxes = replace(taxes, notes=[*record_notes(arguments.inputs, campaign), *found.notes])
    return taxes.only(arguments.group) if arguments.group else taxes


def _drawn(taxes: Taxes, folder: Path) -> list[Path]:
    from dlbench.analysis.plots import paths, save  # noqa: PLC0415 - matplotlib takes its time
    from dlbench.analysis.plots.style import styled  # noqa: PLC0415
    from dlbench.analysis.plots.tax import draw, draw_map  # noqa: PLC0415

    with styled():
        plots = [*draw(taxes).plots, *draw_map(taxes).plots, *paths.draw(taxes).plots]
    return save(plots, folder)


def _facts(taxes: Taxes) -> dict[str, Any]:
    return {
        "dlbench": __version__,
        "source": "records" if taxes.recorded else "traces",
        "seed": taxes.seed,
        "uncertainty": taxes.uncertainty,
        "notes": list(taxes.notes),
    }


def _lines(taxes: Taxes, top: int, written: Sequence[Path]) -> Iterator[str]:
    from dlbench.analysis.columns import counted  # noqa: PLC0415
    from dlbench.analysis.terminal import comment, fact, text_lines  # noqa: PLC0415

    yield f"# dlbench {__version__} tax"
    yield f"# read       {counted(len(taxes.collectives), 'collective')} of {counted(len(taxes.groups), 'group')}"
    yield fact(f"clocks     {taxes.clocks}")
    for note in taxes.notes[:_MOST_NOTES]:
        yield from comment(f"note       {one_line(note)}")
    if len(taxes.notes) > _MOST_NOTES:
        yield f"# note       {len(taxes.notes) - _MOST_NOTES} more notes, which --json lists"
    for table in taxes.tables(top):
        yield "#"
        yield from text_lines(table)
    yield "#"
    yield "# Does the straggler persist?"
    several = len(taxes.runs) > 1
    for row in taxes.by_group.head(top).itertuples():
        where = f"{row.run_id}: " if several else ""
        yield from comment(f"{where}{row.name}, {row.group}: {row.persistence}")
    yield from (f"# written    {file}" for file in written)
