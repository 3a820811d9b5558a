"""Traces as they are in the wild: plain, compressed, of all years, cut and damaged in every way."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kineto_writer import FORMS, Collective, Form, Group, Writing, compressed, run, trace

from dlbench.analysis.traces.alignment import align
from dlbench.analysis.traces.communication import Communication, communication
from dlbench.analysis.traces.events import events
from dlbench.analysis.traces.ranks import RankedTrace, read_ranks
from dlbench.analysis.traces.repair import repaired
from dlbench.analysis.traces.source import UnreadableTrace
from dlbench.errors import UserError

WORLD = Group("0", (0, 1), "default_pg")
COUNT = 40
KERNELS = run(
    [Collective("allreduce", WORLD)] * COUNT, [{0: 100_000 + index, 1: 300_000 - index} for index in range(COUNT)]
)[0]
STAYS = [kernel.end - kernel.start for kernel in KERNELS]


def text_of(form: Form = "new", **writing: Any) -> bytes:
    return trace(0, 2, KERNELS, Writing(form=form, **writing))


@pytest.fixture
def read(tmp_path: Path) -> Callable[[bytes], Communication]:
    """Reads a text as a trace `t.json`."""

    def read_text(text: bytes) -> Communication:
        path = tmp_path / "t.json"
        path.write_bytes(text)
        return communication(path)

    return read_text


def stays(found: Communication) -> list[int]:
    return [int(stay) for stay in found.end - found.start]


def notes(found: Communication) -> list[str]:
    """Notes without the path that each begins with."""
    prefix = f"{found.path}: "
    assert all(note.startswith(prefix) for note in found.notes)
    return [note.removeprefix(prefix) for note in found.notes]


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read_to_the_last_digit(
    read: Callable[[bytes], Communication], form: Form, compact: bool
) -> None:
    found = read(text_of(form, compact=compact))
    assert notes(found) == []
    assert (found.rank, found.world_size) == (0, 2)
    unit = 1000 if form == "old" else 1
    assert [time // unit for time in found.start.tolist()] == [kernel.start // unit for kernel in KERNELS]
    assert [stay // unit for stay in stays(found)] == [stay // unit for stay in STAYS]
    assert found.resolution == unit


def test_a_compressed_trace_is_the_same_in_one_member_or_several(read: Callable[[bytes], Communication]) -> None:
    text = text_of()
    for packed in (compressed(text), compressed(text[:999]) + compressed(text[999:]), compressed(text) + bytes(512)):
        found = read(packed)
        assert stays(found) == STAYS
        assert notes(found) == []


@pytest.mark.parametrize("block", [7, 64, 1000, 1 << 18])
def test_blocks_may_end_anywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, block: int) -> None:
    monkeypatch.setattr("dlbench.analysis.traces.source.BLOCK", block)
    path = tmp_path / "t.json"
    path.write_bytes(text_of())
    found = communication(path)
    assert stays(found) == STAYS
    assert found.notes == []


def test_a_bare_array_of_events_is_a_trace_too(read: Callable[[bytes], Communication]) -> None:
    content = json.loads(text_of("epoch"), parse_float=str)
    found = read(json.dumps(content["traceEvents"]).encode())
    assert stays(found) == STAYS
    assert found.rank is None


TRICKY: list[dict[str, Any]] = [
    {
        "ph": "X",
        "cat": "cpu_op",
        "name": 'text }, { "ph": [ ] \\" in a name',
        "args": {"Concrete Inputs": ["}, {", "]"]},
    },
    {"ph": "X", "cat": "cpu_op", "name": "nested", "args": {"shapes": [{"name": "a"}, {"name": "b"}, {"ph": [{}]}]}},
    {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": ""},
    {"ph": "C", "name": "GPU 0 Utilization", "args": {"GPU 0 Utilization": 0.5}},
    {"ph": "X", "cat": "python_function", "name": "f(π, 日本)", "args": {"Python id": 1, "Python parent id": None}},
    {},
]


@pytest.mark.parametrize("block", [64, 1 << 18])
def test_what_looks_like_an_end_of_an_event_or_of_all_inside_of_one_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, block: int
) -> None:
    monkeypatch.setattr("dlbench.analysis.traces.source.BLOCK", block)
    more = [{"pid": 1, "ts": KERNELS[0].start, "dur": 1000, **event} for event in TRICKY * 20]
    path = tmp_path / "t.json"
    path.write_bytes(text_of(more_events=more))
    found = communication(path)
    assert stays(found) == STAYS
    assert found.notes == []


def test_metadata_that_mentions_the_events_is_not_taken_for_them(read: Callable[[bytes], Communication]) -> None:
    text = text_of().replace(
        b'{"schemaVersion"', b'{"config": {"traceEvents": [1, 2]}, "x": "\\"traceEvents\\": [", "schemaVersion"'
    )
    assert stays(read(text)) == STAYS


EVENT = b', {"ph": "X", "cat": "kernel", "name": "ncclX%b", "pid": 0, "tid": 1, "ts": 5.000, "dur": 1.000%b}'


def with_event(text: bytes) -> tuple[bytes, int]:
    """A trace with one more event after the first, and its offset."""
    whole = text_of()
    place = whole.index(b"},\n") + 1
    return whole[:place] + text + whole[place:], place


@pytest.mark.parametrize(
    ("name", "more"),
    [
        (b"", b', "args": {"est. achieved occupancy %": NaN}'),
        (b"", b', "args": {"x": -Infinity}'),
        (b"a\x01b\n", b""),
        (b"a\xff\xfe", b""),
        (b"C:\\Users\\x", b""),
        (b"\\ud800", b""),
    ],
)
def test_an_event_that_no_json_reader_takes_is_mended(
    read: Callable[[bytes], Communication], name: bytes, more: bytes
) -> None:
    text, place = with_event(EVENT % (name, more))
    found = read(text)
    assert len(found.start) == COUNT + 1
    (note,) = notes(found)
    assert note.startswith("1 value mended (NaN, control characters, broken UTF-8 or escapes), the first at byte ")
    assert place < int(note.split()[-1]) < place + len(EVENT) + len(name) + len(more)


@pytest.mark.parametrize(
    "damage",
    [
        b', {"ph": "X", "cat": "kernel", "name": }',
        b', {"ph": "X", "name": "a" "b"}',
        b", null",
        b", 17, [1, {}]",
        b', {"ph": "X", "args": {"a": {}',
        b', {"ph": "X", "name": "no end',
        b', {"ph": "X", "args": [1]}',
        b', {"ph": "X", "name": 7, "pid": []}',
    ],
)
def test_a_damaged_event_is_dropped_and_those_around_it_are_kept(
    read: Callable[[bytes], Communication], damage: bytes
) -> None:
    text, place = with_event(damage)
    found = read(text)
    assert stays(found) == STAYS
    (note,) = notes(found)
    assert re.fullmatch(rf"\d+ damaged bytes in \d places? dropped, the first at byte {place + 2}", note)
    assert (found.rank, found.start[0]) == (0, KERNELS[0].start)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ts", "123456789012345678901234567890"),
        ("ts", "null"),
        ("ts", "0"),
        ("ts", "1e400"),
        ("ts", '"soon"'),
        ("dur", "-5"),
        ("dur", "[]"),
    ],
)
def test_a_kernel_without_a_valid_time_is_dropped_and_counted(
    read: Callable[[bytes], Communication], field: str, value: str
) -> None:
    event = {"ph": "X", "cat": "kernel", "name": "nccl", "ts": 5, "dur": 5, field: "VALUE"}
    text, _ = with_event(b", " + json.dumps(event).replace('"VALUE"', value).encode())
    found = read(text)
    assert stays(found) == STAYS
    assert notes(found) == ["1 communication kernel without a valid ts and dur dropped"]


def test_identities_of_any_type_are_taken(read: Callable[[bytes], Communication]) -> None:
    huge = 10**40
    tracks: list[list[Any]] = [["7", "stream 3", "12"], [huge, -1, huge], [None, None, []], [1.5, 2, "x"]]
    for pid, tid, correlation in tracks:
        args = {"correlation": correlation, "External id": correlation, "stream": "7", "Seq": huge}
        event = {"ph": "X", "cat": "kernel", "name": "nccl", "pid": pid, "tid": tid, "ts": 1, "dur": 2, "args": args}
        text, _ = with_event(b", " + json.dumps(event).encode())
        found = read(text)
        assert len(found.start) == COUNT + 1
        assert notes(found) == []
        assert len(events(found.path).communication_events) == COUNT + 1


def test_a_cut_file_keeps_what_is_whole_and_says_where_it_ends(read: Callable[[bytes], Communication]) -> None:
    text = text_of()
    last = text.rindex(b'"ncclDevKernel')
    found = read(text[:last])
    assert stays(found) == STAYS[:-1]
    begin = text.rindex(b'{"ph"', 0, last)
    assert notes(found) == [
        f"ends at byte {last}, inside an event, of which {last - begin} bytes dropped: the file is cut"
    ]
    found = read(text[:begin])
    assert stays(found) == STAYS[:-1]
    assert notes(found) == [f"ends at byte {begin}, before the array of events does: the file is cut"]


def test_a_cut_compressed_file_says_that_too(read: Callable[[bytes], Communication]) -> None:
    generator = random.Random(0)
    more = [
        {"ph": "X", "cat": "cpu_op", "name": generator.randbytes(40).hex(), "pid": 1, "ts": KERNELS[0].start, "dur": 0}
        for _ in range(2000)
    ]
    packed = compressed(text_of(more_events=more))
    found = read(packed[: len(packed) // 2])
    assert any("the file is cut; the compressed file is cut" in note for note in notes(found))
    damaged = bytearray(packed)
    damaged[len(packed) // 2] ^= 255
    assert any("; the compressed data is damaged" in note for note in notes(read(bytes(damaged))))


def test_metadata_that_is_cut_is_missed_but_the_base_of_the_times_is_kept(
    read: Callable[[bytes], Communication],
) -> None:
    text = text_of()
    base = text.index(b'"baseTimeNanoseconds"')
    found = read(text[: text.index(b"}", base)])
    assert found.start.tolist() == [kernel.start for kernel in KERNELS]
    assert found.rank is None
    assert notes(found)[0].endswith(": the metadata after the events is damaged or cut and was dropped")


def test_damaged_metadata_before_the_events_is_dropped(read: Callable[[bytes], Communication]) -> None:
    found = read(text_of("old").replace(b'"schemaVersion": 1', b'"schemaVersion": ?'))
    assert len(found.start) == COUNT
    assert found.rank is None
    assert notes(found) == ["byte 0: the metadata before the events is damaged and was dropped"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is empty; a trace is a JSON object"),
        (b" \n", "is empty; a trace is a JSON object"),
        (b"\x1f\x8b", "is empty; the compressed file is cut"),
        (b"\x1f\x8bnot gzip", "is empty; the compressed data is damaged"),
        (b"PK\x03\x04", "byte 0: is no trace; one is a JSON object with traceEvents"),
        (b'{"a": 1}', "byte 8: no array traceEvents up to here: the file was cut, or is no trace"),
        (b'{"traceEvents": null}', "byte 21: no array traceEvents up to here: the file was cut, or is no trace"),
    ],
)
def test_what_is_no_trace_is_refused(read: Callable[[bytes], Communication], text: bytes, message: str) -> None:
    with pytest.raises(UnreadableTrace, match=f"t.json: {re.escape(message)}$"):
        read(text)


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableTrace, match="none.json: does not exist$"):
        communication(tmp_path / "none.json")
    with pytest.raises(UnreadableTrace, match="is a folder; name the traces in it, one file per rank$"):
        communication(tmp_path)
    with pytest.raises(UnreadableTrace, match="is a pipe or a device; a trace is a file$"):
        communication(Path("/dev/null"))


def test_an_error_travels_between_processes() -> None:
    for error in (UnreadableTrace(Path("a"), "b"), UnreadableTrace(Path("a"), "b", 7)):
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_an_event_without_an_end_does_not_hold_the_rest_up(read: Callable[[bytes], Communication]) -> None:
    filler = [{"ph": "X", "cat": "cpu_op", "name": "x" * 900, "pid": 1, "ts": KERNELS[0].start, "dur": 0}] * 3000
    whole = text_of(more_events=filler)
    place = whole.index(b"},\n") + 1
    found = read(whole[:place] + b', {"ph": "X", "args": {"a": {' + whole[place:])
    assert stays(found) == STAYS
    assert notes(found)[0].endswith(f" dropped, the first at byte {place + 2}")


def test_mending_leaves_valid_text_alone() -> None:
    valid = rb'{"a": "NaN \u00e9 \ud83d\ude00 \" \\ \/ \b\f\n\r\t", "nan": [1, -2.5e3, null, true]}'
    assert repaired(valid) == (valid, 0, 0)


def test_mending_replaces_what_is_wrong() -> None:
    assert repaired(b'{"a": NaN, "b": -Infinity, "c": "x\ty\xff\\q\\ud800"}') == (
        '{"a": null, "b": null, "c": "x y\ufffd\\\\q\\\\ud800"}'.encode(),
        3,
        6,
    )


@settings(max_examples=150, deadline=None)
@given(
    edits=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 60), st.binary(max_size=8)), min_size=1, max_size=4),
    keep=st.floats(0.01, 1),
    packed=st.booleans(),
    form=st.sampled_from(FORMS),
)
def test_no_damage_is_a_traceback(
    edits: list[tuple[float, int, bytes]],
    keep: float,
    packed: bool,
    form: Form,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    text = trace(0, 2, KERNELS[:4], Writing(form=form))
    for place, removed, inserted in edits:
        at = int(place * len(text))
        text = text[:at] + inserted + text[at + removed :]
    text = compressed(text) if packed else text
    path = tmp_path_factory.getbasetemp() / "fuzzed.json"
    path.write_bytes(text[: int(keep * len(text))])
    for read_trace in (communication, events):
        try:
            found = read_trace(path)
        except UserError as error:
            assert str(path) in str(error)
        else:
            assert len(found.start) <= 4 * 6 + 4
            assert all(note.startswith(f"{path}: ") for note in found.notes)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
FIELDS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "args")
METADATA = ("distributedInfo", "baseTimeNanoseconds", "schemaVersion")
ARGUMENTS = ("correlation", "External id", "Seq", "Process Group Ranks", "Group size", "dtype", "Collective name")


@settings(max_examples=150, deadline=None)
@given(
    in_events=st.lists(st.tuples(st.integers(0, 23), st.sampled_from(FIELDS + ARGUMENTS), JSON), max_size=4),
    in_metadata=st.dictionaries(st.sampled_from(METADATA), JSON, max_size=2),
    info=st.dictionaries(st.sampled_from(("rank", "world_size", "pg_config")), JSON, max_size=2),
)
def test_values_of_any_type_in_any_field_are_no_traceback(
    in_events: list[tuple[int, str, Any]],
    in_metadata: dict[str, Any],
    info: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    content = json.loads(trace(0, 2, KERNELS[:4], Writing(form="epoch")))
    content["distributedInfo"] |= info
    content |= in_metadata
    for number, field, value in in_events:
        event = content["traceEvents"][number]
        target = event.setdefault("args", {}) if field in ARGUMENTS else event
        if isinstance(target, dict):
            target[field] = value
    path = tmp_path_factory.getbasetemp() / "odd.json"
    path.write_text(json.dumps(content))
    (odd,), _ = read_ranks([path])
    assert len(odd.communication.start) <= 8
    align([odd, RankedTrace(odd.rank + 1, odd.communication)])
    assert len(events(path)) <= 24


@settings(max_examples=60, deadline=None)
@given(cut=st.floats(0.2, 1))
def test_a_cut_anywhere_loses_only_what_is_behind_it(cut: float, tmp_path_factory: pytest.TempPathFactory) -> None:
    text = text_of("old")
    size = int(cut * len(text))
    path = tmp_path_factory.getbasetemp() / "cut.json"
    path.write_bytes(text[:size])
    found = communication(path)
    assert stays(found) == [stay // 1000 * 1000 for stay in STAYS[: len(found.start)]]
    assert len(found.start) >= text[:size].count(b'"ncclKernel') - 1
    assert (found.notes == []) == (size == len(text))


def test_the_memory_for_the_tax_does_not_grow_with_the_file(tmp_path: Path) -> None:
    filler = [{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "ts": KERNELS[0].start, "dur": 0}] * 10_000
    head, _, tail = text_of(compact=True, more_events=filler).partition(b"[{")
    array, end, metadata = tail.rpartition(b"}], ")
    path = tmp_path / "t.json.gz"
    peaks = []
    for copies in (1, 5):
        path.write_bytes(gzip.compress(head + b"[{" + b"},{".join([array] * copies) + end + metadata, 1))
        tracemalloc.start()
        assert len(communication(path).start) == COUNT * copies
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]
