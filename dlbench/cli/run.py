"""`dlbench run`: start the ranks of a strategy with the launcher that belongs to the MPI in use."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from dlbench.arguments import ArgumentParser
from dlbench.cli.forwarding import add_command
from dlbench.cli.launching import add_launch_arguments, start
from dlbench.errors import OptionError
from dlbench.runtime.options import check_request, parse_request, run_parser
from dlbench.slurm.launchers import blas_threads, plan_launch
from dlbench.strategies import STRATEGIES, get_strategy

HELP = "Run a strategy on N ranks with the launcher that belongs to the MPI in use."
EXAMPLES = """examples:
  dlbench run dp -n 4 --scale 0.01 --time-scale 0.1      a small run on this machine
  dlbench run fsdp -n 4 --scale 0.002 --time-scale 0.1 --check --record-ops
                                                         verify the data first, record every op
  dlbench run dp_pp -n 4 --config site.yaml --json       options from a file of yours, summary as JSON
  dlbench run dp -n 64 --launcher srun                   on a cluster, inside a SLURM allocation
  dlbench run dp -n 4 --dry-run                          only show the command

'dlbench run STRATEGY --help' lists all options of a run.
"""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    add_command(app, "run", HELP, run)


def run(argv: Sequence[str]) -> None:
    """Check the options, then become the launcher; returns only after `--dry-run`.

    Raises `UserError` where the options are wrong or no launcher is found.
    """
    strategy, arguments = _split_strategy(argv)
    own, rank_arguments = _own_options(strategy).parse_known_args(arguments)
    parser = run_parser(f"dlbench run {strategy}", strategy)
    parser.usage = f"dlbench run {strategy} -n N [options]"
    add_launch_arguments(parser)
    request = parse_request(strategy, parser, rank_arguments)
    if own.ranks is None:
        raise OptionError(f"how many ranks? e.g. dlbench run {strategy} -n 4")
    check_request(request, own.ranks)
    launch = plan_launch(own.launcher, own.ranks, os.environ, own.launcher_args)
    threads = blas_threads(own.ranks) if request.run.compute == "gemm" else {}
    program = [sys.executable, "-m", f"dlbench.{strategy}", *rank_arguments]
    start([*launch.command, *own.launcher_args, *program], {**launch.environment, **threads}, dry_run=own.dry_run)


def _split_strategy(argv: Sequence[str]) -> tuple[str, list[str]]:
    if argv and not argv[0].startswith("-"):
        return get_strategy(argv[0]).name, list(argv[1:])
    if "--help" in argv or "-h" in argv:
        _overview().parse_args(["--help"])
    raise OptionError(f"which strategy? dlbench run STRATEGY -n N, with STRATEGY one of {', '.join(STRATEGIES)}")


def _overview() -> ArgumentParser:
    parser = ArgumentParser(prog="dlbench run", description=HELP, epilog=EXAMPLES)
    parser.add_argument("strategy", metavar="STRATEGY", help=", ".join(STRATEGIES))
    add_launch_arguments(parser)
    return parser


def _own_options(strategy: str) -> ArgumentParser:
    parser = ArgumentParser(prog=f"dlbench run {strategy}", add_help=False)
    add_launch_arguments(parser)
    return parser
