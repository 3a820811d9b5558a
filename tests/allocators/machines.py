"""Machines made for the tests, with names that tell where a node is."""

from __future__ import annotations

from collections.abc import Sequence

from dlbench.allocators.topology import Group, Switch, Topology


def machine(*groups: Sequence[int], gpus_per_node: int = 4) -> Topology:
    """A group for each argument, a switch of so many nodes for each number in it: node `g0s1n2` and so on."""
    return Topology(
        "made",
        tuple(
            Group(
                f"g{group}",
                tuple(
                    Switch(f"g{group}s{switch}", tuple(f"g{group}s{switch}n{node}" for node in range(nodes)))
                    for switch, nodes in enumerate(switches)
                ),
            )
            for group, switches in enumerate(groups)
        ),
        gpus_per_node,
    )


def regular(groups: int, switches: int, nodes: int, gpus_per_node: int = 4) -> Topology:
    """A machine of equal groups of equal switches."""
    return machine(*[[nodes] * switches] * groups, gpus_per_node=gpus_per_node)
