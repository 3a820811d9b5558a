"""The global clock: from readings of many hardware clocks to one time."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dlbench.runtime.clock import (
    GlobalClock,
    Line,
    Measurement,
    clock_domain,
    compose,
    fit_line,
    tree_edges,
)

T = TypeVar("T")


class Alone:
    """Communicator of a single rank."""

    rank = 0
    size = 1

    def Barrier(self) -> None:
        pass

    def allgather(self, value: T) -> list[T]:
        return [value]

    def gather(self, value: T) -> list[T]:
        return [value]

    def scatter(self, values: list[T]) -> T:
        return values[0]


class TwoDomains(Alone):
    """Rank 1 of two, whose peer answers after `delays` (nanoseconds there and back) from a clock 1000 s ahead."""

    rank = 1
    size = 2

    def __init__(self, clock: FakeClock, delays: list[tuple[int, int]]) -> None:
        self.clock = clock
        self.delays = iter(delays)

    def allgather(self, value: tuple[str, int]) -> list[tuple[str, int]]:
        return [("rank 0", 0), value]

    def Send(self, message: NDArray[np.int64], peer: int, tag: int) -> None:
        there, self.back = next(self.delays)
        self.clock.reading += there
        self.answer = self.clock.reading + 1000 * 10**9

    def Recv(self, message: NDArray[np.int64], peer: int, tag: int) -> None:
        message[0] = self.answer
        self.clock.reading += self.back


class FakeClock:
    """A clock that a test sets, in nanoseconds."""

    def __init__(self, reading: int) -> None:
        self.reading = reading

    def __call__(self) -> int:
        return self.reading


def clock_with(line: Line, reference: float = 0.0, origin_ns: int = 5_000_000_000) -> GlobalClock:
    """Global clock of a single rank, forced to a model."""
    clock = GlobalClock(Alone(), FakeClock(origin_ns))
    clock._line, clock._reference = line, reference
    return clock


def test_ranks_of_one_kernel_name_the_same_clock_domain() -> None:
    assert clock_domain() == clock_domain() != ""


@given(st.integers(1, 300))
def test_every_rank_but_the_root_has_one_parent(size: int) -> None:
    children = [child for _, child in tree_edges(size)]
    assert sorted(children) == list(range(1, size))


@given(st.integers(1, 300))
def test_a_parent_is_placed_before_its_children(size: int) -> None:
    placed = {0}
    for parent, child in tree_edges(size):
        assert parent in placed
        placed.add(child)


@given(st.integers(2, 300))
def test_the_tree_has_as_many_rounds_as_the_logarithm_of_its_size(size: int) -> None:
    strides = [child - parent for parent, child in tree_edges(size)]
    assert len(set(strides)) == (size - 1).bit_length()
    assert all(earlier >= later for earlier, later in pairwise(strides))


@given(st.integers(2, 300))
def test_nobody_takes_part_twice_in_a_round(size: int) -> None:
    for stride in {child - parent for parent, child in tree_edges(size)}:
        members = [rank for edge in tree_edges(size) if edge[1] - edge[0] == stride for rank in edge]
        assert len(members) == len(set(members))


def test_one_measurement_gives_an_offset_without_drift() -> None:
    assert fit_line(Measurement(2.0, 0.5, 1e-6), None, reference=3.0) == Line(0.5, 0.0, 1e-6)


def test_two_measurements_give_the_drift_and_the_offset_at_the_reference() -> None:
    line = fit_line(Measurement(2.0, 0.5, 1e-6), Measurement(12.0, 0.6, 3e-6), reference=4.0)
    assert line.drift == pytest.approx(0.01)
    assert line.offset == pytest.approx(0.52)
    assert line.uncertainty == 3e-6


def test_a_change_that_the_uncertainties_explain_is_no_drift() -> None:
    line = fit_line(Measurement(2.0, 0.5, 2e-6), Measurement(12.0, 0.500004, 3e-6), reference=4.0)
    assert (line.offset, line.drift) == (0.5, 0.0)
    assert line.uncertainty == pytest.approx(7e-6)


def test_models_compose_along_the_tree() -> None:
    # Three leaders: 1 and 2 hang below 0 (rounds of stride 2, then 1). Four: 3 hangs below 2.
    edges = [Line(), Line(0.1, 0.0, 1e-6), Line(0.2, 1e-3, 2e-6), Line(0.4, 1e-3, 4e-6)]
    models = compose([0, 1, 2, 3], edges)
    assert models[:3] == edges[:3]
    # 3 reads 0 at the reference, when 2 reads 0.4; 0 then reads 0.4 + 0.2 + 1e-3 × 0.4.
    assert models[3].offset == pytest.approx(0.6004, abs=1e-15)
    assert models[3].drift == pytest.approx(1.001 * 1.001 - 1)
    assert models[3].uncertainty == pytest.approx(6e-6)


def test_ranks_of_a_domain_share_their_leaders_model() -> None:
    edge = Line(0.25, 0.0, 1e-6)
    models = compose([0, 0, 2, 2], [Line(), Line(), edge, Line()])
    assert models == [Line(), Line(), edge, edge]


def test_global_time_follows_the_formula_of_the_record() -> None:
    clock = clock_with(Line(offset=0.5, drift=0.01), reference=2.0)
    # Local time 10 s: 10 + 0.5 + 0.01 × (10 − 2).
    assert clock.to_global(15_000_000_000) == pytest.approx(10.58)


def test_readings_convert_as_arrays() -> None:
    clock = clock_with(Line(offset=0.5))
    readings = np.array([[5_000_000_000, 6_000_000_000]], np.int64)
    assert clock.to_global(readings).tolist() == [[0.5, 1.5]]


def test_nanoseconds_survive_a_week_of_running() -> None:
    clock = clock_with(Line(offset=1e-3))
    week = 7 * 86_400 * 10**9
    step = clock.to_global(5_000_000_000 + week + 1) - clock.to_global(5_000_000_000 + week)
    assert step == pytest.approx(1e-9, abs=2e-10)


@given(st.integers(0, 10**13), st.floats(-10, 10), st.floats(-1e-4, 1e-4), st.floats(0, 100))
def test_local_time_is_the_inverse_of_global_time(local_ns: int, offset: float, drift: float, reference: float) -> None:
    clock = clock_with(Line(offset, drift), reference)
    assert abs(clock.to_local(clock.to_global(local_ns)) - local_ns) <= 4


def test_the_exchange_with_the_shortest_round_trip_is_kept() -> None:
    fake = FakeClock(0)
    clock = GlobalClock(TwoDomains(fake, [(9_000, 1_000), (1_000, 2_000), (2_000, 5_000)]), fake, "rank 1")

    found = clock.measure(exchanges=3)

    # It begins at 10 µs and takes 3 µs: the middle is 0.5 µs after the answer was read.
    assert found.local == pytest.approx(11.5e-6, abs=1e-12)
    assert found.offset == pytest.approx(1000 - 0.5e-6, abs=1e-12)
    assert found.uncertainty == pytest.approx(1.5e-6, abs=1e-12)


def test_a_rank_that_comes_in_time_waits_until_the_deadline_and_is_not_late() -> None:
    clock = clock_with(Line(offset=0.5))
    deadlines: list[int] = []
    assert clock.wait_until(2.5, deadlines.append) == 0.0
    assert deadlines == [7_000_000_000]


def test_a_rank_that_comes_late_does_not_wait_and_tells_by_how_much() -> None:
    fake = FakeClock(5_000_000_000)
    clock = GlobalClock(Alone(), fake)
    fake.reading += 3_000_000_000
    deadlines: list[int] = []
    assert clock.wait_until(2.5, deadlines.append) == pytest.approx(0.5)
    assert deadlines == []


def test_a_single_rank_is_its_own_global_clock() -> None:
    clock = GlobalClock(Alone())
    model = clock.fit(clock.measure())
    assert model is not None
    assert (model.offset, model.drift, model.uncertainty) == ([0.0], [0.0], [0.0])


def test_the_unix_epoch_is_the_unix_time_at_global_time_0() -> None:
    before = time.time()
    clock = GlobalClock(Alone())
    model = clock.fit(clock.measure())
    assert model is not None
    assert before - 1e-3 <= model.unix_epoch <= time.time()
    assert time.time() - (model.unix_epoch + clock.now()) == pytest.approx(0, abs=1e-3)
