"""`dlbench analyze`, as it is typed and as scripts read it, and the options that it shares with its relatives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from builder import UNIX_EPOCH, end, header, iterations, write_lines, write_run

from dlbench.analysis.overlap import MIN_OVERLAP
from dlbench.cli import selection
from dlbench.cli.analyze import analyze
from dlbench.errors import OptionError, RecordError

Shown = Callable[..., list[str]]

SIX = [[1.0, 0.5], [2.0, 1.0], [3.0, 1.5], [4.0, 2.0], [5.0, 2.5], [6.0, 3.0]]
"""Runtimes of 6 iterations on 2 ranks: the slowest takes 1 to 6 s."""


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shown:
    """Output lines of `dlbench analyze` with the given arguments, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*argv: str) -> list[str]:
        analyze(argv)
        return capsys.readouterr().out.splitlines()

    return run


def rows(lines: list[str], title: str) -> list[list[str]]:
    """Cells of the rows of the table with that title, of the first panel."""
    start = lines.index(f"# {title}")
    panel = next(index for index in range(start, len(lines)) if lines[index] == "#")
    found = []
    for line in lines[panel + 1 :]:
        if found and line.startswith("#"):
            break
        if not line.startswith("#"):
            found.append(line.split())
    return found


def test_the_output_begins_with_what_was_read(shown: Shown) -> None:
    write_run(Path("records"), "dp-2", SIX)
    Path("records/foreign.jsonl").write_text("hello\n")
    lines = shown("records")
    assert lines[0].startswith("# dlbench ")
    assert lines[1:4] == [
        "# read       2 files: 1 run with 6 measured iterations",
        "# excluded   1",
        "#   records/foreign.jsonl: is no run record; one begins with a header line",
    ]


def test_the_tables_are_summary_relevance_scaling_and_slowdown(shown: Shown) -> None:
    write_run(Path("records"), "dp-2", SIX)
    titles = [line[2:] for line in shown("records") if line[:3].istitle() or line[2:3].isupper()]
    wanted = ["Summary", "Communication relevance", "Scaling", "Slowdown by other jobs"]
    assert [title for title in titles if title in wanted] == wanted


def test_the_summary_shows_the_slowest_rank(shown: Shown) -> None:
    write_run(Path("records"), "dp-2", SIX)
    (row,) = rows(shown("records"), "Summary")
    # Median 3.5 s; of 6 samples the extremes enclose it. Then come minimum and maximum.
    assert row[:7] == ["1", "6", "3500.0", "1000.0", "6000.0", "1000.0", "6000.0"]


def test_every_class_of_communication_has_a_row_and_their_total(shown: Shown) -> None:
    classes = {"allgather/shard": [[0.1, 0.1]] * 6, "allreduce/world": [[0.3, 0.2]] * 6}
    write_run(Path("records"), "x", [[1.0, 1.0]] * 6, [[0.4, 0.3]] * 6, measured_as={"communication": classes})
    found = {row[0]: row for row in rows(shown("records"), "Communication relevance")}
    # 0.3 s of 1 s on the rank that spends most; the total is the largest sync_time, 0.4 s.
    assert found["allreduce/world"][3:6] == ["300.00", "300.00", "300.00"]
    assert found["total"][3] == "400.00"
    assert list(found) == ["allreduce/world", "allgather/shard", "total"]


def test_scaling_is_relative_to_the_smallest_number_of_gpus(shown: Shown) -> None:
    write_run(Path("records"), "small", [[1.0] * 2] * 6)
    write_run(Path("records"), "large", [[2.0] * 4] * 6)
    lines = shown("records")
    # Twice the samples in twice the time on twice the GPUs: half the throughput per GPU.
    small, large = rows(lines, "Scaling")
    assert (small[0], large[0]) == ("2", "4")
    assert "100.0" in small
    assert "50.0" in large
    assert "# - at the smallest number of GPUs, which is the reference: 100 % by definition" in lines


def test_slowdown_stands_beside_the_times_alone_and_together(shown: Shown) -> None:
    write_run(Path("records"), "alone", [[1.0, 1.0]] * 6)
    for job in "xy":
        write_run(Path("records"), job, [[1.5, 1.5]] * 6, experiment="pair", job=job, concurrent_jobs=2)
    printed = " ".join(" ".join(shown("records")).split())
    slowdown = printed[printed.index("# Slowdown") :]
    assert "1000.0 1000.0 1000.0" in slowdown
    assert "1500.0 1500.0 1500.0" in slowdown
    assert "1.500 1.500 1.500 50.0 50.0 50.0" in slowdown


