"""The placement class that a list of nodes has, worked out from the nodes alone.

It shares no code with `placement`, so that each checks the other, and it also tells what SLURM chose on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dlbench.allocators.classes import PAPER_BLOCKS, PlacementClass, PlacementError, Spread
from dlbench.allocators.topology import Topology


@dataclass(frozen=True, slots=True)
class Achieved:
    """What a list of nodes is."""

    classes: tuple[PlacementClass, ...]
    """All classes that it satisfies, those of large blocks first."""
    tightest: PlacementClass
    """The nearest of them that the paper has."""


def achieved(topology: Topology, nodes: Sequence[str]) -> Achieved:
    """Classes of a job on these nodes, in rank order.

    Raises `TopologyError` for a node that the topology does not have, `PlacementError` for a node that is listed
    twice and for an empty list.
    """
    if not nodes:
        raise PlacementError("a list of no nodes has no placement class; expected one node or more")
    if len(set(nodes)) < len(nodes):
        twice = next(node for index, node in enumerate(nodes) if node in nodes[:index])
        raise PlacementError(f"node {twice!r} is listed twice; expected every node of a job once")
    switches = [topology.location(node) for node in nodes]
    if len(set(switches)) == 1:
        alone = PlacementClass(Spread.L1)
        return Achieved((alone,), alone)
    spread = Spread.GROUP if len({group for group, _ in switches}) == 1 else Spread.ACROSS
    blocks = [block for block in range(_first_run(switches), 0, -1) if _in_blocks(switches, block)]
    classes = tuple(PlacementClass(spread, block) for block in blocks)
    return Achieved(classes, next(found for found in classes if found.block in (1, *PAPER_BLOCKS)))


def _first_run(switches: Sequence[tuple[int, int]]) -> int:
    """Nodes under the first one's switch before the first that is not: no block can be larger."""
    return next(index for index, switch in enumerate(switches) if switch != switches[0])


def _in_blocks(switches: Sequence[tuple[int, int]], block: int) -> bool:
    """Whether every switch changes at the borders of blocks only."""
    return all(index % block == 0 for index in range(1, len(switches)) if switches[index] != switches[index - 1])
