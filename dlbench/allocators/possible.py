"""What a job can be on a machine: the strategies of its size, and the placement classes of the strategy."""

from __future__ import annotations

from collections.abc import Collection

from dlbench.allocators.catalogue import Catalogue, feasible_by_size
from dlbench.allocators.classes import PlacementClass, PlacementError, Spread
from dlbench.allocators.placement import Request, check_alone
from dlbench.allocators.rules import Rules
from dlbench.allocators.topology import Topology


class Possibilities:
    """Classes of the rules that the topology can hold, and strategies of the catalogue that have one."""

    def __init__(self, topology: Topology, catalogue: Catalogue, rules: Rules) -> None:
        self.topology, self.catalogue, self.rules = topology, catalogue, rules
        self._without: list[str] = []
        """Jobs that none of their strategy's classes fits."""
        self._classes: dict[tuple[str, int], tuple[PlacementClass, ...]] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Departures from the rules, in words."""
        if not self._without:
            return ()
        return (f"intra-l1, since the machine allows no class of the rules: {', '.join(self._without)}",)

    def nodes(self, gpus: int) -> int:
        """Nodes of a job, which shares none."""
        return -(-gpus // self.topology.gpus_per_node)

    def strategies(self, sizes: Collection[int]) -> dict[int, tuple[str, ...]]:
        """Strategies of every size that can be placed.

        Raises `OptionError` for a size that none runs on, `PlacementError` where none of them can be placed.
        """
        found = feasible_by_size(sizes, self.topology.gpus_per_node, self.catalogue)
        placeable = {size: tuple(name for name in found[size] if self.classes(name, size)) for size in found}
        for size, names in placeable.items():
            if not names:
                strategy = found[size][0]
                self._check(strategy, size, self.rules.rule(strategy).placements()[0])
        return placeable

    def classes(self, strategy: str, gpus: int) -> tuple[PlacementClass, ...]:
        """Classes that a job can have, none where there is none; intra-l1 where machine or size leave no other."""
        key = strategy, gpus
        if key not in self._classes:
            by_rule = self.rules.rule(strategy).placements()
            able = tuple(placement for placement in by_rule if self._holds(strategy, gpus, placement))
            if not able and (self.nodes(gpus) == 1 or len(self.topology.switches) == 1):
                near = PlacementClass(Spread.L1)
                able = (near,) if self._holds(strategy, gpus, near) else ()
                self._without += [f"{strategy} on {gpus} GPUs"] * len(able)
            self._classes[key] = able
        return self._classes[key]

    def _holds(self, strategy: str, gpus: int, placement: PlacementClass) -> bool:
        try:
            self._check(strategy, gpus, placement)
        except PlacementError:
            return False
        return True

    def _check(self, strategy: str, gpus: int, placement: PlacementClass) -> None:
        check_alone(self.topology, Request(f"{strategy} on {gpus} GPUs", self.nodes(gpus), placement))
