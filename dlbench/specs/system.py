"""Systems: how GPUs are put together to nodes, nodes to a machine, and how the site runs jobs."""

from __future__ import annotations

from typing import Literal

import msgspec

from dlbench.specs.check import Positive, Rate, Text, require, require_sources


class IntraNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Links between the GPUs of one node, or of one NVLink domain."""

    link: Text
    switched: bool
    """True: a GPU shares its bandwidth among its peers; False: every pair has links of its own."""
    pair_bytes_per_second_min: Rate
    """Between two GPUs, per direction, for the pair with the fewest links."""
    pair_bytes_per_second_max: Rate
    """The same for the pair with the most links."""


class Network(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Network between nodes, as seen from one node."""

    fabric: Text
    nics_per_node: Positive
    nic_gbps: Rate
    """Gbit/s of one NIC, per direction."""


class Topology(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Groups, switches and nodes. None stands for what the site does not publish."""

    kind: Literal["dragonfly", "dragonfly+", "nvlink-domain", "single-node"]
    groups: Positive | None = None
    """Groups that hold GPU nodes."""
    nodes_per_group: Positive | None = None
    l1_switches_per_group: Positive | None = None
    l2_switches_per_group: Positive | None = None
    nodes_per_l1_switch: Positive | None = None
    """Where every node hangs on two switches: nodes per switch pair."""
    endpoint_ports_per_l1_switch: Positive | None = None


class Scheduler(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a SLURM job needs at this site. Account and reservation themselves always come from the user."""

    partition: Text
    cpus_per_task: Positive
    modules: tuple[Text, ...] = ()
    """In the order in which they are loaded."""
    environment: dict[str, str] = {}
    srun_flags: tuple[Text, ...] = ()
    uenv: Text | None = None
    view: Text | None = None
    """View of the uenv."""
    requires: tuple[Literal["account", "reservation"], ...] = ()
    """What the user must name; a reservation only for nodes that are chosen in advance."""


class SystemSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine and its site.

    Raises `SpecError` where facts contradict each other or have no source.
    """

    name: Text
    description: Text
    gpu: Text | None
    """Name or path of the GPU spec; None: ranks run on CPUs."""
    gpus_per_node: Positive | None
    """GPUs, or separately driven parts of GPUs, of one node; None exactly where `gpu` is."""
    intra_node: IntraNode | None
    network: Network | None
    topology: Topology
    scheduler: Scheduler | None
    sources: dict[str, Text]
    """Where each section comes from."""

    def __post_init__(self) -> None:
        _check_gpus(self)
        _check_topology(self.topology)
        sections = ("gpu", "intra_node", "network", "topology", "scheduler")
        require_sources(self.sources, "sources", [key for key in sections if getattr(self, key) is not None])


def _check_gpus(system: SystemSpec) -> None:
    if system.gpu is None:
        require(system.gpus_per_node is None, "gpus_per_node", "null where gpu is null", system.gpus_per_node)
    else:
        require(system.gpus_per_node is not None, "gpus_per_node", "an integer >= 1 beside a gpu", "null")
    links = system.intra_node
    if links is not None:
        require(
            links.pair_bytes_per_second_min <= links.pair_bytes_per_second_max,
            "intra_node.pair_bytes_per_second_max",
            f"at least the minimum, {links.pair_bytes_per_second_min:g}",
            links.pair_bytes_per_second_max,
        )
    scheduler = system.scheduler
    if scheduler is not None and scheduler.view is not None:
        require(scheduler.uenv is not None, "scheduler.view", "none without a uenv", scheduler.view)


def _check_topology(topology: Topology) -> None:
    switches, per_switch = topology.l1_switches_per_group, topology.nodes_per_l1_switch
    nodes = topology.nodes_per_group
    if per_switch is None or nodes is None:
        return
    require(per_switch <= nodes, "topology.nodes_per_l1_switch", f"at most nodes_per_group = {nodes}", per_switch)
    if switches is not None:
        require(
            nodes <= switches * per_switch,
            "topology.nodes_per_group",
            f"at most {switches} switches × {per_switch} nodes = {switches * per_switch}",
            nodes,
        )
