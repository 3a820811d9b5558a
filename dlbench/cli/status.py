"""`dlbench status`: what has become of a campaign's experiments.

With `--json` the output is one array with an object an experiment: experiment, kind, jobs, nodes, state, job_id
("local" for one that runs here, empty for one never submitted), iterations and reason.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Annotated

import typer

from dlbench.cli.specs import print_table
from dlbench.errors import OptionError, one_line

if TYPE_CHECKING:
    from dlbench.slurm.states import Status

_CLEAR = "\033[H\033[2J"

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a campaign.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(status)


def status(
    folder: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    watch: Annotated[
        float | None, typer.Option(metavar="S", help="Print again every S seconds, until nothing is under way.")
    ] = None,
) -> None:
    """Show the state of every experiment of a campaign.

    States: planned, pending, running, completed, incomplete (a job was given up), failed, cancelled, lost.
    """
    from dlbench.slurm.campaign import open_campaign  # noqa: PLC0415 - NumPy and YAML
    from dlbench.slurm.states import UNDER_WAY, survey  # noqa: PLC0415

    if watch is not None and not watch > 0:
        raise OptionError(f"--watch {watch:g}: expected a number of seconds above 0")
    campaign = open_campaign(folder)
    while True:
        found = survey(campaign)
        if watch is not None and sys.stdout.isatty():
            print(_CLEAR, end="")
        _print_json(found) if as_json else show(found)
        if watch is None or not any(entry.state in UNDER_WAY for entry in found):
            return
        sleep(watch)


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
