"""`dlbench submit`: from a system's name to experiments that run, on a cluster or on this machine."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dlbench.arguments import ArgumentParser, at_least, path, text
from dlbench.cli.forwarding import add_command
from dlbench.errors import OptionError, one_line

if TYPE_CHECKING:
    from dlbench.slurm.campaign import Campaign, Request
    from dlbench.slurm.settings import SiteSettings
    from dlbench.specs import SystemSpec

HELP = "Design a set of experiments, place it, and submit what is missing of it."
EPILOG = """All options of 'dlbench run' that say how a run is measured are handed to every job: --iterations, --scale,
--time-scale, --until-ci, --dtype, …

Account, reservation, qos, partition, time, environment and setup come from the first of: the option, --config FILE,
~/.config/dlbench/site.yaml, the environment (DLBENCH_ACCOUNT, …). The files are YAML with these names as keys.

The folder keeps the plan, the scripts and what was submitted. The same command again submits only what is missing:
what was not yet submitted, failed, was cancelled, or was lost. See also 'dlbench status' and 'dlbench cancel'.

A system without SLURM, such as local, has its experiments run here, one after the other. There, unless told otherwise,
runs are small: {small}.

examples:
  dlbench submit --system local --pattern tier --experiments 2     a small set on this machine
  dlbench submit --system leonardo --pattern tier --dry-run        write plan and scripts, submit nothing
  dlbench submit --system leonardo --pattern tier --nodes 'lrdn[0001-0510]' --account ABC --reservation XYZ
  dlbench submit --system lumi --pattern uniform --sizes 16,64 --mode queue"""

_OF_THE_PLAN = (
    "model", "record", "system", "placement", "experiment", "job", "concurrent-jobs", "label", "delay", "json", "grace",
)  # fmt: skip
"""Options of a run that the plan or the pool decides."""
_TAKEN_OVER = (
    "pattern", "mode", "seed", "experiments", "patterns", "baselines", "gpus", "nodes", "exclude", "utilisation",
    "launcher",
)  # fmt: skip
"""Options that are what a campaign is asked for, under the same names."""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    add_command(app, "submit", HELP, submit)


def submit(argv: Sequence[str]) -> int:
    """Do what the command line asks for; exit code. Raises `UserError`."""
    from dlbench.slurm.campaign import find_campaign, locked, start_campaign  # noqa: PLC0415 - NumPy, Jinja2, YAML
    from dlbench.slurm.planning import is_here  # noqa: PLC0415
    from dlbench.slurm.settings import NAMES, load_settings  # noqa: PLC0415
    from dlbench.specs import load_system  # noqa: PLC0415

    parser = _parser()
    arguments, others = parser.parse_known_args(argv)
    system = load_system(arguments.system)
    request = _request(arguments, system, _run_options(others, parser))
    options = {name: getattr(arguments, name) for name in NAMES}
    settings = load_settings(options, arguments.config, os.environ)
    folder = arguments.output or Path(f"campaign-{system.name}-{request.pattern}-s{request.seed}")
    campaign = find_campaign(folder, request)
    plan = campaign.plan if campaign else _plan(request, system, settings)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        campaign = find_campaign(folder, request) or start_campaign(folder, request, plan)
        _describe(campaign)
        if is_here(system):
            return _run_here(campaign, dry_run=arguments.dry_run)
        return _submit(campaign, system, settings, dry_run=arguments.dry_run)


def _plan(request: Request, system: SystemSpec, settings: SiteSettings) -> Any:
    from dlbench.cli.topology import Restriction, restricted  # noqa: PLC0415
    from dlbench.slurm.planning import find_machine, make_plan  # noqa: PLC0415

    partition = settings.partition or (system.scheduler.partition if system.scheduler else None)
    machine = find_machine(system, request.topology, partition, request.gpus)
    topology = restricted(machine.topology, Restriction(nodes=request.nodes, exclude=request.exclude))
    print(f"# topology   {one_line(machine.source)}: {len(topology.nodes)} nodes, {topology.gpus} GPUs")
    return make_plan(request, system, topology)


def _describe(campaign: Campaign) -> None:
    plan = campaign.plan
    kinds = [experiment.kind for experiment in plan.experiments]
    print(f"# plan       {kinds.count('concurrent')} concurrent experiments, {kinds.count('baseline')} baselines")
    print(f"# machine    {one_line(plan.system)}, {plan.gpus} GPUs, mode {plan.mode}, seed {plan.seed}")
    if options := campaign.request.options:
        print(f"# options    {one_line(', '.join(f'{name} {value}' for name, value in options.items()))}")
    for note in plan.notes:
        print(f"# note       {one_line(note)}")
    print(f"# folder     {one_line(str(campaign.folder))}")


def _run_here(campaign: Campaign, *, dry_run: bool) -> int:
    from dlbench.slurm.submit import missing, run_here  # noqa: PLC0415

    experiments = missing(campaign)
    if dry_run:
        for experiment in campaign.plan.experiments:
            campaign.write_experiment(experiment)
        print(f"nothing was run; {len(experiments)} experiments are missing")
        return 0
    code = run_here(campaign, experiments, print)
    print(f"'dlbench status {one_line(str(campaign.folder))}' shows what there is, 'dlbench analyze' what it means")
    return code


def _submit(campaign: Campaign, system: SystemSpec, settings: SiteSettings, *, dry_run: bool) -> int:
    from dlbench.slurm.planning import check_names  # noqa: PLC0415
    from dlbench.slurm.submit import missing, submit_all, write_scripts  # noqa: PLC0415

    if dry_run:
        scripts = write_scripts(campaign, campaign.plan.experiments, system, settings)
        print(f"nothing was submitted; {len(scripts)} scripts are written, such as {one_line(str(scripts[0]))}")
        return 0
    check_names(campaign.plan, system)
    experiments = missing(campaign)
    submit_all(campaign, experiments, write_scripts(campaign, experiments, system, settings), print)
    left = len(campaign.plan.experiments) - len(experiments)
    print(f"{len(experiments)} submitted, {left} were there; see 'dlbench status {one_line(str(campaign.folder))}'")
    return 0


def _request(arguments: argparse.Namespace, system: SystemSpec, options: dict[str, Any]) -> Request:
    from dlbench.slurm.campaign import Request  # noqa: PLC0415
    from dlbench.slurm.planning import LIVE, LOCAL_OPTIONS, LOCAL_TIMEOUT, is_here  # noqa: PLC0415

    if arguments.sizes and arguments.pattern != "uniform":
        raise OptionError("--sizes is for --pattern uniform; the sizes of tiers are in --tiers FILE")
    small = is_here(system) and system.gpu is None
    return Request(
        system=_absolute(arguments.system) or "",
        topology=arguments.topology if arguments.topology == LIVE else _absolute(arguments.topology, is_path=True),
        tiers=_absolute(arguments.tiers),
        catalogue=_absolute(arguments.catalogue),
        rules=_absolute(arguments.rules),
        sizes=tuple(arguments.sizes or ()),
        timeout=arguments.timeout or (LOCAL_TIMEOUT if small else None),
        options={**(LOCAL_OPTIONS if small else {}), **options},
        **{name: getattr(arguments, name) for name in _TAKEN_OVER},
    )


def _absolute(name_or_path: str | None, *, is_path: bool = False) -> str | None:
    """A path that holds in every folder: the pool reads what the command line names. A name stays as it is."""
    if name_or_path is None or not (is_path or "/" in name_or_path or name_or_path.endswith((".yaml", ".yml"))):
        return name_or_path
    return str(Path(name_or_path).expanduser().absolute())


def _run_options(argv: Sequence[str], own: ArgumentParser) -> dict[str, Any]:
    """The options of runs that were given, by their long names. Raises `OptionError` for any other argument."""
    from dlbench.runtime.options import add_run_arguments  # noqa: PLC0415
    from dlbench.strategies.options import add_workload_arguments  # noqa: PLC0415

    parser = ArgumentParser(prog=own.prog, add_help=False)
    add_workload_arguments(parser)
    add_run_arguments(parser)
    for action in parser._actions:
        action.default = argparse.SUPPRESS
    for argument in argv:
        option = argument.partition("=")[0]
        if parser.find(option) is None and own.explain_unknown(option).count("did you mean"):
            own.error(own.explain_unknown(option))
    options = {name.replace("_", "-"): value for name, value in vars(parser.parse_args(argv)).items()}
    for name in options:
        if name in _OF_THE_PLAN:
            raise OptionError(f"--{name}: the plan says this of every job; leave it out")
    return {name: _absolute(value) if name == "gpu" else value for name, value in options.items()}


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="dlbench submit", description=HELP, epilog=_epilog())
    _add_plan(parser)
    _add_site(parser)
    how = parser.add_argument_group("how to submit")
    how.add_argument(
        "-o", "--output", type=_folder, metavar="DIR", help="folder (default campaign-SYSTEM-PATTERN-sSEED)"
    )
    how.add_argument("--dry-run", action="store_true", help="write plan and scripts, submit nothing")
    how.add_argument(
        "--launcher", type=text, default="auto", metavar="NAME", help="of the jobs: auto (default), srun or mpiexec"
    )
    return parser


def _epilog() -> str:
    from dlbench.slurm.planning import LOCAL_GPUS, LOCAL_OPTIONS, LOCAL_TIMEOUT  # noqa: PLC0415

    options = " ".join(f"--{name} {value:g}" for name, value in LOCAL_OPTIONS.items())
    return EPILOG.format(small=f"--gpus {LOCAL_GPUS} --timeout {LOCAL_TIMEOUT} {options}")


def _add_plan(parser: ArgumentParser) -> None:
    what = parser.add_argument_group("what to run")
    what.add_argument("--system", type=text, required=True, metavar="NAME", help="system by name or YAML file")
    what.add_argument(
        "--pattern", choices=("tier", "uniform"), required=True, help="sizes drawn from tiers, or all alike"
    )
    what.add_argument("--gpus", type=at_least(1), metavar="N", help="GPUs of an experiment together (default: all)")
    what.add_argument("--sizes", type=_sizes, metavar="LIST", help="GPUs of a job in uniform patterns, such as 8,32")
    what.add_argument("--nodes", type=text, metavar="LIST", help="only these nodes: lrdn[0001-0180]")
    what.add_argument("--exclude", type=text, metavar="LIST", help="without these nodes")
    what.add_argument(
        "--topology",
        type=text,
        metavar="FILE",
        help="file with what 'scontrol show topology' prints, or 'live' (default: live if possible, else the system's)",
    )
    what.add_argument("--experiments", type=at_least(1), default=12, metavar="N", help="concurrent ones (default 12)")
    what.add_argument("--patterns", type=at_least(1), default=5, metavar="N", help="patterns to draw (default 5)")
    what.add_argument("--utilisation", type=text, metavar="LOW:HIGH", help="share of the GPUs that jobs use")
    what.add_argument("--tiers", type=text, metavar="NAME", help="tiers by name or YAML file")
    what.add_argument("--catalogue", type=text, metavar="NAME", help="strategies and models, by name or YAML file")
    what.add_argument("--rules", type=text, metavar="NAME", help="placement classes, by name or YAML file")
    what.add_argument(
        "--baselines", action=argparse.BooleanOptionalAction, default=True, help="every kind of job alone (default)"
    )
    what.add_argument(
        "--mode",
        choices=("reserved", "queue"),
        default="reserved",
        help="nodes chosen by dlbench, in a reservation (default), or by SLURM",
    )
    what.add_argument("--seed", type=at_least(0), default=0, metavar="S", help="of everything random (default 0)")
    what.add_argument("--timeout", type=at_least(1), metavar="S", help="seconds of every experiment")


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


def _sizes(value: str) -> list[int]:
    return [at_least(1)(size) for size in value.split(",")]
