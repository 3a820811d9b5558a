"""A machine as the allocator sees it: groups of L1 switches, switches of nodes, and the GPUs of a node."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from dlbench.errors import UserError
from dlbench.specs import SystemSpec

LARGEST = 100_000
"""Nodes of a topology that is made up: more than any machine has, and few enough to place jobs on in a minute."""


class TopologyError(UserError):
    """A machine that is described wrongly, or not as it was asked for."""


@dataclass(frozen=True, slots=True)
class Switch:
    """An L1 switch, or the pair of switches on which the same nodes hang."""

    name: str
    nodes: tuple[str, ...]

    @property
    def size(self) -> int:
        """Nodes."""
        return len(self.nodes)


@dataclass(frozen=True, slots=True)
class Group:
    """L1 switches that reach each other without a global link: a dragonfly group, a cell."""

    name: str
    switches: tuple[Switch, ...]

    @property
    def size(self) -> int:
        """Nodes."""
        return sum(switch.size for switch in self.switches)


Unit = TypeVar("Unit", Switch, Group)


@dataclass(frozen=True, slots=True)
class Topology:
    """Groups of switches of nodes, each node in one place.

    Raises `TopologyError` where a node stands twice or there is none.
    """

    name: str
    groups: tuple[Group, ...]
    gpus_per_node: int
    nodes: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """All nodes, switch by switch and group by group."""
    _locations: dict[str, tuple[int, int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.gpus_per_node < 1:
            raise TopologyError(f"topology {self.name}: expected 1 GPU per node or more, found {self.gpus_per_node}")
        nodes = tuple(node for switch in self.switches for node in switch.nodes)
        if not nodes:
            raise TopologyError(f"topology {self.name} has no node; it needs one")
        _refuse_duplicates(nodes, f"topology {self.name}: expected every node once")
        locations = {
            node: (group_index, switch_index)
            for group_index, group in enumerate(self.groups)
            for switch_index, switch in enumerate(group.switches)
            for node in switch.nodes
        }
        object.__setattr__(self, "nodes", nodes)
        object.__setattr__(self, "_locations", locations)

    @property
    def switches(self) -> tuple[Switch, ...]:
        """All switches, group by group."""
        return tuple(switch for group in self.groups for switch in group.switches)

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return len(self.nodes) * self.gpus_per_node

    def location(self, node: str) -> tuple[int, int]:
        """Index of the node's group, and of its switch within the group. Raises `TopologyError` for an unknown node."""
        try:
            return self._locations[node]
        except KeyError:
            raise self._unknown([node]) from None

    def restrict(self, keep: Collection[str] | None = None, drop: Collection[str] = ()) -> Topology:
        """What is left of it: the nodes `keep` (None: all) without the nodes `drop`, in the order of the topology.

        Switches and groups without nodes fall away. Raises `TopologyError` for an unknown node, a node that is named
        twice in one list, and where no node is left.
        """
        kept = set(self.nodes) if keep is None else self._known(keep)
        kept -= self._known(drop)
        if not kept:
            raise TopologyError(f"topology {self.name}: no node is left of {len(self.nodes)}; keep one or more")
        return Topology(self.name, tuple(_kept_groups(self.groups, kept)), self.gpus_per_node)

    def _known(self, names: Collection[str]) -> set[str]:
        _refuse_duplicates(names, f"topology {self.name}: a list of nodes must name each once")
        unknown = [name for name in names if name not in self._locations]
        if unknown:
            raise self._unknown(unknown)
        return set(names)

    def _unknown(self, names: list[str]) -> TopologyError:
        close = difflib.get_close_matches(names[0], self.nodes, n=1)
        suggestion = f"did you mean {close[0]!r}?" if close else f"its nodes are {self.nodes[0]} to {self.nodes[-1]}"
        others = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
        return TopologyError(f"topology {self.name} has no node {names[0]!r}{others}; {suggestion}")


def _kept_groups(groups: Iterable[Group], kept: set[str]) -> Iterator[Group]:
    for group in groups:
        reduced = (Switch(switch.name, tuple(filter(kept.__contains__, switch.nodes))) for switch in group.switches)
        if switches := tuple(switch for switch in reduced if switch.nodes):
            yield Group(group.name, switches)


def _refuse_duplicates(names: Collection[str], rule: str) -> None:
    if len(set(names)) < len(names):
        name, count = Counter(names).most_common(1)[0]
        raise TopologyError(f"{rule}, found {name!r} {count} times")


def usual_size(units: Iterable[Unit]) -> int:
    """Nodes that most of the switches or groups have; of two sizes as frequent, the larger."""
    counts = Counter(unit.size for unit in units)
    return max(counts, key=lambda size: (counts[size], size))


