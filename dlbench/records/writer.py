"""Write a run record: append-only, one system call a line, nothing lost when the run is killed.

A line has reached the operating system when the method that writes it returns, so it survives the death of the
process. It is not forced to the disk before `end`: that costs milliseconds on a parallel file system, and protects
only against the death of the node.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
from contextlib import suppress
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
from msgspec.structs import fields
from numpy.typing import NDArray

from dlbench.errors import RecordError
from dlbench.records.schema import (
    END_START,
    HEADER_START,
    Clock,
    End,
    Header,
    Iteration,
    Line,
    Seconds,
    ops_path,
    ops_shape,
)


def unique_name(strategy: str, world_size: int, created: str) -> str:
    """Name that no other run has, e.g. `dp-64-20260102T030405Z-9f86d081`.

    `created` is ISO 8601 with its time zone, as in the header; the name sorts by it within a strategy and size. The
    last part is random, so only one rank may ask. Raises `RecordError` for another `created`.
    """
    try:
        moment = datetime.fromisoformat(created).astimezone(UTC)
    except ValueError:
        raise RecordError(f"created = {created!r} is no time; use ISO 8601, e.g. 2026-01-02T03:04:05Z") from None
    return f"{strategy}-{world_size}-{moment:%Y%m%dT%H%M%SZ}-{os.urandom(4).hex()}"


class RecordWriter:
    """Writes one record, `directory/name.jsonl`, and with `ops` its arrays, `directory/name.ops.npy`.

    Creates the folders and both files, and writes the header. A record is never overwritten: an existing name is a
    `RecordError`. Every method that writes raises `RecordError` where the disk is full, the place is forbidden, or a
    time is not finite; what was written before stays as it was, and no half line is left behind.
    """

    def __init__(self, directory: Path, name: str, header: Header, *, ops: bool = False) -> None:
        self.path = directory / f"{name}.jsonl"
        self._shape = ops_shape(header)
        line = _encode(header, self.path)
        self._lines = _NewFile(self.path)
        self._ops: _NewFile | None = None
        try:
            self._ops = _NewFile(ops_path(self.path)) if ops else None
            self._lines.append(line)
        except RecordError:
            self._discard()
            raise

    def iteration(self, iteration: Iteration, ops: NDArray[Any] | None = None) -> None:
        """Append a finished iteration, and its ops array of shape (ranks, ops, 2) where ops are recorded.

        The array goes first: a line is then the promise that its array is there, and a run killed between the two
        leaves an array without a line, which readers drop. The other order would leave a line without its array.
        """
        line = _encode(iteration, self.path)
        if self._ops is not None:
            self._ops.append(self._array(iteration, ops))
        self._lines.append(line)

    def clock(self, clock: Clock) -> None:
        """Append the clock model that holds from the next iteration on."""
        self._lines.append(_encode(clock, self.path))

    def end(self, end: End) -> None:
        """Append the end line, force the files to the disk and close them.

        Raises `RecordError` also where a file was removed, replaced or cut since it was created: the record is lost.
        """
        self._lines.append(_encode(end, self.path))
        for file in self._files():
            file.sync()
            file.require_kept()
        self.close()

    def close(self) -> None:
        """Close the files; without an end line the record is that of a killed run."""
        for file in self._files():
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _array(self, iteration: Iteration, ops: NDArray[Any] | None) -> memoryview:
        shape = None if ops is None else ops.shape
        if shape != self._shape:
            raise RecordError(
                f"{ops_path(self.path)}: the ops of iteration {iteration.index} have shape {shape}; "
                f"the header's op tables ask for {self._shape}"
            )
        stream = BytesIO()
        np.save(stream, np.ascontiguousarray(ops, dtype="<f8"), allow_pickle=False)
        return stream.getbuffer()

    def _files(self) -> list[_NewFile]:
        return [self._lines] if self._ops is None else [self._ops, self._lines]

    def _discard(self) -> None:
        self.close()
        for file in self._files():
            file.path.unlink(missing_ok=True)


def append_end(path: Path, end: End) -> bool:
    """Append `end` to a record on behalf of a rank that does not write it; whether that was done.

    For a rank that knows why the run fails when the writer may be dead. Does nothing where the last line is an end
    line already, or is cut (more text behind half a line would make it damage), or where another rank is appending
    one: where the file system has locks, one rank alone succeeds. Raises `RecordError` where the file is no record or
    cannot be written.
    """
    line = _encode(end, path)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    except OSError as error:
        raise _cannot("open", path, error) from None
    try:
        if not _lock(descriptor) or not _accepts_end(descriptor, path):
            return False
        _append(descriptor, line, path)
    finally:
        os.close(descriptor)
    return True


def _lock(descriptor: int) -> bool:
    """Lock the file until it is closed; False where another process has. A file system without locks grants it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, BlockingIOError)
    return True


