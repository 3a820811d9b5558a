"""`dlbench pool`: run the jobs of an experiment at once, each again and again, until a timeout.

With `--json` stdout is one object, the last event of the pool: reason, exit_code, jobs (each with starts, completed,
failed, iterations and given_up, empty where it was not) and left (processes and steps that could not be ended).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, TextIO

import typer

from dlbench.arguments import ArgumentParser, at_least, more_than, path
from dlbench.cli.forwarding import add_command
from dlbench.cli.specs import print_table
from dlbench.errors import one_line
from dlbench.quantities import counted

if TYPE_CHECKING:
    from dlbench.slurm.pool_log import Event, JobFacts, JobTally, PoolEnded

HELP = "Run the jobs of an experiment side by side, each again as it ends, until a timeout."
EPILOG = """FOLDER holds experiment.yaml, a plan of one experiment. Records go to FOLDER/results, what the runs print to
FOLDER/logs, and what happens when to FOLDER/pool.log.

The pool ends once the timeout is over and every job has completed at least once, at the latest after the extension, or
at SIGTERM, SIGINT or SIGUSR1. Then every run finishes its iteration. A job that fails is started again, at most
--respawns times in a row; one that was asked for something impossible is not.

examples:
  dlbench pool campaign/tier-1                          inside a SLURM allocation, or on this machine
  dlbench pool campaign/tier-1 --timeout 240 --json     four minutes, summary as JSON

exit codes: 0 every job has completed, 1 one never has or was given up, 2 wrong experiment or machine, 128 + N ended by
signal N"""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    add_command(app, "pool", HELP, pool)


def pool(argv: Sequence[str]) -> int:
    """Run what the command line asks for; exit code. Raises `UserError` where it cannot be run."""
    from dlbench.slurm.job_launchers import job_launcher  # noqa: PLC0415 - it loads all that a run is checked with
    from dlbench.slurm.pool import Policy, Pool, default_extension  # noqa: PLC0415
    from dlbench.slurm.pool_jobs import LOGS, load_experiment  # noqa: PLC0415

    arguments = _parser().parse_args(argv)
    experiment = load_experiment(Path(arguments.folder), os.environ, arguments.grace)
    scratch = experiment.folder / LOGS
    launcher = job_launcher(
        arguments.launcher, os.environ, ranks=experiment.ranks, srun_flags=experiment.srun_flags, scratch=scratch
    )
    timeout = experiment.timeout_seconds if arguments.timeout is None else arguments.timeout
    extension = default_extension(timeout) if arguments.extension is None else arguments.extension
    policy = Policy(timeout=timeout, extension=extension, grace=arguments.grace, respawns=arguments.respawns)
    progress = _Progress(sys.stderr if arguments.json else sys.stdout)
    ended = Pool(experiment, launcher, policy, progress).run()
    if arguments.json:
        import msgspec  # noqa: PLC0415

        print(msgspec.json.encode(ended).decode())
    else:
        print()
        print_table([_row(tally) for tally in ended.jobs])
        print("OK" if ended.exit_code == 0 else f"FAILED: {_why(ended)}")
    return ended.exit_code


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="dlbench pool", description=HELP, epilog=EPILOG)
    parser.add_argument("folder", type=path, metavar="FOLDER", help="folder of the experiment")
    parser.add_argument(
        "--launcher",
        default="auto",
        metavar="NAME",
        help="auto (default), srun, or mpiexec; auto is srun inside a SLURM allocation that suits the MPI",
    )
    parser.add_argument(
        "--timeout", type=more_than(0.0), metavar="S", help="seconds in which jobs are started (default: the plan's)"
    )
    parser.add_argument(
        "--extension",
        type=at_least(0.0),
        metavar="S",
        help="longest wait after that until every job has completed once (default: as long again, and at least 60)",
    )
    parser.add_argument(
        "--grace",
        type=more_than(0.0),
        default=25.0,
        metavar="S",
        help="longest time for runs to finish their iteration at the end (default 25)",
    )
    parser.add_argument(
        "--respawns",
        type=at_least(0),
        default=2,
        metavar="N",
        help="how often in a row a failed job is started again (default 2)",
    )
    parser.add_argument("--json", action="store_true", help="the summary as JSON on stdout, the rest on stderr")
    return parser


class _Progress:
    """One line an event, as it happens; on a terminal failures stand out."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._begin = time()

    def __call__(self, event: Event) -> None:
        for text, bad in _lines(event):
            line = f"{event.time - self._begin:8.1f} s  {one_line(text)}"
            coloured = bad and self._stream.isatty()
            print(f"\033[31m{line}\033[0m" if coloured else line, file=self._stream, flush=True)


def _lines(event: Event) -> list[tuple[str, bool]]:
    """What an event says, and whether that is bad."""
    from dlbench.slurm import pool_log as log  # noqa: PLC0415

    match event:
        case log.PoolStarted():
            about = f"{event.launcher}, timeout {event.timeout_seconds:g} s"
            return [
                (f"{event.experiment}: {counted(len(event.jobs), 'job')}, {about}", False),
                *map(_placed, event.jobs),
            ]
        case log.Started():
            return [(f"{event.job}: start {event.attempt}", False)]
        case log.Running():
            return [(f"{event.job}: running", False)]
        case log.Ended():
            what = f"{event.status}, {counted(event.iterations, 'iteration')}: {event.reason}"
            return [(f"{event.job}: {what}", event.status == "failed")]
        case log.GivenUp():
            return [(f"{event.job}: given up", True)]
        case log.PoolEnded():
            return [(f"ended: {event.reason}", False), *((f"could not be ended: {what}", True) for what in event.left)]


def _placed(job: JobFacts) -> tuple[str, bool]:
    from dlbench.slurm.hostlist import compress  # noqa: PLC0415

    where = f" on {compress(job.nodes)}" if job.nodes else ""
    placement = f", {job.placement}" if job.placement else ""
    return f"  {job.job}: {job.strategy} on {job.gpus} GPUs{placement}{where}", False


def _row(tally: JobTally) -> dict[str, str]:
    return {
        "job": one_line(tally.job),
        "starts": str(tally.starts),
        "completed": str(tally.completed),
        "failed": str(tally.failed),
        "iterations": str(tally.iterations),
        "given up": one_line(tally.given_up) or "-",
    }


def _why(ended: PoolEnded) -> str:
    lists = {
        "given up": [tally.job for tally in ended.jobs if tally.given_up],
        "never completed": [tally.job for tally in ended.jobs if not (tally.completed or tally.given_up)],
    }
    if ended.exit_code > 128:  # noqa: PLR2004 - a signal, as shells count
        return f"ended by {ended.reason}"
    return "; ".join(f"{what}: {one_line(', '.join(jobs))}" for what, jobs in lists.items() if jobs)
