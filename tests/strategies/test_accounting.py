"""From clock readings to seconds per category."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbench.roofline import Phase
from dlbench.specs import load_gpu, load_model
from dlbench.strategies import STRATEGIES, configure
from dlbench.strategies.accounting import Accounting, categories, classes_of
from dlbench.strategies.ops import AllGather, AllReduce, Buffer, Compute, ReduceScatter, Scope, Send, Wait

PHASE = Compute(Phase("work", 1.0, 1.0, 1e-3))
GRADIENT = AllReduce(Scope.WORLD, Buffer("gradient", 8), blocking=False)
SHARD = AllGather(Scope.SHARD, Buffer("shard", 8), blocking=False)

PROGRAM = (
    PHASE,
    GRADIENT,
    ReduceScatter(Scope.SHARD, Buffer("scatter", 8)),
    PHASE,
    Send(Scope.PIPELINE, 1, Buffer("activation", 8)),
    Wait(("gradient",)),
)
CLASSES = ("reduce_scatter/shard", "send/pipeline", "allreduce/world")


def test_a_wait_belongs_to_the_class_of_what_it_waits_for_and_a_start_to_issue() -> None:
    assert categories(PROGRAM) == [
        "compute",
        "issue",
        "reduce_scatter/shard",
        "compute",
        "send/pipeline",
        "allreduce/world",
    ]


def test_a_wait_for_several_requests_of_one_class_has_that_class() -> None:
    first, second = (AllReduce(Scope.WORLD, Buffer(name, 8), blocking=False) for name in ("a", "b"))
    assert categories([first, second, Wait(("a", "b"))])[-1] == "allreduce/world"


def test_a_wait_for_two_classes_names_both() -> None:
    program = [GRADIENT, SHARD, Wait(("gradient", "shard"))]
    assert categories(program)[-1] == "allreduce/world+allgather/shard"


def test_the_classes_of_several_programs_come_in_order_and_once_each() -> None:
    assert classes_of([PROGRAM, [SHARD, Wait(("shard",))], PROGRAM]) == (*CLASSES, "allgather/shard")


def test_readings_in_nanoseconds_become_seconds_per_category() -> None:
    enter = [0, 100, 110, 300, 1_000, 2_000_000_000]
    leave = [100, 110, 300, 1_000, 1_500, 3_500_000_000]
    # compute 100 + 700 ns, issue 10 ns, reduce-scatter 190 ns, send 500 ns, wait 1.5 s
    seconds = Accounting(PROGRAM, CLASSES, timed=False).seconds(enter, leave)
    np.testing.assert_allclose(seconds, [800e-9, 0, 10e-9, 190e-9, 500e-9, 1.5], rtol=1e-12)


def test_a_class_that_only_other_ranks_have_is_zero() -> None:
    seconds = Accounting([PHASE], ("recv/pipeline", "send/pipeline"), timed=False).seconds([5], [8])
    np.testing.assert_allclose(seconds, [3e-9, 0, 0, 0, 0])


def test_a_rank_without_ops_has_spent_nothing() -> None:
    assert Accounting([], CLASSES, timed=False).seconds([], []).tolist() == [0.0] * 6


def test_readings_of_a_machine_that_runs_for_years_keep_their_nanoseconds() -> None:
    start = 10**17  # 3 years
    assert Accounting([PHASE], (), timed=False).seconds([start], [start + 1])[0] == pytest.approx(1e-9, rel=1e-9)


def test_what_a_timed_phase_takes_beyond_its_time_is_overrun() -> None:
    # Phases of 1 ms: one takes 3 ms because a library worked inside it, one is over early after 0.9 ms.
    program = [PHASE, GRADIENT, PHASE, Wait(("gradient",))]
    enter = [0, 3_000_000, 3_000_000, 3_900_000]
    leave = [3_000_000, 3_000_000, 3_900_000, 4_000_000]
    seconds = Accounting(program, ("allreduce/world",), timed=True).seconds(enter, leave)
    np.testing.assert_allclose(seconds, [1.9e-3, 2e-3, 0, 0.1e-3], rtol=1e-12)


def test_phases_that_are_not_timed_have_no_overrun() -> None:
    seconds = Accounting([PHASE], (), timed=False).seconds([0], [3_000_000])
    np.testing.assert_allclose(seconds, [3e-3, 0, 0], rtol=1e-12)


DURATIONS = st.lists(st.integers(0, 10**12), min_size=len(PROGRAM), max_size=len(PROGRAM))


@given(durations=DURATIONS, gaps=DURATIONS)
def test_categories_add_up_to_the_time_inside_ops_whatever_lies_between(durations: list[int], gaps: list[int]) -> None:
    enter, leave, now = [], [], 0
    for duration, gap in zip(durations, gaps, strict=True):
        enter.append(now + gap)
        now = enter[-1] + duration
        leave.append(now)
    seconds = Accounting(PROGRAM, CLASSES, timed=True).seconds(enter, leave)
    assert seconds.sum() == pytest.approx(sum(durations) * 1e-9, rel=1e-9)


@given(durations=DURATIONS, factor=st.integers(1, 1000))
def test_times_scale_with_the_readings(durations: list[int], factor: int) -> None:
    accounting, zeros = Accounting(PROGRAM, CLASSES, timed=False), [0] * len(PROGRAM)
    scaled = accounting.seconds(zeros, [duration * factor for duration in durations])
    np.testing.assert_allclose(scaled, accounting.seconds(zeros, durations) * factor, rtol=1e-9)


@given(durations=DURATIONS, order=st.permutations(CLASSES))
def test_the_order_of_the_classes_only_orders_the_result(durations: list[int], order: list[str]) -> None:
    zeros = [0] * len(PROGRAM)
    usual = dict(zip(CLASSES, Accounting(PROGRAM, CLASSES, timed=False).seconds(zeros, durations)[3:], strict=True))
    other = dict(zip(order, Accounting(PROGRAM, order, timed=False).seconds(zeros, durations)[3:], strict=True))
    assert usual == other


@pytest.mark.parametrize(
    ("strategy", "classes"),
    [
        ("dp", {"allreduce/world"}),
        ("fsdp", {"allgather/shard", "reduce_scatter/shard", "allreduce/replica"}),
        ("dp_pp", {"send/pipeline", "recv/pipeline", "allreduce/replica"}),
        ("dp_pp_tp", {"send/pipeline", "recv/pipeline", "allreduce/replica", "allreduce/tensor"}),
        (
            "dp_pp_ep",
            {"send/pipeline", "recv/pipeline", "alltoall/expert", "allreduce/expert", "allreduce/replica"},
        ),
    ],
)
def test_every_strategy_has_the_classes_of_its_messages_and_no_mixed_wait(strategy: str, classes: set[str]) -> None:
    configuration = configure(
        strategy, world_size=128, model=load_model(STRATEGIES[strategy].model), gpu=load_gpu("b200")
    )
    assert set(classes_of(configuration.program(role.rank) for role in configuration.roles())) == classes
