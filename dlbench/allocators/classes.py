"""Placement classes: how far apart the nodes of a job lie, and the locality of jobs that run side by side.

Classes, scores and bins are those of Raffi et al., SC26, which prints the classes with blocks of 2 and 4.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from dlbench.allocators.mixture import BINS, Bin, third
from dlbench.errors import OptionError, UserError

PAPER_BLOCKS = (2, 4)
"""Nodes per block of the paper's classes."""
PATTERN = r"^(intra-l1|(intra|inter)-group(-same-l1-([2-9]|[1-9][0-9]+))?)\Z"
"""Names of the classes."""

LOWEST, HIGHEST = 1.0, 3.0
"""Ends of the range of scores."""


class PlacementError(UserError):
    """Jobs that cannot be placed as they were asked for."""


class Spread(StrEnum):
    """What the nodes of a job share."""

    L1 = "intra-l1"
    """All nodes are under one L1 switch."""
    GROUP = "intra-group"
    """Nodes are under more than one L1 switch, all of one group."""
    ACROSS = "inter-group"
    """Nodes are in two groups or more."""


@dataclass(frozen=True, slots=True)
class PlacementClass:
    """What the nodes of a job share, and how many nodes in a row share an L1 switch.

    `block` nodes at a time, in rank order from rank 0 on, lie under one L1 switch; where their number does not divide
    the job, the last block is shorter. Blocks hold what talks most, a shard group or a replica, so they are blocks of
    ranks, not just of nodes. Several blocks may share a switch.
    """

    spread: Spread
    block: int = 1
    """1: any nodes. Always 1 for intra-l1, which is one block by itself."""

    @classmethod
    def parse(cls, name: str) -> PlacementClass:
        """The class of that name, such as `inter-group-same-l1-4`. Raises `OptionError` for any other."""
        if not re.fullmatch(PATTERN, name):
            raise OptionError(
                f"unknown placement class {name!r}; valid: {', '.join(map(str, PAPER_CLASSES))}, "
                "or another number of 2 or more at the end"
            )
        spread, _, block = name.partition("-same-l1-")
        return cls(Spread(spread), int(block or 1))

    def __str__(self) -> str:
        return self.spread.value if self.block == 1 else f"{self.spread}-same-l1-{self.block}"

    @property
    def score(self) -> float:
        """Locality score, 1 (near) to 3 (far).

        1 + 1/n within a group and 2 + 1/n across groups are the paper's scores for all but blocks of 4 within a group,
        where the paper has 1.2; they stand for the blocks that it does not name.
        """
        match self.spread:
            case Spread.L1:
                return 1.0
            case Spread.GROUP:
                return 1.2 if self.block == max(PAPER_BLOCKS) else 1 + 1 / self.block
            case Spread.ACROSS:
                return 2 + 1 / self.block

    def smallest(self) -> int:
        """The fewest nodes that a job of the class can have: one block is intra-l1."""
        return 1 if self.spread is Spread.L1 else self.block + 1

    def check(self, job: str, nodes: int) -> None:
        """Raise `PlacementError` where no job of so many nodes is of the class, whatever the machine."""
        if nodes < 1:
            raise PlacementError(f"job {job}: {nodes} nodes are impossible; use 1 or more")
        if nodes < self.smallest():
            reason = "one node is" if nodes == 1 else f"{nodes} nodes under one L1 switch are"
            raise PlacementError(f"job {job}: {self} needs {self.smallest()} nodes or more; {reason} intra-l1")


PAPER_CLASSES = (
    PlacementClass(Spread.L1),
    *(PlacementClass(spread, block) for spread in (Spread.GROUP, Spread.ACROSS) for block in (4, 2, 1)),
)
"""The paper's seven classes, nearest first."""


def locality(classes: Iterable[PlacementClass]) -> float:
    """Mean score of the classes of jobs that run side by side."""
    return fmean(placement.score for placement in classes)


def locality_bin(mean_score: float) -> Bin:
    """Third of [1, 3] that holds the mean score; low is near, and a border belongs to the upper third."""
    return third(mean_score, LOWEST, HIGHEST)


def bin_bounds(name: Bin) -> tuple[float, float]:
    """Mean scores at which a bin begins and ends."""
    width = (HIGHEST - LOWEST) / len(BINS)
    begin = LOWEST + BINS.index(name) * width
    return begin, begin + width
