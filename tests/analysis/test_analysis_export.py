"""The numbers for other programs: JSON, CSV and Parquet of one small campaign."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from builder import write_run

from dlbench import __version__
from dlbench.analysis import export
from dlbench.analysis.export import document, json_text, rows, write_csv, write_parquet
from dlbench.analysis.load import load
from dlbench.analysis.results import Results, evaluate
from dlbench.errors import OptionError

TABLES = {"summary", "relevance", "scaling", "slowdown"}
PARTS = {"slowdown_iterations", "runs", "iterations", "ranks", "classes", "excluded"}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Two runs of 2 ranks, 16 samples per rank: 3 iterations in 1, 2 and 4 s; 1 in 2 s. And a file that is none."""
    folder = tmp_path_factory.mktemp("records")
    write_run(folder, "a", [[1.0, 0.5], [2.0, 2.0], [4.0, 3.0]])
    write_run(folder, "b", [[2.0, 1.0]], system="jupiter")
    (folder / "foreign.jsonl").write_text("hello\n")
    return evaluate(load([folder]), seed=3, min_overlap=0.5)


def test_the_document_says_what_was_read_and_how_it_was_counted(results: Results) -> None:
    found = document(results)
    assert {key: found[key] for key in ("dlbench", "seed", "min_overlap", "files", "iterations", "notes")} == {
        **{"dlbench": __version__, "seed": 3, "min_overlap": 0.5, "files": 3, "iterations": 4, "notes": []},
    }
    assert [run["run_id"] for run in found["runs"]] == ["a", "b"]
    assert [Path(row["path"]).name for row in found["excluded"]] == ["foreign.jsonl"]


def test_the_keys_of_the_document_are_stable(results: Results) -> None:
    assert list(document(results)) == [
        *("dlbench", "seed", "min_overlap", "files", "iterations", "notes", "excluded", "runs"),
        *("summary", "relevance", "scaling", "slowdown"),
    ]


def test_the_document_holds_si_units(results: Results) -> None:
    (jupiter, leonardo) = document(results)["summary"]
    # Of 1, 2 and 4 s the median is 2 s; 32 samples / the geometric mean of 2 s are 16 samples/s.
    assert (leonardo["system"], leonardo["seconds"], leonardo["iterations"]) == ("leonardo", 2.0, 3)
    assert leonardo["throughput"] == pytest.approx(16.0, rel=1e-12)
    assert (jupiter["system"], jupiter["seconds"], jupiter["runs"]) == ("jupiter", 2.0, 1)


def test_what_is_absent_is_null_in_json(results: Results) -> None:
    (_, leonardo) = json.loads(json_text(document(results)))["summary"]
    assert leonardo["seconds_low"] is None
    assert leonardo["seconds"] == 2.0


def test_tables_without_rows_are_empty_arrays(results: Results) -> None:
    assert json.loads(json_text(document(results)))["slowdown"] == []


def test_json_is_text_of_utf_8_with_every_digit() -> None:
    assert json.loads(json_text({"a": 0.1 + 0.2, "b": "é"})) == {"a": 0.1 + 0.2, "b": "é"}


def test_rows_are_plain_data() -> None:
    frame = pd.DataFrame({"run": np.array([1], dtype=np.int32), "seconds": [0.5], "late": [True], "name": ["x"]})
    assert rows(frame) == [{"run": 1, "seconds": 0.5, "late": True, "name": "x"}]
    assert type(rows(frame)[0]["run"]) is int


def test_every_table_and_what_it_was_made_of_becomes_a_csv(results: Results, tmp_path: Path) -> None:
    written = write_csv(results, tmp_path / "new" / "folder")
    assert {path.stem for path in written} == TABLES | PARTS
    assert all(path.suffix == ".csv" and path.exists() for path in written)


