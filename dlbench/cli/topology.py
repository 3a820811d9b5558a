"""`dlbench topology`: groups, switches and nodes of a machine, and which of them a restriction leaves.

With `--json` the output is one object: name, nodes, gpus_per_node and gpus (null where a file does not say), groups
(each with its name, nodes and switches, these with name, nodes and hosts, a host list) and irregular_groups and
irregular_switches (names).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

import typer

from dlbench.allocators.topology import Group, Topology, TopologyError, Unit, from_system, irregular, usual_size
from dlbench.arguments import ArgumentParser, text
from dlbench.cli.forwarding import add_command
from dlbench.cli.selection import results_path
from dlbench.cli.specs import print_table
from dlbench.errors import OptionError, SpecError, one_line
from dlbench.slurm.hostlist import HostListError, compress, expand
from dlbench.slurm.sinfo import parse_states, read_sinfo
from dlbench.slurm.topology_conf import read_topology
from dlbench.specs import load_system, system_names

HELP = "Show a machine as groups, L1 switches and nodes, and what is irregular about it."
EPILOG = """examples:
  dlbench topology leonardo                              the system of that name
  dlbench topology local                                 every core of this machine as a node of one GPU
  dlbench topology my-cluster.yaml --json                one of your own
  dlbench topology topology.conf --gpus-per-node 4       a file of the cluster
  dlbench topology <(scontrol show topology) --sinfo <(sinfo) --partition gpu --states idle      on the cluster
"""
_SHOWN_UNITS = 8
"""Irregular switches or groups that are listed by name; a machine in use has hundreds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restriction:
    """Which nodes of a machine to use; None: all. Lists of nodes are host lists, as SLURM writes them."""

    partition: str | None = None
    sinfo: Path | None = None
    """File with the output of `sinfo`, which says what is in a partition and in which state."""
    states: str | None = None
    """States of the nodes, separated by commas."""
    nodes: str | None = None
    exclude: str | None = None


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    add_command(app, "topology", HELP, topology)


def topology(argv: Sequence[str]) -> None:
    """Print what the command line asks for. Raises `UserError`."""
    arguments = _parser().parse_args(argv)
    where, gpus_per_node = arguments.where, arguments.gpus_per_node
    restriction = Restriction(**{field.name: getattr(arguments, field.name) for field in fields(Restriction)})
    found = restricted(load_topology(where, gpus_per_node), restriction)
    gpus = None if gpus_per_node is None and not _is_system(where) else found.gpus_per_node
    if arguments.json:
        print(json.dumps(_document(found, gpus), indent=2, ensure_ascii=False))
        return
    print("\n".join(_summary(found, gpus)))
    print_table([_row(group, gpus) for group in found.groups])


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="dlbench topology", description=HELP, epilog=EPILOG)
    parser.add_argument(
        "where",
        type=text,
        metavar="SYSTEM|FILE",
        help="system by name or YAML file, or a file with what 'scontrol show topology' prints, or topology.conf",
    )
    parser.add_argument("--partition", metavar="NAME", help="only the nodes of this partition; needs --sinfo")
    parser.add_argument("--sinfo", type=results_path, metavar="FILE", help="file with the output of 'sinfo'")
    parser.add_argument("--states", metavar="LIST", help="only nodes in these states: idle,mix; needs --sinfo")
    parser.add_argument("--nodes", metavar="LIST", help="only these nodes: lrdn[0001-0180]")
    parser.add_argument("--exclude", metavar="LIST", help="without these nodes")
    parser.add_argument("--gpus-per-node", type=int, metavar="N", help="GPUs of a node; for a FILE")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def load_topology(where: str, gpus_per_node: int | None = None) -> Topology:
    """Topology of a system, by name or YAML file, or of a topology file, where `gpus_per_node` counts (None: 1).

    Raises `UserError`.
    """
    if _is_system(where):
        if gpus_per_node is not None:
            raise OptionError(f"system {where} says its GPUs per node itself; --gpus-per-node is for topology files")
        return from_system(load_system(where))
    if "/" in where or Path(where).exists():
        return read_topology(Path(where), gpus_per_node=1 if gpus_per_node is None else gpus_per_node)
    try:
        return from_system(load_system(where))
    except SpecError as error:
        raise SpecError(f"{error} or of a topology file") from None