def irregular(units: Collection[Unit]) -> tuple[Unit, ...]:
    """Switches or groups with another size than the usual one, in their order."""
    usual = usual_size(units)
    return tuple(unit for unit in units if unit.size != usual)


def from_system(
    system: SystemSpec,
    *,
    gpus: int | None = None,
    groups: int | None = None,
    nodes_per_group: int | None = None,
    nodes_per_switch: int | None = None,
) -> Topology:
    """A topology made of what the system's spec says, every switch and group filled in turn.

    The nodes are named `g00s00n00` by group, switch, and place under the switch. On a system of one node the unit of
    placement is a GPU: `slot000`, …, as many as the node has or, without a GPU, this machine has CPU cores; all under
    one switch.

    With `gpus`, only the first so many GPUs, a multiple of those of a node; a single node without GPUs has as many as
    are asked. `groups`, `nodes_per_group` and `nodes_per_switch` stand in place of the spec's, for a machine that does
    not publish them or has another size.

    Raises `TopologyError` where the sizes are unknown, or the system has fewer GPUs.
    """
    if system.topology.kind == "single-node":
        return _single_node(system, gpus)
    facts = system.topology
    groups = groups or facts.groups
    nodes_per_group = nodes_per_group or facts.nodes_per_group
    nodes_per_switch = nodes_per_switch or facts.nodes_per_l1_switch
    if nodes_per_group and not nodes_per_switch and facts.l1_switches_per_group:
        nodes_per_switch = -(-nodes_per_group // facts.l1_switches_per_group)
    if not (groups and nodes_per_group and nodes_per_switch):
        raise TopologyError(
            f"system {system.name} does not say its groups, nodes per group and nodes per L1 switch; "
            "use a file with the output of 'scontrol show topology'"
        )
    gpus_per_node = system.gpus_per_node or 1
    _refuse_too_many(system.name, groups * nodes_per_group)
    count = _nodes(system.name, gpus, gpus_per_node, groups * nodes_per_group)
    return Topology(system.name, tuple(_groups(count, groups, nodes_per_group, nodes_per_switch)), gpus_per_node)


def _refuse_too_many(system: str, nodes: int) -> None:
    if nodes > LARGEST:
        raise TopologyError(f"system {system} would have {nodes} nodes; use at most {LARGEST}")


def _nodes(system: str, gpus: int | None, gpus_per_node: int, most: int) -> int:
    """Nodes with so many GPUs."""
    if gpus is None:
        return most
    if not 1 <= gpus <= most * gpus_per_node:
        raise TopologyError(
            f"system {system} has {most * gpus_per_node} GPUs; {gpus} do not fit, use 1 or more of them"
        )
    if gpus % gpus_per_node:
        raise TopologyError(
            f"{gpus} GPUs are not whole nodes of system {system}; use a multiple of {gpus_per_node}, "
            f"such as {-(-gpus // gpus_per_node) * gpus_per_node}"
        )
    return gpus // gpus_per_node


def _groups(nodes: int, groups: int, nodes_per_group: int, nodes_per_switch: int) -> Iterator[Group]:
    """Groups of the first so many nodes; the names are those of the whole machine."""
    switches_per_group = -(-nodes_per_group // nodes_per_switch)
    for group_index in range(-(-nodes // nodes_per_group)):
        group = f"g{_padded(group_index, groups)}"
        left = min(nodes_per_group, nodes - group_index * nodes_per_group)
        yield Group(
            group,
            tuple(
                _switch(
                    f"{group}s{_padded(first // nodes_per_switch, switches_per_group)}",
                    min(nodes_per_switch, left - first),
                    nodes_per_switch,
                )
                for first in range(0, left, nodes_per_switch)
            ),
        )


def _switch(name: str, nodes: int, most: int) -> Switch:
    return Switch(name, tuple(f"{name}n{_padded(index, most)}" for index in range(nodes)))


def _padded(index: int, count: int) -> str:
    return f"{index:0{max(2, len(str(count - 1)))}}"


def _single_node(system: SystemSpec, gpus: int | None) -> Topology:
    if system.gpus_per_node is None:
        slots = len(os.sched_getaffinity(0)) if gpus is None else gpus
    else:
        slots = _nodes(system.name, gpus, 1, system.gpus_per_node)
    _refuse_too_many(system.name, slots)
    names = tuple(f"slot{index:03}" for index in range(slots))
    return Topology(system.name, (Group("g00", (Switch("g00s00", names),)),), 1)
