"""Properties that every program of every strategy has, whatever the degrees."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_worlds import (
    Deadlock,
    GpuInterpreter,
    Interpreter,
    in_flight_conflicts,
    run_all,
    run_all_on_gpus,
    small,
    small_model,
)

from dlbench.runtime.connections import first_messages
from dlbench.strategies import Configuration
from dlbench.strategies.layout import Coordinates, Layout
from dlbench.strategies.ops import COLLECTIVES, AllReduce, Buffer, Op, Recv, Scope, Send, Wait, operation

INNER = {"fsdp": "sharding", "dp_pp_tp": "tp", "dp_pp_ep": "ep"}


@st.composite
def configurations(draw: Any, largest_world: int) -> Configuration:
    strategy = draw(st.sampled_from(["dp", "fsdp", "dp_pp", "dp_pp_tp", "dp_pp_ep"]))
    options: dict[str, int] = {}
    replica = 1
    if strategy in INNER:
        options[INNER[strategy]] = draw(st.integers(1, min(6, largest_world)))
        replica = options[INNER[strategy]]
    if strategy.startswith("dp_pp"):
        options["pp"] = draw(st.integers(1, min(5, largest_world // replica)))
        options["microbatches"] = draw(st.sampled_from([1, 2, 4]))
        replica *= options["pp"]
    if strategy == "dp":
        options["buckets"] = draw(st.integers(1, 5))
    if strategy == "fsdp":
        options["units"] = draw(st.integers(1, 5))
    experts = 2 * options["ep"] if strategy == "dp_pp_ep" else 1
    model = small_model(layers=draw(st.integers(options.get("pp", 1), 6)), experts=experts)
    world_size = replica * draw(st.integers(1, largest_world // replica))
    return small(strategy, world_size, model, local_batch=4, **options)


@settings(deadline=None, max_examples=150)
@given(configurations(largest_world=16))
def test_every_world_runs_to_its_end_even_if_every_send_waits_for_its_receive(configuration: Configuration) -> None:
    run_all(configuration)


@settings(deadline=None, max_examples=150)
@given(configurations(largest_world=16))
def test_every_world_runs_to_its_end_even_if_gpus_carry_out_one_operation_after_the_other(
    configuration: Configuration,
) -> None:
    run_all_on_gpus(configuration)


@settings(deadline=None, max_examples=150)
@given(configurations(largest_world=16))
def test_the_first_messages_run_to_their_end_even_if_gpus_carry_out_one_operation_after_the_other(
    configuration: Configuration,
) -> None:
    layout, dtype = configuration.layout, configuration.workload.dtype
    ranks = range(layout.world_size)
    GpuInterpreter([first_messages(configuration.program(rank), layout, dtype) for rank in ranks], layout.group).run()


@settings(deadline=None, max_examples=100)
@given(configurations(largest_world=4096), st.data())
def test_the_ranks_of_a_group_issue_the_same_collectives_in_the_same_order(
    configuration: Configuration, data: st.DataObject
) -> None:
    layout = configuration.layout
    rank = data.draw(st.integers(0, layout.world_size - 1))
    scopes = {op.group for op in configuration.program(rank) if isinstance(op, COLLECTIVES)}
    for scope in scopes:
        group = layout.group(scope, rank)
        others = data.draw(st.lists(st.sampled_from(group), max_size=3))
        issued = {_collectives(configuration, member, scope) for member in (rank, *others)}
        assert len(issued) == 1


def _collectives(configuration: Configuration, rank: int, scope: Scope) -> tuple[tuple[str, int, bool], ...]:
    return tuple(
        (operation(op), op.buffer.elements, op.blocking)
        for op in configuration.program(rank)
        if isinstance(op, COLLECTIVES) and op.group is scope
    )


@settings(deadline=None, max_examples=100)
@given(configurations(largest_world=4096), st.data())
def test_each_send_has_its_receive_in_the_same_order_and_of_the_same_size(
    configuration: Configuration, data: st.DataObject
) -> None:
    layout = configuration.layout
    rank = data.draw(st.integers(0, layout.world_size - 1))
    pipeline = layout.group(Scope.PIPELINE, rank)
    sent = _point_to_point(configuration, rank, Send)
    for peer in {peer for peer, _ in sent}:
        received = _point_to_point(configuration, pipeline[peer], Recv)
        here = pipeline.index(rank)
        assert [size for to, size in sent if to == peer] == [size for source, size in received if source == here]


def _point_to_point(configuration: Configuration, rank: int, kind: type) -> list[tuple[int, int]]:
    return [(op.peer, op.buffer.elements) for op in configuration.program(rank) if isinstance(op, kind)]


@settings(deadline=None, max_examples=100)
@given(configurations(largest_world=4096), st.data())
def test_no_two_ops_in_flight_share_a_buffer_and_a_buffer_has_one_use(
    configuration: Configuration, data: st.DataObject
) -> None:
    program = configuration.program(data.draw(st.integers(0, configuration.layout.world_size - 1)))
    assert in_flight_conflicts(program) == []
    uses: dict[str, set[Any]] = {}
    for op in program:
        if isinstance(op, (*COLLECTIVES, Send, Recv)):
            uses.setdefault(op.buffer.name, set()).add((operation(op), op.group, op.buffer.elements))
    assert all(len(use) == 1 for use in uses.values())


@settings(deadline=None, max_examples=100)
@given(configurations(largest_world=4096), st.data())
def test_every_started_request_is_waited_for_exactly_once(configuration: Configuration, data: st.DataObject) -> None:
    program = configuration.program(data.draw(st.integers(0, configuration.layout.world_size - 1)))
    started = Counter(op.buffer.name for op in program if isinstance(op, COLLECTIVES) and not op.blocking)
    waited = Counter(request for op in program if isinstance(op, Wait) for request in op.requests)
    assert started == waited
    assert all(op.requests for op in program if isinstance(op, Wait))


@settings(deadline=None, max_examples=100)
@given(configurations(largest_world=256))
def test_a_group_of_one_exchanges_nothing(configuration: Configuration) -> None:
    for role in configuration.roles():
        for op in configuration.program(role.rank):
            if isinstance(op, (*COLLECTIVES, Send, Recv)):
                assert configuration.layout.group_size(op.group) > 1


@settings(deadline=None, max_examples=50)
@given(configurations(largest_world=64))
def test_the_roles_show_every_distinct_program_and_count_all_ranks(configuration: Configuration) -> None:
    def shape(rank: int) -> tuple[Any, ...]:
        """The program, peers left out."""
        return tuple((type(op), op.buffer) if isinstance(op, Send | Recv) else op for op in configuration.program(rank))

    roles = configuration.roles()
    everywhere = Counter(shape(rank) for rank in range(configuration.layout.world_size))
    shown: Counter[tuple[Any, ...]] = Counter()
    for role in roles:
        shown[shape(role.rank)] += role.ranks
    assert shown == everywhere


@st.composite
def layouts(draw: Any) -> Layout:
    scope = draw(st.sampled_from([None, Scope.TENSOR, Scope.EXPERT, Scope.SHARD]))
    inner = draw(st.integers(1, 8)) if scope else 1
    pp = 1 if scope is Scope.SHARD else draw(st.integers(1, 8))
    replicas = draw(st.integers(1, max(1, 4096 // (pp * inner))))
    return Layout(world_size=pp * inner * replicas, pp=pp, inner=inner, inner_scope=scope)


def _scopes(layout: Layout) -> list[Scope]:
    return [Scope.WORLD, Scope.REPLICA, Scope.PIPELINE, *([layout.inner_scope] if layout.inner_scope else [])]


@settings(deadline=None)
@given(layouts())
def test_a_layout_is_a_bijection_of_ranks_and_coordinates(layout: Layout) -> None:
    places = [layout.coordinates(rank) for rank in range(layout.world_size)]
    assert [layout.rank(place) for place in places] == list(range(layout.world_size))
    assert set(places) == {
        Coordinates(inner=inner, stage=stage, replica=replica)
        for inner in range(layout.inner)
        for stage in range(layout.pp)
        for replica in range(layout.replicas)
    }


@settings(deadline=None)
@given(layouts())
def test_the_groups_of_a_scope_partition_the_world(layout: Layout) -> None:
    for scope in _scopes(layout):
        groups = {layout.group(scope, rank) for rank in range(layout.world_size)}
        assert sorted(rank for group in groups for rank in group) == list(range(layout.world_size))
        assert {len(group) for group in groups} == {layout.group_size(scope)}


@given(layouts(), st.data())
def test_a_rank_stands_in_its_group_at_its_coordinate(layout: Layout, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, layout.world_size - 1))
    place = layout.coordinates(rank)
    assert layout.group(Scope.PIPELINE, rank).index(rank) == place.stage
    assert layout.group(Scope.REPLICA, rank).index(rank) == place.replica
    if layout.inner_scope:
        assert layout.group(layout.inner_scope, rank).index(rank) == place.inner


def _interpret(*programs: tuple[Op, ...]) -> None:
    Interpreter(programs, lambda scope, rank: range(len(programs))).run()


def test_the_interpreter_sees_two_ranks_that_both_send_first() -> None:
    send, receive = Buffer("out", 1), Buffer("in", 1)
    with pytest.raises(Deadlock):
        _interpret(
            (Send(Scope.PIPELINE, 1, send), Recv(Scope.PIPELINE, 1, receive)),
            (Send(Scope.PIPELINE, 0, send), Recv(Scope.PIPELINE, 0, receive)),
        )


def test_the_interpreter_sees_a_collective_that_one_rank_leaves_out() -> None:
    with pytest.raises(Deadlock):
        _interpret((AllReduce(Scope.WORLD, Buffer("sum", 1)),), ())


def test_the_interpreter_sees_collectives_of_different_size() -> None:
    with pytest.raises(AssertionError, match="allreduce"):
        _interpret((AllReduce(Scope.WORLD, Buffer("sum", 1)),), (AllReduce(Scope.WORLD, Buffer("sum", 2)),))


def test_the_interpreter_sees_a_request_that_nobody_waits_for() -> None:
    start = AllReduce(Scope.WORLD, Buffer("sum", 1), blocking=False)
    with pytest.raises(AssertionError, match="nobody waits"):
        _interpret((start,), (start,))


def _interpret_on_gpus(*programs: tuple[Op, ...]) -> None:
    GpuInterpreter(programs, lambda scope, rank: range(len(programs))).run()


SUM_STARTED = AllReduce(Scope.WORLD, Buffer("sum", 1), blocking=False)
SUM_OVER = Wait(("sum",))
TO_THE_OTHER, FROM_THE_OTHER = Send(Scope.PIPELINE, 1, Buffer("out", 2)), Recv(Scope.PIPELINE, 0, Buffer("in", 2))


def test_on_gpus_a_send_waits_for_what_was_started_before_it() -> None:
    """Rank 1 receives first and sums then: harmless in MPI, a deadlock where the sum fills the GPU of rank 0."""
    programs = (SUM_STARTED, TO_THE_OTHER, SUM_OVER), (FROM_THE_OTHER, SUM_STARTED, SUM_OVER)
    _interpret(*programs)

    with pytest.raises(Deadlock):
        _interpret_on_gpus(*programs)


def test_on_gpus_operations_in_the_same_order_end() -> None:
    _interpret_on_gpus((SUM_STARTED, TO_THE_OTHER, SUM_OVER), (SUM_STARTED, FROM_THE_OTHER, SUM_OVER))


def test_on_gpus_two_ranks_that_both_send_first_wait_forever() -> None:
    with pytest.raises(Deadlock):
        _interpret_on_gpus(
            (Send(Scope.PIPELINE, 1, Buffer("out", 1)), Recv(Scope.PIPELINE, 1, Buffer("in", 1))),
            (Send(Scope.PIPELINE, 0, Buffer("out", 1)), Recv(Scope.PIPELINE, 0, Buffer("in", 1))),
        )


def test_on_gpus_two_sums_that_are_started_in_opposite_order_wait_forever() -> None:
    other = AllReduce(Scope.REPLICA, Buffer("other", 3), blocking=False)
    both_over = Wait(("sum", "other"))

    with pytest.raises(Deadlock):
        _interpret_on_gpus((SUM_STARTED, other, both_over), (other, SUM_STARTED, both_over))
