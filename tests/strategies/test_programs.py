"""Each strategy's programs, op for op, against lists written by hand from the paper's algorithms."""

from __future__ import annotations

import pytest
from small_worlds import expected, lines, small, small_model

from dlbench.strategies.ops import Compute


def test_dp_overlaps_the_all_reduce_of_each_bucket_with_the_backward_of_the_next() -> None:
    # P = 308 over 3 buckets: 103, 103, 102.
    program = small("dp", 4, buckets=3).program(2)
    assert lines(program) == expected("""
        compute forward
        compute backward
        start allreduce world: gradient[0] 103
        compute backward
        start allreduce world: gradient[1] 103
        compute backward
        start allreduce world: gradient[2] 102
        wait gradient[0] gradient[1] gradient[2]
    """)


def test_dp_on_one_rank_only_computes() -> None:
    assert lines(small("dp", 1, buckets=2).program(0)) == ["compute forward", "compute backward", "compute backward"]


FSDP_THREE_UNITS = """
    allgather shard: parameters[0] 52
    start allgather shard: parameters[1] 52
    compute forward
    wait parameters[1]
    start allgather shard: parameters[0] 52
    compute forward
    wait parameters[0]
    compute forward
    start allgather shard: parameters[1] 52
    compute backward
    reduce_scatter shard: gradients 52
    start allreduce replica: gradient_shard[2] 52
    wait parameters[1]
    start allgather shard: parameters[0] 52
    compute backward
    reduce_scatter shard: gradients 52
    start allreduce replica: gradient_shard[1] 52
    wait parameters[0]
    compute backward
    reduce_scatter shard: gradients 52
    start allreduce replica: gradient_shard[0] 52
    wait gradient_shard[2] gradient_shard[1] gradient_shard[0]
"""


def test_fsdp_gathers_one_unit_ahead_and_computes_every_unit() -> None:
    # P = 308 in 3 units: at most 103, over 2 ranks at most 52.
    program = small("fsdp", 4, units=3, sharding=2).program(3)
    assert lines(program) == expected(FSDP_THREE_UNITS)


def test_fsdp_with_one_replica_has_no_replica_all_reduce() -> None:
    program = small("fsdp", 2, units=3, sharding=2).program(0)
    without = [line for line in expected(FSDP_THREE_UNITS) if "gradient_shard" not in line]
    assert lines(program) == without


def test_fsdp_of_one_unit_prefetches_nothing() -> None:
    program = small("fsdp", 4, units=1, sharding=4).program(0)
    assert lines(program) == expected("""
        allgather shard: parameters[0] 77
        compute forward
        compute backward
        reduce_scatter shard: gradients 77
    """)


def test_fsdp_sharded_by_one_only_reduces_over_replicas() -> None:
    program = small("fsdp", 2, units=2, sharding=1).program(0)
    assert lines(program) == expected("""
        compute forward
        compute forward
        compute backward
        start allreduce replica: gradient_shard[1] 154
        compute backward
        start allreduce replica: gradient_shard[0] 154
        wait gradient_shard[1] gradient_shard[0]
    """)


# b N d = 1 × 3 × 4 = 12 elements between stages.
PIPELINE_FIRST = """
    compute forward
    send pipeline to 1: activation_out 12
    compute forward
    send pipeline to 1: activation_out 12
    recv pipeline from 1: gradient_in 12
    compute backward
    recv pipeline from 1: gradient_in 12
    compute backward
"""
PIPELINE_MIDDLE = """
    recv pipeline from 0: activation_in 12
    compute forward
    send pipeline to 2: activation_out 12
    recv pipeline from 0: activation_in 12
    compute forward
    send pipeline to 2: activation_out 12
    recv pipeline from 2: gradient_in 12
    compute backward
    send pipeline to 0: gradient_out 12
    recv pipeline from 2: gradient_in 12
    compute backward
    send pipeline to 0: gradient_out 12
"""
PIPELINE_LAST = """
    recv pipeline from 1: activation_in 12
    compute forward
    recv pipeline from 1: activation_in 12
    compute forward
    compute backward
    send pipeline to 1: gradient_out 12
    compute backward
    send pipeline to 1: gradient_out 12
"""


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(
    ("stage", "schedule", "gradient"),
    # Three layers: P = 308 + 132 = 440 over 3 stages: 147, 147, 146.
    [(0, PIPELINE_FIRST, 147), (1, PIPELINE_MIDDLE, 147), (2, PIPELINE_LAST, 146)],
)
def test_dp_pp_is_gpipe_and_then_the_all_reduce_over_replicas(
    replicas: int, stage: int, schedule: str, gradient: int
) -> None:
    configuration = small("dp_pp", 3 * replicas, small_model(layers=3), pp=3)
    all_reduce = [f"allreduce replica: gradient {gradient}"] if replicas > 1 else []
    assert lines(configuration.program(stage)) == expected(schedule) + all_reduce


