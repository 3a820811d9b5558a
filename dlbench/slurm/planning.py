"""From what a campaign is asked for to its plan: the machine, and the data that the design needs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dlbench.allocators.catalogue import load_catalogue
from dlbench.allocators.design import Settings, design
from dlbench.allocators.experiment import Plan
from dlbench.allocators.patterns import FULL, load_tiers
from dlbench.allocators.rules import load_rules
from dlbench.allocators.topology import Topology, from_system
from dlbench.errors import OptionError, UserError
from dlbench.quantities import counted
from dlbench.slurm.campaign import Request
from dlbench.slurm.live import has_slurm, live_topology, reserved_nodes
from dlbench.slurm.topology_conf import read_topology
from dlbench.specs import SystemSpec

LIVE = "live"
LOCAL_GPUS = 8
"""Ranks of the jobs together on a machine without GPUs."""
LOCAL_OPTIONS = {"scale": 0.0001, "time-scale": 0.001, "iterations": 3, "min-seconds": 6}
"""Of every run on such a machine: small enough for two cores, and long beside the second that a start takes there."""
LOCAL_TIMEOUT = 20
"""Seconds of an experiment there."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A topology, and where it is from."""

    topology: Topology
    source: str
    """In words."""


def is_here(system: SystemSpec) -> bool:
    """Whether jobs of the system run on this machine, without SLURM."""
    return system.scheduler is None and system.topology.kind == "single-node"


def find_machine(system: SystemSpec, request: Request, partition: str | None, reservation: str | None) -> Machine:
    """The topology of a system: of the file or of the live cluster that the request names.

    If it names none: of the live cluster, if this machine belongs to one that knows the partition, or else of the
    system's spec. A live one is that of the reservation, if there is one. Raises `UserError`.
    """
    if is_here(system):
        return Machine(from_system(system, gpus=_local_gpus(system, request.gpus)), "this machine")
    where, gpus_per_node = request.topology, system.gpus_per_node or 1
    if where not in (None, LIVE):
        return Machine(read_topology(Path(where), gpus_per_node=gpus_per_node), where)
    if where == LIVE and partition is None:
        raise OptionError(f"--topology live: system {system.name} has no partition; use --partition NAME")
    why = ""
    if partition is not None and (where == LIVE or has_slurm()):
        try:
            topology = live_topology(partition, gpus_per_node)
        except UserError as error:
            if where == LIVE:
                raise
            why = f", as SLURM gives none ({error})"
        else:
            return _reserved(topology, reservation)
    return Machine(from_system(system), f"the spec of system {system.name}{why}")


def _reserved(topology: Topology, reservation: str | None) -> Machine:
    if reservation is None:
        return Machine(topology, "SLURM, now")
    names = set(reserved_nodes(reservation))
    kept = [node for node in topology.nodes if node in names]
    if not kept:
        raise OptionError(f"--reservation {reservation}: none of its nodes is usable in this partition")
    return Machine(topology.restrict(keep=kept), f"SLURM, now, reservation {reservation}")


def make_plan(request: Request, system: SystemSpec, topology: Topology) -> Plan:
    """Design the plan that a request asks for. Raises `UserError`."""
    small = system.topology.kind == "single-node"
    tier = request.pattern == "tier"
    settings = Settings(
        system=request.system,
        gpu=system.gpu,
        catalogue=load_catalogue(request.catalogue or ("small" if small else "paper")),
        rules=load_rules(request.rules or "paper"),
        tiers=load_tiers(request.tiers or ("small" if small else "paper")) if tier else None,
        sizes=() if tier else request.sizes or (2 if small else 2 * topology.gpus_per_node,),
        patterns=request.patterns,
        utilisation=_window(request.utilisation),
        experiments=request.experiments,
        gpus=None if is_here(system) else request.gpus,
        mode=request.mode,
        baselines=request.baselines,
        options=request.options,
        seed=request.seed,
    )
    plan = design(topology, settings)
    if request.timeout is None:
        return plan
    timed = (msgspec.structs.replace(item, timeout_seconds=request.timeout) for item in plan.experiments)
    return msgspec.structs.replace(plan, experiments=tuple(timed))


def check_names(plan: Plan, system: SystemSpec) -> None:
    """Raise `OptionError` for a plan on nodes whose names are made up from the spec: SLURM does not know them."""
    used = {node for experiment in plan.experiments for job in experiment.jobs for node in job.nodes}
    if not used or is_here(system):
        return
    try:
        made_up = set(from_system(system).nodes)
    except UserError:  # a spec without sizes makes none up
        return
    if used <= made_up:
        raise OptionError(
            f"the plan has made-up names of nodes, such as {min(used)}, from the spec of system {system.name}; "
            "use --topology FILE or --topology live in another folder, --mode queue, or --dry-run"
        )


def check_reservation(plan: Plan, reservation: str) -> None:
    """Raise `OptionError` for a plan on nodes that the reservation has not: it was made without it, or for another."""
    used = {node for experiment in plan.experiments for job in experiment.jobs for node in job.nodes}
    if used and has_slurm() and (strays := used - set(reserved_nodes(reservation))):
        raise OptionError(
            f"the plan has {counted(len(strays), 'node')} that --reservation {reservation} has not, such as "
            f"{min(strays)}; use a new folder with -o, and --topology live or --nodes of the reservation"
        )


def _local_gpus(system: SystemSpec, gpus: int | None) -> int | None:
    if gpus is not None or system.gpus_per_node is not None:
        return gpus
    return max(LOCAL_GPUS, len(os.sched_getaffinity(0)))


def _window(text: str | None) -> tuple[float, float]:
    """Utilisations of a text LOW:HIGH, or HIGH alone."""
    if text is None:
        return FULL
    low, colon, high = text.partition(":")
    try:
        return (float(low), float(high)) if colon else (0.0, float(low))
    except ValueError:
        raise OptionError(f"--utilisation {text}: expected LOW:HIGH such as 0.8:1.0") from None
