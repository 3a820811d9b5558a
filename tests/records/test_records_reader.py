"""The reader: whole records, killed runs, damage, and files that are no records."""

from __future__ import annotations

import gzip
import json
import math
import os
import pickle
from pathlib import Path
from typing import Any

import msgspec
import pytest
from handmade import COUNTED, END, HEADER, LATER_CLOCK, RESYNCHRONISED, WARMUP, WHOLE, text, write
from hypothesis import given, settings
from hypothesis import strategies as st

from dlbench.errors import RecordError
from dlbench.records.reader import Cut, UnreadableRecord, iterate, read
from dlbench.records.schema import Clock, ClockModel, End, Header, Iteration
from dlbench.records.validator import validate
from dlbench.records.writer import RecordWriter


def fault(path: Path) -> str:
    """The one line that reading the file ends with."""
    with pytest.raises(RecordError) as caught:
        read(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


def test_a_whole_record_is_header_iterations_and_end(tmp_path: Path) -> None:
    record = read(write(tmp_path / "run.jsonl", *WHOLE))
    assert record.header.gpu == {"name": "Grün"}
    assert record.header.scale == 1.0
    assert [(line.index, line.warmup, line.start) for line in record.iterations] == [(0, True, 10.0), (1, False, 11.0)]
    assert record.iterations[0].communication == {"allreduce/world": [0.1, 0.2]}
    assert record.end is not None
    assert record.end.status == "completed"
    assert (record.truncated, record.notes) == (False, [])


def test_a_record_can_be_read_line_by_line(tmp_path: Path) -> None:
    lines = iterate(write(tmp_path / "run.jsonl", *WHOLE))
    assert [type(line) for line in lines] == [Header, Iteration, Iteration, End]


def test_a_record_knows_the_clock_model_of_each_iteration(tmp_path: Path) -> None:
    later = msgspec.convert(LATER_CLOCK, ClockModel)
    last = RESYNCHRONISED | {"index": 3, "model": LATER_CLOCK | {"reference": 13.0}}
    third, fourth = COUNTED | {"index": 2, "start": 12.0}, COUNTED | {"index": 3, "start": 13.0}
    path = write(tmp_path / "run.jsonl", HEADER, WARMUP, RESYNCHRONISED, COUNTED, third, last, fourth)
    record = read(path)
    assert [line.index for line in record.iterations] == [0, 1, 2, 3]
    assert record.clock(0) == record.header.clock
    assert record.clock(1) == record.clock(2) == later
    assert record.clock(3).reference == 13.0
    assert [type(line) for line in iterate(path)][2] is Clock


def test_a_killed_run_has_no_end(tmp_path: Path) -> None:
    record = read(write(tmp_path / "run.jsonl", HEADER, WARMUP))
    assert (len(record.iterations), record.end, record.truncated, record.notes) == (1, None, False, [])


def test_a_cut_last_line_is_dropped_and_said(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(text(HEADER, WARMUP) + text(COUNTED)[:100])
    record = read(path)
    assert [line.index for line in record.iterations] == [0]
    assert record.truncated
    assert record.notes == ["line 3, cut after 100 bytes, was dropped: the run was killed while it was written"]
    assert list(iterate(path))[-1] == Cut(100)


def test_a_line_cut_inside_a_character_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    line = text(END | {"reason": "é"})
    path.write_bytes(text(HEADER, WARMUP) + line[: line.index("é".encode()) + 1])
    record = read(path)
    assert (len(record.iterations), record.end, record.truncated) == (1, None, True)


def test_a_tail_of_zeros_after_a_node_crash_is_a_cut_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(text(HEADER, WARMUP) + bytes(512))
    assert read(path).truncated


def test_a_record_cut_anywhere_keeps_every_complete_line(tmp_path: Path) -> None:
    whole = text(*WHOLE)
    header_size = len(text(HEADER)) - 1
    path = tmp_path / "run.jsonl"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        if size < header_size:
            fault(path)
            continue
        record = read(path)
        # A line that lacks only its line feed is complete.
        complete = [
            json.loads(line) for line in (whole[:size] + b"\n").splitlines() if line.endswith(b"}") and is_json(line)
        ]
        assert len(record.iterations) == sum(line["kind"] == "iteration" for line in complete)
        assert (record.end is not None) == any(line["kind"] == "end" for line in complete)
        assert record.truncated == (len(complete) != len(whole[:size].splitlines()))
        assert all(problem.severity == "note" for problem in validate(path))


def is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def test_the_first_of_several_ends_counts(tmp_path: Path) -> None:
    failed = END | {"status": "failed", "reason": "rank 1 ran out of memory"}
    record = read(write(tmp_path / "run.jsonl", HEADER, WARMUP, failed, END))
    assert record.end is not None
    assert record.end.status == "failed"
    assert record.notes == [
        "line 4, a second end line (completed: 1 iteration measured), was dropped: the first counts"
    ]


def test_keys_that_a_later_release_adds_are_ignored(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", HEADER | {"weather": "rain"}, WARMUP | {"watts": [300.0, 310.0]})
    assert len(read(path).iterations) == 1


def test_damage_in_the_middle_is_an_error_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(text(HEADER, WARMUP)[:-9] + b"\n" + text(COUNTED, END))
    assert fault(path) == "line 2: is damaged; every line must be one JSON object of kind iteration, clock or end"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (WARMUP | {"runtime": [0.5, "fast"]}, "line 2: Expected `float`, got `str` - at `$.runtime[1]`"),
        (WARMUP | {"runtime": [0.5, None]}, "line 2: Expected `float`, got `null` - at `$.runtime[1]`"),
        (WARMUP | {"index": -1}, "line 2: Expected `int` >= 0 - at `$.index`"),
        ({"kind": "iteration"}, "line 2: Object missing required field `index`"),
        ({"kind": "remark"}, "line 2: Invalid value 'remark' - at `$.kind`"),
        (HEADER, "line 2: is a second header; a file holds one record: split it here"),
    ],
)
def test_a_wrong_line_is_an_error_that_names_line_and_key(tmp_path: Path, line: dict[str, Any], expected: str) -> None:
    assert fault(write(tmp_path / "run.jsonl", HEADER, line, END)).startswith(expected)


def test_a_wrong_last_line_is_damage_even_without_its_line_feed(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(text(HEADER, WARMUP | {"index": -1})[:-1])
    assert fault(path).startswith("line 2: Expected `int` >= 0 - at `$.index`")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty; a run record begins with a header line"),
        (gzip.compress(text(*WHOLE)), "is compressed with gzip; decompress it first"),
        (bytes(4096), "is no run record; one begins with a header line"),
        (b"\x93NUMPY\x01\x00", "is no run record; one begins with a header line"),
        (b"\xff\xfe{\x00", "is no run record; one begins with a header line"),
        (b"{", "line 1: the header is cut: the run was killed before its first iteration"),
        (b'{"name": "vit-h"}\n', "is no run record; one begins with a header line"),
        (b'{\n  "kind": "header"\n}\n', "is no run record; one begins with a header line"),
        (b"[1, 2]\n", "is no run record; one begins with a header line"),
        (text(HEADER | {"schema_version": 2}), "has schema version 2; this dlbench reads version 1"),
        (text(HEADER | {"world_size": 0}), "line 1: Expected `int` >= 1 - at `$.world_size`"),
        (text(WARMUP), "line 1: is no header; a run record begins with one"),
        (text(HEADER)[:50], "line 1: the header is cut: the run was killed before its first iteration"),
    ],
)
def test_a_file_that_is_no_record_is_told_what_it_is(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    assert fault(path).startswith(expected)


def test_an_error_survives_the_way_out_of_a_process_pool(tmp_path: Path) -> None:
    with pytest.raises(UnreadableRecord) as caught:
        read(write(tmp_path / "run.jsonl", HEADER, HEADER))
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.path, copy.line) == (str(caught.value), tmp_path / "run.jsonl", 2)


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    assert fault(tmp_path / "none.jsonl") == "does not exist"
    assert fault(tmp_path).startswith("is a folder; name a record")


