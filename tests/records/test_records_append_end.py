"""Ranks that note the end of a run together: one of them succeeds, and knows it."""

from __future__ import annotations

import errno
import fcntl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from handmade import END, HEADER, WARMUP, write

from dlbench.records.reader import read
from dlbench.records.schema import End
from dlbench.records.writer import append_end

FAILED = msgspec.convert(END | {"status": "failed", "reason": "rank 1", "iterations": 1}, End)

RANK = """
import sys, time
from pathlib import Path
from dlbench.records.schema import End
from dlbench.records.writer import append_end

rank, path, at = sys.argv[1:]
end = End(status="failed", reason=rank, iterations=1, ended="2026-01-02T03:04:05Z")
time.sleep(max(0, float(at) - time.time()))
print(append_end(Path(path), end))
"""


def test_of_ranks_that_append_at_once_one_succeeds(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", HEADER, WARMUP)
    at = str(time.time() + 1.5)
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, str(rank), str(path), at], stdout=subprocess.PIPE, text=True)
        for rank in range(8)
    ]
    answers = [rank.communicate(timeout=30)[0].strip() for rank in ranks]
    assert sorted(answers) == ["False"] * 7 + ["True"]
    record = read(path)
    assert record.notes == []
    assert record.end is not None
    assert record.end.reason == str(answers.index("True"))


def test_nothing_is_appended_while_another_rank_appends(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", HEADER, WARMUP)
    before = path.read_bytes()
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert not append_end(path, FAILED)
    assert path.read_bytes() == before
    assert append_end(path, FAILED)


def test_a_file_system_without_locks_takes_an_end_line_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = write(tmp_path / "run.jsonl", HEADER, WARMUP)
    assert append_end(path, FAILED)
    assert read(path).end == FAILED
