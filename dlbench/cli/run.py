"""`dlbench run`: start the ranks of a strategy with the launcher that belongs to the MPI in use."""

from __future__ import annotations

import os
import shlex
import sys
from argparse import ArgumentTypeError
from collections.abc import Sequence
from typing import NoReturn

import typer

from dlbench.arguments import ArgumentParser, at_least
from dlbench.errors import OptionError, PreflightError
from dlbench.runtime.options import check_request, parse_request, run_parser
from dlbench.slurm.launchers import blas_threads, plan_launch
from dlbench.strategies import STRATEGIES, get_strategy

HELP = "Run a strategy on N ranks with the launcher that belongs to the MPI in use."
EXAMPLES = """examples:
  dlbench run dp -n 4 --scale 0.01 --time-scale 0.1      a small run on this machine
  dlbench run fsdp -n 8 --check --record-ops             verify the data first, record every op
  dlbench run dp_pp -n 4 --config site.yaml --json       options from a file, summary as JSON
  dlbench run dp -n 64 --launcher srun                   inside a SLURM allocation
  dlbench run dp -n 4 --dry-run                          only show the command

'dlbench run STRATEGY --help' lists all options of a run.
"""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "run",
        help=HELP,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
        add_help_option=False,
    )(_command)


def _command(context: typer.Context) -> None:
    run(context.args)


def run(argv: Sequence[str]) -> None:
    """Check the options, then become the launcher; returns only after `--dry-run`.

    Raises `UserError` where the options are wrong or no launcher is found.
    """
    strategy, arguments = _split_strategy(argv)
    own, rank_arguments = _own_options(strategy).parse_known_args(arguments)
    parser = run_parser(f"dlbench run {strategy}", strategy)
    parser.usage = f"dlbench run {strategy} -n N [options]"
    _add_own_options(parser)
    request = parse_request(strategy, parser, rank_arguments)
    if own.ranks is None:
        raise OptionError(f"how many ranks? e.g. dlbench run {strategy} -n 4")
    check_request(request, own.ranks)
    launch = plan_launch(own.launcher, own.ranks, os.environ, own.launcher_args)
    threads = blas_threads(own.ranks) if request.run.compute == "gemm" else {}
    program = [sys.executable, "-m", f"dlbench.{strategy}", *rank_arguments]
    _start([*launch.command, *own.launcher_args, *program], {**launch.environment, **threads}, dry_run=own.dry_run)


def _start(command: Sequence[str], environment: dict[str, str], *, dry_run: bool) -> None:
    # What the user has set in the environment is kept.
    added = {name: value for name, value in environment.items() if name not in os.environ}
    if dry_run:
        # The name of an assignment must not be quoted, or the shell takes the whole for a command.
        print(*(f"{name}={shlex.quote(value)}" for name, value in added.items()), shlex.join(command))
        return
    _become(command, {**os.environ, **added})


def _become(command: Sequence[str], environment: dict[str, str]) -> NoReturn:
    """Replace this process by the launcher, so that signals reach it and its exit code is ours."""
    sys.stdout.flush()
    try:
        os.execvpe(command[0], list(command), environment)
    except OSError as error:
        raise PreflightError(f"cannot start {command[0]}: {error.strerror}") from None


def _shell_words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} cannot be split into words: {error}") from None


def _split_strategy(argv: Sequence[str]) -> tuple[str, list[str]]:
    if argv and not argv[0].startswith("-"):
        return get_strategy(argv[0]).name, list(argv[1:])
    if "--help" in argv or "-h" in argv:
        _overview().parse_args(["--help"])
    raise OptionError(f"which strategy? dlbench run STRATEGY -n N, with STRATEGY one of {', '.join(STRATEGIES)}")


def _overview() -> ArgumentParser:
    parser = ArgumentParser(prog="dlbench run", description=HELP, epilog=EXAMPLES)
    parser.add_argument("strategy", metavar="STRATEGY", help=", ".join(STRATEGIES))
    _add_own_options(parser)
    return parser


def _own_options(strategy: str) -> ArgumentParser:
    parser = ArgumentParser(prog=f"dlbench run {strategy}", add_help=False)
    _add_own_options(parser)
    return parser


def _add_own_options(parser: ArgumentParser) -> None:
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
