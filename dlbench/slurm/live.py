"""The cluster that this machine is a login node of, as SLURM tells it now."""

from __future__ import annotations

import re
from shutil import which

from dlbench.allocators.topology import Topology
from dlbench.errors import RunError, UserError
from dlbench.slurm.hostlist import expand
from dlbench.slurm.sinfo import parse_sinfo, parse_states
from dlbench.slurm.steps import slurm_output
from dlbench.slurm.topology_conf import parse_topology

USABLE_STATES = "idle,mix,alloc,comp,plnd,resv,maint"
"""States of nodes that run jobs now or later, reserved ones included; what is down or drained is left out."""


def has_slurm() -> bool:
    """Whether SLURM's commands are on the PATH."""
    return which("scontrol") is not None and which("sinfo") is not None


def live_topology(partition: str, gpus_per_node: int) -> Topology:
    """The usable nodes of the partition.

    Raises `UserError` where SLURM does not answer, has no topology, or does not know the partition.
    """
    try:
        tree = slurm_output(["scontrol", "show", "topology"])
        states = slurm_output(["sinfo", "-h", "-o", "%P %t %N"])
    except RunError as error:
        raise UserError(f"{error}; use --topology FILE") from None
    topology = parse_topology(tree, gpus_per_node=gpus_per_node, source="scontrol show topology")
    found = set(parse_sinfo(states, source="sinfo").nodes(partition, parse_states(USABLE_STATES)))
    return topology.restrict(keep=[node for node in topology.nodes if node in found])


def reserved_nodes(reservation: str) -> list[str]:
    """Nodes of a reservation. Raises `UserError` with SLURM's own words where it has none of that name."""
    try:
        shown = slurm_output(["scontrol", "show", "reservation", "-o", reservation])
    except RunError as error:
        raise UserError(str(error)) from None
    found = re.search(r"\bNodes=(\S+)", shown)
    return [] if found is None or found[1] == "(null)" else expand(found[1])
