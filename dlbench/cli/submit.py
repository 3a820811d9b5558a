"""`dlbench submit`: from a system's name to experiments that run, on a cluster or on this machine."""

from __future__ import annotations

import os
import shlex
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dlbench.arguments import ArgumentParser, path, text
from dlbench.cli.forwarding import add_command
from dlbench.cli.plan_options import add_plan_arguments, design_plan, options_of_runs, plan_request, run_options
from dlbench.cli.status import show
from dlbench.errors import one_line

if TYPE_CHECKING:
    from dlbench.slurm.campaign import Campaign
    from dlbench.slurm.settings import SiteSettings
    from dlbench.specs import SystemSpec

HELP = "Design a set of experiments, place it, and submit what is missing of it."
EPILOG = """{options}

Account, reservation, qos, partition, time, environment and setup come from the first of: the option, --config FILE,
~/.config/dlbench/site.yaml, the environment (DLBENCH_ACCOUNT, …). The files are YAML with these names as keys.

The folder keeps the plan, the scripts and what was submitted. The same command again submits only what is missing:
what was not yet submitted, failed, was cancelled, or was lost. See also 'dlbench status' and 'dlbench cancel'.

A system without SLURM, such as local, has its experiments run here, one after the other. There, unless told otherwise,
runs are small: {small}.

examples:
  dlbench submit --system local --pattern tier --experiments 2     a small set on this machine
  dlbench submit --system leonardo --pattern tier --dry-run -o look     write plan and scripts, submit nothing

on the cluster, with your account, and with a reservation where dlbench chooses the nodes:
  dlbench submit --system leonardo --pattern tier --nodes 'lrdn[0001-0510]' --account ABC --reservation XYZ
  dlbench submit --system lumi --pattern uniform --sizes 16,64 --mode queue --account ABC"""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    add_command(app, "submit", HELP, submit)


def submit(argv: Sequence[str]) -> int:
    """Do what the command line asks for; exit code. Raises `UserError`."""
    from dlbench.slurm.campaign import (  # noqa: PLC0415 - NumPy, YAML
        Campaign,
        find_campaign,
        locked,
        make_folder,
        start_campaign,
    )
    from dlbench.slurm.job_arguments import check_plan  # noqa: PLC0415
    from dlbench.slurm.planning import is_here  # noqa: PLC0415
    from dlbench.slurm.settings import NAMES, load_settings  # noqa: PLC0415
    from dlbench.specs import load_system  # noqa: PLC0415

    parser = _parser()
    arguments, others = parser.parse_known_args(argv)
    system = load_system(arguments.system)
    request = plan_request(arguments, system, run_options(others, parser))
    options = {name: getattr(arguments, name) for name in NAMES}
    settings = load_settings(options, arguments.config, os.environ)
    folder = arguments.output or Path(f"campaign-{system.name}-{request.pattern}-s{request.seed}")
    campaign = find_campaign(folder, request)
    plan = campaign.plan if campaign else design_plan(request, system, settings.partition, settings.reservation)
    check_plan(plan, folder, campaign.plan_file if campaign else None)
    if not is_here(system):
        _check(campaign or Campaign(folder, request, plan), system, settings, arguments)
    make_folder(folder)
    with locked(folder) as lock:
        campaign = find_campaign(folder, request) or start_campaign(folder, request, plan)
        _describe(campaign)
        if is_here(system):
            return _run_here(campaign, lock, arguments)
        return _submit(campaign, system, settings, arguments)


def _check(campaign: Campaign, system: SystemSpec, settings: SiteSettings, arguments: Namespace) -> None:
    """Raise `UserError` for a campaign that cannot be submitted, before there is anything of it."""
    from dlbench.slurm.planning import check_names, check_reservation  # noqa: PLC0415
    from dlbench.slurm.render import render  # noqa: PLC0415
    from dlbench.slurm.submit import design_scripts  # noqa: PLC0415

    dry_run = arguments.dry_run
    for script in design_scripts(campaign, campaign.plan.experiments, system, settings, draft=dry_run):
        render(script)
    if not dry_run:
        check_names(campaign.plan, system)
        if settings.reservation is not None:
            check_reservation(campaign.plan, settings.reservation)


