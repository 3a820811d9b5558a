"""The executor, on a communicator and a compute model that only keep a log."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from dlbench.roofline import Phase
from dlbench.runtime.executor import Executor, allocate, describe_op, in_flight
from dlbench.strategies.layout import Layout
from dlbench.strategies.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    Buffer,
    Compute,
    Op,
    Recv,
    ReduceScatter,
    Scope,
    Send,
    Wait,
)

FORWARD = Compute(Phase("forward", 1.0, 1.0, 1e-3))
BACKWARD = Compute(Phase("backward", 2.0, 2.0, 2e-3))
FIRST = AllReduce(Scope.WORLD, Buffer("first", 8), blocking=False)
SECOND = AllReduce(Scope.WORLD, Buffer("second", 8), blocking=False)
PROGRAM: tuple[Op, ...] = (
    Recv(Scope.WORLD, 1, Buffer("input", 4)),
    FORWARD,
    FIRST,
    BACKWARD,
    SECOND,
    Wait(("first", "second")),
    AllGather(Scope.WORLD, Buffer("shard", 2)),
    Send(Scope.WORLD, 1, Buffer("output", 4)),
)
LAYOUT = Layout(world_size=2)


class FakeCommunicator:
    """Notes every call, with the sizes of its buffers; buffers are their sizes, requests are their names."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.allocated: list[int] = []
        self.blocked = threading.Event()
        self.blocked.set()

    def allocate(self, elements: int, dtype: str) -> int:
        assert dtype == "bf16"
        self.allocated.append(elements)
        return elements

    def __getattr__(self, name: str) -> Callable[..., str]:
        def call(*arguments: Any) -> str:
            self.blocked.wait(10)
            self.log.append(f"{name} {' '.join(map(str, arguments))}")
            return f"request {len(self.log)}"

        return call


class FakeCompute:
    """Notes every phase, and whether it was bound with progress."""

    name = "fake"

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.prepared: list[str] = []

    def describe(self) -> dict[str, str]:
        return {}

    def prepare(self, phases: Iterable[Any]) -> None:
        self.prepared += [phase.name for phase in phases]

    def bind(self, phase: Any, progress: Callable[[], None] | None = None) -> Callable[[], None]:
        return lambda: self.log.append(f"compute {phase.name}{' with progress' if progress else ''}")


def executor(
    program: Iterable[Op] = PROGRAM, log: list[str] | None = None, **options: Any
) -> tuple[Executor, FakeCommunicator]:
    log = [] if log is None else log
    communicator = FakeCommunicator(log)
    built = Executor(
        tuple(program),
        layout=LAYOUT,
        communicators={scope: communicator for scope in Scope},
        compute=FakeCompute(log),
        dtype="bf16",
        **options,
    )
    return built, communicator


def test_the_calls_are_those_of_the_program_in_its_order() -> None:
    log: list[str] = []
    built, _ = executor(log=log)
    built.iterate()
    assert log == [
        "recv 4 1",
        "compute forward",
        "iallreduce 8 8",
        "compute backward",
        "iallreduce 8 8",
        "wait_all ['request 3', 'request 5']",
        "allgather 2 4",
        "send 4 1",
    ]


def test_every_iteration_waits_for_its_own_requests() -> None:
    log: list[str] = []
    built, _ = executor([FIRST, Wait(("first",))], log)
    built.iterate()
    built.iterate()
    assert log == ["iallreduce 8 8", "wait_all ['request 1']", "iallreduce 8 8", "wait_all ['request 3']"]


def test_a_phase_drives_progress_only_while_requests_are_in_flight() -> None:
    log: list[str] = []
    executor(log=log, progress=lambda: None)[0].iterate()
    assert [line for line in log if line.startswith("compute")] == [
        "compute forward",
        "compute backward with progress",
    ]


def test_requests_are_in_flight_from_the_op_after_their_start_until_their_wait() -> None:
    both = frozenset({"first", "second"})
    one = frozenset({"first"})
    assert list(in_flight(PROGRAM)) == [frozenset(), frozenset(), frozenset(), one, one, both, frozenset(), frozenset()]


def test_all_phases_are_prepared_before_the_first_iteration() -> None:
    log: list[str] = []
    compute = FakeCompute(log)
    Executor([FORWARD, BACKWARD, FORWARD], layout=LAYOUT, communicators={}, compute=compute, dtype="bf16")
    assert compute.prepared == ["forward", "backward", "forward"]
    assert log == []


def test_clock_readings_never_go_backwards() -> None:
    built, _ = executor()
    built.iterate()
    readings = [built.begin, *itertools.chain(*zip(built.enter, built.leave, strict=True)), built.end]
    assert readings == sorted(readings)
    assert built.begin > 0


