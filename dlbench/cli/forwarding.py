"""Commands whose arguments argparse reads: its help can have groups and examples, and its errors name the option."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import typer


def add_command(app: typer.Typer, name: str, summary: str, command: Callable[[Sequence[str]], object]) -> None:
    """Add a command that gets its arguments as they were typed; what it returns is the exit code if it is a number."""

    def forward(context: typer.Context) -> object:
        return command(context.args)

    settings = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(name, help=summary, context_settings=settings, add_help_option=False)(forward)