def test_a_killed_run_is_noted(shown: Shown) -> None:
    lines = iterations([[1.0, 1.0]] * 2, [[0.1, 0.1]] * 2)
    write_lines(Path("killed.jsonl"), header("killed", 2), *lines)
    assert "# note       killed.jsonl: no end line: the run was killed after 2 iterations" in shown("killed.jsonl")


def test_factors_that_all_runs_share_are_said_once(shown: Shown) -> None:
    write_run(Path("records"), "dp-2", SIX)
    lines = shown("records")
    assert sum("sync barrier" in line for line in lines) == 1
    assert lines[3].startswith("# in all runs: system leonardo, strategy dp, model vit-h, GPUs 2, placement intra-l1")


def test_no_table_is_wider_than_120_columns(shown: Shown) -> None:
    for strategy, placement in (("dp", "inter-group-same-l1-4"), ("fsdp", "intra-group-same-l1-2")):
        write_run(Path("records"), strategy, SIX, strategy=strategy, placement=placement)
    assert max(map(len, shown("records"))) <= 120


def test_many_excluded_files_are_counted(shown: Shown) -> None:
    write_run(Path("records"), "dp-2", SIX)
    for number in range(25):
        Path(f"records/foreign-{number:02}.jsonl").write_text("hello\n")
    lines = shown("records")
    assert "# excluded   25" in lines
    assert "#   and 5 more, which --json lists" in lines


def test_json_is_one_document_and_nothing_else(shown: Shown) -> None:
    write_run(Path("records"), "dp-2", SIX[:5])
    found = json.loads("\n".join(shown("records", "--json", "--seed", "7")))
    assert found["seed"] == 7
    (row,) = found["summary"]
    assert (row["seconds"], row["minimum"], row["maximum"]) == (3.0, 1.0, 5.0)
    assert row["seconds_low"] is None


def test_files_are_written_beside_the_tables(shown: Shown) -> None:
    write_run(Path("records"), "dp-2", SIX)
    lines = shown("records", "--csv", "tables", "--parquet", "tables")
    assert "# written    tables/summary.csv" in lines
    assert "# written    tables/summary.parquet" in lines
    assert list(pd.read_csv("tables/summary.csv")["seconds"]) == [3.5]


def test_with_json_the_files_are_written_and_not_spoken_of(shown: Shown) -> None:
    write_run(Path("records"), "dp-2", SIX)
    assert json.loads("\n".join(shown("records", "--json", "--csv", "tables")))
    assert Path("tables/runs.csv").exists()


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (["--strategy", "dp"], ["a", "b"]),
        (["--strategy", "dp,fsdp"], ["a", "b", "c"]),
        (["--strategy", "dp", "--strategy", "fsdp"], ["a", "b", "c"]),
        (["--system", "jupiter"], ["b"]),
        (["--model", "llama3-8b"], ["c"]),
        (["--where", "gpus >= 4"], ["d"]),
        (["--where", "strategy == 'dp' and system != 'jupiter'"], ["a"]),
        (["--strategy", "dp", "--where", "system == 'jupiter'"], ["b"]),
    ],
)
def test_options_choose_runs(options: list[str], left: list[str], shown: Shown) -> None:
    write_run(Path("records"), "a", SIX)
    write_run(Path("records"), "b", SIX, system="jupiter")
    write_run(Path("records"), "c", SIX, strategy="fsdp", model={"name": "llama3-8b"})
    write_run(Path("records"), "d", [[1.0] * 4] * 6, strategy="dp_pp")
    found = json.loads("\n".join(shown("records", "--json", *options)))
    assert [run["run_id"] for run in found["runs"]] == left


def test_scaled_runs_stay_out_unless_they_are_asked_for(shown: Shown) -> None:
    write_run(Path("records"), "whole", SIX)
    write_run(Path("records"), "scaled", SIX, scale=0.01)
    apart = json.loads("\n".join(shown("records", "--json")))
    assert [run["run_id"] for run in apart["runs"]] == ["whole"]
    assert apart["excluded"][0]["run_id"] == "scaled"
    assert "--mix-scaled" in apart["excluded"][0]["reason"]
    mixed = json.loads("\n".join(shown("records", "--json", "--mix-scaled")))
    assert [row["scale"] for row in mixed["summary"]] == [0.01, 1.0]
    assert any("scaled" in note for note in mixed["notes"])


def test_simulated_runs_stay_out_unless_they_are_asked_for(shown: Shown) -> None:
    write_run(Path("records"), "live", SIX)
    write_run(Path("records"), "simulated", SIX, simulated=True)
    assert [run["run_id"] for run in json.loads("\n".join(shown("records", "--json")))["runs"]] == ["live"]
    assert len(json.loads("\n".join(shown("records", "--json", "--mix-simulated")))["summary"]) == 2


