"""Critical paths of recorded runs: what made the last rank late, by the programs of all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ops_builder import Times, collective, started, table_of, wait, write_taxed

from dlbench.analysis.critical_path import Culprit, Explained, determination
from dlbench.analysis.recorded_collectives import Recorded, recorded_collectives
from dlbench.analysis.recorded_paths import START


def compute(name: str) -> dict[str, Any]:
    return {"op": "compute", "name": name, "seconds": 0.1}


def message(op: str, peer: int, name: str = "activation") -> dict[str, Any]:
    return {"op": op, "scope": "pipeline", "name": name, "elements": 10, "peer": peer}


def explained(record: Path, name: str = "allreduce/world") -> tuple[Recorded, Explained]:
    recorded, _ = recorded_collectives(record)
    found = next(each for each in recorded if each.name == name)
    assert found.explained is not None
    return found, found.explained


def culprit(name: str, kind: str, rank: int, number: int, seconds: float, idle: bool = False) -> Culprit:
    return Culprit(name, kind, rank, number, idle, pytest.approx(seconds, abs=1e-9))


PHASES = table_of([0, 1], compute("forward"), compute("backward"), collective("gradients"))


def test_the_phase_that_took_longer_is_the_culprit(tmp_path: Path) -> None:
    times: Times = [
        [(0.0, 0.1), (0.1, 0.3), (0.3, 0.8)],
        [(0.0, 0.15), (0.15, 0.7), (0.7, 0.8)],
    ]
    found = explained(write_taxed(tmp_path, [times], PHASES))[1]
    assert found.culprits == [culprit("backward", "compute", 1, 1, 0.35)]
    assert found.predicted.tolist() == pytest.approx([0.4])
    assert found.window.tolist() == pytest.approx([0.7])
    assert found.gap.tolist() == pytest.approx([0.0])


def test_time_between_ops_is_idle_and_belongs_to_the_op_that_follows(tmp_path: Path) -> None:
    times: Times = [
        [(0.0, 0.1), (0.1, 0.3), (0.3, 0.8)],
        [(0.0, 0.1), (0.5, 0.7), (0.7, 0.8)],
    ]
    found = explained(write_taxed(tmp_path, [times], PHASES))[1]
    assert found.culprits == [culprit("backward", "idle", 1, 1, 0.4, idle=True)]
    assert (found.predicted.tolist(), found.gap.tolist()) == (pytest.approx([0.4]), pytest.approx([0.4]))


def test_a_rank_that_begins_the_iteration_late_is_late_by_that(tmp_path: Path) -> None:
    begins = (100.0, 100.25)
    times: Times = [[(begin, begin + 0.1), (begin + 0.1, begin + 0.3), (begin + 0.3, 100.8)] for begin in begins]
    record = write_taxed(tmp_path, [times], PHASES)
    record.write_text(record.read_text().replace('"skew": [0.0, 0.0]', '"skew": [0.0, 0.25]'))
    found = explained(record)[1]
    assert found.culprits == [culprit(START, "late start", 1, 0, 0.25)]


def test_paths_end_at_the_collective_before_which_ranks_met(tmp_path: Path) -> None:
    # Rank 0 is late for the first collective, rank 1 for the second: what was before the first does not count.
    table = table_of([0, 1], compute("a"), collective("one"), compute("b"), collective("two"))
    times: Times = [
        [(0.0, 0.5), (0.5, 0.6), (0.6, 0.7), (0.7, 1.0)],
        [(0.0, 0.1), (0.1, 0.6), (0.6, 0.9), (0.9, 1.0)],
    ]
    found = explained(write_taxed(tmp_path, [times], table))[1]
    assert found.culprits == [culprit("a", "compute", 0, 0, 0.4), culprit("b", "compute", 1, 2, 0.2)]
    # From the entry of the last rank into the first collective on.
    assert found.window.tolist() == pytest.approx([0.5, 0.4])


def test_a_wait_waits_for_the_last_rank_to_start_what_it_completes(tmp_path: Path) -> None:
    table = table_of([0, 1], compute("a"), started("g"), compute("b"), wait("g"), compute("c"), collective("h"))
    times: Times = [
        [(0.0, 0.1), (0.1, 0.1), (0.1, 0.2), (0.2, 0.7), (0.7, 0.8), (0.8, 1.0)],
        [(0.0, 0.6), (0.6, 0.6), (0.6, 0.7), (0.7, 0.7), (0.7, 0.9), (0.9, 1.0)],
    ]
    found = explained(write_taxed(tmp_path, [times], table))[1]
    # Both paths to h lead to the start of g on rank 1: that of rank 0 by the wait, of 0.1 s after the start, that of
    # rank 1 by b and its own c, which takes 0.2 s where c takes 0.1 s on rank 0.
    assert found.culprits == [culprit("a", "compute", 1, 0, 0.5), culprit("c", "compute", 1, 4, 0.1)]
    assert found.predicted.tolist() == pytest.approx([0.5, 0.1])


def test_a_late_sender_is_the_culprit_of_what_its_receiver_came_late_for(tmp_path: Path) -> None:
    # Pipelines 0-1 and 2-3; rank 0 computes for long, and rank 1, which waits for its message, comes last.
    first = {"ranks": [0, 2], "ops": [compute("stage"), message("send", 1), collective("gradients")]}
    second = {"ranks": [1, 3], "ops": [message("recv", 0), compute("stage"), collective("gradients")]}
    times: Times = [
        [(0.0, 0.5), (0.5, 0.5), (0.5, 1.0)],
        [(0.0, 0.6), (0.6, 0.7), (0.7, 1.0)],
        [(0.0, 0.1), (0.1, 0.1), (0.1, 1.0)],
        [(0.0, 0.2), (0.2, 0.3), (0.3, 1.0)],
    ]
    groups = {"world": {"size": 4, "stride": 1}, "pipeline": {"size": 2, "stride": 1}}
    found = explained(write_taxed(tmp_path, [times], [first, second], groups=groups))[1]
    (blamed,) = found.culprits
    assert (blamed.name, blamed.kind, blamed.rank, blamed.number) == ("stage", "compute", 0, 0)
    assert found.predicted.tolist() == pytest.approx([0.6])


def test_a_collective_of_another_group_leads_to_the_rank_that_came_last_there(tmp_path: Path) -> None:
    # Rank 1 is late in the tensor group 0-1, so that rank 0 is late in the replica group 0, 2.
    program = [compute("layer"), collective("hidden", scope="tensor"), collective("gradients", scope="replica")]
    groups = {"tensor": {"size": 2, "stride": 1}, "replica": {"size": 2, "stride": 2}}
    times: Times = [
        [(0.0, 0.1), (0.1, 0.5), (0.5, 0.6)],
        [(0.0, 0.4), (0.4, 0.5), (0.5, 0.6)],
        [(0.0, 0.1), (0.1, 0.2), (0.2, 0.6)],
        [(0.0, 0.1), (0.1, 0.2), (0.2, 0.6)],
    ]
    found = explained(write_taxed(tmp_path, [times], table_of(range(4), *program), groups=groups), "allreduce/replica")
    assert found[1].culprits == [culprit("layer", "compute", 1, 0, 0.3)]


def test_ranks_that_come_together_have_no_culprit(tmp_path: Path) -> None:
    times: Times = [[(0.0, 0.1), (0.1, 0.3), (0.3, 0.8)]] * 2
    found = explained(write_taxed(tmp_path, [times], PHASES))[1]
    assert found.culprits == [Culprit()]
    assert found.predicted.tolist() == [0.0]


def test_every_iteration_is_explained_by_itself_and_warm_ups_are_not(tmp_path: Path) -> None:
    late = [0.2, 0.3, 0.4]
    arrays: list[Times] = [
        [[(0.0, 0.1), (0.1, 0.1 + more), (0.1 + more, 0.9)], [(0.0, 0.1), (0.1, 0.2), (0.2, 0.9)]] for more in late
    ]
    found = explained(write_taxed(tmp_path, arrays, PHASES, warmups=1))[1]
    assert [each.seconds for each in found.culprits] == pytest.approx([0.2, 0.3])


def test_ranks_that_run_freely_show_the_delay_wherever_nothing_else_is_larger(tmp_path: Path) -> None:
    # No barrier: ranks begin an iteration up to 20 ms apart and vary by up to 20 ms in each phase. Rank 1 is delayed by
    # 100 ms before its backward pass, which in every fourth iteration takes rank 0 150 ms longer.
    random = np.random.default_rng(3)
    begins, arrays = [], []
    for index in range(20):
        begin, forward, backward = 100.0 * index + random.uniform(0, 0.02, (3, 2))
        forward, backward = forward - 100 * index + 0.1, backward - 100 * index + 0.1
        delay, held = (0.0, 0.1), (0.15 if index % 4 == 3 else 0.0, 0.0)
        forth = begin + forward
        done = forth + delay + backward + held
        leave = done.max() + 0.01
        begins.append(begin - begin.min())
        arrays.append([[(b, f), (f + d, e), (e, leave)] for b, f, d, e in zip(begin, forth, delay, done, strict=True)])
    record = write_taxed(tmp_path, arrays, PHASES)
    for skew in begins:
        record.write_text(record.read_text().replace('"skew": [0.0, 0.0]', f'"skew": {skew.tolist()}', 1))
    found = explained(record)[1].culprits
    expected = [("backward", 0, False) if index % 4 == 3 else ("backward", 1, True) for index in range(20)]
    assert [(each.name, each.rank, each.idle) for each in found] == expected
    assert [each.seconds for each in found if each.idle] == pytest.approx([0.1] * 15)


def test_paths_are_left_out_where_they_are_not_asked_for(tmp_path: Path) -> None:
    times: Times = [[(0.0, 0.1), (0.1, 0.3), (0.3, 0.8)]] * 2
    recorded, _ = recorded_collectives(write_taxed(tmp_path, [times], PHASES), paths=False)
    assert [each.explained for each in recorded] == [None]


PROGRAM = [compute("a"), collective("x"), compute("b"), started("y"), compute("c"), wait("y"), collective("z")]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.floats(0, 1), min_size=len(PROGRAM), max_size=len(PROGRAM)), min_size=3, max_size=3))
def test_paths_are_as_much_longer_as_the_tax_and_end(tmp_path_factory: Any, lengths: list[list[float]]) -> None:
    times = performed(np.array(lengths))
    record = write_taxed(tmp_path_factory.mktemp("run"), [times], table_of(range(3), *PROGRAM))
    recorded, found = explained(record)
    enter = recorded.collectives.enter
    assert found.predicted == pytest.approx(np.ptp(enter, axis=1), abs=1e-9)
    assert (found.gap <= found.window + 1e-9).all()
    if np.ptp(np.ptp(enter, axis=1)) > 1e-6:
        assert determination(np.ptp(enter, axis=1), found.predicted) == pytest.approx(1)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=42, max_size=42))
def test_times_that_no_run_can_have_are_explained_somehow(tmp_path_factory: Any, moments: list[float]) -> None:
    times = np.sort(np.array(moments).reshape(3, 14), axis=1).reshape(3, 7, 2)
    record = write_taxed(tmp_path_factory.mktemp("run"), [times.tolist()], table_of(range(3), *PROGRAM))
    found = explained(record)[1]
    assert len(found.culprits) == 3
    assert np.isfinite(found.predicted).all()


@pytest.mark.parametrize("damage", [np.nan, np.inf, -np.inf, 1e300, -1e300])
@pytest.mark.parametrize("op", [0, 2])
def test_damaged_times_of_other_ops_cost_no_more_than_the_paths_there(tmp_path: Path, op: int, damage: float) -> None:
    times = [list(rank) for rank in performed(np.full((3, len(PROGRAM)), 0.1))]
    times[1][op] = (damage, damage)
    record = write_taxed(tmp_path, [times], table_of(range(3), *PROGRAM))
    found = explained(record)[1]
    assert np.isfinite(found.predicted).all()
    assert found.predicted == pytest.approx([0.0] * 3, abs=0.2)
    note = f"{record}: 1 op without valid times; critical paths take those of the ops before them"
    assert recorded_collectives(record)[1] == [note]
    assert recorded_collectives(record, paths=False)[1] == []


def test_an_op_that_ends_before_it_begins_is_no_valid_time(tmp_path: Path) -> None:
    times: Times = [[(0.0, 0.1), (0.3, 0.1), (0.3, 0.8)]] * 2
    notes = recorded_collectives(write_taxed(tmp_path, [times] * 3, PHASES))[1]
    assert [note.partition(": ")[2].partition(";")[0] for note in notes] == ["6 ops without valid times"]


def test_what_lies_behind_a_shorter_program_lacks_no_times(tmp_path: Path) -> None:
    tables = [
        {"ranks": [0], "ops": [collective("gradients")]},
        {"ranks": [1], "ops": [collective("gradients"), compute("optimizer")]},
    ]
    record = write_taxed(tmp_path, [[[(0.0, 0.2)], [(0.1, 0.2), (0.2, 0.3)]]], tables)
    assert recorded_collectives(record)[1] == []


def performed(lengths: np.ndarray[Any, np.dtype[np.float64]]) -> Times:
    """Times of ranks that perform `PROGRAM`, whose collectives end 0.1 s after the last has come."""
    clock = np.full(len(lengths), 1.0)
    begun: dict[str, float] = {}
    times: list[list[tuple[float, float]]] = [[] for _ in lengths]
    for number, op in enumerate(PROGRAM):
        enter = clock.copy()
        if op["op"] == "compute":
            clock = enter + lengths[:, number]
        elif op["op"] == "wait":
            clock = np.maximum(enter, begun["y"] + 0.1)
        elif op.get("blocking", True):
            clock = np.full_like(enter, enter.max() + 0.1)
        else:
            begun[op["name"]] = float(enter.max())
        for rank, moment in enumerate(zip(enter.tolist(), clock.tolist(), strict=True)):
            times[rank].append(moment)
    return times
