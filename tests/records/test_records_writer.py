"""The writer: what it promises to a run that may die at any moment."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from handmade import COUNTED, END, HEADER, RESYNCHRONISED, WARMUP, WHOLE, WITH_OPS, text, write

from dlbench.errors import RecordError
from dlbench.records.reader import read, read_ops
from dlbench.records.schema import Clock, End, Header, Iteration
from dlbench.records.validator import validate
from dlbench.records.writer import RecordWriter, append_end, unique_name

NAN = math.nan


def header(**changes: Any) -> Header:
    return msgspec.convert(HEADER | changes, Header)


def iteration(**changes: Any) -> Iteration:
    return msgspec.structs.replace(msgspec.convert(WARMUP, Iteration), **changes)


def end(**changes: Any) -> End:
    return msgspec.convert(END | changes, End)


def kinds(path: Path) -> list[str]:
    return [json.loads(line)["kind"] for line in path.read_text(encoding="utf-8").splitlines()]


def test_each_line_is_in_the_file_when_its_method_returns(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "new" / "folder", "run", header()) as writer:
        assert writer.path == tmp_path / "new" / "folder" / "run.jsonl"
        assert kinds(writer.path) == ["header"]
        writer.iteration(iteration())
        assert kinds(writer.path) == ["header", "iteration"]
        writer.clock(msgspec.convert(RESYNCHRONISED, Clock))
        assert kinds(writer.path) == ["header", "iteration", "clock"]
        writer.end(end())
    assert kinds(writer.path) == ["header", "iteration", "clock", "end"]


def test_a_written_record_reads_back_as_it_was_given(tmp_path: Path) -> None:
    with RecordWriter(tmp_path, "run", header()) as writer:
        writer.iteration(iteration())
        writer.clock(msgspec.convert(RESYNCHRONISED, Clock))
        writer.iteration(iteration(index=1, warmup=False, start=11.0))
        writer.end(end())
    record = read(writer.path)
    assert record.header == header()
    assert record.iterations == [iteration(), iteration(index=1, warmup=False, start=11.0)]
    assert record.clocks == [msgspec.convert(RESYNCHRONISED, Clock)]
    assert record.end == end()
    assert (record.truncated, record.notes) == (False, [])


def test_a_record_is_never_overwritten(tmp_path: Path) -> None:
    present = tmp_path / "run.jsonl"
    present.write_text("someone's data")
    with pytest.raises(RecordError, match=r"run\.jsonl exists, and a record is never overwritten; use another name"):
        RecordWriter(tmp_path, "run", header())
    assert present.read_text() == "someone's data"


def test_an_existing_ops_file_is_kept_and_no_half_record_is_left(tmp_path: Path) -> None:
    (tmp_path / "run.ops.npy").write_text("someone's data")
    with pytest.raises(RecordError, match=r"run\.ops\.npy exists"):
        RecordWriter(tmp_path, "run", header(), ops=True)
    assert [path.name for path in tmp_path.iterdir()] == ["run.ops.npy"]
    assert (tmp_path / "run.ops.npy").read_text() == "someone's data"


def test_a_folder_that_cannot_be_created_is_named_with_its_cause(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match=r"cannot create the folder .*/file/sub: Not a directory"):
        RecordWriter(tmp_path / "file" / "sub", "run", header())


def test_a_file_in_the_place_of_the_folder_is_called_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecordError) as error:
        RecordWriter(tmp_path / "file", "run", header())
    assert str(error.value) == f"{tmp_path}/file is a file and not a folder; use another name"


def test_a_forbidden_folder_is_named_with_its_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(RecordError, match=r"cannot create .*run\.jsonl: Permission denied"):
        RecordWriter(tmp_path, "run", header())


@pytest.mark.parametrize("field", ["skew", "runtime", "sync_time", "compute", "overrun", "issue"])
@pytest.mark.parametrize("times", [[0.5, NAN], [NAN, 0.5], [math.inf, 0.5], [0.5, -0.1], [0.5, None]])
def test_a_time_that_is_not_finite_or_negative_is_refused_and_nothing_is_lost(
    tmp_path: Path, field: str, times: list[Any]
) -> None:
    with RecordWriter(tmp_path, "run", header()) as writer:
        writer.iteration(iteration())
        with pytest.raises(RecordError, match="iteration 1 cannot be written: "):
            writer.iteration(iteration(index=1, **{field: times}))
        with pytest.raises(RecordError, match="iteration 1 cannot be written: "):
            writer.iteration(iteration(index=1, communication={"send/pipeline": [0, 0], "allreduce/world": times}))
        writer.end(end(iterations=1))
    assert kinds(writer.path) == ["header", "iteration", "end"]


def test_a_refused_time_is_named_by_its_place(tmp_path: Path) -> None:
    with RecordWriter(tmp_path, "run", header()) as writer:
        with pytest.raises(RecordError, match=r"iteration 0 cannot be written: .*null.*`\$\.runtime\[1\]`"):
            writer.iteration(iteration(runtime=[0.5, NAN]))
        with pytest.raises(RecordError, match=r"iteration 0 cannot be written: .*`\$\.start`"):
            writer.iteration(iteration(start=NAN))


@pytest.mark.parametrize("bad", [NAN, [1.0, -math.inf], {"deep": [NAN]}])
def test_an_option_that_json_cannot_hold_is_refused_by_its_name(tmp_path: Path, bad: object) -> None:
    with pytest.raises(RecordError, match=r"options\.factor holds NaN or infinity"):
        RecordWriter(tmp_path, "run", header(options={"iterations": 2, "factor": bad}))
    assert list(tmp_path.iterdir()) == []


def test_an_option_of_a_foreign_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="the header line cannot be written: Encoding objects of type object"):
        RecordWriter(tmp_path, "run", header(options={"thing": object()}))


def test_a_closed_record_takes_no_more_lines(tmp_path: Path) -> None:
    with RecordWriter(tmp_path, "run", header()) as writer:
        writer.end(end(iterations=0))
        with pytest.raises(RecordError, match="cannot write"):
            writer.iteration(iteration())
    assert kinds(writer.path) == ["header", "end"]


def test_a_record_that_was_removed_or_cut_meanwhile_is_lost_and_said(tmp_path: Path) -> None:
    def ending(name: str, damage: Callable[[Path], object]) -> str:
        writer = RecordWriter(tmp_path, name, msgspec.convert(WITH_OPS, Header), ops=True)
        damage(writer.path)
        with writer, pytest.raises(RecordError) as caught:
            writer.end(end(iterations=0))
        return str(caught.value).removeprefix(f"{tmp_path}/")

    assert ending("gone", Path.unlink) == ("gone.jsonl is lost: No such file or directory, but the run was writing it")
    assert ending("other", lambda path: (path.unlink(), path.write_bytes(text(*WHOLE) * 9))) == (
        "other.jsonl is lost: another file took its place during the run"
    )
    found = ending("cut", lambda path: os.truncate(path, 100))
    assert found.startswith("cut.jsonl is lost: it has ")
    assert found.endswith(" bytes written")
    assert ending("arrays", lambda path: path.with_suffix(".ops.npy").unlink()).startswith("arrays.ops.npy is lost: ")


FULL_DISK = """
import msgspec, resource, sys
from pathlib import Path
from handmade import HEADER, WARMUP, text
from dlbench.errors import RecordError
from dlbench.records.schema import Header, Iteration
from dlbench.records.writer import RecordWriter