@pytest.mark.parametrize(("share", "counted"), [("0.4", 5), ("0.6", 4)])
def test_the_overlap_that_counts_can_be_chosen(share: str, counted: int, shown: Shown) -> None:
    pair = {"experiment": "pair", "concurrent_jobs": 2}
    write_run(Path("records"), "x", [[1.0, 1.0]] * 6, job="x", **pair)
    # y ends after 4.5 s: of the six iterations of x it is beside four, half of the fifth, and none of the sixth.
    write_run(Path("records"), "y", [[1.5, 1.5]] * 3, job="y", **pair)
    found = json.loads("\n".join(shown("records", "--json", "--min-overlap", share, "--where", "run_id == 'x'")))
    (row,) = found["slowdown"]
    assert (row["iterations"], row["left_out"]) == (counted, 6 - counted)


def test_the_default_overlap_is_that_of_the_analysis() -> None:
    assert selection.MIN_OVERLAP == MIN_OVERLAP


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "no results were named; use dlbench analyze RESULTS..., with folders or records"),
        (["records", "--strategy", "dq"], "no run has strategy 'dq'; the runs have 'dp'"),
        (["records", "--strategy", "dp,,fsdp"], "expected names with commas between them, found 'dp,,fsdp'"),
        (["records", "--where", "gpu_count > 2"], "the columns are"),
        (["records", "--where", "gpus >"], "is no condition"),
        (["records", "--min-overlap", "1.5"], "expected a share from 0 to 1, found '1.5'"),
        (["records", "--min-overlap", "half"], "expected a number of 0 or more, found 'half'"),
        (["records", "--seed", "-1"], "expected an integer of 0 or more, found '-1'"),
        (["records", "--jsn"], "unknown option --jsn, did you mean --json?"),
        (["records", "--csv", "records/dp-2.jsonl"], "records/dp-2.jsonl is no folder; nothing can be written into it"),
    ],
)
def test_a_mistake_is_one_line(argv: list[str], said: str, shown: Shown) -> None:
    write_run(Path("records"), "dp-2", SIX)
    with pytest.raises(OptionError) as error:
        shown(*argv)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_path_that_does_not_exist_is_named(shown: Shown) -> None:
    with pytest.raises(RecordError, match=r"^nowhere does not exist; "):
        shown("nowhere")


def test_a_set_without_a_valid_run_is_an_error_with_the_reasons(shown: Shown) -> None:
    Path("records").mkdir()
    lines = iterations([[1.0, 1.0]], [[0.1, 0.1]])
    write_lines(Path("records/failed.jsonl"), header("failed", 2), *lines, end(1, "failed", "rank 1: no memory"))
    with pytest.raises(RecordError, match=r"^no valid run in 1 file.*records/failed\.jsonl: .*rank 1: no memory$"):
        shown("records")


def test_the_command_exits_with_2_and_one_line_where_nothing_is_valid(tmp_path: Path) -> None:
    (tmp_path / "foreign.jsonl").write_text("hello\n")
    command = [sys.executable, "-m", "dlbench", "analyze", "foreign.jsonl"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("dlbench: no valid run in 1 file")
    assert done.stderr.count("\n") == 1


def test_the_command_prints_its_tables(tmp_path: Path) -> None:
    write_run(tmp_path, "dp-2", SIX)
    command = [sys.executable, "-m", "dlbench", "analyze", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "# Summary\n" in done.stdout


def test_a_long_load_is_told_in_lines_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection.time, "monotonic", iter([0.0, 1.0, 6.0, 6.0, 7.0, 12.0, 12.0]).__next__)
    with selection.progress_shown() as progress:
        for done in range(1, 5):
            progress(done, 4)
    assert capsys.readouterr().err == "dlbench: 2 of 4 records read\ndlbench: 4 of 4 records read\n"


def test_a_long_load_is_a_bar_on_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    master, slave = os.openpty()
    program = (
        "from dlbench.cli.selection import progress_shown\nwith progress_shown() as progress:\n    progress(3, 4)\n"
    )
    subprocess.run([sys.executable, "-c", program], stderr=slave, timeout=60, check=True)
    os.close(slave)
    drawn = os.read(master, 10000).decode()
    os.close(master)
    assert "reading records" in drawn
    assert "3/4" in drawn


def test_records_begin_at_their_unix_time(shown: Shown) -> None:
    write_run(Path("records"), "dp-2", SIX)
    (run,) = json.loads("\n".join(shown("records", "--json")))["runs"]
    assert run["begin"] == UNIX_EPOCH + 100
    assert run["end"] == UNIX_EPOCH + 121