def restricted(topology: Topology, restriction: Restriction) -> Topology:
    """What a restriction leaves of a topology. Raises `UserError`."""
    kept = None if restriction.nodes is None else _listed("--nodes", restriction.nodes)
    dropped = [] if restriction.exclude is None else _listed("--exclude", restriction.exclude)
    wanted = topology.restrict(keep=kept, drop=dropped)
    if restriction.sinfo is None:
        for option, value in (("--partition", restriction.partition), ("--states", restriction.states)):
            if value is not None:
                raise OptionError(f"{option} needs --sinfo FILE, with the output of 'sinfo'")
        return wanted
    states = None if restriction.states is None else parse_states(restriction.states)
    found = set(read_sinfo(restriction.sinfo).nodes(restriction.partition, states))
    if strays := sorted(found.difference(topology.nodes)):
        raise TopologyError(
            f"{restriction.sinfo}: {len(strays)} of its nodes are not in topology {topology.name}, "
            f"such as {strays[0]}; take both from one cluster"
        )
    return wanted.restrict(keep=[node for node in wanted.nodes if node in found])


def _is_system(where: str) -> bool:
    return where in system_names() or where.endswith((".yaml", ".yml"))


def _listed(option: str, hosts: str) -> list[str]:
    try:
        names = expand(hosts)
    except HostListError as error:
        raise OptionError(f"{option}: {error}") from None
    if not names:
        raise OptionError(f"{option}: the list is empty; name one node or more, as in lrdn[0001-0180]")
    return names


def _summary(topology: Topology, gpus_per_node: int | None) -> Iterator[str]:
    yield f"# topology   {one_line(topology.name)}"
    yield f"# nodes      {len(topology.nodes)}"
    if gpus_per_node is None:
        yield "# gpus       not in the file; --gpus-per-node N counts them"
    else:
        yield f"# gpus       {topology.gpus}, {gpus_per_node} per node"
    yield f"# groups     {len(topology.groups)}, of {_sizes(topology.groups)} nodes (minimum/median/maximum)"
    yield f"# switches   {len(topology.switches)}, of {_sizes(topology.switches)} nodes"
    yield from _irregularities("groups", topology.groups)
    yield from _irregularities("switches", topology.switches)


def _sizes(units: Collection[Unit]) -> str:
    sizes = [unit.size for unit in units]
    return f"{min(sizes)}/{median(sizes):g}/{max(sizes)}"


def _irregularities(what: str, units: Sequence[Unit]) -> Iterator[str]:
    odd = irregular(units)
    if not odd:
        return
    named = ", ".join(f"{one_line(unit.name)} ({unit.size})" for unit in odd[:_SHOWN_UNITS])
    others = f" and {len(odd) - _SHOWN_UNITS} more" if len(odd) > _SHOWN_UNITS else ""
    yield f"# irregular  {len(odd)} of {len(units)} {what} have not {usual_size(units)} nodes: {named}{others}"


def _row(group: Group, gpus_per_node: int | None) -> dict[str, str]:
    return {
        "group": one_line(group.name),
        "switches": str(len(group.switches)),
        "nodes": str(group.size),
        "gpus": "-" if gpus_per_node is None else str(group.size * gpus_per_node),
        "nodes/switch": _sizes(group.switches),
    }


def _document(topology: Topology, gpus_per_node: int | None) -> dict[str, Any]:
    return {
        "name": topology.name,
        "nodes": len(topology.nodes),
        "gpus_per_node": gpus_per_node,
        "gpus": None if gpus_per_node is None else topology.gpus,
        "groups": [
            {
                "name": group.name,
                "nodes": group.size,
                "switches": [
                    {"name": switch.name, "nodes": switch.size, "hosts": compress(switch.nodes)}
                    for switch in group.switches
                ],
            }
            for group in topology.groups
        ],
        "irregular_groups": [group.name for group in irregular(topology.groups)],
        "irregular_switches": [switch.name for switch in irregular(topology.switches)],
    }