writer = RecordWriter(Path(sys.argv[1]), "run", msgspec.convert(HEADER, Header))
writer.iteration(msgspec.convert(WARMUP, Iteration))
ceiling = writer.path.stat().st_size + 10
resource.setrlimit(resource.RLIMIT_FSIZE, (ceiling, ceiling))
try:
    writer.iteration(msgspec.convert(WARMUP | {"index": 1}, Iteration))
except RecordError as error:
    print(error)
"""


def importing() -> dict[str, str]:
    """Environment of a script that imports the records written by hand."""
    folder = Path(__file__).parent
    return os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{folder.parent}"}


def run_script(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, env=importing(), capture_output=True, text=True, timeout=60, check=False)


def test_a_full_disk_is_one_line_and_leaves_no_half_line(tmp_path: Path) -> None:
    # A ceiling on the file's size lets the first ten bytes through, as a disk that fills up does.
    finished = run_script(FULL_DISK, tmp_path)
    assert finished.stderr == ""
    assert finished.stdout == f"cannot write {tmp_path}/run.jsonl: File too large\n"
    assert kinds(tmp_path / "run.jsonl") == ["header", "iteration"]


ENDLESS = """
import msgspec, sys
import numpy as np
from pathlib import Path
from handmade import WITH_OPS, WARMUP
from dlbench.records.schema import Header, Iteration
from dlbench.records.writer import RecordWriter

writer = RecordWriter(Path(sys.argv[1]), "run", msgspec.convert(WITH_OPS, Header), ops=True)
array = np.array([[[1, 2], [2, 3]], [[1, 2], [np.nan, np.nan]]])
for index in range(1_000_000):
    writer.iteration(msgspec.convert(WARMUP | {"index": index}, Iteration), array)
    print(index, flush=True)
