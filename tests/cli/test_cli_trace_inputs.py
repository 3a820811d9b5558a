"""Inputs of commands that read records or traces."""

from __future__ import annotations

import argparse
import gzip
import re
from pathlib import Path

import pytest
from builder import header, iterations, write_lines, write_run

from dlbench.analysis.load import load
from dlbench.arguments import ArgumentParser
from dlbench.cli.selection import add_filters
from dlbench.cli.trace_inputs import (
    add_inputs,
    add_traces,
    check_kind,
    record_notes,
    tolerance_seconds,
    trace_files,
)
from dlbench.errors import OptionError, RecordError


def touch(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("")
    return folder


def parsed(*arguments: str) -> argparse.Namespace:
    parser = ArgumentParser(prog="test")
    add_inputs(parser)
    add_filters(parser)
    add_traces(parser)
    return parser.parse_args(arguments)


def test_the_traces_of_a_folder_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    names = [f"rank{number}.json" for number in (10, 2, 1)] + ["rank3.pt.trace.json.gz", "notes.txt"]
    found = trace_files([touch(tmp_path / "traces", *names)])
    assert [file.name for file in found] == ["rank1.json", "rank2.json", "rank3.pt.trace.json.gz", "rank10.json"]


def test_files_are_taken_as_they_are_named(tmp_path: Path) -> None:
    touch(tmp_path, "b.json", "a.json.gz")
    files = [tmp_path / "b.json", tmp_path / "a.json.gz"]
    assert trace_files(files) == files


def test_records_and_folders_with_records_are_no_traces(tmp_path: Path) -> None:
    folder = touch(tmp_path / "results", "fit.json")
    touch(folder / "below", "run.jsonl")
    assert trace_files([folder, folder / "below" / "run.jsonl"]) == []


def test_traces_beside_records_are_not_passed_over_in_silence(tmp_path: Path) -> None:
    folder = touch(tmp_path / "results", "fit.json", "rank10.json", "damaged.json.gz", "trace.json")
    write_run(folder, "run", [[1.0]])
    write_lines(folder / "killed.jsonl", header("killed", 1), *iterations([[1.0]], [[0.0]]))
    (folder / "foreign.jsonl").write_text("hello\n")
    (folder / "rank10.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    (folder / "damaged.json.gz").write_bytes(b"\x1f\x8b\x08")
    nested = touch(folder / "job") / "rank2.json.gz"
    nested.write_bytes(gzip.compress(b'{"traceEvents": []}'))
    assert record_notes([folder], load([folder])) == [
        f"{folder}: records were read, but not 2 traces; name them: {nested} …",
        f"{folder / 'killed.jsonl'}: no end line: the run was killed after 1 iterations",
        f"left out: {folder / 'foreign.jsonl'}: is no run record; one begins with a header line",
    ]
    assert record_notes([folder / "run.jsonl"], load([folder / "run.jsonl"])) == []


def test_a_folder_of_neither_kind_says_where_traces_are(tmp_path: Path) -> None:
    said = f"{tmp_path} holds neither records nor traces; name records of runs with --record-ops, or traces"
    with pytest.raises(OptionError, match=f"^{re.escape(said)}, or folders of them$"):
        trace_files([tmp_path])
    below = touch(tmp_path / "node-0", "rank0.json")
    said = f"{tmp_path} holds neither records nor traces; there are some below it; name their folder: {below}"
    with pytest.raises(OptionError, match=f"^{re.escape(said)}$"):
        trace_files([tmp_path])


def test_what_is_missing_may_have_been_either(tmp_path: Path) -> None:
    for name in ("results", "run.jsonl", "rank0.json"):
        said = f"{tmp_path / name} does not exist; name records of runs with --record-ops, or traces, or folders of"
        with pytest.raises(RecordError, match=f"^{re.escape(said)} them$"):
            trace_files([tmp_path / name])


def test_both_kinds_at_once_are_refused(tmp_path: Path) -> None:
    touch(tmp_path, "run.jsonl", "rank0.json")
    record, trace = tmp_path / "run.jsonl", tmp_path / "rank0.json"
    said = f"{record} holds records and {trace} traces; give either"
    with pytest.raises(OptionError, match=f"^{re.escape(said)}$"):
        trace_files([trace, record])


def test_no_inputs_are_refused() -> None:
    with pytest.raises(OptionError, match="^no inputs were named; give records of runs with --record-ops, or traces"):
        trace_files([])


@pytest.mark.parametrize(
    ("arguments", "traces", "said"),
    [
        (["--strategy", "dp"], True, "--strategy has no meaning for traces; leave it out"),
        (["--where", "gpus > 2"], True, "--where has no meaning for traces; leave it out"),
        (["--tolerance", "50"], False, "--tolerance has no meaning for records; leave it out"),
        (["--kernel", "my_reduce"], False, "--kernel has no meaning for records; leave it out"),
    ],
)
def test_options_of_the_other_kind_are_refused(arguments: list[str], traces: bool, said: str) -> None:
    with pytest.raises(OptionError, match=f"^{said}$"):
        check_kind(parsed(*arguments), traces)
    check_kind(parsed(*arguments), not traces)


def test_a_tolerance_is_in_microseconds() -> None:
    assert tolerance_seconds(parsed("--tolerance", "250"), 1e-4) == pytest.approx(250e-6)
    assert tolerance_seconds(parsed(), 1e-4) == 1e-4
