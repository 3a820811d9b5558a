"""`dlbench validate`, as a user or a script sees it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dlbench.cli.main import main

Command = Callable[..., tuple[int, str, str]]

HEADER = (
    '{"kind":"header","schema_version":1,"run_id":"dp-1","created":"2026-01-02T03:04:05Z","strategy":"dp","model":{},'
    '"gpu":{},"world_size":1,"replicas":1,"degrees":{},"dtype":"bf16","local_batch":16,"microbatches":1,'
    '"sequence_length":257,"compute":"sleep","backend":{"name":"mpi","library":"MPICH","carrier":"MPI_UINT16_T"},'
    '"messages":[],"memory_bytes":0,"seed":0,"hosts":["a"],"devices":["cpu"],"environment":{},"clock":{"reference":0,'
    '"offset":[0],"drift":[0],"uncertainty":[0],"drift_uncertainty":[0],"unix_epoch":0},"packages":{},'
    '"command":[],"options":{}}\n'
)
ITERATION = (
    '{"kind":"iteration","index":%d,"warmup":%s,"start":%d,"skew":[0],"runtime":[1.5],"sync_time":[0.5],"compute":[1],'
    '"overrun":[0],"issue":[0],"communication":{"allreduce/world":[0.5]}}\n'
)
WARMUP = ITERATION % (0, "true", 10)
COUNTED = ITERATION % (1, "false", 12)
END = '{"kind":"end","status":"completed","reason":"","iterations":2,"ended":"2026-01-02T03:05:05Z"}\n'


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Run `dlbench validate` in an empty folder; gives exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def validate(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dlbench", "validate", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return left.value.code, captured.out, captured.err

    return validate


def test_a_valid_record_is_one_line(run: Command) -> None:
    Path("run.jsonl").write_text(HEADER + WARMUP + COUNTED + END)
    assert run("run.jsonl") == (0, "OK run.jsonl: 2 iterations (1 warm-up), completed\n", "")


def test_a_killed_run_is_valid_and_said(run: Command) -> None:
    Path("run.jsonl").write_text(HEADER + WARMUP + COUNTED[:20])
    assert run("run.jsonl") == (
        0,
        "OK run.jsonl: 1 iteration (1 warm-up), killed (no end line)\n"
        "  note: line 3: cut after 20 bytes, was dropped: the run was killed while it was written\n",
        "",
    )


def test_an_invalid_record_is_told_line_by_line(run: Command) -> None:
    Path("run.jsonl").write_text(HEADER + COUNTED + END)
    code, printed, _ = run("run.jsonl")
    assert code == 1
    assert printed == (
        "INVALID run.jsonl: 2 errors\n"
        "  error: line 2: index = 1, but 0 comes next\n"
        "  error: line 3: iterations = 2, but the record holds 1\n"
    )


def test_one_invalid_record_among_valid_ones_fails(run: Command) -> None:
    Path("good.jsonl").write_text(HEADER + WARMUP + COUNTED + END)
    Path("bad.jsonl").write_text("")
    code, printed, _ = run("good.jsonl", "bad.jsonl")
    assert code == 1
    assert printed.splitlines() == [
        "OK good.jsonl: 2 iterations (1 warm-up), completed",
        "INVALID bad.jsonl: 1 error",
        "  error: is empty; a run record begins with a header line",
    ]


def test_folders_are_searched_in_order_and_each_record_is_checked_once(run: Command) -> None:
    Path("results/deep").mkdir(parents=True)
    for name in ("results/b.jsonl", "results/a.jsonl", "results/deep/c.jsonl"):
        Path(name).write_text(HEADER)
    Path("results/notes.txt").write_text("no record")
    code, printed, _ = run("results", "results/a.jsonl")
    assert code == 0
    assert [line.split()[1] for line in printed.splitlines()] == [
        "results/a.jsonl:",
        "results/b.jsonl:",
        "results/deep/c.jsonl:",
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["none.jsonl"], "dlbench: none.jsonl does not exist; name a record NAME.jsonl or a folder of records\n"),
        (["."], "dlbench: . holds no record; records are files NAME.jsonl\n"),
        ([], "dlbench: no record was named; use dlbench validate RECORD..., with files or folders\n"),
    ],
)
def test_what_does_not_exist_is_a_mistake_of_the_user(run: Command, arguments: list[str], expected: str) -> None:
    assert run(*arguments) == (2, "", expected)


def test_scripts_get_json(run: Command) -> None:
    Path("good.jsonl").write_text(HEADER + WARMUP + COUNTED + END)
    Path("bad.jsonl").write_text(HEADER + COUNTED)
    code, printed, _ = run("--json", "good.jsonl", "bad.jsonl")
    assert code == 1
    assert json.loads(printed) == [
        {
            "path": "good.jsonl",
            "valid": True,
            "iterations": 2,
            "warmups": 1,
            "status": "completed",
            "problems": [],
        },
        {
            "path": "bad.jsonl",
            "valid": False,
            "iterations": 1,
            "warmups": 0,
            "status": None,
            "problems": [{"line": 2, "severity": "error", "text": "index = 1, but 0 comes next"}],
        },
    ]


def test_a_name_that_is_no_text_is_shown_with_escapes(run: Command) -> None:
    name = os.fsdecode(b"r\xe9\nsum\xc3\xa9.jsonl")
    Path(name).write_text(HEADER + WARMUP + COUNTED + END)
    assert run(".") == (0, "OK r\\udce9\\nsumé.jsonl: 2 iterations (1 warm-up), completed\n", "")
    code, printed, _ = run("--json", ".")
    assert code == 0
    assert json.loads(printed)[0]["path"] == "r\\xe9\nsumé.jsonl"


def test_a_folder_may_hold_what_is_no_record(run: Command) -> None:
    os.mkfifo("pipe.jsonl")
    assert run(".")[:2] == (
        1,
        "INVALID pipe.jsonl: 1 error\n  error: is a pipe or a device; a record is a file\n",
    )


def test_the_schema_is_printed(run: Command) -> None:
    code, printed, _ = run("--schema")
    assert code == 0
    assert json.loads(printed)["title"] == "dlbench run record, version 1: a line"


def test_the_help_shows_an_example_and_the_exit_codes(run: Command) -> None:
    code, printed, _ = run("--help")
    assert code == 0
    assert "examples:\n  dlbench validate results/" in printed
    assert "exit code: 0 all valid" in printed
