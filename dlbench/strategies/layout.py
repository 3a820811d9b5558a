"""Layout: from a world rank to its place in the parallelism, and to the groups it communicates in."""

from __future__ import annotations

import msgspec

from dlbench.errors import LayoutError
from dlbench.strategies.ops import Scope

INNER_OPTION = {Scope.TENSOR: "tp", Scope.EXPERT: "ep", Scope.SHARD: "sharding"}
"""The option that sets the degree of each innermost dimension."""


class Coordinates(msgspec.Struct, frozen=True):
    """Place of a rank: index in the innermost dimension, pipeline stage, replica."""

    inner: int
    stage: int
    replica: int


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Arrangement of `world_size` ranks: innermost dimension fastest, then the stage, then the replica.

    rank = (replica × pp + stage) × inner + index

    `inner_scope` names the innermost dimension (tensor, expert or shard; None where there is none) and `inner` its
    degree; `pp` is the pipeline degree. Degrees of 1 are allowed everywhere.

    Raises `LayoutError` where the degrees are impossible or do not divide the world size.
    """

    world_size: int
    pp: int = 1
    inner: int = 1
    inner_scope: Scope | None = None

    def __post_init__(self) -> None:
        for name, degree in (("world size", self.world_size), *self.factors()):
            if degree < 1:
                raise LayoutError(f"{name} = {degree} is impossible; use 1 or more")
        if self.world_size % self.replica_size:
            names = " × ".join(name for name, _ in self.factors())
            degrees = " × ".join(str(degree) for _, degree in self.factors())
            product = degrees if len(self.factors()) == 1 else f"{degrees} = {self.replica_size}"
            sizes = ", ".join(str(self.replica_size * factor) for factor in self._suggested_factors())
            raise LayoutError(f"world size {self.world_size} is not a multiple of {names} = {product}; use {sizes}, …")

    def _suggested_factors(self) -> tuple[int, int, int]:
        below = max(1, self.world_size // self.replica_size)
        return below, below + 1, below + 2

    def factors(self) -> tuple[tuple[str, int], ...]:
        """Option name and degree of each dimension inside a replica, outermost first."""
        pipeline = (("pp", self.pp),)
        if self.inner_scope is None:
            return pipeline
        inner = ((INNER_OPTION[self.inner_scope], self.inner),)
        return inner if self.inner_scope is Scope.SHARD else pipeline + inner

    @property
    def replica_size(self) -> int:
        """Ranks that hold one copy of the model together."""
        return self.pp * self.inner

    @property
    def replicas(self) -> int:
        """Copies of the model that train side by side."""
        return self.world_size // self.replica_size

    def coordinates(self, rank: int) -> Coordinates:
        """Coordinates of a world rank."""
        outer, inner = divmod(rank, self.inner)
        replica, stage = divmod(outer, self.pp)
        return Coordinates(inner=inner, stage=stage, replica=replica)

    def rank(self, coordinates: Coordinates) -> int:
        """World rank at the coordinates: the inverse of `coordinates`."""
        return (coordinates.replica * self.pp + coordinates.stage) * self.inner + coordinates.inner

    def group_size(self, scope: Scope) -> int:
        """Ranks in each group of the scope."""
        return self._extent(scope)[0]

    def stride(self, scope: Scope) -> int:
        """Distance between the world ranks of neighbours in a group of the scope."""
        return self._extent(scope)[1]

    def group(self, scope: Scope, rank: int) -> range:
        """World ranks of the scope's group that holds `rank`, in group order. Takes no memory at any world size."""
        size, stride = self._extent(scope)
        first = rank - rank // stride % size * stride
        return range(first, first + size * stride, stride)

    def _extent(self, scope: Scope) -> tuple[int, int]:
        match scope:
            case Scope.WORLD:
                return self.world_size, 1
            case Scope.REPLICA:
                return self.replicas, self.replica_size
            case Scope.PIPELINE:
                return self.pp, self.inner
            case self.inner_scope:
                return self.inner, 1
        raise LayoutError(f"this layout has no {scope} dimension; it has {self.inner_scope or 'none inside a stage'}")
