"""Data, pipeline and expert parallelism (DP+PP+EP): the ranks of a stage hold different experts."""

from __future__ import annotations

from collections.abc import Iterator

from dlbench import roofline
from dlbench.strategies.layout import Layout
from dlbench.strategies.ops import AllReduce, AllToAll, Compute, Op, Scope
from dlbench.strategies.pipeline import Stage, gpipe
from dlbench.strategies.strategy import Strategy, Workload, padded_share


def program(workload: Workload, layout: Layout, rank: int) -> Iterator[Op]:
    """GPipe whose stages exchange tokens within the expert group around every MLP.

    As in the paper's listing, a layer's backward has the sequence of its forward, at twice the time. Every token goes
    to its k active experts, spread evenly: b N k d / ep elements per destination. Expert parallelism leaves the time
    of a layer as it is, because each rank brings its own tokens. At the end the gradients that the expert group has
    in common are averaged within it, then everything that a rank holds is averaged over the replicas.
    """
    stage = Stage.at(workload, layout, layout.coordinates(rank).stage)
    attention, mlp = workload.attention(), workload.mlp()
    routed = workload.activation_elements * workload.model.active_experts
    all_to_all = AllToAll(Scope.EXPERT, workload.buffer("tokens", padded_share(routed, layout.inner)))
    attention_backward = roofline.backward(attention, "attention_backward")
    mlp_backward = roofline.backward(mlp, "mlp_backward")
    forward: list[Op] = [Compute(attention), all_to_all, Compute(mlp), all_to_all]
    backward: list[Op] = [Compute(attention_backward), all_to_all, Compute(mlp_backward), all_to_all]

    yield from gpipe(workload, layout, rank, forward=stage.layers * forward, backward=stage.layers * backward)
    held = stage.non_expert_parameters + padded_share(stage.expert_parameters, layout.inner)
    yield AllReduce(Scope.EXPERT, workload.buffer("non_expert_gradient", stage.non_expert_parameters))
    yield AllReduce(Scope.REPLICA, workload.buffer("gradient", held))


DP_PP_EP = Strategy(
    name="dp_pp_ep",
    title="Data, pipeline and expert parallelism",
    summary="replicas are GPipe pipelines whose stages spread their experts over an expert group",
    models=("mixtral-8x7b",),
    defaults={"microbatches": 16, "pp": 8, "ep": 8},
    inner_scope=Scope.EXPERT,
    gpu_counts=(512, 1024, 2048),
    program=program,
)
