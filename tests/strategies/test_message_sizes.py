"""Message sizes against the paper's Table I, and the memory that they need."""

from __future__ import annotations

import time

import pytest
from small_worlds import small, small_model

from dlbench.specs import load_gpu, load_model
from dlbench.strategies import Configuration, configure
from dlbench.strategies.messages import MessageRow, memory, message_table, smallest
from dlbench.strategies.ops import Scope


def paper(strategy: str, model: str, world_size: int) -> Configuration:
    return configure(strategy, world_size=world_size, model=load_model(model), gpu=load_gpu("b200"))


def rows(configuration: Configuration) -> dict[tuple[str, str], MessageRow]:
    return {(row.operation, row.scope.value): row for row in message_table(configuration)}


TABLE_I = [
    # strategy, model, ranks, operation, scope, elements, MB at bf16
    ("fsdp", "llama3-8b", 32, "allgather", "shard", 62_736_416, 125.5),
    ("fsdp", "llama3-8b", 32, "reduce_scatter", "shard", 62_736_416, 125.5),
    ("fsdp", "llama3-8b", 32, "allreduce", "replica", 62_736_416, 125.5),
    ("fsdp", "minerva-7b", 32, "allgather", "shard", 57_808_928, 115.6),
    ("fsdp", "minerva-7b", 32, "reduce_scatter", "shard", 57_808_928, 115.6),
    ("fsdp", "minerva-7b", 32, "allreduce", "replica", 57_808_928, 115.6),
    ("dp_pp", "llama3-8b", 32, "allreduce", "replica", 1_003_782_656, 2008),
    ("dp_pp", "llama3-8b", 32, "send", "pipeline", 33_554_432, 67.1),
    ("dp_pp", "llama3-8b", 32, "recv", "pipeline", 33_554_432, 67.1),
    ("dp_pp", "minerva-7b", 32, "allreduce", "replica", 924_942_848, 1850),
    ("dp_pp", "minerva-7b", 32, "send", "pipeline", 16_777_216, 33.6),
    ("dp_pp_tp", "llama3-70b", 256, "allreduce", "tensor", 16_777_216, 33.6),
    ("dp_pp_tp", "llama3-70b", 256, "send", "pipeline", 67_108_864, 134.2),
    ("dp_pp_tp", "llama3-70b", 256, "allreduce", "replica", 2_204_803_328, 4410),
    ("dp_pp_ep", "mixtral-8x7b", 512, "alltoall", "expert", 4_194_304, 8.39),
    ("dp_pp_ep", "mixtral-8x7b", 512, "send", "pipeline", 16_777_216, 33.6),
    ("dp_pp_ep", "mixtral-8x7b", 512, "allreduce", "expert", 200_704_512, 401),
    ("dp_pp_ep", "mixtral-8x7b", 512, "allreduce", "replica", 905_347_584, 1811),
]


@pytest.mark.parametrize(("strategy", "model", "ranks", "operation", "scope", "elements", "megabytes"), TABLE_I)
def test_messages_have_the_published_size(
    strategy: str, model: str, ranks: int, operation: str, scope: str, elements: int, megabytes: float
) -> None:
    row = rows(paper(strategy, model, ranks))[operation, scope]
    assert row.elements == elements
    assert row.bytes == 2 * elements
    assert row.bytes / 1e6 == pytest.approx(megabytes, rel=2e-3)


def test_dp_splits_the_gradients_into_fifty_buckets_that_differ_by_one_element() -> None:
    # P = 632 404 480 = 50 × 12 648 089 + 30
    table = message_table(paper("dp", "vit-h", 8))
    assert [(row.elements, row.count) for row in table] == [(12_648_090, 30), (12_648_089, 20)]
    assert {(row.operation, row.scope, row.group_size, row.blocking) for row in table} == {
        ("allreduce", Scope.WORLD, 8, False)
    }
    assert table[0].bytes / 1e6 == pytest.approx(25.3, rel=1e-3)
    assert sum(row.elements * row.count for row in table) == 632_404_480


