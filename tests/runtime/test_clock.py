"""The global clock: from readings of many hardware clocks to one time."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import pairwise, repeat
from typing import TypeVar, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dlbench.runtime.clock import (
    LARGEST_DRIFT,
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
    """Rank 1 of two, whose peer answers after `delays` (nanoseconds there and back) from a clock 1000 s ahead.

    `drift` is that of the peer's clock, from the moment on at which it is set.
    """

    rank = 1
    size = 2

    def __init__(self, clock: FakeClock, delays: Iterable[tuple[int, int]]) -> None:
        self.clock = clock
        self.delays = iter(delays)
        self.drift = 0.0
        self.drifts_since = clock.reading
        self.ahead = 1000e9

    def change_drift(self, drift: float) -> None:
        self.ahead = self.peer() - self.clock.reading
        self.drift, self.drifts_since = drift, self.clock.reading

    def peer(self) -> float:
        return self.clock.reading + self.ahead + self.drift * (self.clock.reading - self.drifts_since)

    def allgather(self, value: tuple[str, int]) -> list[tuple[str, int]]:
        return [("rank 0", 0), value]

    def gather(self, value: T) -> None:
        self.edge = value

    def scatter(self, values: None) -> tuple[float, Line]:
        return cast(tuple[float, Line], self.edge)  # below rank 0 there is nothing to compose

    def Send(self, message: NDArray[np.int64], peer: int, tag: int) -> None:
        there, self.back = next(self.delays)
        self.clock.reading += there
        self.answer = self.peer()

    def Recv(self, message: NDArray[np.int64], peer: int, tag: int) -> None:
        message[0] = round(self.answer)
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


def test_one_measurement_leaves_the_drift_to_the_assumption() -> None:
    only = Measurement(2.0, 0.5, 1e-6)
    assert fit_line(only, only) == Line(0.5, 0.0, 1e-6, LARGEST_DRIFT)


def test_two_measurements_give_the_drift_and_how_well_it_is_known() -> None:
    line = fit_line(Measurement(2.0, 0.5, 1e-6), Measurement(12.0, 0.5004, 3e-6))
    # 400 µs in 10 s, of which the uncertainties explain 4 µs.
    assert (line.offset, line.uncertainty) == (0.5004, 3e-6)
    assert line.drift == pytest.approx(40e-6)
    assert line.drift_uncertainty == pytest.approx(0.4e-6)


def test_a_short_baseline_says_no_more_than_the_assumption() -> None:
    # 1 µs in 1 ms: 1000 ± 2000 ppm; what is also within ±500 ppm is all of that.
    line = fit_line(Measurement(2.0, 0.5, 1e-6), Measurement(2.001, 0.500001, 1e-6))
    assert line.drift == pytest.approx(0.0, abs=1e-12)
    assert line.drift_uncertainty == pytest.approx(500e-6)


def test_measurement_and_assumption_limit_the_drift_together() -> None:
    # 300 µs in 1 s ± 400 µs: from −100 ppm to 700 ppm, of which the assumption leaves −100 ppm to 500 ppm.
    line = fit_line(Measurement(2.0, 0.5, 2e-4), Measurement(3.0, 0.5003, 2e-4))
    assert line.drift == pytest.approx(200e-6)
    assert line.drift_uncertainty == pytest.approx(300e-6)


def test_a_drift_measured_beyond_the_assumption_is_believed() -> None:
    line = fit_line(Measurement(2.0, 0.5, 1e-6), Measurement(12.0, 0.6, 3e-6))
    assert line.drift == pytest.approx(0.01)
    assert line.drift_uncertainty == pytest.approx(0.4e-6)


uncertainties = st.floats(1e-7, 1e-3)


@given(
    st.floats(-1e-4, 1e-4), st.floats(1e-3, 1e3), st.floats(-1e3, 1e3), uncertainties, uncertainties,
    st.floats(-1, 1), st.floats(-1, 1),
)  # fmt: skip
def test_the_stated_bound_holds_at_every_distance_whatever_the_errors(
    drift: float, baseline: float, distance: float, first: float, latest: float, share: float, other: float
) -> None:
    start = Measurement(0.0, 0.25 + share * first, first)
    end = Measurement(baseline, 0.25 + drift * baseline + other * latest, latest)
    line = fit_line(start, end).at(distance)
    assert abs(line.offset - (0.25 + drift * (baseline + distance))) <= line.uncertainty * (1 + 1e-9) + 1e-12


def test_the_reference_can_be_moved() -> None:
    assert Line(0.5, 1e-3, 1e-6, 1e-7).at(-10.0) == Line(0.49, 1e-3, pytest.approx(2e-6), 1e-7)


def test_models_compose_along_the_tree() -> None:
    # Three leaders: 1 and 2 hang below 0 (rounds of stride 2, then 1). Four: 3 hangs below 2.
    edges = [Line(), Line(0.1, 0.0, 1e-6), Line(0.2, 1e-3, 2e-6, 1e-6), Line(0.4, 1e-3, 4e-6, 2e-6)]
    models = compose([0, 1, 2, 3], edges)
    assert models[:3] == edges[:3]
    # 3 reads 0 at the reference, when 2 reads 0.4; 0 then reads 0.4 + 0.2 + 1e-3 × 0.4.
    assert models[3].offset == pytest.approx(0.6004, abs=1e-15)
    assert models[3].drift == pytest.approx(1.001 * 1.001 - 1)
    # An error of 3 grows with the rate of 2; 2 is asked 0.4 s from its reference.
    assert models[3].uncertainty == pytest.approx(4e-6 * 1.001 + 2e-6 + 0.4e-6)
    assert models[3].drift_uncertainty == pytest.approx(2e-6 * 1.001 + 1e-6 * 1.001)


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
    delays = [(9_000, 1_000), (1_000, 2_000), (2_000, 5_000)]
    found = GlobalClock(TwoDomains(fake, delays), fake, "rank 1", exchanges=3)._first

    # It begins at 10 µs and takes 3 µs: the middle is 0.5 µs after the answer was read.
    assert found.local == pytest.approx(11.5e-6, abs=1e-12)
    assert found.offset == pytest.approx(1000 - 0.5e-6, abs=1e-12)
    assert found.uncertainty == pytest.approx(1.5e-6, abs=1e-12)


def drifting(drift: float) -> tuple[FakeClock, TwoDomains, GlobalClock]:
    """Rank 1's clock, the world, and its global clock: messages take 9 µs there and 1 µs back, so all lie 4 µs off."""
    fake = FakeClock(0)
    world = TwoDomains(fake, repeat((9_000, 1_000)))
    world.change_drift(drift)
    return fake, world, GlobalClock(world, fake, "rank 1", exchanges=1)