def test_csv_files_hold_what_the_tables_hold(results: Results, tmp_path: Path) -> None:
    write_csv(results, tmp_path)
    summary = pd.read_csv(tmp_path / "summary.csv")
    assert list(summary["seconds"]) == [2.0, 2.0]
    assert summary["seconds_low"].isna().all()
    assert list(pd.read_csv(tmp_path / "iterations.csv")["seconds"]) == [1.0, 2.0, 4.0, 2.0]
    assert list(pd.read_csv(tmp_path / "ranks.csv")["runtime"]) == [1.0, 0.5, 2.0, 2.0, 4.0, 3.0, 2.0, 1.0]


def test_csv_files_without_rows_have_their_columns(results: Results, tmp_path: Path) -> None:
    write_csv(results, tmp_path)
    slowdown = pd.read_csv(tmp_path / "slowdown.csv")
    assert slowdown.empty
    assert {"sigma", "sigma_low", "sigma_high", "overlap", "reason"} <= set(slowdown.columns)


def test_runs_can_be_joined_with_their_iterations(results: Results, tmp_path: Path) -> None:
    write_csv(results, tmp_path)
    runs, iterations = (pd.read_csv(tmp_path / f"{name}.csv") for name in ("runs", "iterations"))
    joined = iterations.merge(runs[["run", "run_id"]], on="run")
    assert list(joined["run_id"]) == ["a", "a", "a", "b"]


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=cmd()|'/C calc'!A0", "'=cmd()|'/C calc'!A0"),
        ("@SUM(1)", "'@SUM(1)"),
        ("-cmd", "'-cmd"),
        ("+cmd", "'+cmd"),
        ("-1.5", "-1.5"),
        ("+.5", "+.5"),
        ("a=b", "a=b"),
        ("-", "-"),
        ("", ""),
    ],
)
def test_no_text_of_a_record_is_a_formula_in_a_spreadsheet(text: str, cell: str, tmp_path: Path) -> None:
    write_run(tmp_path, "a", [[1.0]], system=text, labels={"note": text})
    found = evaluate(load([tmp_path]), seed=0, min_overlap=0.8)
    write_csv(found, tmp_path)
    write_parquet(found, tmp_path)
    runs = pd.read_csv(tmp_path / "runs.csv", dtype=str, keep_default_na=False)
    assert (runs["system"][0], runs["label_note"][0]) == (cell, cell)
    assert pd.read_csv(tmp_path / "summary.csv", dtype=str, keep_default_na=False)["system"][0] == cell
    assert pd.read_parquet(tmp_path / "runs.parquet")["system"][0] == document(found)["runs"][0]["system"] == text


def test_parquet_files_keep_the_types(results: Results, tmp_path: Path) -> None:
    written = write_parquet(results, tmp_path)
    assert {path.name for path in written} == {f"{name}.parquet" for name in TABLES | PARTS}
    iterations = pd.read_parquet(tmp_path / "iterations.parquet")
    assert iterations["run"].dtype == np.int32
    assert iterations["warmup"].dtype == bool


def test_parquet_without_pyarrow_says_how_to_get_it(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    with pytest.raises(OptionError) as error:
        write_parquet(results, tmp_path)
    assert str(error.value) == "Parquet files need pyarrow; install it with pip install 'dlbench[parquet]'"


@pytest.mark.parametrize("write", [write_csv, write_parquet])
def test_a_folder_that_cannot_be_made_is_a_mistake_of_the_user(
    write: Callable[[Results, Path], list[Path]], results: Results, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match=r"file is no folder; nothing can be written into it$"):
        write(results, tmp_path / "file")


@pytest.mark.parametrize(("write", "ending"), [(write_csv, "csv"), (write_parquet, "parquet")])
def test_a_full_disk_is_said_with_the_file(
    write: Callable[[Results, Path], list[Path]], ending: str, results: Results, tmp_path: Path
) -> None:
    (tmp_path / f"runs.{ending}").symlink_to("/dev/full")
    with pytest.raises(OptionError, match=rf"runs\.{ending} cannot be written: No space left on device$"):
        write(results, tmp_path)


def test_a_file_that_cannot_be_written_is_named(results: Results, tmp_path: Path) -> None:
    (tmp_path / "summary.csv").mkdir()
    with pytest.raises(OptionError, match=r"summary\.csv cannot be written: Is a directory$"):
        write_csv(results, tmp_path)
