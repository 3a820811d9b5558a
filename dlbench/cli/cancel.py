"""`dlbench cancel`: stop the experiments of a campaign, in peace where they run."""

from __future__ import annotations

from typing import Annotated

import typer

from dlbench.cli.status import Folder


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(cancel)


def cancel(
    folder: Folder,
    experiments: Annotated[
        list[str] | None, typer.Argument(metavar="[EXPERIMENT…]", help="Only these.", show_default=False)
    ] = None,
) -> None:
    """Cancel the experiments of a campaign that are pending or running; 'dlbench submit' submits them again.

    Runs finish their iteration first, so that no record loses one.
    """
    from dlbench.slurm.campaign import open_campaign  # noqa: PLC0415 - NumPy and YAML
    from dlbench.slurm.submit import cancel as cancel_experiments  # noqa: PLC0415

    cancel_experiments(open_campaign(folder), experiments or [], print)
