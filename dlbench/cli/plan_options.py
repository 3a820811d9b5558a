"""The options that say what a plan is: declared once, for every command that designs one."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlbench.analysis.screen import fitted
from dlbench.arguments import ArgumentParser, at_least, between, text
from dlbench.errors import OptionError, one_line

if TYPE_CHECKING:
    from dlbench.allocators.experiment import Plan
    from dlbench.slurm.campaign import Request
    from dlbench.specs import SystemSpec

_OF_THE_PLAN = (
    "model", "record", "system", "placement", "experiment", "job", "concurrent-jobs", "label", "delay", "json", "grace",
    "config",
)  # fmt: skip
"""Options of a run that the plan or the pool decides."""
_TAKEN_OVER = (
    "pattern", "mode", "seed", "experiments", "patterns", "baselines", "gpus", "nodes", "exclude", "utilisation",
    "launcher",
)  # fmt: skip
"""Options that are what a campaign is asked for, under the same names."""
_count = between(1, 1000)
"""Of experiments and of patterns: with more a plan is not designed in seconds any more."""


def add_plan_arguments(parser: ArgumentParser) -> None:
    """Declare the options that decide what a plan is."""
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
    what.add_argument(
        "--sinfo",
        type=text,
        metavar="FILE",
        help="for --topology FILE: what 'sinfo' prints, for the usable nodes",
    )
    what.add_argument("--experiments", type=_count, default=12, metavar="N", help="concurrent ones (default 12)")
    what.add_argument("--patterns", type=_count, default=5, metavar="N", help="patterns to draw (default 5)")
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


def plan_request(arguments: argparse.Namespace, system: SystemSpec, options: dict[str, Any]) -> Request:
    """What the parsed options, and those of the runs, ask for. Raises `OptionError` where they contradict."""
    from dlbench.slurm.campaign import Request  # noqa: PLC0415
    from dlbench.slurm.planning import LIVE, LOCAL_OPTIONS, LOCAL_TIMEOUT, is_here  # noqa: PLC0415

    if arguments.sizes and arguments.pattern != "uniform":
        raise OptionError("--sizes is for --pattern uniform; the sizes of tiers are in --tiers FILE")
    if arguments.sinfo and arguments.topology in (None, LIVE):
        raise OptionError("--sinfo is for --topology FILE; a live cluster says itself which nodes are usable")
    if arguments.topology and is_here(system):
        raise OptionError(f"--topology is for clusters; the jobs of system {system.name} run on this machine")
    small = is_here(system) and system.gpu is None
    return Request(
        system=_absolute(arguments.system) or "",
        topology=arguments.topology if arguments.topology == LIVE else _absolute(arguments.topology, is_path=True),
        sinfo=_absolute(arguments.sinfo, is_path=True),
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


def run_options(argv: Sequence[str], own: ArgumentParser) -> dict[str, Any]:
    """The options of runs that were given, by their long names. Raises `OptionError` for any other argument."""
    parser = _parser_of_runs(own)
    if unknown := parser.parse_known_args(argv)[1]:
        own.error(own.explain_unknown(unknown[0], parser))
    options = {name.replace("_", "-"): value for name, value in vars(parser.parse_args(argv)).items()}
    for name in options:
        if name in _OF_THE_PLAN:
            raise OptionError(f"--{name}: the plan says this of every job; leave it out")
    return {name: _absolute(value) if name == "gpu" else value for name, value in options.items()}


def options_of_runs(own: ArgumentParser) -> str:
    """What the help of a command with these options of its own says of those of the runs."""
    actions = [action for action in _parser_of_runs(own)._actions if action.dest.replace("_", "-") not in _OF_THE_PLAN]
    names = [name for action in actions if not own.find(name := action.option_strings[0])]
    text = (
        f"Of the options of a run ('python -m dlbench.dp --help'), these become those of every job: {', '.join(names)}."
    )
    return textwrap.fill(text, 100, break_on_hyphens=False)


def _parser_of_runs(own: ArgumentParser) -> ArgumentParser:
    """Every option of a run of any strategy, without defaults."""
    from dlbench.runtime.options import add_run_arguments  # noqa: PLC0415
    from dlbench.strategies.options import add_workload_arguments  # noqa: PLC0415

    parser = ArgumentParser(prog=own.prog, add_help=False)
    add_workload_arguments(parser)
    add_run_arguments(parser)
    for action in parser._actions:
        action.default = argparse.SUPPRESS
    return parser


def design_plan(request: Request, system: SystemSpec, partition: str | None, reservation: str | None = None) -> Plan:
    """The plan that a request asks for, on the partition or else the system's own; prints where its nodes are from.

    On a live cluster jobs whose nodes are chosen get those of the reservation.
    """
    from dlbench.cli.topology import Restriction, restricted  # noqa: PLC0415
    from dlbench.slurm.live import USABLE_STATES  # noqa: PLC0415
    from dlbench.slurm.planning import find_machine, make_plan  # noqa: PLC0415

    partition = partition or (system.scheduler.partition if system.scheduler else None)
    reserved = reservation if request.mode == "reserved" else None
    machine = find_machine(system, request, partition, reserved)
    restriction = Restriction(nodes=request.nodes, exclude=request.exclude)
    if request.sinfo is not None:
        usable = Restriction(partition=partition, sinfo=Path(request.sinfo), states=USABLE_STATES)
        machine = replace(machine, topology=restricted(machine.topology, usable))
    topology = restricted(machine.topology, restriction)
    found = f"{one_line(machine.source)}: {len(topology.nodes)} nodes, {topology.gpus} GPUs"
    print(fitted(f"# topology   {found}", f"# {'':<11}"))
    return make_plan(request, system, topology)


def _sizes(value: str) -> list[int]:
    return [at_least(1)(size) for size in value.split(",")]