def error_and_bound(fake: FakeClock, world: TwoDomains, clock: GlobalClock) -> tuple[float, float]:
    """Error of the global clock now, and its bound by the line of this rank; seconds."""
    line = clock._edge.at(fake.reading * 1e-9 - clock._reference)
    return abs(clock.now() - world.peer() * 1e-9), line.uncertainty


@pytest.mark.parametrize("drift", [1e-6, -10e-6, 100e-6])
def test_the_error_stays_within_three_uncertainties_for_as_long_as_the_run_takes(drift: float) -> None:
    fake, world, clock = drifting(drift)
    fake.reading += 300_000_000  # the time that a set-up takes
    clock.synchronise()
    while fake.reading < 600e9:
        fake.reading += 100_000_000  # an iteration
        error, bound = error_and_bound(fake, world, clock)
        assert error <= bound
        # Uncertainties are 5 µs; the clocks are compared again up to one iteration after they should be.
        assert bound <= 15e-6 + (10e-6 / 0.3) * 0.11
        if clock.due():
            clock.synchronise()
    assert error_and_bound(fake, world, clock)[1] <= 5.2e-6


def test_comparisons_double_the_baseline_and_then_come_every_ten_seconds() -> None:
    fake, _, clock = drifting(0.0)
    moments = []
    fake.reading += 1_000_000_000
    clock.synchronise()
    while fake.reading < 60e9:
        fake.reading += 10_000_000
        if clock.due():
            moments.append(fake.reading * 1e-9)
            clock.synchronise()
    assert moments == pytest.approx([2, 4, 8, 16, 26, 36, 46, 56], abs=0.2)


def test_a_clock_that_changes_its_drift_begins_a_new_baseline() -> None:
    fake, world, clock = drifting(1e-6)
    for _ in range(10):
        fake.reading += 10_000_000_000
        clock.synchronise()
    world.change_drift(31e-6)
    fake.reading += 10_000_000_000
    clock.synchronise()
    # The mean over the whole run would be (10 × 1 + 31) / 11 = 3.7 ppm; the last 10 s are at 31.
    assert clock._line.drift == pytest.approx(31e-6, abs=1e-8)
    assert clock._line.drift_uncertainty == pytest.approx(1e-6, rel=1e-3)


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
    model = clock.synchronise()
    assert model is not None
    assert (model.offset, model.drift, model.uncertainty, model.drift_uncertainty) == ([0.0], [0.0], [0.0], [0.0])


def test_in_a_single_domain_no_comparison_is_ever_due() -> None:
    fake = FakeClock(0)
    clock = GlobalClock(Alone(), fake)
    clock.synchronise()
    fake.reading += 10**15
    assert not clock.due()


def test_the_unix_epoch_is_the_unix_time_at_global_time_0() -> None:
    def error() -> float:
        clock = GlobalClock(Alone())
        model = clock.synchronise()
        assert model is not None
        return abs(time.time() - (model.unix_epoch + clock.now()))

    # Another process may come between two readings.
    assert any(error() < 1e-3 for _ in range(50))
