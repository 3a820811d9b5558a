"""`dlbench timeline`: the trace of a run, to look at in Perfetto or chrome://tracing."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Sequence
from pathlib import Path

import typer

from dlbench.arguments import ArgumentParser, path
from dlbench.cli.forwarding import add_command
from dlbench.errors import OptionError, one_line

HELP = "Write a run recorded with --record-ops as a trace that Perfetto and chrome://tracing open."
EXAMPLES = """examples:
  dlbench timeline results/dp-4.jsonl -o trace.json
  dlbench timeline results/dp-4.jsonl -o trace.json.gz --iterations 1:3 --ranks 0-7,16
  dlbench timeline results/dp-64.jsonl -o trace.json --ranks 0-56:8
  dlbench timeline "$(ls -t results/dp-4-*.jsonl | head -n 1)" -o trace.json        the newest of several

Open the trace in https://ui.perfetto.dev, which keeps it in the browser, or in Chromium at chrome://tracing.
"""
_ENDINGS = (".json", ".json.gz")
_ITERATIONS = re.compile("(?P<first>[0-9]{1,9})?(?P<colon>:)?(?(colon)(?P<last>[0-9]{1,9})?)")
_RANKS = re.compile("([0-9]{1,9})(?:-([0-9]{1,9})(?::([1-9][0-9]{0,8}))?)?")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    add_command(app, "timeline", HELP, timeline)


def timeline(argv: Sequence[str]) -> None:
    """Write the trace and say what is in it. Raises `UserError` where options or record are wrong."""
    arguments = _parser().parse_args(argv)
    record = _only(arguments.records)
    from dlbench.analysis.timeline import write_timeline  # noqa: PLC0415 - NumPy takes its time

    shown = write_timeline(record, arguments.output, iterations=arguments.iterations, ranks=arguments.ranks)
    first, last = shown.iterations[0], shown.iterations[-1]
    iterations = f"iteration {first}" if first == last else f"iterations {first} to {last}"
    counts = {"rank": len(shown.ranks), "op": shown.ops, "message": shown.messages, "request": shown.requests}
    parts = [iterations, *(f"{count} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items())]
    print(f"{one_line(str(arguments.output))}: {', '.join(parts)}")
    for note in shown.notes:
        print(f"  note: {note}")


def _parser() -> ArgumentParser:
    usage = "dlbench timeline RUN -o FILE [options]"
    parser = ArgumentParser(prog="dlbench timeline", usage=usage, description=HELP, epilog=EXAMPLES)
    parser.add_argument(
        "records", nargs="+", type=_path, metavar="RUN", help="one record NAME.jsonl, its NAME.ops.npy beside it"
    )
    parser.add_argument(
        "-o", "--output", type=_output, required=True, metavar="FILE", help="trace to write, NAME.json or NAME.json.gz"
    )
    parser.add_argument(
        "--iterations",
        type=_iterations,
        default=(0, None),
        metavar="N[:M]",
        help="only these, counted from 0 with warm-ups: 2, or 1:3 for 1, 2 and 3, or 4: from 4 on (default all)",
    )
    parser.add_argument(
        "--ranks", type=_ranks, default=(), metavar="LIST", help="only these: 0-7, or 0,4,8-11, or 0-56:8 (default all)"
    )
    return parser


def _only(records: Sequence[Path]) -> Path:
    """The record that was named; a pattern of the shell may stand for several."""
    first, *others = records
    if others:
        raise OptionError(
            f"timeline takes one record; {len(records)} are given, {first} to {records[-1]}: name one of them"
        )
    return first


def _path(value: str) -> Path:
    return Path(path(value))


def _output(value: str) -> Path:
    if not value.endswith(_ENDINGS):
        raise ArgumentTypeError(f"expected a name that ends in {' or '.join(_ENDINGS)}, found {value!r}")
    return _path(value)


def _iterations(value: str) -> tuple[int, int | None]:
    found = _ITERATIONS.fullmatch(value)
    if not found or not value:
        raise ArgumentTypeError(f"expected N, N:M, N: or :M, found {value!r}")
    first = int(found["first"] or 0)
    if not found["colon"]:
        return first, first
    last = int(found["last"]) if found["last"] else None
    if last is not None and last < first:
        raise ArgumentTypeError(f"{value!r} ends before it begins; write {last}:{first}")
    return first, last


def _ranks(value: str) -> list[range]:
    return [_rank_range(part) for part in value.split(",")]


def _rank_range(value: str) -> range:
    found = _RANKS.fullmatch(value)
    if not found:
        raise ArgumentTypeError(f"expected ranks such as 0-7, 0,4,8-11 or 0-56:8, found {value!r}")
    first = int(found[1])
    last = int(found[2] or first)
    if last < first:
        raise ArgumentTypeError(f"{value!r} ends before it begins; write {last}-{first}")
    return range(first, last + 1, int(found[3] or 1))
