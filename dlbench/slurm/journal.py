"""Journals: files of JSON Lines that are only appended to, a whole line or nothing; and the locks of their writers."""

from __future__ import annotations

import errno
import fcntl
import os
from io import SEEK_END, FileIO
from pathlib import Path


def lock(descriptor: int) -> bool:
    """Take the lock of an open file; False while another process has it. Where a file system has none, all get it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # Lustre without the option flock, for instance
        return True
    return True


def mend(file: FileIO) -> None:
    """Cut off a last line that was never finished, so that the next does not continue it."""
    file.seek(0)
    file.truncate(file.readall().rfind(b"\n") + 1)


def append(file: FileIO, line: bytes) -> None:
    """Append a line, which readers see at once. Raises `OSError`, and then has written nothing of it."""
    end = file.seek(0, SEEK_END)
    try:
        if file.write(line + b"\n") <= len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        file.truncate(end)
        raise


def complete_lines(path: Path) -> list[bytes]:
    """The lines that are finished; none where there is no file. Raises `OSError`."""
    try:
        return path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
