"""Fully sharded data parallelism (FSDP): the parameters lie in shards and are gathered unit by unit.

The paper's listing ends its forward loop one unit early and so drops that unit's compute. Here all units compute.

Units and shards are padded to the largest, so that all messages have one size: ⌈⌈P / units⌉ / sharding⌉ elements.
"""

from __future__ import annotations

from collections.abc import Iterator

from dlbench.roofline import backward
from dlbench.strategies.layout import Layout
from dlbench.strategies.ops import AllGather, AllReduce, Buffer, Compute, Op, ReduceScatter, Scope, Wait
from dlbench.strategies.strategy import Strategy, Workload, padded_share


def program(workload: Workload, layout: Layout, rank: int) -> Iterator[Op]:
    """Forward and backward over the units, each gathering its neighbour's parameters while it computes.

    Two slots hold parameters: those of the unit that computes, and those on their way for the next.
    """
    units = workload.units
    unit_forward = workload.forward().scaled(1 / units)
    unit_backward = backward(unit_forward)
    shard = padded_share(padded_share(workload.model.parameters, units), layout.inner)
    gradients = workload.buffer("gradients", shard)

    def parameters(unit: int) -> Buffer:
        return workload.buffer(f"parameters[{unit % 2}]", shard)

    def gradient_shard(unit: int) -> Buffer:
        return workload.buffer(f"gradient_shard[{unit}]", shard)

    yield AllGather(Scope.SHARD, parameters(0))
    for unit in range(units):
        has_next = unit < units - 1
        if has_next:
            yield AllGather(Scope.SHARD, parameters(unit + 1), blocking=False)
        yield Compute(unit_forward)
        if has_next:
            yield Wait((parameters(unit + 1).name,))

    for unit in reversed(range(units)):
        has_previous = unit > 0
        if has_previous:
            yield AllGather(Scope.SHARD, parameters(unit - 1), blocking=False)
        yield Compute(unit_backward)
        yield ReduceScatter(Scope.SHARD, gradients)
        yield AllReduce(Scope.REPLICA, gradient_shard(unit), blocking=False)
        if has_previous:
            yield Wait((parameters(unit - 1).name,))
    yield Wait(tuple(gradient_shard(unit).name for unit in reversed(range(units))))


FULLY_SHARDED = Strategy(
    name="fsdp",
    title="Fully sharded data parallelism",
    summary="parameters in shards, gathered unit by unit; gradients are scattered, then all-reduced over replicas",
    models=("llama3-8b", "minerva-7b"),
    defaults={"units": 16, "sharding": 8},
    inner_scope=Scope.SHARD,
    gpu_counts=(4, 8, 16, 32, 128, 256),
    program=program,
)