def _describe(campaign: Campaign) -> None:
    plan = campaign.plan
    print(f"# plan       {plan.content()}")
    print(f"# machine    {one_line(plan.system)}, {plan.gpus} GPUs, mode {plan.mode}, seed {plan.seed}")
    if options := campaign.request.options:
        print(f"# options    {one_line(', '.join(f'{name} {value}' for name, value in options.items()))}")
    for note in plan.notes:
        print(f"# note       {one_line(note)}")
    print(f"# folder     {one_line(str(campaign.folder))}")


def _run_here(campaign: Campaign, lock: int, arguments: Namespace) -> int:
    from dlbench.slurm.states import survey  # noqa: PLC0415
    from dlbench.slurm.submit import missing, run_here  # noqa: PLC0415

    experiments = missing(campaign, again=arguments.again)
    if arguments.dry_run:
        for experiment in campaign.plan.experiments:
            campaign.write_experiment(experiment)
        print(f"nothing was run; {len(experiments)} experiments are missing")
        return 0
    code = run_here(campaign, experiments, print, lock)
    show(survey(campaign, locked=True))
    print(f"'dlbench analyze {shlex.quote(str(campaign.folder))}' says what the records mean")
    return code


def _submit(campaign: Campaign, system: SystemSpec, settings: SiteSettings, arguments: Namespace) -> int:
    from dlbench.slurm.submit import missing, submit_all, write_scripts  # noqa: PLC0415

    if arguments.dry_run:
        _draft(campaign, system, settings)
        return 0
    experiments = missing(campaign, again=arguments.again)
    submit_all(campaign, experiments, write_scripts(campaign, experiments, system, settings), print)
    left = len(campaign.plan.experiments) - len(experiments)
    print(f"{len(experiments)} submitted, {left} were there; see 'dlbench status {shlex.quote(str(campaign.folder))}'")
    return 0


def _draft(campaign: Campaign, system: SystemSpec, settings: SiteSettings) -> None:
    """Write the scripts to be looked at, and say what they lack."""
    from dlbench.slurm.submit import design_scripts, write_scripts  # noqa: PLC0415

    experiments = campaign.plan.experiments
    scripts = write_scripts(campaign, experiments, system, settings, draft=True)
    designed = design_scripts(campaign, experiments, system, settings, draft=True)
    if absent := list(dict.fromkeys(name for script in designed for name in script.missing())):
        options = " ".join(f"--{name} NAME" for name in absent)
        print(f"# note       the scripts have no {' and no '.join(absent)}: to submit, add {options}")
    print(f"nothing was submitted; {len(scripts)} scripts are written, such as {one_line(str(scripts[0]))}")


def _parser() -> ArgumentParser:
    from dlbench.slurm.job_launchers import LAUNCHERS  # noqa: PLC0415 - it loads what runs are checked with

    parser = ArgumentParser(prog="dlbench submit", description=HELP)
    add_plan_arguments(parser)
    _add_site(parser)
    how = parser.add_argument_group("how to submit")
    how.add_argument(
        "-o", "--output", type=_folder, metavar="DIR", help="folder (default campaign-SYSTEM-PATTERN-sSEED)"
    )
    how.add_argument("--again", action="store_true", help="also what is incomplete: a job of it never completed")
    how.add_argument("--dry-run", action="store_true", help="write plan and scripts, submit nothing; needs no account")
    how.add_argument("--launcher", choices=("auto", *LAUNCHERS), default="auto", help="of the jobs (default auto)")
    parser.epilog = EPILOG.format(options=options_of_runs(parser), small=_small())
    return parser


def _small() -> str:
    from dlbench.slurm.planning import LOCAL_GPUS, LOCAL_OPTIONS, LOCAL_TIMEOUT  # noqa: PLC0415

    options = " ".join(f"--{name} {value:g}" for name, value in LOCAL_OPTIONS.items())
    return f"--gpus {LOCAL_GPUS} --timeout {LOCAL_TIMEOUT} {options}"


def _add_site(parser: ArgumentParser) -> None:
    site = parser.add_argument_group("what the site asks for")
    for name in ("account", "reservation", "qos", "partition"):
        site.add_argument(f"--{name}", type=text, metavar="NAME")
    site.add_argument("--time", type=text, metavar="T", help="limit of every job (default: what its experiment needs)")
    site.add_argument("--environment", type=path, metavar="DIR", help="Python environment with dlbench (default: this)")
    site.add_argument(
        "--setup", type=text, action="append", default=[], metavar="LINE", help="shell, after the modules"
    )
    site.add_argument("--config", type=_folder, metavar="FILE", help="YAML file with these settings")


def _folder(value: str) -> Path:
    return Path(path(value))