COUNTS = [
    # Forward and backward over 16 units gather 16 and 15; one gather of them all blocks.
    ("fsdp", "llama3-8b", 32, {"allgather/shard": 1 + 30, "reduce_scatter/shard": 16, "allreduce/replica": 16}),
    # A middle stage passes 16 microbatches on in both directions.
    ("dp_pp", "llama3-8b", 32, {"send/pipeline": 32, "recv/pipeline": 32, "allreduce/replica": 1}),
    # 10 layers a stage, 2 a layer, 16 microbatches, forward and backward.
    ("dp_pp_tp", "llama3-70b", 256, {"allreduce/tensor": 640, "send/pipeline": 32, "allreduce/replica": 1}),
    # 4 layers a stage.
    ("dp_pp_ep", "mixtral-8x7b", 512, {"alltoall/expert": 256, "allreduce/expert": 1, "allreduce/replica": 1}),
]


@pytest.mark.parametrize(("strategy", "model", "ranks", "counts"), COUNTS)
def test_the_table_counts_messages_on_the_rank_that_has_most(
    strategy: str, model: str, ranks: int, counts: dict[str, int]
) -> None:
    found: dict[str, int] = {}
    for row in message_table(paper(strategy, model, ranks)):
        name = f"{row.operation}/{row.scope}"
        found[name] = found.get(name, 0) + row.count
    assert {name: found[name] for name in counts} == counts


def test_the_table_tells_what_blocks_and_how_many_ranks_take_part() -> None:
    table = message_table(small("fsdp", 6, units=2, sharding=2))
    assert [(row.operation, row.group_size, row.count, row.blocking) for row in table] == [
        ("allgather", 2, 1, True),
        ("allgather", 2, 2, False),
        ("reduce_scatter", 2, 2, True),
        ("allreduce", 3, 2, False),
    ]


def test_memory_counts_the_send_and_the_receive_side_of_every_buffer_once() -> None:
    # P = 308 in 2 units over 2 ranks: shards of 77. Two parameter slots: 77 + 2·77 each. Gradients: 2·77 + 77.
    # Two gradient shards in flight: 77 + 77 each. bf16.
    configuration = small("fsdp", 4, units=2, sharding=2)
    assert list(memory(configuration).values()) == [2 * 77 * (2 * 3 + 3 + 2 * 2)]


def test_memory_differs_by_the_role_of_a_stage() -> None:
    # b N d = 12; P = 440 over 3 stages and 2 replicas: 147, 147, 146, twice for the all-reduce.
    configuration = small("dp_pp", 6, small_model(layers=3), pp=3)
    assert {role.name: size for role, size in memory(configuration).items()} == {
        "stage 0": 2 * (12 + 12 + 2 * 147),
        "stage 1": 2 * (4 * 12 + 2 * 147),
        "stage 2": 2 * (12 + 12 + 2 * 146),
    }


def test_equal_middle_stages_are_one_role() -> None:
    roles = small("dp_pp", 16, small_model(layers=8), pp=8).roles()
    # P = 40 + 8·132 + 4 = 1100 = 8 × 137 + 4: the first four stages hold one element more.
    assert [(role.name, role.rank, role.ranks) for role in roles] == [
        ("stage 0", 0, 2),
        ("stages 1-3", 1, 6),
        ("stages 4-6", 4, 6),
        ("stage 7", 7, 2),
    ]


def test_wider_elements_make_larger_messages_of_as_many_elements() -> None:
    wide = message_table(small("dp", 2, buckets=1, dtype="fp32"))[0]
    assert (wide.elements, wide.bytes) == (308, 1232)


def test_the_tables_of_a_hundred_thousand_ranks_take_no_longer_than_those_of_one_replica() -> None:
    began = time.process_time()
    configuration = paper("dp_pp_tp", "llama3-70b", 102_400)
    table, sizes = message_table(configuration), memory(configuration)
    assert time.process_time() - began < 1
    assert rows(configuration)["allreduce", "replica"].group_size == 3200
    assert len(table) == 4
    # partial sums 2 × 16 777 216; gradient 2 × 2 204 803 328; stages 2 or 4 activations of 67 108 864.
    rest = 2 * 16_777_216 + 2 * 2_204_803_328
    assert list(sizes.values()) == [
        2 * (rest + 2 * 67_108_864),
        2 * (rest + 4 * 67_108_864),
        2 * (rest + 2 * 67_108_864),
    ]


def test_the_smallest_messages_have_an_element_each_and_the_same_programs() -> None:
    whole = paper("fsdp", "llama3-8b", 32)
    least = smallest(whole)
    assert {row.elements for row in message_table(least)} == {1}
    assert len(least.program(0)) == len(whole.program(0))
    assert whole.workload.scale == 1.0
