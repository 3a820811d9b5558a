"""The synchronisation tax of a group, from arrivals and from durations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from dlbench.analysis.critical_path import Culprit, Reason, explained
from dlbench.analysis.recorded_collectives import Recorded
from dlbench.analysis.sync_tax import COLLECTIVES, UNRESOLVED, GroupTax, arrival_tax, duration_tax, frame
from dlbench.analysis.traces.collectives import Collectives

MICROSECOND = 1e-6


def collectives_of(
    enter: ArrayLike, leave: ArrayLike, error: float = 0.0, group: str = "world 0-3", operation: str = "allreduce"
) -> Collectives:
    """Collectives with these times in microseconds."""
    entered = np.array(enter, dtype=np.float64) * MICROSECOND
    count, size = entered.shape
    return Collectives(
        group=group,
        ranks=tuple(range(size)),
        operations=(operation,) * count,
        names=tuple(f"gradient[{number}]" for number in range(count)),
        bytes=np.full(count, 2000),
        enter=entered,
        leave=np.broadcast_to(np.array(leave, dtype=np.float64) * MICROSECOND, entered.shape),
        error=np.full(entered.shape, error * MICROSECOND),
    )


def by_arrival(enter: ArrayLike, leave: ArrayLike, error: float = 0.0, blocked: ArrayLike | None = None) -> GroupTax:
    collectives = collectives_of(enter, leave, error)
    begun = collectives.enter if blocked is None else np.array(blocked, dtype=np.float64) * MICROSECOND
    iteration = np.zeros(len(collectives), dtype=np.int32)
    return arrival_tax(Recorded(name="allreduce/world", collectives=collectives, iteration=iteration, blocked=begun))


def microseconds(values: object) -> NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64) / MICROSECOND


def test_a_rank_waits_from_its_own_entry_to_the_last() -> None:
    tax = by_arrival([[10, 40, 20, 30]], [[90]])
    assert microseconds(tax.waits) == pytest.approx(np.array([[30, 0, 20, 10]]))
    (row,) = frame([tax]).itertuples()
    assert microseconds([row.tau_range, row.tau_med, row.tau_mean]) == pytest.approx([30, 15, 15])
    assert microseconds([row.transfer, row.stay_first, row.stay_median]) == pytest.approx([50, 80, 65])
    assert (row.straggler, row.resolved) == (1, True)


def test_the_mean_wait_is_not_the_median_one() -> None:
    (row,) = frame([by_arrival([[0, 0, 0, 40]], [[90]])]).itertuples()
    assert microseconds([row.tau_range, row.tau_med, row.tau_mean]) == pytest.approx([40, 40, 30])


def test_the_straggler_is_told_by_arrivals_though_another_stayed_for_the_shortest_time() -> None:
    collectives = collectives_of([[0, 30]], [[35, 90]])
    assert duration_tax(collectives).straggler.tolist() == [UNRESOLVED]  # 25 µs, with ends 55 µs apart
    assert by_arrival([[0, 30]], [[35, 90]]).straggler.tolist() == [1]


def test_a_wait_within_the_error_of_its_two_clocks_is_unresolved() -> None:
    tax = by_arrival([[0, 19, 0, 0], [0, 21, 0, 0]], [[90], [90]], error=10)
    assert tax.resolved.tolist() == [False, True]
    assert tax.straggler.tolist() == [UNRESOLVED, 1]
    assert microseconds(frame([tax])["uncertainty"]) == pytest.approx([20, 20])


def test_a_resolved_tax_has_no_straggler_where_two_ranks_came_last() -> None:
    tax = by_arrival([[0, 100, 95, 0]], [[120]], error=10)
    assert tax.resolved.tolist() == [True]
    assert tax.straggler.tolist() == [UNRESOLVED]


def test_ranks_that_came_at_one_moment_have_no_straggler_even_by_a_perfect_clock() -> None:
    tax = by_arrival([[5, 5]], [[9]])
    assert (tax.resolved.tolist(), tax.straggler.tolist()) == ([False], [UNRESOLVED])


def test_errors_of_ranks_add_up_pair_by_pair() -> None:
    tax = by_arrival([[0, 8]], [[20]])
    uneven = replace(tax.collectives, error=np.array([[2, 5]]) * MICROSECOND)
    recorded = Recorded(name="a/b", collectives=uneven, iteration=tax.iteration, blocked=uneven.enter)
    assert microseconds(arrival_tax(recorded).bounds) == pytest.approx(np.array([[7, 10]]))


def test_what_of_a_wait_is_exposed_begins_with_the_waiting_op() -> None:
    tax = by_arrival([[0, 50]], [[90]], blocked=[[30, 60]])
    assert microseconds(tax.exposed) == pytest.approx(np.array([[20, 0]]))
    assert microseconds(frame([tax])["exposed"]) == pytest.approx([20])


def test_a_wait_that_compute_covers_is_not_exposed() -> None:
    assert by_arrival([[0, 50]], [[90]], blocked=[[70, 80]]).exposed.tolist() == [[0, 0]]


def test_in_traces_a_rank_waits_as_long_as_it_stays_beyond_the_shortest_stay() -> None:
    tax = duration_tax(collectives_of([[10, 40, 20, 30]], [[90, 90, 90, 90]], error=1))
    assert microseconds(tax.waits) == pytest.approx(np.array([[30, 0, 20, 10]]))
    (row,) = frame([tax]).itertuples()
    assert (row.straggler, row.name, row.iteration) == (1, "allreduce/world 0-3", 0)
    assert microseconds([row.transfer, row.uncertainty]) == pytest.approx([50, 2])
    assert np.isnan(row.exposed)


def test_in_traces_ends_that_lie_apart_are_part_of_the_error() -> None:
    tax = duration_tax(collectives_of([[0, 10]], [[50, 48]], error=1))  # stays of 50 and 38 µs
    assert microseconds(tax.bounds) == pytest.approx(np.full((1, 2), 4))
    assert tax.straggler.tolist() == [1]
    assert duration_tax(collectives_of([[0, 10]], [[50, 44]], error=1)).straggler.tolist() == [1]  # 16 µs and 8
    assert duration_tax(collectives_of([[0, 10]], [[40, 58]], error=1)).straggler.tolist() == [UNRESOLVED]  # 8 and 20


@pytest.mark.parametrize(
    ("group", "name"),
    [("mesh_tp (0-3)", "allreduce/mesh_tp"), ("allreduce (all ranks)", "allreduce"), ("mesh_tp", "allreduce/mesh_tp")],
)
def test_the_class_of_a_trace_is_operation_and_purpose_of_the_group(group: str, name: str) -> None:
    assert duration_tax(collectives_of([[0, 1]], [[2]], group=group)).names == (name,)


def test_a_place_counts_within_class_and_iteration() -> None:
    tax = replace(
        by_arrival([[0, 1]] * 5, [[2]] * 5),
        names=("a", "b", "a", "a", "b"),
        iteration=np.array([0, 0, 0, 1, 1], dtype=np.int32),
    )
    assert tax.place.tolist() == [0, 0, 1, 0, 0]


def test_no_groups_are_a_frame_without_rows() -> None:
    empty = frame([])
    assert (len(empty), list(empty)) == (0, list(COLLECTIVES))


ENTRIES = st.integers(2, 5).flatmap(
    lambda ranks: st.lists(st.lists(st.integers(0, 10_000), min_size=ranks, max_size=ranks), min_size=1, max_size=6)
)


@given(ENTRIES, st.randoms(use_true_random=False))
def test_permuted_ranks_have_permuted_stragglers_and_the_same_tax(enter: list[list[int]], random: object) -> None:
    order = list(range(len(enter[0])))
    random.shuffle(order)  # type: ignore[attr-defined]
    before = by_arrival(enter, np.full((len(enter), 1), 20_000))
    after = by_arrival([[row[rank] for rank in order] for row in enter], np.full((len(enter), 1), 20_000))
    assert [
        UNRESOLVED if place == UNRESOLVED else order[place] for place in after.straggler
    ] == before.straggler.tolist()
    columns = ["tau_range", "tau_med", "tau_mean", "transfer"]
    assert frame([after])[columns].to_numpy() == pytest.approx(frame([before])[columns].to_numpy(), abs=1e-15)


@given(ENTRIES, st.integers(-(10**6), 10**6))
def test_a_shift_of_all_clocks_changes_nothing(enter: list[list[int]], shift: int) -> None:
    leave = np.full((len(enter), 1), 20_000)
    before, after = by_arrival(enter, leave), by_arrival(np.array(enter) + shift, leave + shift)
    assert after.waits == pytest.approx(before.waits, abs=1e-9)
    assert after.last.tolist() == before.last.tolist()


@given(ENTRIES, st.integers(1, 10_000), st.data())
def test_a_delay_beyond_all_others_adds_to_the_tax_what_it_adds_to_the_last_entry(
    enter: list[list[int]], delay: int, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, len(enter[0]) - 1))
    late = np.array(enter)
    late[:, rank] = late.max(axis=1) + 1  # past the slack
    later = late.copy()
    later[:, rank] += delay
    leave = np.full((len(enter), 1), 30_000)
    before, after = by_arrival(late, leave), by_arrival(later, leave)
    gained = frame([after])["tau_range"] - frame([before])["tau_range"]
    assert microseconds(gained) == pytest.approx(np.full(len(enter), delay), rel=1e-6)
    assert set(after.straggler.tolist()) == {rank}


@given(ENTRIES)
def test_the_median_and_the_mean_lie_between_nothing_and_the_range(enter: list[list[int]]) -> None:
    rows = frame([by_arrival(enter, np.full((len(enter), 1), 20_000))])
    for name in ("tau_med", "tau_mean"):
        assert ((rows[name] >= 0) & (rows[name] <= rows["tau_range"] + 1e-15)).all()


def test_a_collective_without_a_culprit_blames_no_time() -> None:
    tax = by_arrival([[0, 1], [0, 2]], 10)
    there = Culprit("backward", "compute", 1, 3, seconds=0.25)
    reasons = explained([Reason(1.0, 0.5, 2.0, there), Reason(1.0, 0.5, 2.0)])
    found = frame([replace(tax, explained=reasons)])
    assert found["culprit_seconds"].iloc[0] == 0.25
    assert np.isnan(found["culprit_seconds"].iloc[1])
