"""`dlbench timeline`, as a user sees it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from trace_checker import checked

from dlbench.cli.main import main

Command = Callable[..., tuple[int, str, str]]

HEADER = (
    '{"kind":"header","schema_version":1,"run_id":"dp-2","created":"2026-01-02T03:04:05Z","strategy":"dp","model":{},'
    '"gpu":{},"world_size":2,"replicas":2,"degrees":{},"groups":{"world":{"size":2,"stride":1}},"dtype":"bf16",'
    '"local_batch":16,"microbatches":1,"sequence_length":257,"compute":"sleep","backend":{"name":"mpi",'
    '"library":"MPICH","carrier":"MPI_UINT16_T"},"messages":[],"memory_bytes":0,"seed":0,"hosts":["a","b"],'
    '"devices":["cpu","cpu"],"environment":{},"clock":{"reference":0,"offset":[0,0],"drift":[0,0],'
    '"uncertainty":[0,0],"drift_uncertainty":[0,0],"unix_epoch":0},"packages":{},"command":[],"options":{}%s}\n'
)
TABLES = (
    ',"op_tables":[{"ranks":[0,1],"ops":[{"op":"compute","name":"forward","seconds":0.5},'
    '{"op":"allreduce","scope":"world","name":"gradient","elements":8,"blocking":false},'
    '{"op":"wait","requests":["gradient"]}]}]'
)
ITERATION = (
    '{"kind":"iteration","index":%d,"warmup":false,"start":%d,"skew":[0,0],"runtime":[1.5,1.5],"sync_time":[0.5,0.5],'
    '"compute":[0.5,0.5],"overrun":[0,0],"issue":[0.5,0.5],"communication":{"allreduce/world":[0.5,0.5]}}\n'
)
END = '{"kind":"end","status":"completed","reason":"","iterations":3,"ended":"2026-01-02T03:05:05Z"}\n'
ITERATIONS = 3


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Run `dlbench timeline` beside `run.jsonl`, 2 ranks and 3 iterations; gives exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    lines = "".join(ITERATION % (index, 10 * index) for index in range(ITERATIONS))
    Path("run.jsonl").write_text(HEADER % TABLES + lines + END)
    with Path("run.ops.npy").open("wb") as file:
        for index in range(ITERATIONS):
            np.save(file, np.full((2, 3, 2), 10.0 * index) + [[0.0, 0.5], [0.5, 1.0], [1.0, 1.5]])

    def timeline(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dlbench", "timeline", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return left.value.code, captured.out, captured.err

    return timeline


def test_a_trace_is_written_and_what_is_in_it_is_said(run: Command) -> None:
    printed = "trace.json: iterations 0 to 2, 2 ranks, 18 ops, 0 messages, 6 requests\n"
    assert run("run.jsonl", "-o", "trace.json") == (0, printed, "")
    assert len(checked(Path("trace.json")).ops()) == 18
    assert sorted(path.name for path in Path().iterdir()) == ["run.jsonl", "run.ops.npy", "trace.json"]


def test_a_name_that_ends_in_gz_is_compressed(run: Command) -> None:
    assert run("run.jsonl", "--output", "trace.json.gz")[0] == 0
    assert len(checked(Path("trace.json.gz")).ops()) == 18


@pytest.mark.parametrize(
    ("asked", "said", "shown"),
    [
        ("1", "iteration 1", {1}),
        ("0:1", "iterations 0 to 1", {0, 1}),
        ("1:", "iterations 1 to 2", {1, 2}),
        (":1", "iterations 0 to 1", {0, 1}),
        (":", "iterations 0 to 2", {0, 1, 2}),
        ("2:2", "iteration 2", {2}),
    ],
)
def test_iterations_are_chosen_from_first_to_last(run: Command, asked: str, said: str, shown: set[int]) -> None:
    code, printed, _ = run("run.jsonl", "-o", "trace.json", "--iterations", asked)
    assert (code, printed.split(",")[0]) == (0, f"trace.json: {said}")
    assert {event["args"]["iteration"] for event in checked(Path("trace.json")).ops()} == shown


def test_one_of_a_kind_is_not_several(run: Command) -> None:
    printed = "trace.json: iteration 2, 1 rank, 3 ops, 0 messages, 1 request\n"
    assert run("run.jsonl", "-o", "trace.json", "--iterations", "2", "--ranks", "1") == (0, printed, "")


@pytest.mark.parametrize(("asked", "shown"), [("1", {1}), ("0-1", {0, 1}), ("1,0", {0, 1}), ("0-1:2", {0})])
def test_ranks_are_chosen_by_a_list(run: Command, asked: str, shown: set[int]) -> None:
    assert run("run.jsonl", "-o", "trace.json", "--ranks", asked)[0] == 0
    assert {event["tid"] for event in checked(Path("trace.json")).ops()} == shown


def test_what_is_missing_is_noted(run: Command) -> None:
    ops = Path("run.ops.npy")
    ops.write_bytes(ops.read_bytes()[:-1])
    code, printed, _ = run("run.jsonl", "-o", "trace.json")
    assert code == 0
    assert printed == (
        "trace.json: iterations 0 to 1, 2 ranks, 12 ops, 0 messages, 4 requests\n"
        "  note: array 2 is cut and was dropped: the run was killed while it was written\n"
        "  note: 2 arrays for 3 iterations: the last iterations have none\n"
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "the following arguments are required: -o/--output; see 'dlbench timeline --help'"),
        (("run.jsonl",), "the following arguments are required: -o/--output; see 'dlbench timeline --help'"),
        (
            ("run.jsonl", "-o", "run.jsonl"),
            "argument -o/--output: expected a name that ends in .json or .json.gz, found 'run.jsonl'; "
            "see 'dlbench timeline --help'",
        ),
        (
            ("run.jsonl", "-o", "t.json", "--iterations", "1-2"),
            "argument --iterations: expected N, N:M, N: or :M, found '1-2'; see 'dlbench timeline --help'",
        ),
        (
            ("run.jsonl", "-o", "t.json", "--iterations="),
            "argument --iterations: expected N, N:M, N: or :M, found ''; see 'dlbench timeline --help'",
        ),
        (
            ("run.jsonl", "-o", "t.json", "--iterations", "2:1"),
            "argument --iterations: '2:1' ends before it begins; write 1:2; see 'dlbench timeline --help'",
        ),
        (
            ("run.jsonl", "-o", "t.json", "--ranks", "0:1"),
            "argument --ranks: expected ranks such as 0-7, 0,4,8-11 or 0-56:8, found '0:1'; "
            "see 'dlbench timeline --help'",
        ),
        (
            ("run.jsonl", "-o", "t.json", "--ranks", "0,1-0"),
            "argument --ranks: '1-0' ends before it begins; write 0-1; see 'dlbench timeline --help'",
        ),
        (("run.jsonl", "-o", "t.json", "--ranks", "0-7"), "rank 7 is not in the run; it has ranks 0 to 1"),
        (("run.jsonl", "-o", "t.json", "--iterations", "3"), "iteration 3 is not in run.ops.npy; it holds 0 to 2"),
        (
            ("run.jsonl", "-o", "t.json", "--rank", "0"),
            "unknown option --rank, did you mean --ranks?; see 'dlbench timeline --help'",
        ),
        (("other.jsonl", "-o", "t.json"), "other.jsonl: does not exist"),
        (("run.ops.npy", "-o", "t.json"), "run.ops.npy: is no run record; one begins with a header line"),
        (("run.jsonl", "-o", "no/t.json"), "no/t.json cannot be written: No such file or directory"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(
    run: Command, arguments: tuple[str, ...], complaint: str
) -> None:
    assert run(*arguments) == (2, "", f"dlbench: {complaint}\n")
    assert sorted(path.name for path in Path().iterdir()) == ["run.jsonl", "run.ops.npy"]


def test_a_run_without_ops_says_how_to_record_them(run: Command) -> None:
    Path("run.jsonl").write_text(HEADER % "" + END)
    complaint = "dlbench: run.jsonl: the run recorded no ops; record them with --record-ops\n"
    assert run("run.jsonl", "-o", "t.json") == (2, "", complaint)


def test_help_shows_how_to_choose_and_where_to_look(run: Command) -> None:
    code, printed, _ = run("--help")
    assert code == 0
    for text in ("--iterations 1:3 --ranks 0-7,16", "https://ui.perfetto.dev", "NAME.json.gz"):
        assert text in printed


def test_other_commands_do_without_numpy() -> None:
    program = "import sys, dlbench.cli.timeline; print('numpy' in sys.modules, 'pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_a_pattern_that_stands_for_several_records_is_answered_with_what_is_taken(run: Command) -> None:
    assert run("dp-1.jsonl", "dp-2.jsonl", "dp-3.jsonl", "-o", "trace.json") == (
        2,
        "",
        "dlbench: timeline takes one record; 3 are given, dp-1.jsonl to dp-3.jsonl: name one of them\n",
    )
    assert run("-o", "trace.json")[2] == (
        "dlbench: the following arguments are required: RUN; see 'dlbench timeline --help'\n"
    )
    assert run("run.jsonl", "-o", "trace.json", "--ranks", "0")[0] == 0
