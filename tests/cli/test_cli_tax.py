"""`dlbench tax`, as a user sees it."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from builder import end, header, iterations, write_lines, write_run
from shared_data import shared_file
from small_traces import write_trace

from dlbench.analysis.recorded_paths import START
from dlbench.cli.main import main

Command = Callable[..., tuple[int, str, str]]

GOLDEN_TAX = [7625, 1100, 169, 126, 221, 535, 582, 883]


def write_record(name: str, delays: list[float], uncertainty: float = 0.0) -> None:
    """A run of three ranks, whose rank 1 comes late for the one collective of each iteration."""
    ops = [{"op": "allreduce", "scope": "world", "name": "gradient", "elements": 1000}]
    head = header(name, 3, op_tables=[{"ranks": [0, 1, 2], "ops": ops}])
    head["clock"] = head["clock"] | {"uncertainty": [uncertainty] * 3}
    lines = iterations([[1.0] * 3] * len(delays), [[0.5] * 3] * len(delays))
    write_lines(Path(f"{name}.jsonl"), head, *lines, end(len(lines)))
    with Path(f"{name}.ops.npy").open("wb") as file:
        for delay in delays:
            np.save(file, np.array([[[0.0, 1.0]], [[delay, 1.0]], [[0.0, 1.0]]]))


@pytest.fixture
def tax(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Run `dlbench tax` beside `run.jsonl`, eight iterations of three ranks; gives exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    write_record("run", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dlbench", "tax", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return left.value.code, captured.out, captured.err

    return run


def test_the_straggler_is_named_with_how_often_it_was_last(tax: Command) -> None:
    code, out, err = tax("run.jsonl")
    assert (code, err) == (0, "")
    assert "# read       8 collectives of 1 group" in out
    assert "# clocks     ranks read one clock; 0 collectives unresolved" in out
    assert "# allreduce/world, world 0-2: rank 1 is last in 8 of 8 (p < 0.001): it persists" in out


def test_the_tables_show_medians_in_microseconds(tax: Command) -> None:
    lines = tax("run.jsonl")[1].splitlines()
    rows = [line.split() for line in lines if line.startswith("  allreduce/world")]
    # runs, iterations, groups, collectives, resolved, tau range with its interval, p95: 0.765 s
    assert rows[0][:10] == ["allreduce/world", "1", "8", "1", "8", "8", "450000", "100000", "800000", "765000"]
    stragglers = next(line.split() for line in lines if line.split()[:1] == ["1"])
    assert stragglers == ["1", "8", "8", "100.0", "7200.0", "450000"]  # two others wait 3.6 s in all


def test_groups_have_median_95th_percentile_and_the_shares_of_waiting(tax: Command) -> None:
    groups = tax("run.jsonl")[1].split("# Groups and their stragglers")[1]
    rows = [line.split()[3:] for line in groups.splitlines() if line.startswith("  allreduce/world")]
    # Collectives, resolved, tau range with its interval, p95, and of the 8 s of the first rank 3.6 s: it and the median
    # rank wait for rank 1, by 0.1 to 0.8 s.
    assert rows[0][:7] == ["8", "8", "450000", "100000", "800000", "765000", "45.0"]


def test_a_verdict_stands_beside_the_tests_behind_it(tax: Command) -> None:
    lines = tax("run.jsonl")[1].split("# Groups and their stragglers")[1].split("# Stragglers")[0].splitlines()
    (head,) = (number for number, line in enumerate(lines) if line.endswith("verdict"))
    assert lines[head].endswith("p last  p stretches  verdict")
    # One rank is always last: 3 × (1/3)⁸ by chance, and there is one order only.
    assert any(line.split()[-4:] == ["<", "0.001", "1.000", "persists"] for line in lines[head:])


def test_only_the_largest_are_shown(tax: Command) -> None:
    out = tax("run.jsonl", "--top", "2")[1]
    shown = [
        line.split()
        for line in out.split("largest tax")[1].split("# What made")[0].splitlines()
        if line.startswith("  allreduce")
    ]
    # Iterations; the second part of the table repeats these alone, since they tell its rows apart.
    assert [row[3] for row in shown] == ["7", "6"]
    assert "collectives.csv of dlbench tax --csv DIR" in out


def test_a_folder_of_records_names_the_run_in_each_row(tax: Command) -> None:
    write_record("other", [0.9])
    out = tax(".")[1]
    assert "# other: allreduce/world, world 0-2: 1 resolved stragglers are too few to tell whether one persists" in out
    assert "# run: allreduce/world, world 0-2: rank 1 is last" in out


def test_what_the_clocks_cannot_tell_is_marked(tax: Command) -> None:
    write_record("vague", [0.1] * 6, uncertainty=0.2)
    out = tax("vague.jsonl")[1]
    assert "# clocks     waits are known to 400.0 ms; 6 collectives unresolved" in out
    assert "[1] unresolved: the median tau range does not exceed the error of its times" in out
    assert "rank 1 is last" not in out
    assert "# the clocks can tell no straggler" in out
    assert "# the clocks can tell no tax" in out


def test_json_has_every_table_in_seconds(tax: Command) -> None:
    document = json.loads(tax("run.jsonl", "--json", "--top", "3")[1])
    assert (document["source"], document["seed"], document["notes"]) == ("records", 0, [])
    assert document["tax"][0]["tau_range"] == pytest.approx(0.45)
    assert document["groups"][0]["verdict"] == "persists"
    assert document["stragglers"][0]["rank"] == 1
    assert [row["tau_range"] for row in document["largest"]] == pytest.approx([0.8, 0.7, 0.6])
    assert len(document["iterations"]) == 8
    assert document["runs"][0]["run_id"] == "run"


def test_csv_has_every_collective(tax: Command) -> None:
    out = tax("run.jsonl", "--csv", "tables")[1]
    files = ["collectives", "culprit_classes", "culprits", "groups", "iterations", "paths", "runs", "stragglers", "tax"]
    assert sorted(path.name for path in Path("tables").iterdir()) == [f"{name}.csv" for name in files]
    assert "# written    tables/collectives.csv" in out
    with Path("tables/collectives.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["tau_range"]) for row in rows] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
    assert {row["straggler"] for row in rows} == {"1"}


def test_figures_are_drawn_where_they_are_asked_for(tax: Command) -> None:
    assert tax("run.jsonl", "--plots", "figures")[0] == 0
    assert {"tax.pdf", "tax.txt", "tax-map.png", "tax-paths.svg"} <= {path.name for path in Path("figures").iterdir()}


def test_groups_are_chosen(tax: Command) -> None:
    assert "8 collectives of 1 group" in tax("run.jsonl", "--group", "world")[1]
    assert tax("run.jsonl", "--group", "wrld") == (
        *(2, ""),
        "dlbench: no group is named 'wrld'; did you mean 'world'?\n",
    )


def test_traces_are_read_by_rank_and_their_folder_too(tax: Command) -> None:
    # Whole microseconds: each end of a wait is known to one.
    write_trace(Path("traces/rank0.json"), 0, 500, 1500)
    write_trace(Path("traces/rank1.json"), 1, 600, 1700)
    for arguments in (("traces",), ("traces/rank1.json", "traces/rank0.json")):
        code, out, err = tax(*arguments)
        assert (code, err) == (0, "")
        assert "# clocks     waits are known to 2.000 µs; 0 collectives unresolved" in out
        row = next(line.split() for line in out.splitlines() if line.startswith("  allreduce/mesh_dp"))
        assert row[:5] == ["allreduce/mesh_dp", "1", "2", "2", "150.00"]
    assert "# - no 95 % interval below 6 collectives, of a ratio on either side" in out
    assert "exposed" not in out.split("uncertainty: what")[1].split("Groups")[0]
    assert "iter." not in out


def test_a_refused_group_is_told(tax: Command) -> None:
    write_trace(Path("traces/rank0.json"), 0, 500, 1500)
    write_trace(Path("traces/rank1.json"), 1, 600, 1700)
    late = Path("traces/rank1.json").read_text().replace('"dur": 300', '"dur": 900')
    Path("traces/rank1.json").write_text(late)
    code, out, err = tax("traces")
    assert (code, out) == (2, "")
    assert "no collectives to compare: mesh_dp (0-1): collective 1 of 2 disagrees: its ends lie 600.0 µs apart" in err
    assert tax("traces", "--tolerance", "700")[0] == 0


def test_the_real_trace_set_goes_through_the_command(tax: Command) -> None:
    code, out, err = tax(str(shared_file("traces/dlrm8")), "--json")
    assert (code, err) == (0, "")
    largest = sorted(json.loads(out)["largest"], key=lambda row: float(row["begin"]))
    assert [row["tau_range"] * 1e6 for row in largest] == pytest.approx(GOLDEN_TAX)
    assert [row["straggler"] for row in largest] == [7, 7, 7, 7, 7, 5, 5, 4]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "no inputs were named"),
        (("missing",), "missing does not exist; name records of runs with --record-ops, or traces, or folders of them"),
        (("missing.json",), "missing.json does not exist; name records of runs with --record-ops, or traces"),
        (("run.jsonl", "traces/rank0.json"), "run.jsonl holds records and traces/rank0.json traces; give either"),
        (("traces/rank0.json", "--strategy", "dp"), "--strategy has no meaning for traces; leave it out"),
        (("run.jsonl", "--tolerance", "5"), "--tolerance has no meaning for records; leave it out"),
        (("run.jsonl", "--top", "0"), "argument --top: expected an integer of 1 or more, found '0'; see"),
        (("run.jsonl", "--tops", "1"), "unknown option --tops, did you mean --top?; see 'dlbench tax --help'"),
        (
            ("bare.jsonl",),
            "no collectives to compare: 1 of 1 run recorded no ops; dlbench run --record-ops records",
        ),
        (
            ("lost.jsonl",),
            "no collectives to compare: left out of the tax: lost.ops.npy: does not exist; it belongs beside lost.",
        ),
        (("run.jsonl", "--csv", "run.jsonl"), "run.jsonl is no folder; nothing can be written into it"),
        (("run.jsonl", "--plots", "run.jsonl"), "run.jsonl"),
        (("traces/rank0.json",), "only rank 0 has kernels of it here; two at least are needed"),
        (("traces/rank0.json", "--kernel", "("), "kernel pattern '(' is no regular expression"),
    ],
)
def test_a_mistake_is_one_line(tax: Command, arguments: tuple[str, ...], complaint: str) -> None:
    write_trace(Path("traces/rank0.json"), 0, 500)
    write_run(Path(), "bare", [[1.0]])
    write_record("lost", [0.1])
    Path("lost.ops.npy").unlink()
    code, out, err = tax(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("dlbench: ")
    assert err.count("\n") == 1
    assert complaint in err


def test_help_shows_examples_and_needs_no_analysis() -> None:
    program = (
        "import sys; from dlbench.cli.tax import tax\n"
        "try: tax(['--help'])\n"
        "except SystemExit: print({'pandas', 'numpy', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "dlbench tax traces/rank*.json.gz" in done.stdout
    assert done.stdout.endswith("set()\n")


def test_what_made_ranks_late_is_named(tax: Command) -> None:
    out = tax("run.jsonl")[1]
    # The one op of a rank is entered as it begins, which rank 1 does late.
    row = out.split("# What made ranks late\n")[1].split("# How well")[0].splitlines()[-2].split()
    assert row == ["late", "start", *START.split(), "8", "8", "3600.0", "100.0", "1", "100.0"]
    document = json.loads(tax("run.jsonl", "--json")[1])
    assert document["culprits"][0]["blamed"] == pytest.approx(3.6)
    assert document["culprit_classes"][0]["path_share"] == pytest.approx(1)
    assert (document["paths"][0]["determination"], document["paths"][0]["gap"]) == (pytest.approx(1), 0)
    assert document["largest"][0]["culprit"] == START


def test_without_critical_paths_nothing_is_said_of_culprits(tax: Command) -> None:
    out = tax("run.jsonl", "--no-critical-path")[1]
    assert "What made ranks late" not in out
    document = json.loads(tax("run.jsonl", "--json", "--no-critical-path")[1])
    assert (document["culprits"], document["paths"]) == ([], [])
    assert document["largest"][0]["predicted"] is None


def test_classes_of_the_user_are_for_paths_of_traces(tax: Command) -> None:
    Path("mine.yaml").write_text("classes:\n  - {name: mine, on: gpu, pattern: my_kernel}\n")
    for rank, late in enumerate((0, 400)):
        write_trace(Path(f"traces/rank{rank}.json"), rank, 500, 1100, 2100 + late)
    assert tax("traces", "--classes", "mine.yaml")[0] == 0
    message = "dlbench: --classes has no meaning without critical paths of traces; leave it out\n"
    assert tax("run.jsonl", "--classes", "mine.yaml") == (2, "", message)
    assert tax("traces", "--classes", "mine.yaml", "--no-critical-path") == (2, "", message)
    assert tax("traces", "--classes", "none.yaml") == (2, "", "dlbench: none.yaml: no such file or directory\n")