"""


@pytest.mark.parametrize("moment", [0.0, 0.003, 0.011])
def test_a_killed_run_keeps_every_iteration_that_it_finished(tmp_path: Path, moment: float) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(tmp_path)], env=importing(), stdout=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    while run.stdout.readline() != "20\n":
        assert run.poll() is None
    time.sleep(moment)
    run.send_signal(signal.SIGKILL)
    finished = [*range(21), *map(int, run.stdout.read().split())]
    run.stdout.close()
    run.wait(timeout=60)

    path = tmp_path / "run.jsonl"
    indexes = [line.index for line in read(path).iterations]
    assert indexes[: len(finished)] == finished
    assert len(indexes) - len(finished) in {0, 1}
    assert len(read_ops(path)) == len(indexes)
    assert [problem for problem in validate(path) if problem.severity == "error"] == []


def test_the_ops_array_is_there_before_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RecordWriter(tmp_path, "run", msgspec.convert(WITH_OPS, Header), ops=True)
    array = np.array([[[1, 2], [2, 3]], [[1, 2], [NAN, NAN]]])
    written: list[str] = []
    write_to = os.write

    def watch(descriptor: int, data: bytes) -> int:
        written.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        return write_to(descriptor, data)

    monkeypatch.setattr(os, "write", watch)
    writer.iteration(iteration(), array)
    assert written == ["run.ops.npy", "run.jsonl"]


@pytest.mark.parametrize(("ops", "shape"), [(np.zeros((2, 3, 2)), r"\(2, 3, 2\)"), (None, "None")])
def test_ops_of_another_shape_than_the_header_says_are_refused(tmp_path: Path, ops: Any, shape: str) -> None:
    writer = RecordWriter(tmp_path, "run", msgspec.convert(WITH_OPS, Header), ops=True)
    with pytest.raises(RecordError, match=rf"iteration 0 have shape {shape}; .* ask for \(2, 2, 2\)"):
        writer.iteration(iteration(), ops)
    assert kinds(writer.path) == ["header"]
    assert (tmp_path / "run.ops.npy").read_bytes() == b""


def test_another_rank_can_note_why_the_run_failed(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", HEADER, WARMUP)
    assert append_end(path, end(status="failed", reason="rank 1 (nid2, cpu): out of memory", iterations=1))
    record = read(path)
    assert record.end is not None
    assert (record.end.status, record.end.reason) == ("failed", "rank 1 (nid2, cpu): out of memory")
    assert len(record.iterations) == 1


def test_a_second_end_is_not_appended(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", HEADER, WARMUP, COUNTED, END)
    assert not append_end(path, end(status="failed"))
    assert path.read_bytes() == text(HEADER, WARMUP, COUNTED, END)


def test_nothing_is_appended_behind_a_cut_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    cut = text(HEADER, WARMUP)[:-40]
    path.write_bytes(cut)
    assert not append_end(path, end())
    assert path.read_bytes() == cut


@pytest.mark.parametrize("content", [b"{}\n", b"notes\n", b"\x1f\x8b\x08\n"])
def test_nothing_is_appended_to_a_foreign_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(RecordError, match="is no run record"):
        append_end(path, end())
    assert path.read_bytes() == content


def test_noting_a_failure_never_creates_a_record(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot open .*: No such file or directory"):
        append_end(tmp_path / "run.jsonl", end())
    assert list(tmp_path.iterdir()) == []


def test_the_writer_goes_on_behind_a_line_of_another_rank(tmp_path: Path) -> None:
    with RecordWriter(tmp_path, "run", header()) as writer:
        append_end(writer.path, end(status="failed", reason="rank 1", iterations=0))
        writer.end(end(iterations=0))
    record = read(writer.path)
    assert record.end is not None
    assert record.end.reason == "rank 1"
    assert record.notes == [
        "line 3, a second end line (completed: 1 iteration measured), was dropped: the first counts"
    ]


def test_names_tell_strategy_size_and_time_and_never_repeat() -> None:
    names = {unique_name("dp", 64, "2026-01-02T05:04:05+02:00") for _ in range(100)}
    assert len(names) == 100
    assert {name[:-8] for name in names} == {"dp-64-20260102T030405Z-"}


def test_a_name_needs_a_time() -> None:
    with pytest.raises(RecordError, match="created = 'yesterday' is no time; use ISO 8601"):
        unique_name("dp", 64, "yesterday")
