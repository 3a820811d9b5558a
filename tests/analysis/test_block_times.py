"""Block times of records and traces: what lies between two collectives of a group on each rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builder import write_run
from kineto_writer import Collective, Group, run
from kineto_writer import write_run as write_traces
from numpy.typing import NDArray

from dlbench.analysis.block_times import BlockTimes, of_campaign, of_collectives
from dlbench.analysis.load import load
from dlbench.analysis.traces.alignment import align
from dlbench.analysis.traces.collectives import Collectives
from dlbench.analysis.traces.ranks import read_ranks

NAN = float("nan")
FORWARD = {"op": "compute", "name": "forward", "seconds": 1.0}
BACKWARD = {"op": "compute", "name": "backward", "seconds": 1.0}


def reduce(name: str, scope: str = "world", **changes: Any) -> dict[str, Any]:
    return {"op": "allreduce", "scope": scope, "name": name, "elements": 8} | changes


def record(
    folder: Path, tables: Sequence[dict[str, Any]], arrays: Sequence[Sequence[Any]], name: str = "run", **changes: Any
) -> tuple[list[BlockTimes], list[str]]:
    """Block times of a run with these op tables and ops arrays, of which the first is a warm-up."""
    ranks = len(arrays[0])
    runtime = [[1.0] * ranks] * len(arrays)
    write_run(folder, name, runtime, op_tables=tables, measured_as={"warmups": 1}, **changes)
    with (folder / f"{name}.ops.npy").open("wb") as file:
        for array in arrays:
            np.save(file, np.array(array, dtype=float))
    return of_campaign(load([folder]))


def ops(*bounds: float) -> list[list[float]]:
    """Enter and leave of ops that follow each other, from their bounds."""
    return [list(pair) for pair in zip(bounds[:-1], bounds[1:], strict=True)]


TWO_BLOCKS = [{"ranks": [0, 1], "ops": [FORWARD, reduce("a"), BACKWARD, reduce("b")]}]
WARMUP = [ops(0, 9, 10, 19, 20)] * 2


def test_a_block_lasts_from_the_end_of_a_collective_to_the_begin_of_the_next(tmp_path: Path) -> None:
    iteration = [ops(100, 101.0, 104, 105.5, 108), ops(100, 103.5, 104, 107.0, 108)]
    (found,), notes = record(tmp_path, TWO_BLOCKS, [WARMUP, iteration])
    assert notes == []
    assert (found.source, found.labels) == ("world", ("begin → a", "a → b"))
    assert found.block.tolist() == [0, 1]
    assert found.iteration.tolist() == [0, 0]
    assert found.seconds.tolist() == [[1.0, 3.5], [1.5, 3.0]]
    # In a, the ranks are for 3 and 0.5 s, in b for 2.5 and 1 s: the first waits for 2.5 and for 1.5 s.
    assert found.waits.tolist() == [1.25, 0.75]
    assert found.factors["strategy"] == "dp"


def test_iterations_are_instances_and_warmups_are_none(tmp_path: Path) -> None:
    one = [ops(0, 1, 2, 3, 4)] * 2
    (found,), _ = record(tmp_path, TWO_BLOCKS, [WARMUP, one, one, one])
    assert found.block.tolist() == [0, 1] * 3
    assert found.iteration.tolist() == [0, 0, 1, 1, 2, 2]


def test_time_in_other_communication_is_not_the_ranks_own(tmp_path: Path) -> None:
    program = [FORWARD, reduce("a"), BACKWARD, {"op": "send", "scope": "pipeline", "peer": 1}, FORWARD, reduce("b")]
    row = ops(0, 1, 2, 5, 9, 10, 12)
    (found,), _ = record(tmp_path, [{"ranks": [0, 1], "ops": program}], [[row] * 2] * 2)
    assert found.seconds.tolist() == [[1, 1], [4, 4]]  # 3 s backward, 1 s forward, without 4 s in the send


def test_a_collective_that_is_only_started_ends_a_block_with_an_unknown_wait(tmp_path: Path) -> None:
    program = [FORWARD, reduce("a", blocking=False), BACKWARD, reduce("b", blocking=False)]
    program.append({"op": "wait", "requests": ["a", "b"]})
    row = ops(0, 1, 1.5, 4, 4.5, 8)
    (found,), _ = record(tmp_path, [{"ranks": [0, 1], "ops": program}], [[row] * 2] * 2)
    assert found.seconds.tolist() == [[1, 1], [2.5, 2.5]]
    assert np.isnan(found.waits).all()


def test_collectives_without_computation_between_them_are_no_block(tmp_path: Path) -> None:
    program = [FORWARD, reduce("a"), reduce("b")]
    (found,), _ = record(tmp_path, [{"ranks": [0, 1], "ops": program}], [[ops(0, 1, 2, 3)] * 2] * 2)
    assert found.labels == ("begin → a",)


def test_groups_of_a_scope_are_instances_of_the_same_blocks(tmp_path: Path) -> None:
    tables = [{"ranks": [0, 1, 2, 3], "ops": [FORWARD, reduce("a", "tensor")]}]
    rows = [ops(0, seconds, 9) for seconds in (1.0, 2.0, 3.0, 4.0)]
    groups = {"world": {"size": 4, "stride": 1}, "tensor": {"size": 2, "stride": 1}}
    (found,), _ = record(tmp_path, tables, [rows] * 2, groups=groups)
    assert (found.source, found.seconds.tolist()) == ("tensor", [[1, 2], [3, 4]])
    assert found.iteration.tolist() == [0, 0]


def test_ranks_of_a_strided_group_are_taken_together(tmp_path: Path) -> None:
    tables = [{"ranks": [0, 1, 2, 3], "ops": [FORWARD, reduce("a", "replica")]}]
    rows = [ops(0, seconds, 9) for seconds in (1.0, 2.0, 3.0, 4.0)]
    (found,), _ = record(tmp_path, tables, [rows] * 2, groups={"replica": {"size": 2, "stride": 2}})
    assert found.seconds.tolist() == [[1, 3], [2, 4]]


def test_stages_with_programs_of_their_own_have_blocks_of_their_own(tmp_path: Path) -> None:
    tables = [
        {"ranks": [0, 2], "ops": [FORWARD, reduce("a", "replica")]},
        {"ranks": [1, 3], "ops": [BACKWARD, reduce("b", "replica")]},
    ]
    rows = [ops(0, seconds, 9) for seconds in (1.0, 2.0, 3.0, 4.0)]
    groups = {"replica": {"size": 2, "stride": 2}}
    (found,), _ = record(tmp_path, tables, [rows] * 2, groups=groups)
    assert found.labels == ("begin → a", "begin → b")
    assert (found.block.tolist(), found.seconds.tolist()) == ([0, 1], [[1, 3], [2, 4]])


def test_a_group_of_ranks_with_different_programs_has_none_and_says_so(tmp_path: Path) -> None:
    tables = [{"ranks": [0], "ops": [FORWARD, reduce("a")]}, {"ranks": [1], "ops": [BACKWARD, reduce("a")]}]
    found, notes = record(tmp_path, tables, [[ops(0, 1, 2)] * 2] * 2)
    assert found == []
    assert notes == ["run: ranks of scope world run different programs, which share no blocks"]


def test_a_run_without_ops_says_so(tmp_path: Path) -> None:
    write_run(tmp_path, "plain", [[1.0, 1.0]] * 3)
    assert of_campaign(load([tmp_path])) == ([], ["1 of 1 run recorded no ops; dlbench run --record-ops records them"])


def test_runs_of_one_configuration_are_pooled_and_their_iterations_told_apart(tmp_path: Path) -> None:
    array = [ops(0, 1, 2, 3, 4)] * 2
    for name in ("one", "two"):
        record(tmp_path, TWO_BLOCKS, [WARMUP, array], name)
    (found,), _ = of_campaign(load([tmp_path]))
    assert found.iteration.tolist() == [0, 0, 1, 1]
    assert found.labels == ("begin → a", "a → b")


def collectives(enter: NDArray[np.float64], leave: NDArray[np.float64], sizes: Sequence[int]) -> Collectives:
    count, ranks = enter.shape
    return Collectives(
        group="dp (0-1)",
        ranks=tuple(range(ranks)),
        operations=("allreduce",) * count,
        names=("kernel",) * count,
        bytes=np.array(sizes),
        enter=enter,
        leave=leave,
        error=np.zeros(enter.shape),
    )


def test_collectives_of_equal_neighbours_are_instances_of_one_block() -> None:
    enter = np.array([[0, 0], [3, 4], [6, 7.5], [11, 10], [14, 13]], dtype=float)
    leave = np.array([[1, 1], [5, 5], [8, 8], [12, 12], [15, 15]], dtype=float)
    (found,) = of_collectives([collectives(enter, leave, [8, 16, 8, 16, 8])])
    assert found.labels == ("allreduce 8 B → allreduce 16 B", "allreduce 16 B → allreduce 8 B")
    assert found.block.tolist() == [0, 1, 0, 1]
    assert found.iteration.tolist() == [0, 0, 1, 1]
    assert found.seconds.tolist() == [[2, 3], [1, 2.5], [3, 2], [2, 1]]
    # Of 2 and 1 s, 2 and 0.5, 1 and 2, 1 and 2.
    assert found.waits.tolist() == [0.5, 0.75, 0.5, 0.5]


def test_a_collective_that_begins_before_the_last_has_ended_ends_no_block() -> None:
    enter = np.array([[0, 0], [0.5, 2], [4, 4]], dtype=float)
    leave = np.array([[1, 1], [3, 3], [5, 5]], dtype=float)
    (found,) = of_collectives([collectives(enter, leave, [8, 8, 8])])
    assert found.seconds.tolist() == [[1, 1]]
    assert found.notes == ("dp (0-1): 1 collective began before the one before had ended, which makes no block",)


def test_one_collective_encloses_no_block() -> None:
    assert of_collectives([collectives(np.zeros((1, 2)), np.ones((1, 2)), [8])]) == []


def test_block_times_of_traces_are_what_the_ranks_computed(tmp_path: Path) -> None:
    group = Group("0", (0, 1, 2), "dp")
    compute = [{rank: 1000 * (100 + 7 * index + 11 * rank) for rank in group.ranks} for index in range(5)]
    paths = write_traces(tmp_path, run([Collective("allreduce", group)] * 5, compute))
    (found,) = of_collectives(align(read_ranks(paths)[0]).groups)
    expected = [[times[rank] * 1e-9 for rank in group.ranks] for times in compute[1:]]
    assert found.seconds == pytest.approx(np.array(expected), abs=1e-9)
    assert found.waits == pytest.approx(np.full(4, 11e-6), abs=1e-9)  # of 22, 11 and 0 µs


@pytest.mark.parametrize(
    ("time", "said"),
    [
        (float("inf"), "an op ends before it begins, or never"),
        (-1.0, "an op ends before it begins, or never"),
        (NAN, "an op has no time"),
    ],
)
def test_a_run_with_impossible_times_is_left_out_beside_others(tmp_path: Path, time: float, said: str) -> None:
    one = [ops(0, 1, 2, 3, 4)] * 2
    bad = [ops(0, 1, 2, 3, 4), [[0, 1], [1, time], [2, 3], [3, 4]]]
    record(tmp_path, TWO_BLOCKS, [WARMUP, one, bad], name="damaged")
    (found,), notes = record(tmp_path, TWO_BLOCKS, [WARMUP, one])
    assert found.block.tolist() == [0, 1]
    arrays = tmp_path / "damaged.ops.npy"
    assert notes == [f"left out: {arrays}: array 2: {said}"]


def test_ops_that_were_cut_are_said(tmp_path: Path) -> None:
    one = [ops(0, 1, 2, 3, 4)] * 2
    record(tmp_path, TWO_BLOCKS, [WARMUP, one, one])
    arrays = tmp_path / "run.ops.npy"
    arrays.write_bytes(arrays.read_bytes()[:-8])
    (found,), notes = of_campaign(load([tmp_path]))
    assert found.iteration.tolist() == [0, 0]
    assert notes[0] == f"{arrays}: array 2 is cut and was dropped: the run was killed while it was written"
