"""The validator: numbers of a record that contradict each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade import (
    ACCELERATOR,
    CLOCK,
    COUNTED,
    END,
    ENERGY,
    HEADER,
    METERED,
    OP_TABLES,
    RESYNCHRONISED,
    WARMUP,
    WHOLE,
    WITH_OPS,
    text,
    write,
)

from dlbench.records.validator import Problem, examine, validate

NAN = np.nan
ARRAY = np.array([[[10.0, 10.3], [10.3, 10.5]], [[10.1, 10.4], [NAN, NAN]]])


def problems(folder: Path, *lines: dict[str, Any]) -> list[Problem]:
    return validate(write(folder / "run.jsonl", *lines))


def test_a_sound_record_has_no_problems(tmp_path: Path) -> None:
    assert problems(tmp_path, *WHOLE) == []


def test_what_is_in_a_record_is_counted(tmp_path: Path) -> None:
    report = examine(write(tmp_path / "run.jsonl", *WHOLE))
    assert (report.valid, report.iterations, report.warmups) == (True, 2, 1)
    assert report.end is not None
    assert report.end.status == "completed"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"hosts": ["nid1"]}, "hosts is a list of 1, but world_size = 2"),
        ({"devices": ["cpu"] * 3}, "devices is a list of 3, but world_size = 2"),
        ({"clock": CLOCK | {"drift": []}}, "clock.drift is a list of 0, but world_size = 2"),
        ({"clock": CLOCK | {"drift_uncertainty": [0.0]}}, "clock.drift_uncertainty is a list of 1, but world_size = 2"),
        ({"replicas": 1}, "replicas 1 = 1, but world_size = 2"),
        ({"degrees": {"pp": 8, "tp": 4}}, "replicas 2 × pp 8 × tp 4 = 64, but world_size = 2"),
        ({"dtype": "int4"}, "dtype 'int4' is unknown; use fp64, fp32, bf16, fp16, fp8"),
        ({"dtype": "fp32"}, "messages[0]: bytes = 2000, but 1000 elements of fp32 have 4000"),
    ],
)
def test_a_header_that_contradicts_itself_is_an_error(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    assert problems(tmp_path, HEADER | change, *WHOLE[1:]) == [Problem(1, "error", expected)]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"runtime": [0.5]}, "runtime is a list of 1, but world_size = 2"),
        (
            {"communication": {"allreduce/world": [0.1]}},
            "communication.allreduce/world is a list of 1, but world_size = 2",
        ),
        (
            {"communication": {"allreduce/world": [0.1, 0.1]}},
            "rank 1: the communication classes add up to 0.1, but sync_time = 0.2",
        ),
        ({"communication": {}, "sync_time": [0, 0.2]}, "rank 1: the communication classes add up to 0.0, "),
        ({"runtime": [0.5, 0.4]}, "rank 1: sync_time + compute + overrun + issue = 0.46 exceeds runtime = 0.4"),
        ({"index": 2}, "index = 2, but 1 comes next"),
        ({"index": 0}, "index = 0, but 1 comes next"),
        ({"start": 9.0}, "start = 9.0 lies before the previous iteration's, 10.0"),
        ({"skew": [0.001, 0.002]}, "the smallest skew is 0.001; the first rank's is 0"),
        ({"late": [1, 2]}, "late names rank 2; the last rank is 1"),
    ],
)
def test_an_iteration_that_contradicts_itself_is_an_error(
    tmp_path: Path, change: dict[str, Any], expected: str
) -> None:
    (problem,) = problems(tmp_path, HEADER, WARMUP, COUNTED | change, END)
    assert (problem.line, problem.severity) == (3, "error")
    assert problem.text.startswith(expected)


def test_rounding_of_clock_readings_is_no_error(tmp_path: Path) -> None:
    rounded = COUNTED | {
        "runtime": [0.41 * (1 - 5e-7), 0.46],
        "communication": {"allreduce/world": [0.1 + 4e-9, 0.2 * (1 + 9e-7)]},
        "skew": [2e-9, 0.001],
    }
    assert problems(tmp_path, HEADER, WARMUP, rounded, END) == []


@pytest.mark.parametrize("share", [1 + 2e-6, 1 - 2e-6])
def test_the_classes_must_agree_with_sync_time_to_a_millionth(tmp_path: Path, share: float) -> None:
    off = COUNTED | {"communication": {"allreduce/world": [0.1, 0.2 * share]}}
    assert len(problems(tmp_path, HEADER, WARMUP, off, END)) == 1


def test_several_classes_add_up(tmp_path: Path) -> None:
    split = COUNTED | {"communication": {"allreduce/replica": [0.06, 0.0], "send/pipeline": [0.04, 0.2]}}
    assert problems(tmp_path, HEADER, WARMUP, split, END) == []


def test_energy_on_some_of_the_ranks_is_sound(tmp_path: Path) -> None:
    assert problems(tmp_path, METERED, WARMUP | {"energy": ENERGY}, COUNTED | {"energy": ENERGY}, END) == []


def test_clocks_without_energy_need_no_source(tmp_path: Path) -> None:
    nothing = [None, None]
    clocks = ENERGY | {"joules": nothing, "seconds": nothing}
    assert problems(tmp_path, HEADER, WARMUP, COUNTED | {"energy": clocks}, END) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"joules": [1.0]}, "energy.joules is a list of 1, but world_size = 2"),
        ({"throttle": []}, "energy.throttle is a list of 0, but world_size = 2"),
        ({"joules": [None, 2.5]}, "rank 1: energy.joules = 2.5 need energy.seconds above 0"),
        ({"seconds": [0.0, None]}, "rank 0: energy.joules = 150.0 need energy.seconds above 0"),
    ],
)
def test_energy_that_contradicts_itself_is_an_error(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    found = problems(tmp_path, METERED, WARMUP, COUNTED | {"energy": ENERGY | change}, END)
    assert found == [Problem(3, "error", expected)]


@pytest.mark.parametrize("change", [{"joules": [-1.0, None]}, {"sm_mhz": [-1.0, None]}, {"throttle": [0, -4]}])
def test_energy_clocks_and_reasons_are_not_negative(tmp_path: Path, change: dict[str, Any]) -> None:
    (problem,) = problems(tmp_path, METERED, WARMUP, COUNTED | {"energy": ENERGY | change}, END)
    assert (problem.line, problem.severity) == (3, "error")
    assert ">= 0" in problem.text


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"joules": [1e308, None]}, "Expected `float` <= 1000000000.0 - at `$.energy.joules[0]`"),
        ({"seconds": [1e10, None]}, "Expected `float` <= 1000000000.0 - at `$.energy.seconds[0]`"),
        ({"sm_mhz": [None, 1e10]}, "Expected `float` <= 1000000000.0 - at `$.energy.sm_mhz[1]`"),
        ({"throttle": [0, 2**63]}, "Expected `int` <= 9223372036854775807 - at `$.energy.throttle[1]`"),
        ({"throttle": [2**70, 0]}, "$.energy.throttle[0]"),
    ],
)
def test_what_no_gpu_says_in_an_iteration_is_an_error(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    (problem,) = problems(tmp_path, METERED, WARMUP, COUNTED | {"energy": ENERGY | change}, END)
    assert (problem.line, problem.severity) == (3, "error")
    assert expected in problem.text


@pytest.mark.parametrize("source", ["zzz", "counter and counter", "sampled power and counter", None])
def test_where_joules_come_from_is_one_of_the_known_sources(tmp_path: Path, source: str | None) -> None:
    (problem,) = problems(tmp_path, METERED | {"energy_source": source}, WARMUP, COUNTED, END)
    assert (problem.line, problem.severity) == (1, "error")
    assert "$.energy_source" in problem.text


@pytest.mark.parametrize("source", ["", "counter", "sampled power", "counter and sampled power"])
def test_every_source_that_a_run_can_have_is_known(tmp_path: Path, source: str) -> None:
    assert problems(tmp_path, METERED | {"energy_source": source}, WARMUP, COUNTED, END) == []


def test_joules_need_a_header_that_says_where_they_come_from(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, HEADER, WARMUP, COUNTED | {"energy": ENERGY}, END)
    assert problem == Problem(3, "error", "energy.joules are there, but the header's energy_source is empty")


def test_accelerators_are_one_a_rank_or_none(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, HEADER | {"accelerators": [ACCELERATOR]}, *WHOLE[1:])
    assert problem == Problem(1, "error", "accelerators is a list of 1, but world_size = 2")


def test_the_first_iteration_is_number_zero(tmp_path: Path) -> None:
    assert problems(tmp_path, HEADER, COUNTED) == [Problem(2, "error", "index = 1, but 0 comes next")]


def test_a_warm_up_after_a_counted_iteration_is_an_error(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, HEADER, WARMUP | {"warmup": False}, COUNTED | {"warmup": True}, END)
    assert problem == Problem(3, "error", "a warm-up iteration comes after a counted one; warm-ups come first")


def test_a_completed_run_that_lost_an_iteration_is_an_error(tmp_path: Path) -> None:
    expected = Problem(3, "error", "iterations = 2, but the record holds 1")
    assert problems(tmp_path, HEADER, WARMUP, END) == [expected]


def test_another_rank_may_count_otherwise_when_a_run_fails(tmp_path: Path) -> None:
    expected = Problem(3, "note", "iterations = 2, but the record holds 1")
    assert problems(tmp_path, HEADER, WARMUP, END | {"status": "failed"}) == [expected]


def test_an_iteration_behind_the_end_of_a_completed_run_is_an_error(tmp_path: Path) -> None:
    expected = Problem(3, "error", "iterations = 1, but the record holds 2")
    assert problems(tmp_path, HEADER, WARMUP, END | {"iterations": 1}, COUNTED) == [expected]


def test_the_clock_at_the_end_is_checked_too(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, *WHOLE[:3], END | {"clock": CLOCK | {"uncertainty": [0.0]}})
    assert problem == Problem(4, "error", "clock.uncertainty is a list of 1, but world_size = 2")


def test_a_new_clock_model_stands_before_the_iteration_from_which_it_holds(tmp_path: Path) -> None:
    assert problems(tmp_path, HEADER, WARMUP, RESYNCHRONISED, COUNTED, END) == []
    assert problems(tmp_path, HEADER, RESYNCHRONISED | {"index": 0}, WARMUP, COUNTED, END) == []
    (problem,) = problems(tmp_path, HEADER, WARMUP, COUNTED, RESYNCHRONISED, END)
    assert problem == Problem(4, "error", "index = 1, but 2 comes next")


def test_a_new_clock_model_is_checked_too(tmp_path: Path) -> None:
    short = RESYNCHRONISED | {"model": CLOCK | {"offset": [0.0]}}
    (problem,) = problems(tmp_path, HEADER, WARMUP, short, COUNTED, END)
    assert problem == Problem(3, "error", "model.offset is a list of 1, but world_size = 2")


def test_a_killed_run_is_valid_and_its_cut_line_noted(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(text(HEADER, WARMUP) + b'{"kind":"iter')
    report = examine(path)
    assert (report.valid, report.iterations, report.end) == (True, 1, None)
    assert [(problem.line, problem.severity) for problem in report.problems] == [(3, "note")]


def test_a_second_end_line_is_noted(tmp_path: Path) -> None:
    assert [(problem.line, problem.severity) for problem in problems(tmp_path, *WHOLE, END)] == [(5, "note")]


def test_damage_is_the_last_problem_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(text(HEADER, COUNTED) + b"damage\n" + text(END))
    assert [(problem.line, problem.severity) for problem in validate(path)] == [(2, "error"), (3, "error")]


def test_a_foreign_file_is_one_problem_without_a_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"")
    assert validate(path) == [Problem(None, "error", "is empty; a run record begins with a header line")]


def with_ops(folder: Path, *arrays: np.ndarray[Any, np.dtype[np.float64]]) -> list[Problem]:
    with (folder / "run.ops.npy").open("wb") as file:
        for array in arrays:
            np.save(file, array)
    return problems(folder, WITH_OPS, WARMUP, COUNTED, END)


def changed(rank: int, op: int, side: int, value: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    array = ARRAY.copy()
    array[rank, op, side] = value
    return array


def test_sound_ops_have_no_problems(tmp_path: Path) -> None:
    assert with_ops(tmp_path, ARRAY, ARRAY + 1) == []


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (changed(0, 1, 1, 10.2), "run.ops.npy: iteration 1, rank 0, op 1: leave lies before enter"),
        (changed(0, 1, 1, NAN), "run.ops.npy: iteration 1, rank 0, op 1: NaN must stand exactly behind the rank's 2"),
        (changed(1, 1, 0, 3.0), "run.ops.npy: iteration 1, rank 1, op 1: NaN must stand exactly behind the rank's 1"),
        (changed(1, 0, 0, np.inf), "run.ops.npy: iteration 1, rank 1, op 0: NaN must"),
    ],
)
def test_ops_that_contradict_the_op_tables_are_an_error(
    tmp_path: Path, array: np.ndarray[Any, np.dtype[np.float64]], expected: str
) -> None:
    found = with_ops(tmp_path, ARRAY, array)
    assert {problem.severity for problem in found} == {"error"}
    assert found[0].text.startswith(expected)


def test_an_iteration_without_its_array_is_an_error(tmp_path: Path) -> None:
    errors = [problem for problem in with_ops(tmp_path, ARRAY) if problem.severity == "error"]
    assert errors == [Problem(None, "error", "1 of 2 iterations lack their array in run.ops.npy")]


def test_an_array_without_its_iteration_is_noted(tmp_path: Path) -> None:
    assert [problem.severity for problem in with_ops(tmp_path, ARRAY, ARRAY, ARRAY)] == ["note"]


def test_a_missing_ops_file_is_an_error_of_that_file(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, WITH_OPS, WARMUP, COUNTED, END)
    assert problem.severity == "error"
    assert problem.text.endswith("run.ops.npy: does not exist; it belongs beside run.jsonl")


def test_an_ops_file_that_the_header_does_not_explain_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "run.ops.npy").touch()
    (problem,) = problems(tmp_path, *WHOLE)
    assert problem == Problem(None, "error", "run.ops.npy lies beside it, but the header has no op_tables")


@pytest.mark.parametrize("ranks", [[1, 0], [], [1, 1], [2]])
def test_op_tables_must_cover_every_rank_once(tmp_path: Path, ranks: list[int]) -> None:
    tables = [OP_TABLES[0], OP_TABLES[1] | {"ranks": ranks}]
    np.save(tmp_path / "run.ops.npy", ARRAY)
    (problem,) = problems(tmp_path, HEADER | {"op_tables": tables}, WARMUP)
    assert problem == Problem(1, "error", "op_tables must name each of the 2 ranks once")


@pytest.mark.parametrize("ranks", [10**9, 2**62])
def test_a_damaged_world_size_takes_no_memory(tmp_path: Path, ranks: int) -> None:
    np.save(tmp_path / "run.ops.npy", ARRAY)
    found = problems(tmp_path, WITH_OPS | {"world_size": ranks}, WARMUP, END)
    texts = [problem.text for problem in found]
    assert f"op_tables must name each of the {ranks} ranks once" in texts
    assert texts[-1].endswith(f"the op tables say <f8 ({ranks}, 2, 2) in C order")


def test_a_problem_is_one_line_whatever_it_quotes(tmp_path: Path) -> None:
    (kind,) = problems(tmp_path, HEADER, WARMUP | {"kind": "\n"})
    (degree,) = problems(tmp_path, HEADER | {"degrees": {"p\np": 3}}, WARMUP)
    assert r"'\n'" in kind.text
    assert degree.text == r"replicas 2 × p\np 3 = 6, but world_size = 2"


def test_groups_divide_the_ranks(tmp_path: Path) -> None:
    groups = {"world": {"size": 2, "stride": 1}, "replica": {"size": 2, "stride": 2}}
    (problem,) = problems(tmp_path, HEADER | {"groups": groups}, WARMUP)
    assert problem == Problem(1, "error", "groups: replica of size 2 and stride 2 do not divide 2 ranks")
