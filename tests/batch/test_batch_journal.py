"""Journals: whole lines or nothing, whatever the disk and the writers before have done."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import NoReturn

import pytest

from dlbench.slurm import journal
from dlbench.slurm.journal import append, complete_lines, lock, mend


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A disk that is full as soon as a file has so many bytes: the kernel then writes what fits, as a quota does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_lines_are_read_in_the_order_in_which_they_were_appended(tmp_path: Path) -> None:
    with FileIO(tmp_path / "j", "a+") as file:
        append(file, b"one")
        append(file, b"two")
        assert complete_lines(tmp_path / "j") == [b"one", b"two"]
    with FileIO(tmp_path / "j", "a+") as file:
        append(file, b"three")
    assert complete_lines(tmp_path / "j") == [b"one", b"two", b"three"]


def test_a_line_that_does_not_fit_the_disk_leaves_nothing_of_itself(tmp_path: Path) -> None:
    with FileIO(tmp_path / "j", "a+") as file:
        append(file, b"one")
        with files_of_at_most(8), pytest.raises(OSError, match="No space left on device"):
            append(file, b"too long for the rest")
        assert (tmp_path / "j").read_bytes() == b"one\n"
        append(file, b"two")  # there is space again
    assert complete_lines(tmp_path / "j") == [b"one", b"two"]


@pytest.mark.parametrize(
    ("content", "mended"), [(b"one\ntw", b"one\n"), (b"on", b""), (b"one\n", b"one\n"), (b"", b"")]
)
def test_an_unfinished_line_is_no_line_and_is_cut_off(tmp_path: Path, content: bytes, mended: bytes) -> None:
    (tmp_path / "j").write_bytes(content)
    assert complete_lines(tmp_path / "j") == mended.split(b"\n")[:-1]
    with FileIO(tmp_path / "j", "a+") as file:
        mend(file)
        append(file, b"next")
    assert (tmp_path / "j").read_bytes() == mended + b"next\n"


def test_there_need_be_no_file(tmp_path: Path) -> None:
    assert complete_lines(tmp_path / "j") == []


def test_one_of_two_gets_the_lock(tmp_path: Path) -> None:
    with FileIO(tmp_path / "j", "a+") as first, FileIO(tmp_path / "j", "a+") as second:
        assert lock(first.fileno())
        assert not lock(second.fileno())


def test_a_file_system_without_locks_keeps_nobody_from_working(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: int) -> NoReturn:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(journal.fcntl, "flock", flock)
    with FileIO(tmp_path / "j", "a+") as file:
        assert lock(file.fileno())
