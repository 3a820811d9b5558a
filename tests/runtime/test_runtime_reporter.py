"""Rank 0's side: from the rows of all ranks to the record, the printed lines and the decisions."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from handmade_run import CLOCK_MODEL as CLOCK
from handmade_run import header, options, rows

from dlbench.errors import RecordError
from dlbench.records.reader import read
from dlbench.records.schema import Iteration
from dlbench.records.validator import validate
from dlbench.runtime.collector import CONTINUE, STOP
from dlbench.runtime.reporter import Reporter, end_line, utc_now
from dlbench.runtime.rows import RowFormat

CLASSES = ("allreduce/world", "send/pipeline")
#            begin  runtime late signal compute overrun issue allreduce send
FIRST = rows((10.0, 0.50, 0, 0, 0.20, 0.001, 0.01, 0.05, 0.20), (10.001, 0.40, 0, 0, 0.25, 0.004, 0.02, 0.10, 0.0))
SECOND = rows((11.003, 0.30, 1, 0, 0.20, 0.001, 0.01, 0.05, 0.03), (11.0, 0.60, 0, 0, 0.25, 0.004, 0.02, 0.30, 0.0))


def reporter(
    classes: tuple[str, ...] = CLASSES, header_changes: dict[str, Any] | None = None, **changes: Any
) -> Reporter:
    made = header(**(header_changes or {}))
    ops = max((len(table.ops) for table in made.op_tables), default=0)
    return Reporter(made, options(**changes), RowFormat(classes, ops=ops))


def signalled(number: int, rank: int) -> np.ndarray[Any, Any]:
    changed = FIRST.copy()
    changed[rank, 3] = number
    return changed


def recorded(tmp_path: Path, **changes: Any) -> Reporter:
    return reporter(record=str(tmp_path), **changes)


def path_of(made: Reporter) -> Path:
    assert made.path is not None
    return made.path


def iterations_of(made: Reporter) -> list[Iteration]:
    return list(read(path_of(made)).iterations)


def test_the_rows_of_two_ranks_become_an_iteration(tmp_path: Path) -> None:
    made = recorded(tmp_path, iterations=1)
    made.decide(FIRST)
    made.decide(SECOND)
    made.end(CLOCK)
    first, second = iterations_of(made)
    assert first == Iteration(
        index=0,
        warmup=True,
        start=10.0,
        skew=[0.0, pytest.approx(0.001, abs=1e-12)],
        runtime=[0.50, 0.40],
        sync_time=[0.25, 0.10],
        compute=[0.20, 0.25],
        overrun=[0.001, 0.004],
        issue=[0.01, 0.02],
        communication={"allreduce/world": [0.05, 0.10], "send/pipeline": [0.20, 0.0]},
        late=[],
    )
    assert (second.index, second.warmup, second.start, second.late) == (1, False, 11.0, [0])
    assert second.skew == [pytest.approx(0.003, abs=1e-12), 0.0]
    assert second.sync_time == [pytest.approx(0.08), pytest.approx(0.30)]


def test_a_written_record_is_valid_and_ends_as_the_run_did(tmp_path: Path) -> None:
    made = recorded(tmp_path, iterations=1)
    assert [made.decide(FIRST), made.decide(SECOND)] == [CONTINUE, STOP]
    assert made.end(CLOCK) == 0
    assert validate(path_of(made)) == []
    end = read(path_of(made)).end
    assert end is not None
    assert (end.status, end.reason, end.iterations, end.clock) == ("completed", "1 iteration measured", 2, CLOCK)


def test_every_finished_iteration_is_in_the_file_before_the_next_one(tmp_path: Path) -> None:
    made = recorded(tmp_path)
    for count in range(1, 4):
        made.decide(FIRST)
        assert path_of(made).read_text().count('"kind":"iteration"') == count


def test_recorded_ops_are_the_rest_of_the_row(tmp_path: Path) -> None:
    tables = [
        {"ranks": [0], "ops": [{"op": "compute", "name": "forward"}, {"op": "wait", "requests": ["a"]}]},
        {"ranks": [1], "ops": [{"op": "compute", "name": "forward"}]},
    ]
    made = recorded(tmp_path, header_changes={"op_tables": tables}, record_ops=True, iterations=1, warmup=0)
    ops = rows((10.0, 10.2, 10.2, 10.5), (10.001, 10.4, np.nan, np.nan))
    made.decide(np.hstack([FIRST, ops]))
    made.end(CLOCK)
    assert validate(path_of(made)) == []
    array = np.load(path_of(made).with_suffix(".ops.npy"))
    np.testing.assert_array_equal(array, [[[10.0, 10.2], [10.2, 10.5]], [[10.001, 10.4], [np.nan, np.nan]]])


def test_a_new_clock_model_stands_before_the_iteration_from_which_it_holds(tmp_path: Path) -> None:
    made = recorded(tmp_path, iterations=1)
    later = msgspec.structs.replace(CLOCK, reference=10.7)
    made.decide(FIRST)
    made.clock(later)
    made.decide(SECOND)
    made.end(CLOCK)
    record = read(path_of(made))
    assert (record.clock(0), record.clock(1)) == (record.header.clock, later)
    assert validate(path_of(made)) == []


def test_without_a_record_a_new_clock_model_goes_nowhere() -> None:
    reporter().clock(CLOCK)


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130), ("SIGUSR1", 138)])
def test_a_signal_on_any_rank_ends_the_run_with_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, code: int
) -> None:
    made = recorded(tmp_path)
    assert made.decide(FIRST) == CONTINUE
    assert made.decide(signalled(signal.Signals[name], rank=1)) == code
    assert made.end(CLOCK) == code
    end = read(path_of(made)).end
    assert end is not None
    assert (end.status, end.reason, end.iterations) == ("terminated", f"{name} on rank 1 (nid2)", 2)
    assert end.signal == name
    assert validate(path_of(made)) == []
    assert capsys.readouterr().out.splitlines()[-1] == f"FAILED: terminated by {name} on rank 1 (nid2)"


def test_a_signal_counts_even_where_enough_is_measured() -> None:
    made = reporter(iterations=1, warmup=0)
    assert made.decide(signalled(signal.SIGTERM, rank=0)) == 143


def test_a_decision_stands_for_iterations_that_were_under_way() -> None:
    made = reporter(iterations=1, warmup=0)
    assert made.decide(FIRST) == STOP
    assert made.decide(signalled(signal.SIGTERM, rank=0)) == STOP
    assert (made.status, made.exit_code, made.iterations) == ("completed", 0, 2)
    stopped = reporter()
    assert stopped.decide(signalled(signal.SIGTERM, rank=0)) == 143
    assert stopped.decide(FIRST) == 143


def test_a_run_that_measured_enough_says_ok_at_last(capsys: pytest.CaptureFixture[str]) -> None:
    made = reporter(iterations=1)
    made.print_header()
    made.print_table_head()
    made.decide(FIRST)
    made.decide(SECOND)
    assert made.end(CLOCK) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    rows_shown = [line.split() for line in lines if not line.startswith("#")]
    # 16 samples × 2 replicas; the slowest rank took 0.5 s, then 0.6 s; 25 / 50 and 30 / 60 are the largest shares of
    # communication, and 24 / 400 and 24 / 600 of overrun + issue.
    assert rows_shown == [
        ["0", "500.00", "64.000", "50.0", "6.0", "1000.0", "w"],
        ["1", "600.00", "53.333", "50.0", "4.0", "3000.0", "!"],
        ["OK"],
    ]
    assert lines[-2] == "# 1 iteration measured"
    assert printed.err == ""


def test_warm_ups_are_not_part_of_the_summary(capsys: pytest.CaptureFixture[str]) -> None:
    made = reporter(iterations=2, json=True)
    for given in (FIRST, SECOND, SECOND):
        made.decide(given)
    made.end(CLOCK)
    summary = json.loads(capsys.readouterr().out)
    assert (summary["iterations"], summary["warmup"]) == (3, 1)
    assert (summary["seconds"]["count"], summary["seconds"]["minimum"]) == (2, 0.6)


def test_json_is_alone_on_stdout_and_has_every_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = recorded(tmp_path, iterations=6, warmup=0, json=True)
    made.print_header()
    for index in range(6):
        changed = FIRST.copy()
        changed[:, 1] += 0.1 * index  # the slowest rank takes 0.5, 0.6, … 1.0 s
        made.decide(changed)
    made.end(CLOCK)
    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    assert len(printed.out.splitlines()) == 1
    assert printed.err.splitlines()[-1] == "OK"
    measured = ["seconds", "throughput", "communication_fraction", "hidden_fraction", "skew_seconds"]
    assert list(summary)[:6] == ["record", "status", "reason", "signal", "iterations", "warmup"]
    assert list(summary)[6:13] == [*measured, "communication_seconds", "throughput_geometric_mean"]
    # What must be equal for runs to be compared.
    assert {"strategy", "model", "gpu", "dtype", "scale", "time_scale", "replicas", "labels", "backend"} < set(summary)
    assert (summary["model"], summary["gpu"], summary["scale"]) == ("vit-h", "b200", 1.0)
    assert summary["communication_seconds"]["allreduce/world"]["median"] == pytest.approx(0.1)
    assert (summary["run_id"], summary["record"]) == ("dp-2-by-hand", str(tmp_path / "dp-2-by-hand.jsonl"))
    assert (summary["status"], summary["reason"]) == ("completed", "6 iterations measured")
    # 32 samples in 0.5, 0.6, … 1.0 s: the sixth root of the product of the times is 0.7299 s.
    assert summary["throughput_geometric_mean"] == pytest.approx(32 / (0.5 * 0.6 * 0.7 * 0.8 * 0.9 * 1.0) ** (1 / 6))
    seconds = summary["seconds"]
    assert (seconds["count"], seconds["minimum"], seconds["maximum"]) == (6, 0.5, 1.0)
    assert seconds["median"] == pytest.approx(0.75)
    # All six samples enclose the median with 1 − 2/2⁶.
    assert seconds["interval"] == {"low": 0.5, "high": 1.0, "coverage": pytest.approx(0.96875)}


def test_json_has_the_same_keys_where_nothing_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    made = reporter(json=True)
    made.decide(signalled(signal.SIGINT, rank=0))
    made.end(None)
    summary = json.loads(capsys.readouterr().out)
    assert (summary["status"], summary["seconds"], summary["skew_seconds"]) == ("terminated", None, None)


METERED = RowFormat(CLASSES).with_energy()


def metered(made: Reporter, first: tuple[float, ...], second: tuple[float, ...]) -> None:
    """Hand in an iteration with what the GPUs of both ranks say: J, s, MHz, MHz, W, reasons."""
    made.decide(np.hstack([FIRST, rows(first, second)]))


def test_energy_is_summed_over_the_ranks_and_shown_where_it_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = {"energy_source": "counter"}
    made = Reporter(header(**changed), options(iterations=2, warmup=1, record=str(tmp_path)), METERED)
    metered(made, (900.0, 0.6, 1980, 2619, 700, 0), (900.0, 0.6, 1980, 2619, 700, 0x40))
    metered(made, (30.0, 0.5, 1980, 2619, 700, 0), (50.0, 0.5, 1200, 2619, 700, 0x20))
    metered(made, (70.0, 0.5, 1980, 2619, 700, 0), (10.0, 0.5, 1980, 2619, 700, 0x01))
    made.end(CLOCK)
    assert validate(path_of(made)) == []
    _, _, last = iterations_of(made)
    assert last.energy is not None
    assert (last.energy.joules, last.energy.throttle) == ([70.0, 10.0], [0, 1])
    lines = capsys.readouterr().out.splitlines()
    (energy,) = [line for line in lines if "energy [J]" in line]
    (rate,) = [line for line in lines if "samples/J" in line]
    # 80 J in each measured iteration, for 32 samples; the warm-up does not count.
    assert energy.split() == ["#", "energy", "[J]", "80.000", "-", "-", "80.000", "80.000"]
    assert rate.split() == ["#", "samples/J", "0.40000", "-", "-", "0.40000", "0.40000"]
    assert "# rank 1 (nid2) was throttled: SW thermal slowdown in 1 of 2 iterations" in lines
    assert not [line for line in lines if "HW thermal" in line]


def json_of(capsys: pytest.CaptureFixture[str], *joules: tuple[float, float]) -> dict[str, Any]:
    made = Reporter(header(), options(iterations=len(joules), warmup=0, json=True), METERED)
    for pair in joules:
        metered(made, *[(value, 0.5, 1980, 2619, 700, 4) for value in pair])
    made.end(CLOCK)
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_json_has_energy_and_who_was_throttled(capsys: pytest.CaptureFixture[str]) -> None:
    document = json_of(capsys, (10.0, 6.0), (20.0, 12.0), (30.0, 34.0))
    assert document["energy_joules"] | {"interval": None} == {
        **{"count": 3, "median": 32.0, "interval": None, "minimum": 16.0, "maximum": 64.0}
    }
    # 32 samples by 16, 32 and 64 J
    rate = document["samples_per_joule"]
    assert (rate["minimum"], rate["median"], rate["maximum"]) == (0.5, 1.0, 2.0)
    assert document["throttled"] == [
        "2 of 2 ranks were throttled: SW power cap in up to 3 of 3 iterations, as on rank 0 (nid1)"
    ]


def test_a_rank_without_energy_leaves_no_sum(capsys: pytest.CaptureFixture[str]) -> None:
    document = json_of(capsys, (10.0, np.nan), (20.0, 12.0))
    assert (document["energy_joules"]["count"], document["energy_joules"]["median"]) == (1, 32.0)
    document = json_of(capsys, (10.0, np.nan))
    assert (document["energy_joules"], document["samples_per_joule"]) == (None, None)


def test_a_counter_that_did_not_move_gives_no_rate(capsys: pytest.CaptureFixture[str]) -> None:
    document = json_of(capsys, (0.0, 0.0), (20.0, 12.0))
    assert document["energy_joules"]["minimum"] == 0
    assert document["samples_per_joule"] is None


def test_without_meters_nothing_is_said_of_energy(capsys: pytest.CaptureFixture[str]) -> None:
    made = reporter(iterations=1, warmup=0)
    made.decide(FIRST)
    made.end(CLOCK)
    assert not [line for line in capsys.readouterr().out.splitlines() if "/J" in line or "energy" in line]


def test_a_check_without_faults_lets_the_run_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    made = reporter()
    assert made.report_check(100, [])
    assert "check      OK: 100 messages verified on 2 ranks" in capsys.readouterr().out


def test_a_check_with_faults_fails_and_ends_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = recorded(tmp_path, json=True)
    faults = ["rank 1 (nid2, cpu) op 3 (send/pipeline out): element 7 is 1, expected 2", "rank 1 …"]
    assert not made.report_check(100, faults)
    assert made.exit_code == 1
    end = read(path_of(made)).end
    assert end is not None
    assert (end.status, end.iterations) == ("failed", 0)
    assert faults[0] in end.reason
    assert validate(path_of(made)) == []
    printed = capsys.readouterr()
    lines = printed.err.splitlines()
    assert [f"# check      WRONG: {fault}" for fault in faults] == lines[:2]
    assert lines[-1].startswith("FAILED: wrong data: rank 1 (nid2, cpu) op 3")
    assert json.loads(printed.out)["status"] == "failed"


def test_a_run_whose_record_is_lost_fails_after_its_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = recorded(tmp_path, iterations=1)
    made.decide(FIRST)
    made.decide(SECOND)
    path_of(made).unlink()
    assert made.end(CLOCK) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any("throughput" in line for line in lines)
    assert lines[-1] == f"FAILED: {path_of(made)} is lost: No such file or directory, but the run was writing it"


def test_a_record_folder_that_is_a_file_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    file = tmp_path / "results"
    file.write_text("")
    with pytest.raises(RecordError, match="results is a file and not a folder; use another name") as error:
        reporter(record=str(file))
    assert error.value.exit_code == 2


def test_without_a_record_no_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = reporter(iterations=1, warmup=0)
    made.decide(FIRST)
    made.end(CLOCK)
    assert made.path is None
    assert list(tmp_path.iterdir()) == []


def test_moments_are_utc_and_sortable() -> None:
    assert len(utc_now()) == len("2026-01-02T03:04:05Z")
    assert utc_now().endswith("Z")
    assert end_line("failed", "why", 3).ended >= utc_now()[:10]
