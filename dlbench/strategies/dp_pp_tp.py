"""Data, pipeline and tensor parallelism (DP+PP+TP): the ranks of a stage share every layer."""

from __future__ import annotations

from collections.abc import Iterator

from dlbench import roofline
from dlbench.strategies.layout import Layout
from dlbench.strategies.ops import AllReduce, Compute, Op, Scope
from dlbench.strategies.pipeline import Stage, gpipe
from dlbench.strategies.strategy import Strategy, Workload, padded_share


def program(workload: Workload, layout: Layout, rank: int) -> Iterator[Op]:
    """GPipe whose stages all-reduce partial sums within the tensor group after every attention and every MLP.

    As in the paper's listing, a layer's backward has the sequence of its forward, at twice the time. Tensor
    parallelism divides the time of a layer, the elements of its all-reduces and the parameters of a rank by tp.
    """
    stage = Stage.at(workload, layout, layout.coordinates(rank).stage)
    attention = workload.attention().scaled(1 / layout.inner)
    mlp = workload.mlp().scaled(1 / layout.inner)
    partial_sum = workload.buffer("partial_sum", padded_share(workload.activation_elements, layout.inner))
    all_reduce = AllReduce(Scope.TENSOR, partial_sum)
    attention_backward = roofline.backward(attention, "attention_backward")
    mlp_backward = roofline.backward(mlp, "mlp_backward")
    forward: list[Op] = [Compute(attention), all_reduce, Compute(mlp), all_reduce]
    backward: list[Op] = [Compute(attention_backward), all_reduce, Compute(mlp_backward), all_reduce]

    yield from gpipe(workload, layout, rank, forward=stage.layers * forward, backward=stage.layers * backward)
    gradient = workload.buffer("gradient", padded_share(stage.parameters, layout.inner))
    yield AllReduce(Scope.REPLICA, gradient)


DP_PP_TP = Strategy(
    name="dp_pp_tp",
    title="Data, pipeline and tensor parallelism",
    summary="replicas are GPipe pipelines whose stages split every layer over a tensor group",
    models=("llama3-70b",),
    defaults={"microbatches": 16, "pp": 8, "tp": 4},
    inner_scope=Scope.TENSOR,
    gpu_counts=(256, 512, 1024),
    program=program,
)