def _accepts_end(descriptor: int, path: Path) -> bool:
    size = os.fstat(descriptor).st_size
    if not size:
        return False
    with mmap.mmap(descriptor, size, access=mmap.ACCESS_READ) as content:
        if content[: len(HEADER_START)] != HEADER_START[:size]:
            raise RecordError(f"{path} is no run record: its first line is no header; nothing was appended")
        last_line = content.rfind(b"\n", 0, size - 1) + 1
        return content[-1:] == b"\n" and content[last_line : last_line + len(END_START)] != END_START


class _NewFile:
    """A file that did not exist before and grows by whole chunks: each is there completely, or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise RecordError(f"{path.parent} is a file and not a folder; use another name") from None
        except OSError as error:
            raise _cannot("create the folder", path.parent, error) from None
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        try:
            self._descriptor = os.open(path, flags, 0o666)
        except FileExistsError:
            raise RecordError(f"{path} exists, and a record is never overwritten; use another name") from None
        except OSError as error:
            raise _cannot("create", path, error) from None

    def append(self, chunk: bytes | memoryview) -> None:
        _append(self._descriptor, chunk, self.path)
        self._size += len(chunk)

    def require_kept(self) -> None:
        """Raise `RecordError` unless all that was written can be read at the path."""
        try:
            found = self.path.stat()
            kept = os.path.samestat(found, os.fstat(self._descriptor))
        except OSError as error:
            raise RecordError(f"{self.path} is lost: {error.strerror}, but the run was writing it") from None
        if not kept:
            raise RecordError(f"{self.path} is lost: another file took its place during the run")
        if found.st_size < self._size:
            raise RecordError(f"{self.path} is lost: it has {found.st_size} of the {self._size} bytes written")

    def sync(self) -> None:
        """Network file systems report a full disk or quota only now."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise _cannot("write", self.path, error) from None

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        try:
            os.close(descriptor)
        except OSError as error:
            raise _cannot("write", self.path, error) from None


def _append(descriptor: int, chunk: bytes | memoryview, path: Path) -> None:
    """Append with one write; only a full disk makes it short, and the second write then says why."""
    view = memoryview(chunk)
    written = 0
    try:
        while written < len(view):
            written += os.write(descriptor, view[written:])
    except OSError as error:
        if written:
            _withdraw(descriptor, written)
        raise _cannot("write", path, error) from None


def _withdraw(descriptor: int, written: int) -> None:
    """Remove the first part of a chunk that did not fit, unless another process has appended behind it."""
    with suppress(OSError):
        end = os.lseek(descriptor, 0, os.SEEK_CUR)
        if os.fstat(descriptor).st_size == end:
            os.ftruncate(descriptor, end - written)


def _cannot(what: str, path: Path, error: OSError) -> RecordError:
    return RecordError(f"cannot {what} {path}: {error.strerror}")


_DECODER = msgspec.json.Decoder(Line)
_PER_RANK = [field.name for field in fields(Iteration) if field.type == list[Seconds]]
_INFINITE = float("inf")


def _encode(line: Line, path: Path) -> bytes:
    """Encode a line, and read it back: JSON has no NaN, and structs are checked only when they are read."""
    try:
        encoded = msgspec.json.encode(line)
        if not (isinstance(line, Iteration) and _has_sound_times(line)):
            _DECODER.decode(encoded)
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise RecordError(f"{path}: {_kind(line)} cannot be written: {error}") from None
    if isinstance(line, Header):
        _require_finite(line, path)
    return encoded + b"\n"


def _has_sound_times(line: Iteration) -> bool:
    """Whether no time is NaN, infinite or negative; takes half the time of reading the line back.

    Ranks are waiting meanwhile. A sum is NaN or infinite where one of its terms is.
    """
    times = (*(getattr(line, name) for name in _PER_RANK), *line.communication.values())
    return math.isfinite(line.start) and all(
        min(seconds, default=0.0) >= 0 and sum(seconds) < _INFINITE for seconds in times
    )


def _kind(line: Line) -> str:
    return f"iteration {line.index}" if isinstance(line, Iteration) else f"the {type(line).__name__.lower()} line"


def _require_finite(header: Header, path: Path) -> None:
    for field in ("model", "gpu", "options"):
        for key, value in getattr(header, field).items():
            if not _is_finite(value):
                raise RecordError(
                    f"{path}: the header line cannot be written: {field}.{key} holds NaN or infinity, "
                    f"which JSON cannot hold; use a finite number or leave it out"
                )


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return all(map(_is_finite, value)) if isinstance(value, list | tuple) else True
