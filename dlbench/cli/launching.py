"""What commands that become a launcher share: their options, and the change."""

from __future__ import annotations

import os
import shlex
import sys
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from typing import NoReturn

from dlbench.arguments import ArgumentParser, at_least
from dlbench.errors import PreflightError


def add_launch_arguments(parser: ArgumentParser) -> None:
    """Add the options that say how to launch."""
    launch = parser.add_argument_group("how to launch")
    launch.add_argument("-n", "--ranks", type=at_least(1), metavar="N", help="number of ranks")
    launch.add_argument(
        "--launcher", default="auto", metavar="NAME", help="auto (default), srun, or the path of an mpiexec"
    )
    launch.add_argument(
        "--launcher-args",
        type=_shell_words,
        default=[],
        metavar="TEXT",
        help="more arguments for the launcher, quoted as for a shell: --launcher-args='-hosts a,b'; "
        "dlbench then assumes nothing about the hosts",
    )
    launch.add_argument("--dry-run", action="store_true", help="print the command and leave")


def _shell_words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} cannot be split into words: {error}") from None


def start(command: Sequence[str], environment: Mapping[str, str], *, dry_run: bool) -> None:
    """Become the launcher, with these variables where the user has not set them; returns only from a dry run.

    Raises `PreflightError` where it cannot be started, or is srun without a controller.
    """
    added = {name: value for name, value in environment.items() if name not in os.environ}
    if dry_run:
        # The name of an assignment must not be quoted, or the shell takes the whole for a command.
        print(*(f"{name}={shlex.quote(value)}" for name, value in added.items()), shlex.join(command))
        return
    if command[0] == "srun":
        from dlbench.slurm.steps import require_controller  # noqa: PLC0415 - only for SLURM

        require_controller()
    _become(command, {**os.environ, **added})


def _become(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by the launcher, so that signals reach it and its exit code is ours."""
    sys.stdout.flush()
    try:
        os.execvpe(command[0], list(command), environment)
    except OSError as error:
        raise PreflightError(f"cannot start {command[0]}: {error.strerror}") from None