def test_dp_pp_of_one_stage_sends_nothing() -> None:
    assert lines(small("dp_pp", 2, pp=1).program(1)) == expected("""
        compute forward
        compute forward
        compute backward
        compute backward
        allreduce replica: gradient 308
    """)


# Tensor groups of 2: 12 / 2 = 6 elements; per microbatch and layer.
TENSOR_LAYER_FORWARD = """
    compute attention
    allreduce tensor: partial_sum 6
    compute mlp
    allreduce tensor: partial_sum 6
"""
TENSOR_LAYER_BACKWARD = """
    compute attention_backward
    allreduce tensor: partial_sum 6
    compute mlp_backward
    allreduce tensor: partial_sum 6
"""


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("layers_per_stage", [1, 2])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_dp_pp_tp_all_reduces_after_every_attention_and_every_mlp(
    replicas: int, layers_per_stage: int, stage: int
) -> None:
    configuration = small(
        "dp_pp_tp", 6 * replicas, small_model(layers=3 * layers_per_stage), pp=3, tp=2, microbatches=1
    )
    forward = layers_per_stage * expected(TENSOR_LAYER_FORWARD)
    backward = layers_per_stage * expected(TENSOR_LAYER_BACKWARD)
    # One sample more per microbatch doubles b N d, so the tensor group's share of it is 12.
    forward, backward = (
        [line.replace("partial_sum 6", "partial_sum 12") for line in part] for part in (forward, backward)
    )
    receive = {1: "recv pipeline from 0: activation_in 24", 2: "recv pipeline from 1: activation_in 24"}
    send = {0: "send pipeline to 1: activation_out 24", 1: "send pipeline to 2: activation_out 24"}
    receive_back = {0: "recv pipeline from 1: gradient_in 24", 1: "recv pipeline from 2: gradient_in 24"}
    send_back = {1: "send pipeline to 0: gradient_out 24", 2: "send pipeline to 1: gradient_out 24"}
    # One layer a stage: 440 over 3 stages is 147, 147, 146; halved 74, 74, 73.
    # Two layers: 836 is 279, 279, 278; halved 140, 140, 139.
    gradient = {1: [74, 74, 73], 2: [140, 140, 139]}[layers_per_stage][stage]
    all_reduce = [f"allreduce replica: gradient {gradient}"] if replicas > 1 else []
    program = lines(configuration.program(2 * stage))
    assert program == [
        *([receive[stage]] if stage in receive else []),
        *forward,
        *([send[stage]] if stage in send else []),
        *([receive_back[stage]] if stage in receive_back else []),
        *backward,
        *([send_back[stage]] if stage in send_back else []),
        *all_reduce,
    ]


def test_dp_pp_tp_repeats_its_layers_for_every_microbatch() -> None:
    configuration = small("dp_pp_tp", 2, small_model(layers=1), pp=1, tp=2, microbatches=2)
    assert lines(configuration.program(1)) == (2 * expected(TENSOR_LAYER_FORWARD) + 2 * expected(TENSOR_LAYER_BACKWARD))


def expert_model(layers: int) -> object:
    """Four experts, two active: P_e = 3·4·5·4 = 240 a layer; P_ne = 40 + (64 + 16 + 8) a layer + 4."""
    return small_model(layers=layers, experts=4, active_experts=2)


