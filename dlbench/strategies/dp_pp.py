"""Data and pipeline parallelism (DP+PP): each replica is a GPipe pipeline."""

from __future__ import annotations

from collections.abc import Iterator

from dlbench import roofline
from dlbench.strategies.layout import Layout
from dlbench.strategies.ops import AllReduce, Compute, Op, Scope
from dlbench.strategies.pipeline import Stage, gpipe
from dlbench.strategies.strategy import Strategy, Workload


def program(workload: Workload, layout: Layout, rank: int) -> Iterator[Op]:
    """GPipe over the stages, then the all-reduce of the stage's gradients over the replicas."""
    stage = Stage.at(workload, layout, layout.coordinates(rank).stage)
    forward = workload.forward().scaled(stage.layers / workload.model.layers)
    backward = roofline.backward(forward)

    yield from gpipe(workload, layout, rank, forward=[Compute(forward)], backward=[Compute(backward)])
    yield AllReduce(Scope.REPLICA, workload.buffer("gradient", stage.parameters))


DP_PP = Strategy(
    name="dp_pp",
    title="Data and pipeline parallelism",
    summary="replicas are GPipe pipelines; gradients are all-reduced over the replicas at the end",
    models=("llama3-8b", "minerva-7b"),
    defaults={"microbatches": 16, "pp": 8},
    gpu_counts=(4, 8, 16, 32, 64, 128, 256),
    program=program,
)
