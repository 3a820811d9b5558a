"""`dlbench cancel`: stop the experiments of a campaign, in peace where they run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from dlbench.arguments import ArgumentParser, path
from dlbench.cli.forwarding import add_command

HELP = "Cancel the experiments of a campaign that are pending or running."
EPILOG = """Runs finish their iteration first, so that no record loses one. 'dlbench submit' submits the experiments
again.

examples:
  dlbench cancel campaign-leonardo-tier-s0                         all of them
  dlbench cancel campaign-leonardo-tier-s0 mix-003 alone-001       only these
"""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    add_command(app, "cancel", HELP, cancel)


def cancel(argv: Sequence[str]) -> None:
    """Cancel what the command line names. Raises `UserError`."""
    from dlbench.slurm.campaign import open_campaign  # noqa: PLC0415 - NumPy and YAML
    from dlbench.slurm.submit import cancel as cancel_experiments  # noqa: PLC0415

    parser = ArgumentParser(prog="dlbench cancel", description=HELP, epilog=EPILOG)
    parser.add_argument("folder", type=path, metavar="DIR", help="folder of a campaign")
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help="only these (default: all)")
    arguments = parser.parse_args(argv)
    cancel_experiments(open_campaign(Path(arguments.folder)), arguments.experiments, print)
