"""Collectives from recorded ops: what belongs together, when a rank came, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builder import end, header, iterations, write_lines
from ops_builder import arrivals, clock, collective, started, table_of, wait, write_ops, write_taxed

from dlbench.analysis.recorded_collectives import Recorded, recorded_collectives
from dlbench.errors import RecordError

FOUR = range(4)
ONE = table_of(FOUR, collective("gradient"))


def only(path: Path) -> Recorded:
    """The one group of the record, of which nothing was dropped."""
    found, notes = recorded_collectives(path)
    assert notes == []
    (recorded,) = found
    return recorded


def by_group(path: Path) -> dict[tuple[str, str], Recorded]:
    return {(each.name, each.collectives.group): each for each in recorded_collectives(path)[0]}


def test_a_blocking_collective_is_entered_and_left_with_its_op(tmp_path: Path) -> None:
    found = only(write_taxed(tmp_path, [[[(0.0, 0.5)], [(0.1, 0.5)], [(0.2, 0.6)], [(0.4, 0.6)]]], ONE))
    collectives = found.collectives
    assert (found.name, collectives.group, collectives.ranks) == ("allreduce/world", "world 0-3", (0, 1, 2, 3))
    assert (collectives.operations, collectives.names, collectives.bytes.tolist()) == (
        ("allreduce",),
        ("gradient",),
        [2000],  # 1000 elements of bf16
    )
    assert collectives.enter.tolist() == found.blocked.tolist() == [[0.0, 0.1, 0.2, 0.4]]
    assert collectives.leave.tolist() == [[0.5, 0.5, 0.6, 0.6]]
    assert found.iteration.tolist() == [0]


def test_a_non_blocking_collective_is_entered_with_its_start_and_left_with_its_wait(tmp_path: Path) -> None:
    program = table_of([0, 1], started("a"), started("b"), {"op": "compute", "name": "forward"}, wait("a", "b"))
    times = [[(0.0, 0.1), (0.1, 0.2), (0.2, 0.6), (0.6, 0.9)], [(0.3, 0.4), (0.4, 0.5), (0.5, 0.7), (0.7, 0.9)]]
    found = only(write_taxed(tmp_path, [times], program))
    assert found.collectives.names == ("a", "b")
    assert found.collectives.enter.tolist() == [[0.0, 0.3], [0.1, 0.4]]
    assert found.collectives.leave.tolist() == [[0.9, 0.9]] * 2
    assert found.blocked.tolist() == [[0.6, 0.7]] * 2


def test_a_buffer_that_is_used_again_is_waited_for_by_the_wait_behind_it(tmp_path: Path) -> None:
    program = table_of([0, 1], started("a"), wait("a"), started("a"), wait("a"))
    times = [[(0.0, 0.1), (0.1, 0.2), (0.2, 0.3), (0.3, 0.4)]] * 2
    assert only(write_taxed(tmp_path, [times], program)).collectives.leave.tolist() == [[0.2, 0.2], [0.4, 0.4]]


def test_groups_of_a_scope_are_told_apart(tmp_path: Path) -> None:
    groups = {"world": {"size": 4, "stride": 1}, "replica": {"size": 2, "stride": 2}}
    program = table_of(FOUR, collective("weights", scope="replica"))
    found = by_group(write_taxed(tmp_path, [arrivals(0.0, 0.1, 0.2, 0.3)], program, groups=groups))
    assert list(found) == [("allreduce/replica", "replica 0-2:2"), ("allreduce/replica", "replica 1-3:2")]
    even, odd = found.values()
    assert (even.collectives.ranks, even.collectives.enter.tolist()) == ((0, 2), [[0.0, 0.2]])
    assert (odd.collectives.ranks, odd.collectives.enter.tolist()) == ((1, 3), [[0.1, 0.3]])


def test_collectives_are_matched_by_their_place_in_the_class_whatever_ranks_do_between(tmp_path: Path) -> None:
    gather = collective("shard", op="allgather")
    tables = [
        {"ranks": [0], "ops": [collective("x"), gather, {"op": "compute", "name": "head"}, collective("y")]},
        {"ranks": [1], "ops": [{"op": "compute", "name": "embedding"}, collective("x"), gather, collective("y")]},
    ]
    times = [[(0, 1), (1, 2), (2, 3), (3, 4)], [(0, 0.5), (0.5, 1), (1, 2), (2, 4)]]
    found = by_group(write_taxed(tmp_path, [times], tables))
    assert found["allreduce/world", "world 0-1"].collectives.enter.tolist() == [[0, 0.5], [3, 2]]
    assert found["allgather/world", "world 0-1"].collectives.enter.tolist() == [[1, 1]]


def test_sends_and_receives_are_no_collectives_and_a_group_of_one_waits_for_nobody(tmp_path: Path) -> None:
    groups = {
        "world": {"size": 2, "stride": 1},
        "pipeline": {"size": 2, "stride": 1},
        "tensor": {"size": 1, "stride": 1},
    }
    tables = [
        {"ranks": [0], "ops": [collective("a", op="send", scope="pipeline", peer=1), collective("t", scope="tensor")]},
        {"ranks": [1], "ops": [collective("a", op="recv", scope="pipeline", peer=0), collective("t", scope="tensor")]},
    ]
    assert recorded_collectives(write_taxed(tmp_path, [[[(0, 1), (1, 2)]] * 2], tables, groups=groups)) == ([], [])


def test_warm_ups_are_left_out_and_iterations_keep_their_index(tmp_path: Path) -> None:
    arrays = [arrivals(0.0, 9.0), arrivals(0.1, 0.2), arrivals(0.3, 0.4)]
    path = write_taxed(tmp_path, arrays, table_of([0, 1], collective("gradient")), warmups=1)
    found = only(path)
    assert found.iteration.tolist() == [1, 2]
    assert found.collectives.enter.tolist() == [[0.1, 0.2], [0.3, 0.4]]
    assert len(found.collectives) == len(found.collectives.names) == len(found.collectives.bytes) == 2


def test_the_error_is_that_of_the_clock_in_force(tmp_path: Path) -> None:
    lines = iterations([[1.0, 1.0]] * 2, [[0.5, 0.5]] * 2)
    head = header("run", 2, op_tables=table_of([0, 1], collective("gradient")), clock=clock(2, 1e-6))
    better = {"kind": "clock", "index": 1, "model": {**clock(2, 0.0), "uncertainty": [0.0, 3e-6]}}
    path = write_lines(tmp_path / "run.jsonl", head, lines[0], better, lines[1], end(2))
    write_ops(path, [arrivals(0.0, 0.1), arrivals(0.0, 0.1)])
    assert only(path).collectives.error == pytest.approx(np.array([[1e-6, 1e-6], [0.0, 3e-6]]), abs=1e-12)


def test_a_time_far_from_zero_has_fewer_digits(tmp_path: Path) -> None:
    path = write_taxed(tmp_path, [arrivals(2.0**23, 2.0**23, leave=2.0**23 + 1)], table_of([0, 1], collective("x")))
    assert only(path).collectives.error.tolist() == [[2.0**-29, 2.0**-29]]  # 53 bits


def test_what_a_killed_run_left_unfinished_is_noted(tmp_path: Path) -> None:
    path = write_taxed(tmp_path, [arrivals(0.0, 0.1)] * 3, table_of([0, 1], collective("gradient")))
    ops = path.with_suffix(".ops.npy")
    ops.write_bytes(ops.read_bytes()[:-1])
    found, notes = recorded_collectives(path)
    assert found[0].iteration.tolist() == [0, 1]
    assert notes[0] == f"{path}: array 2 is cut and was dropped: the run was killed while it was written"


def test_progress_counts_the_measured_iterations(tmp_path: Path) -> None:
    path = write_taxed(tmp_path, [arrivals(0.0, 0.1)] * 3, table_of([0, 1], collective("gradient")), warmups=1)
    seen: list[tuple[int, int]] = []
    recorded_collectives(path, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("tables", "times", "changes", "complaint"),
    [
        (
            [{"ranks": [0], "ops": [collective("a")]}, {"ranks": [1], "ops": [collective("a"), collective("b")]}],
            [[(0, 1)], [(0, 1), (1, 2)]],
            {},
            "rank 0 performs 1 of allreduce/world, rank 1 of its group 2; ranks of a group perform the same",
        ),
        (
            table_of([0, 1], started("a")),
            [[(0, 1)]] * 2,
            {},
            "op 0 of rank 0 starts a collective that no wait completes",
        ),
        (
            table_of([0, 1], collective("a")),
            [[(0, 1)], [(float("nan"), 1)]],
            {},
            "iteration 0: a collective has no times, or times months from those of the iteration",
        ),
        (table_of([0, 1], collective("a")), [[(0, 1)], [(0, 1e300)]], {}, "iteration 0: a collective has no times, or"),
        (
            table_of([0, 1], collective("a")),
            [[(0, 1)], [(2, 1)]],
            {},
            "iteration 0: a collective ends before it begins",
        ),
        (
            table_of([0, 1], collective("a", elements=2**62)),
            [[(0, 1)]] * 2,
            {},
            "op 0 of rank 0 has 4611686018427387904 elements: no message has",
        ),
        (
            table_of([0, 1], collective("a", scope="tensor")),
            [[(0, 1)]] * 2,
            {},
            "groups do not say who is in a group of scope 'tensor'",
        ),
        (
            table_of([0, 1], collective("a")),
            [[(0, 1)]] * 2,
            {"groups": {"world": {"size": 4, "stride": 1}}},
            "groups do not say who is in a group of scope 'world'",
        ),
        (
            table_of([0, 1], collective("a")),
            [[(0, 1)]] * 2,
            {"dtype": "int3"},
            "dtype 'int3' is unknown; use fp64, fp32",
        ),
        (
            table_of([0, 1], collective("a")),
            [[(0, 1)]] * 2,
            {"clock": clock(3, 0.0)},
            "iteration 0: the clock is not one of 2 ranks",
        ),
        (
            table_of([0, 1], collective("a")),
            [[(0, 1)]] * 2,
            {"clock": clock(2, 1e300)},
            "iteration 0: no clock has the errors of its clock model",
        ),
        (
            table_of([0, 1], collective("a")),
            [[(0, 1)]] * 2,
            {"clock": clock(2, 0.0) | {"drift": [0.0, -1.0]}},
            "Expected `float` > -1.0",
        ),
        (table_of([0, 0], collective("a")), [[(0, 1)]] * 2, {}, "op_tables must name each of the 2 ranks once"),
    ],
)
def test_what_does_not_belong_together_is_refused(
    tmp_path: Path, tables: list[dict[str, Any]], times: Any, changes: dict[str, Any], complaint: str
) -> None:
    path = write_taxed(tmp_path, [times], tables, **changes)
    with pytest.raises(RecordError) as refused:
        recorded_collectives(path)
    assert complaint in str(refused.value)
    assert str(refused.value).startswith(str(tmp_path))