@pytest.mark.parametrize("lines", [(), (HEADER,), (HEADER, WARMUP)])
def test_a_line_nested_beyond_all_depth_is_damage(tmp_path: Path, lines: tuple[dict[str, Any], ...]) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(text(*lines) + b'{"kind":' * 100_000 + b"\n")
    assert ("is damaged" if lines else "is no run record") in fault(path)


def test_a_pipe_or_a_device_is_never_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "run.jsonl"
    os.mkfifo(pipe)
    assert fault(pipe) == fault(Path("/dev/zero")) == "is a pipe or a device; a record is a file"


seconds = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
finite = st.floats(allow_nan=False, allow_infinity=False)
iterations = st.builds(
    Iteration,
    index=st.integers(0, 2**62),
    warmup=st.booleans(),
    start=finite,
    skew=st.lists(seconds),
    runtime=st.lists(seconds),
    sync_time=st.lists(seconds),
    compute=st.lists(seconds),
    overrun=st.lists(seconds),
    issue=st.lists(seconds),
    communication=st.dictionaries(st.text(), st.lists(seconds)),
    late=st.lists(st.integers(0, 10**6)),
)
ends = st.builds(
    End,
    status=st.sampled_from(["completed", "terminated", "failed"]),
    reason=st.text(),
    iterations=st.integers(0, 10**9),
    ended=st.text(),
)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | finite | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=5,
)


@settings(max_examples=50, deadline=None)
@given(
    options=st.dictionaries(st.text(), plain),
    lines=st.lists(iterations, max_size=3),
    end=ends,
)
def test_whatever_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, options: dict[str, Any], lines: list[Iteration], end: End
) -> None:
    header = msgspec.convert(HEADER | {"options": options}, Header)
    with RecordWriter(tmp_path_factory.mktemp("record"), "run", header) as writer:
        for line in lines:
            writer.iteration(line)
        writer.end(end)
    record = read(writer.path)
    assert (record.header, record.iterations, record.end) == (header, lines, end)
    assert record.notes == []


@settings(deadline=None)
@given(position=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_one_wrong_byte_is_a_record_error_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, position: int, byte: int
) -> None:
    content = bytearray(text(*WHOLE))
    content[position % len(content)] = byte
    path = tmp_path_factory.mktemp("record") / "run.jsonl"
    path.write_bytes(content)
    try:
        record = read(path)
    except RecordError as error:
        assert "\n" not in str(error)
    else:
        assert all(math.isfinite(value) for line in record.iterations for value in line.runtime)
