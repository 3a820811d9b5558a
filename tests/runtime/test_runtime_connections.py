"""The first messages: one of every kind that a program needs, small, and without a deadlock."""

from __future__ import annotations

from dlbench.runtime.connections import first_messages
from dlbench.strategies.layout import Layout
from dlbench.strategies.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Buffer,
    Communication,
    Op,
    Recv,
    ReduceScatter,
    Scope,
    Send,
    Wait,
)

LAYOUT = Layout(world_size=4, inner=2, inner_scope=Scope.SHARD, pp=2)
SMALL = Buffer("small", 10)
OTHER = Buffer("other", 20)
LARGE = Buffer("large", 10**12)


def firsts(*program: Op, dtype: str = "bf16") -> tuple[Communication, ...]:
    return first_messages(program, LAYOUT, dtype)


def test_one_communication_of_each_kind_is_kept_and_blocks() -> None:
    program = (
        AllReduce(Scope.SHARD, SMALL, blocking=False),
        AllReduce(Scope.SHARD, OTHER, blocking=False),
        AllGather(Scope.SHARD, SMALL),
        Wait(("small", "other")),
        AllGather(Scope.SHARD, OTHER, blocking=False),
    )
    assert firsts(*program) == (AllReduce(Scope.SHARD, SMALL), AllGather(Scope.SHARD, SMALL))


def test_groups_and_peers_are_told_apart_and_so_are_the_two_directions() -> None:
    program = (
        Recv(Scope.PIPELINE, 0, SMALL),
        Send(Scope.PIPELINE, 0, SMALL),
        Send(Scope.PIPELINE, 1, SMALL),
        AllReduce(Scope.SHARD, SMALL),
        AllReduce(Scope.WORLD, SMALL),
    )
    assert firsts(*program, *program) == program


def test_large_messages_are_cut_to_what_the_buffers_of_both_sides_may_take() -> None:
    # A shard group has 2 ranks; an element of bf16 has 2 bytes, of fp64 8.
    program = (
        AllReduce(Scope.SHARD, LARGE),  # sends 1 block and receives 1
        AllGather(Scope.SHARD, LARGE),  # 1 and 2
        ReduceScatter(Scope.SHARD, LARGE),  # 2 and 1
        AllToAll(Scope.SHARD, LARGE),  # 2 and 2
        Send(Scope.PIPELINE, 1, LARGE),  # 1
    )
    blocks = (2, 3, 3, 4, 1)
    for dtype, size in (("bf16", 2), ("fp64", 8)):
        elements = [op.buffer.elements for op in firsts(*program, dtype=dtype)]
        assert elements == [64 * 2**20 // size // count for count in blocks]


def test_in_a_group_of_very_many_ranks_every_rank_has_one_element() -> None:
    layout = Layout(world_size=10**8)
    (op,) = first_messages([AllGather(Scope.WORLD, LARGE)], layout, "bf16")
    assert op.buffer == Buffer("large", 1)


def test_a_program_without_communication_has_no_first_messages() -> None:
    assert firsts() == ()
