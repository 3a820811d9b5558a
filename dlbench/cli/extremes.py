"""`dlbench extremes`: how the mean wait in collectives grows with the group, from block times of runs or traces.

The keys of the JSON document stand in `dlbench.analysis.model_tables.document`.
"""

from __future__ import annotations

import argparse
from argparse import ArgumentTypeError
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dlbench import __version__
from dlbench.arguments import ArgumentParser, at_least
from dlbench.cli.forwarding import add_command
from dlbench.cli.selection import add_filters, add_output, add_seed, load_results
from dlbench.cli.trace_inputs import add_inputs, add_traces, check_kind, record_notes, tolerance_seconds, trace_files
from dlbench.errors import UserError, one_line

if TYPE_CHECKING:
    from dlbench.analysis.block_times import BlockTimes
    from dlbench.analysis.extremes import Extremes

HELP = "Predict how long ranks wait for the slowest in larger groups."
EPILOG = """Block times, between two collectives of a group, are turned into z-scores; the maxima of groups of 4 ranks
are fitted by Gumbel and GEV distributions, which predict the mean wait of larger groups. It is checked against groups
that were measured. Both fits are shown: Gumbel overestimates where the tail is light, ξ below 0.

examples:
  dlbench run dp -n 4 --scale 0.01 --time-scale 0.1 --iterations 50 --record-ops && dlbench extremes results/
  dlbench extremes results/ --predict 8,64,512 --centring instance
  dlbench extremes traces/rank*.json.gz --csv tables --plots figures
  dlbench extremes results/ --predict 8,128,512 --json > fit.json
  dlbench bandwidth --from-fit fit.json
"""
CENTRINGS = ("pooled", "instance")
_MOST_NOTES = 20


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    add_command(app, "extremes", HELP, extremes)


def extremes(argv: Sequence[str]) -> None:
    """Print or write what the command line asks for; raises `UserError` where it asks for something impossible."""
    from dlbench.analysis.export import json_text, write_frames  # noqa: PLC0415 - pandas takes its time
    from dlbench.analysis.model_tables import FITS, PREDICTIONS, document, fits, predictions  # noqa: PLC0415

    arguments = _parser().parse_args(argv)
    times, notes = _block_times(arguments)
    found, refused = _fitted(times, arguments)
    notes = [*notes, *refused, *(note for each in found for note in each.notes)]
    written: list[Path] = []
    if arguments.csv:
        frames = {FITS.name: fits(found), PREDICTIONS.name: predictions(found)}
        written += write_frames(frames, Path(arguments.csv))
    if arguments.plots:
        from dlbench.analysis.plots import save  # noqa: PLC0415 - matplotlib takes its time
        from dlbench.analysis.plots.extremes import draw  # noqa: PLC0415

        written += save(draw(found).plots, Path(arguments.plots))
    if arguments.json:
        print(json_text(document(found, arguments.seed, notes)))
        return
    for line in _lines(found, notes, written):
        print(line)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="dlbench extremes", description=HELP, epilog=EPILOG)
    add_inputs(parser)
    parser.add_argument(
        "--group-size",
        type=at_least(2),
        default=4,
        metavar="M",
        help="ranks of the groups whose maxima are fitted (default 4)",
    )
    parser.add_argument(
        "--centring",
        choices=CENTRINGS,
        default=CENTRINGS[0],
        help="z-scores about a block's mean over all its instances, or about that of each instance, which leaves aside "
        "what all ranks have in common (default pooled)",
    )
    parser.add_argument(
        "--predict",
        type=counts,
        default=[],
        metavar="N,N",
        help="ranks of the groups to predict (default M doubled up to 16 M, and the ranks that there are)",
    )
    add_seed(parser)
    add_filters(parser)
    add_traces(parser)
    add_output(parser, plots=True)
    return parser


def counts(value: str) -> list[int]:
    """Argument type: numbers of ranks with commas between them."""
    try:
        return [at_least(2)(part) for part in value.split(",")]
    except ArgumentTypeError:
        raise ArgumentTypeError(f"expected numbers of ranks of 2 or more, such as 8,16,128, found {value!r}") from None


def _block_times(arguments: argparse.Namespace) -> tuple[list[BlockTimes], list[str]]:
    """Block times of the inputs, and notes. Raises `UserError` where there are none."""
    from dlbench.analysis.block_times import of_campaign, of_collectives  # noqa: PLC0415
    from dlbench.analysis.campaign import few  # noqa: PLC0415

    traces = trace_files(arguments.inputs)
    check_kind(arguments, bool(traces))
    if traces:
        from dlbench.analysis.traces.alignment import TOLERANCE, align  # noqa: PLC0415
        from dlbench.analysis.traces.ranks import read_ranks  # noqa: PLC0415

        ranked, notes = read_ranks(traces, arguments.kernel)
        aligned = align(ranked, tolerance=tolerance_seconds(arguments, TOLERANCE)).require_groups()
        found = of_collectives(aligned.groups)
        refused = [f"refused: {reason}" for reason in aligned.refused]
        reasons = [*refused, *notes, *aligned.notes]
        notes = [*notes, *aligned.notes, *refused]
    else:
        campaign = load_results(arguments.inputs, arguments, "extremes")
        found, notes = of_campaign(campaign)
        reasons = [*notes, *campaign.reasons()]
        notes = [*record_notes(arguments.inputs, campaign), *notes]
    if not found:
        raise UserError(f"no block times: {few(reasons) or 'no group of ranks has two collectives'}")
    return found, notes


def _fitted(times: Sequence[BlockTimes], arguments: argparse.Namespace) -> tuple[list[Extremes], list[str]]:
    """The fits, and why groups have none. Raises `UserError` where none has one."""
    from dlbench.analysis.campaign import few  # noqa: PLC0415
    from dlbench.analysis.extremes import extremes as fit  # noqa: PLC0415

    found: list[Extremes] = []
    refused: list[UserError] = []
    for each in times:
        try:
            found.append(
                fit(
                    each,
                    group_size=arguments.group_size,
                    centring=arguments.centring,
                    predict=arguments.predict,
                    seed=arguments.seed,
                )
            )
        except UserError as error:
            refused.append(error)
    if not found:
        raise refused[0] if len(refused) == 1 else UserError(f"no fit: {few([*map(str, refused)])}")
    return found, [f"not fitted: {error}" for error in refused]


def note_lines(notes: Sequence[str]) -> Iterator[str]:
    """The first of the notes as comments, and how many more there are."""
    from dlbench.analysis.terminal import comment  # noqa: PLC0415 - pandas takes its time

    for note in notes[:_MOST_NOTES]:
        yield from comment(f"note       {one_line(note)}")
    if len(notes) > _MOST_NOTES:
        yield f"# note       {len(notes) - _MOST_NOTES} more notes, which --json lists"


def _lines(found: Sequence[Extremes], notes: Sequence[str], written: Sequence[Path]) -> Iterator[str]:
    from dlbench.analysis.model_tables import FITS, PREDICTIONS, fits, predictions  # noqa: PLC0415
    from dlbench.analysis.tables import build  # noqa: PLC0415
    from dlbench.analysis.terminal import text_lines  # noqa: PLC0415

    yield f"# dlbench {__version__} extremes"
    yield from note_lines(notes)
    for layout, frame in ((FITS, fits(found)), (PREDICTIONS, predictions(found))):
        yield "#"
        yield from text_lines(build(layout, frame))
    if written:
        yield "#"
        yield from (f"# written    {file}" for file in written)
