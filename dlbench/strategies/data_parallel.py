"""Data parallelism (DP): every rank holds the whole model and averages the gradients with all others."""

from __future__ import annotations

from collections.abc import Iterator

from dlbench.roofline import backward
from dlbench.strategies.layout import Layout
from dlbench.strategies.ops import AllReduce, Compute, Op, Scope, Wait
from dlbench.strategies.strategy import Strategy, Workload, share


def program(workload: Workload, layout: Layout, rank: int) -> Iterator[Op]:
    """Forward; then per bucket its part of the backward, and its all-reduce, which the next buckets overlap."""
    forward = workload.forward()
    bucket_backward = backward(forward).scaled(1 / workload.buckets)
    gradients = [
        workload.buffer(f"gradient[{bucket}]", share(workload.model.parameters, workload.buckets, bucket))
        for bucket in range(workload.buckets)
    ]

    yield Compute(forward)
    for gradient in gradients:
        yield Compute(bucket_backward)
        yield AllReduce(Scope.WORLD, gradient, blocking=False)
    yield Wait(tuple(gradient.name for gradient in gradients))


DATA_PARALLEL = Strategy(
    name="dp",
    title="Data parallelism",
    summary="whole model on every rank; gradients are all-reduced in buckets while the backward goes on",
    models=("vit-h",),
    defaults={"buckets": 50},
    gpu_counts=(2, 4, 8, 16, 32, 64),
    program=program,
)