@pytest.mark.parametrize("replicas", [1, 3])
def test_dp_pp_ep_exchanges_tokens_around_every_mlp_and_ends_with_two_all_reduces(replicas: int) -> None:
    # All-to-all: b N k d / ep = 12·2/2 = 12 a destination. One of two stages: P_ne = (44 + 2·88)/2 = 110, P_e = 240;
    # the replica all-reduce has 110 + 240/2 = 230.
    configuration = small("dp_pp_ep", 4 * replicas, expert_model(2), pp=2, ep=2, microbatches=2)
    layer_forward = expected("""
        compute attention
        alltoall expert: tokens 12
        compute mlp
        alltoall expert: tokens 12
    """)
    layer_backward = [
        line.replace("attention", "attention_backward").replace("mlp", "mlp_backward") for line in layer_forward
    ]
    first = 2 * [*layer_forward, "send pipeline to 1: activation_out 12"]
    first += 2 * ["recv pipeline from 1: gradient_in 12", *layer_backward]
    last = 2 * ["recv pipeline from 0: activation_in 12", *layer_forward]
    last += 2 * [*layer_backward, "send pipeline to 0: gradient_out 12"]
    end = ["allreduce expert: non_expert_gradient 110"]
    end += ["allreduce replica: gradient 230"] if replicas > 1 else []
    assert lines(configuration.program(1)) == first + end
    assert lines(configuration.program(2)) == last + end


def test_dp_pp_ep_of_one_expert_rank_exchanges_no_tokens() -> None:
    configuration = small("dp_pp_ep", 2, expert_model(1), pp=1, ep=1, microbatches=1)
    assert lines(configuration.program(0)) == expected("""
        compute attention
        compute mlp
        compute attention_backward
        compute mlp_backward
        allreduce replica: gradient 372
    """)


@pytest.mark.parametrize(
    ("strategy", "world_size", "options"),
    [
        ("dp", 2, {"buckets": 7}),
        ("fsdp", 4, {"units": 5, "sharding": 2}),
        ("dp_pp", 4, {"pp": 1}),
    ],
)
def test_all_compute_of_an_iteration_is_three_forwards_of_the_model(
    strategy: str, world_size: int, options: dict[str, int]
) -> None:
    # B = 2, N = 3, d = 4, H = 5, L = 2: attention 8·2·3·16 + 4·2·9·4 = 1056, MLP 4·2·3·4·5 = 480 FLOPs a layer.
    program = small(strategy, world_size, **options).program(0)
    flops = sum(op.phase.flops for op in program if isinstance(op, Compute))
    assert flops == pytest.approx(3 * 2 * (1056 + 480))


def test_tensor_parallelism_divides_the_compute_by_its_degree_and_a_stage_has_its_share_of_the_layers() -> None:
    configuration = small("dp_pp_tp", 8, pp=2, tp=2)
    flops = sum(op.phase.flops for op in configuration.program(0) if isinstance(op, Compute))
    assert flops == pytest.approx(3 * 2 * (1056 + 480) / 4)


def test_expert_parallelism_leaves_the_compute_as_it_is() -> None:
    # Two active experts double the MLP.
    configuration = small("dp_pp_ep", 4, expert_model(2), pp=2, ep=2)
    flops = sum(op.phase.flops for op in configuration.program(0) if isinstance(op, Compute))
    assert flops == pytest.approx(3 * (1056 + 2 * 480))


def test_scales_shrink_messages_to_one_element_at_least_and_all_phases() -> None:
    configuration = small("dp", 2, buckets=2, scale=0.1, time_scale=0.5)
    assert lines(configuration.program(0))[2] == "start allreduce world: gradient[0] 15"  # 15.4
    tiny = small("dp", 2, buckets=2, scale=1e-9)
    assert lines(tiny.program(0))[2] == "start allreduce world: gradient[0] 1"
    flops = sum(op.phase.flops for op in configuration.program(0) if isinstance(op, Compute))
    assert flops == pytest.approx(0.5 * 3 * 2 * (1056 + 480))
