"""GPipe: the schedule that all strategies with a pipeline share, and what one stage of it holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from dlbench.strategies.layout import Layout
from dlbench.strategies.ops import Op, Recv, Scope, Send
from dlbench.strategies.strategy import Workload, share


class Stage(msgspec.Struct, frozen=True):
    """What a pipeline stage holds: its layers and parameters, split evenly over the stages."""

    layers: int
    non_expert_parameters: int
    expert_parameters: int
    parameters: int

    @classmethod
    def at(cls, workload: Workload, layout: Layout, stage: int) -> Stage:
        """Holdings of stage `stage`."""
        model = workload.model
        layers, non_expert, expert, parameters = (
            share(total, layout.pp, stage)
            for total in (
                model.layers,
                model.non_expert_parameters,
                model.expert_parameters,
                model.parameters,
            )
        )
        return cls(layers, non_expert, expert, parameters)


def gpipe(
    workload: Workload, layout: Layout, rank: int, *, forward: Sequence[Op], backward: Sequence[Op]
) -> Iterator[Op]:
    """All microbatches forward through the stages, then all backward.

    `forward` and `backward` are this stage's ops for one microbatch. Activations and their gradients have b N d
    elements. All sends and receives block, so every microbatch uses the same buffers.
    """
    stage = layout.coordinates(rank).stage
    first, last = stage == 0, stage == layout.pp - 1
    activation_in, activation_out, gradient_in, gradient_out = (
        workload.buffer(name, workload.activation_elements)
        for name in ("activation_in", "activation_out", "gradient_in", "gradient_out")
    )

    for _ in range(workload.microbatches):
        if not first:
            yield Recv(Scope.PIPELINE, stage - 1, activation_in)
        yield from forward
        if not last:
            yield Send(Scope.PIPELINE, stage + 1, activation_out)

    for _ in range(workload.microbatches):
        if not last:
            yield Recv(Scope.PIPELINE, stage + 1, gradient_in)
        yield from backward
        if not first:
            yield Send(Scope.PIPELINE, stage - 1, gradient_out)