def test_an_iteration_leaves_no_reading_of_the_one_before() -> None:
    built, _ = executor()
    built.iterate()
    first_end = built.end
    built.iterate()
    assert min(built.enter) >= built.begin >= first_end


def test_a_delay_lies_before_its_op_and_inside_the_iteration() -> None:
    slept: list[int] = []
    built, _ = executor(delays={3: lambda: slept.extend([time.perf_counter_ns(), time.perf_counter_ns()])})
    built.iterate()
    assert built.begin <= built.leave[2] <= slept[0] <= slept[1] <= built.enter[3] <= built.leave[3] <= built.end


def test_a_delayed_op_is_still_performed() -> None:
    log: list[str] = []
    executor(log=log, delays={0: lambda: log.append("sleep"), 7: lambda: log.append("sleep")})[0].iterate()
    assert log[:2] == ["sleep", "recv 4 1"]
    assert log[-2:] == ["sleep", "send 4 1"]


def test_the_op_in_which_a_rank_blocks_can_be_asked_from_another_thread() -> None:
    built, communicator = executor()
    communicator.blocked.clear()
    thread = threading.Thread(target=built.iterate)
    thread.start()
    try:
        assert built.current_op() == "op 0 (recv/world input peer 1)"
    finally:
        communicator.blocked.set()
        thread.join()
    assert built.current_op() == "the end"


def test_a_later_iteration_begins_at_the_first_op_again() -> None:
    seen: list[str] = []
    built, _ = executor(delays={4: lambda: seen.append(built.current_op())})
    for _ in range(2):
        built.reset()
        built.iterate()
    assert seen == ["op 4 (allreduce/world second)"] * 2


@pytest.mark.parametrize(
    ("op", "text"),
    [
        (FORWARD, "op 7 (compute forward)"),
        (FIRST, "op 7 (allreduce/world first)"),
        (Wait(("first",)), "op 7 (wait for first)"),
        (Wait(("a", "b", "c")), "op 7 (wait for a … c)"),
        (Send(Scope.PIPELINE, 3, Buffer("activation", 4)), "op 7 (send/pipeline activation peer 3)"),
    ],
)
def test_an_op_is_described_by_its_place_and_what_it_does(op: Op, text: str) -> None:
    assert describe_op(7, op) == text


def test_buffers_are_as_large_as_mpi_needs_them() -> None:
    layout = Layout(world_size=12, inner=4, inner_scope=Scope.SHARD)
    communicators = {scope: FakeCommunicator([]) for scope in Scope}
    program = [
        AllGather(Scope.SHARD, Buffer("parameters", 10)),
        ReduceScatter(Scope.SHARD, Buffer("gradient", 10)),
        AllReduce(Scope.REPLICA, Buffer("replica", 10)),
        AllToAll(Scope.SHARD, Buffer("tokens", 10)),
        Send(Scope.REPLICA, 1, Buffer("out", 10)),
        Recv(Scope.REPLICA, 1, Buffer("in", 10)),
    ]
    storage: Mapping[str, Any] = allocate(program, layout, communicators, "bf16")  # type: ignore[arg-type]
    assert {name: tuple(pair) for name, pair in storage.items()} == {
        "parameters": (10, 40),
        "gradient": (40, 10),
        "replica": (10, 10),
        "tokens": (40, 40),
        "out": (10, None),
        "in": (None, 10),
    }
    assert communicators[Scope.SHARD].allocated == [10, 40, 40, 10, 40, 40]


def test_ops_of_one_kind_share_their_buffer() -> None:
    _, communicator = executor([FIRST, Wait(("first",)), FIRST, Wait(("first",))])
    assert communicator.allocated == [8, 8]


@pytest.mark.parametrize(
    "other",
    [
        AllReduce(Scope.REPLICA, Buffer("first", 8)),
        AllReduce(Scope.WORLD, Buffer("first", 9)),
        AllToAll(Scope.WORLD, Buffer("first", 4)),
        ReduceScatter(Scope.WORLD, Buffer("first", 8)),
    ],
)
def test_a_strategy_that_uses_one_buffer_for_two_things_is_refused(other: Op) -> None:
    with pytest.raises(ValueError, match="buffer first is used as"):
        executor([FIRST, Wait(("first",)), other])


def test_a_rank_between_iterations_is_at_the_start_or_at_the_end() -> None:
    built, _ = executor()
    built.reset()
    assert built.current_op() == "the start"
    built.iterate()
    assert built.current_op() == "the end"
