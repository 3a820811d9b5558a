"""`dlbench preflight`: check the machine, its launcher and its links before a run is worth starting.

With `--json` stdout is one object; `dlbench.runtime.machine.output` lists its keys.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer

from dlbench.arguments import ArgumentParser, path
from dlbench.cli.forwarding import add_command
from dlbench.cli.launching import add_launch_arguments, start
from dlbench.errors import OptionError
from dlbench.runtime.machine.options import (
    DESCRIPTION,
    PreflightOptions,
    add_preflight_arguments,
    preflight_options,
)
from dlbench.runtime.preflight import launcher_claim
from dlbench.slurm.launchers import Launch, plan_launch

if TYPE_CHECKING:
    from dlbench.slurm.job_launchers import Ranks

EPILOG = """The first step of a batch script, before it spends node-hours. With FOLDER, the folder of an experiment, all
of its nodes are checked. Without -n, SLURM_NTASKS ranks are started. A process that a launcher has started as a rank
(srun dlbench preflight) starts no others.

examples:
  dlbench preflight -n 4                                   on this machine
  dlbench preflight --ranks-per-node 4 --launcher srun     on all nodes of a SLURM allocation
  dlbench preflight campaign/tier-1 --json                 the nodes of an experiment, as JSON

exit codes: 0 nothing is wrong, or there are only warnings; 1 the machine is not fit; 2 wrong options or launcher"""
_JOB_LAUNCHERS = ("auto", "srun", "mpiexec")
_NAME = "dlbench-preflight"
_SPECIAL_STEPS = 0xFFFF_FFF0
"""Numbers of SLURM's own steps, such as the shell of salloc, begin here or above."""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    add_command(app, "preflight", DESCRIPTION, preflight)


def preflight(argv: Sequence[str]) -> None:
    """Become the launcher of a preflight, or one of its ranks; returns only from a dry run.

    Raises `UserError` where the options are wrong or no launcher is found.
    """
    own = _parser().parse_args(argv)
    options = preflight_options(own)
    if own.folder is None and own.launcher == "auto" and started_as_rank(os.environ, own.ranks):
        start(_program(options), {}, dry_run=own.dry_run)
        return
    launch, options = _plan(own, options)
    start([*launch.command, *own.launcher_args, *_program(options)], launch.environment, dry_run=own.dry_run)


def started_as_rank(environment: Mapping[str, str], ranks: int | None) -> bool:
    """Whether a launcher has started this process as one of `ranks` (None: of any number).

    The variables of a batch script, and those of a shell that is a step of its own, make no rank: from there ranks are
    to be started.
    """
    claim = launcher_claim(environment)
    if claim is None or claim.variable == "SLURM_NTASKS":
        return False
    step = environment.get("SLURM_STEP_ID", "")
    if claim.variable == "SLURM_STEP_NUM_TASKS" and step.isdecimal() and int(step) >= _SPECIAL_STEPS:
        return False
    return claim.size > 1 or ranks in (None, 1)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="dlbench preflight",
        usage="dlbench preflight [FOLDER | -n N] [options]",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    parser.add_argument("folder", type=path, nargs="?", metavar="FOLDER", help="folder of an experiment")
    add_launch_arguments(parser)
    add_preflight_arguments(parser)
    return parser


def _program(options: PreflightOptions) -> list[str]:
    return [sys.executable, "-m", "dlbench.preflight", *options.arguments()]


def _plan(own: Namespace, options: PreflightOptions) -> tuple[Launch, PreflightOptions]:
    """How to start the ranks, and what they are told: how many there must be."""
    if own.folder is not None:
        return _on_experiment(own, options)
    if options.ranks_per_node and own.launcher in _JOB_LAUNCHERS and not own.launcher_args:
        from dlbench.slurm.steps import SlurmJob  # noqa: PLC0415 - only for nodes

        if job := SlurmJob.of(os.environ):
            return _on_nodes(own.launcher, job.nodes, options.ranks_per_node, options)
    tasks = os.environ.get("SLURM_NTASKS", "")
    ranks = options.ranks or (int(tasks) if tasks.isdecimal() else None)
    if not ranks:
        raise OptionError("how many ranks? e.g. dlbench preflight -n 4")
    launch = plan_launch(own.launcher, ranks, os.environ, own.launcher_args)
    return launch, msgspec.structs.replace(options, ranks=ranks)


def _on_experiment(own: Namespace, options: PreflightOptions) -> tuple[Launch, PreflightOptions]:
    """All nodes of an experiment, with as many ranks as its largest job has on each."""
    from dlbench.slurm.job_launchers import Ranks  # noqa: PLC0415 - they load all that a run is checked with
    from dlbench.slurm.pool_jobs import load_experiment  # noqa: PLC0415
    from dlbench.slurm.steps import SlurmJob  # noqa: PLC0415

    if options.ranks or own.launcher_args:
        raise OptionError("an experiment says itself how many ranks it has; leave -n and --launcher-args out")
    experiment = load_experiment(Path(own.folder), os.environ, grace_seconds=1.0)
    used = {node for job in experiment.jobs for node in job.nodes}
    slurm_job = SlurmJob.of(os.environ)
    if not used or not slurm_job:
        return _placed(own.launcher, Ranks(name=_NAME, count=experiment.ranks), (), options)
    per_node = options.ranks_per_node or max(job.per_node for job in experiment.jobs)
    nodes = [node for node in slurm_job.nodes if node in used]
    return _on_nodes(own.launcher, nodes, per_node, options, experiment.srun_flags)


def _on_nodes(
    launcher: str, nodes: Sequence[str], per_node: int, options: PreflightOptions, srun_flags: tuple[str, ...] = ()
) -> tuple[Launch, PreflightOptions]:
    """The first nodes of an allocation that the ranks fill, or all; in SLURM's order, in which it numbers ranks."""
    from dlbench.slurm.job_launchers import Ranks  # noqa: PLC0415

    count = options.ranks or len(nodes) * per_node
    needed = -(-count // per_node)
    if needed > len(nodes):
        raise OptionError(
            f"-n {count} with --ranks-per-node {per_node} needs {needed} nodes, and the allocation has {len(nodes)}"
        )
    ranks = Ranks(name=_NAME, count=count, nodes=tuple(nodes[:needed]), per_node=per_node)
    return _placed(launcher, ranks, srun_flags, msgspec.structs.replace(options, ranks_per_node=per_node))


def _placed(
    launcher: str, ranks: Ranks, srun_flags: tuple[str, ...], options: PreflightOptions
) -> tuple[Launch, PreflightOptions]:
    from dlbench.slurm.job_launchers import job_launcher  # noqa: PLC0415

    chosen = job_launcher(launcher, os.environ, ranks=ranks.count, srun_flags=srun_flags, scratch=Path())
    return chosen.launch(ranks), msgspec.structs.replace(options, ranks=ranks.count)
