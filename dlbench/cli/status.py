"""`dlbench status`: what has become of a campaign's experiments.

With `--json` the output is one array with an object an experiment: experiment, kind, jobs, nodes, state, job_id
("local" for one that runs here, empty for one never submitted), iterations and reason.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING

import typer

from dlbench.arguments import ArgumentParser, more_than, path
from dlbench.cli.forwarding import add_command
from dlbench.cli.specs import print_table
from dlbench.errors import one_line

if TYPE_CHECKING:
    from dlbench.slurm.states import Status

HELP = "Show the state of every experiment of a campaign."
EPILOG = """States: planned, pending, running, completed, incomplete (a job was given up), failed, cancelled, lost.
Iterations are those that all runs have measured so far, without warm-ups.

examples:
  dlbench status campaign-leonardo-tier-s0
  dlbench status campaign-leonardo-tier-s0 --watch 60
  dlbench status campaign-leonardo-tier-s0 --json | jq '.[] | select(.state == "failed")'
"""
_CLEAR = "\033[H\033[2J"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    add_command(app, "status", HELP, status)


def status(argv: Sequence[str]) -> None:
    """Print what the command line asks for, once or again and again. Raises `UserError`."""
    from dlbench.slurm.campaign import open_campaign  # noqa: PLC0415 - NumPy and YAML
    from dlbench.slurm.states import UNDER_WAY, survey  # noqa: PLC0415

    arguments = _parser().parse_args(argv)
    campaign = open_campaign(Path(arguments.folder))
    while True:
        found = survey(campaign)
        if arguments.watch is not None and sys.stdout.isatty():
            print(_CLEAR, end="")
        _print_json(found) if arguments.json else show(found)
        if arguments.watch is None or not any(entry.state in UNDER_WAY for entry in found):
            return
        sleep(arguments.watch)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="dlbench status", description=HELP, epilog=EPILOG)
    parser.add_argument("folder", type=path, metavar="DIR", help="folder of a campaign")
    parser.add_argument("--json", action="store_true", help="print a JSON array, an object an experiment")
    parser.add_argument(
        "--watch", type=more_than(0.0), metavar="S", help="print again every S seconds, until nothing is under way"
    )
    return parser


def show(found: list[Status]) -> None:
    """Print a table of the experiments, and how many are in each state."""
    print_table([_row(entry) for entry in found])
    counts = Counter(str(entry.state) for entry in found)
    print(", ".join(f"{count} {state}" for state, count in counts.items()), flush=True)


def _print_json(found: list[Status]) -> None:
    import msgspec  # noqa: PLC0415

    print(msgspec.json.format(msgspec.json.encode(found)).decode(), flush=True)


def _row(entry: Status) -> dict[str, str]:
    return {
        "experiment": one_line(entry.experiment),
        "kind": entry.kind,
        "jobs": str(entry.jobs),
        "nodes": str(entry.nodes),
        "state": entry.state,
        "job": entry.job_id or "-",
        "iterations": str(entry.iterations),
        "reason": one_line(entry.reason) or "-",
    }
