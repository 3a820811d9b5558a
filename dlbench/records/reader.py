"""Read a run record, whole or line by line, and its ops arrays.

A run can be killed at any moment, so a last line or a last array that is cut is normal: it is dropped, and the reader
says so. Damage anywhere else, and every file that is no record, is a `RecordError` with the file and the line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from os import SEEK_END
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import IO, Self, cast

import msgspec
import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from dlbench.errors import RecordError
from dlbench.records.schema import (
    HEADER_START,
    SCHEMA_VERSION,
    Clock,
    ClockModel,
    End,
    Header,
    Iteration,
    Line,
    ops_path,
    ops_shape,
)

_DECODER = msgspec.json.Decoder(Line)


class UnreadableRecord(RecordError):
    """A file that is no record, or a damaged line (counted from 1) of one."""

    def __init__(self, path: Path, text: str, line: int | None = None) -> None:
        super().__init__(f"{path}: {text}" if line is None else f"{path}: line {line}: {text}")
        self.text = text
        self.line = line
        self.path = path

    def __reduce__(self) -> tuple[type[Self], tuple[Path, str, int | None]]:
        """Pickle by what it was made of: records are read in process pools, whose errors travel."""
        return type(self), (self.path, self.text, self.line)


@dataclass(frozen=True, slots=True)
class Cut:
    """A last line that a killed run left unfinished."""

    size: int
    """Bytes that were there."""

    def __str__(self) -> str:
        return f"cut after {self.size} bytes, was dropped: the run was killed while it was written"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A run record in memory."""

    path: Path
    header: Header
    iterations: list[Iteration]
    clocks: list[Clock]
    """Clock models that replaced the header's, in order."""
    end: End | None
    """None where the run was killed."""
    truncated: bool
    """Whether the last line was cut."""
    notes: list[str]
    """What was dropped, in words."""

    def clock(self, index: int) -> ClockModel:
        """The clock model in force for iteration `index`: its times were converted with it."""
        models = (line.model for line in reversed(self.clocks) if line.index <= index)
        return next(models, self.header.clock)


def read(path: Path) -> Record:
    """Read a whole record.

    The first end line counts; later ones, and a cut last line, are dropped and noted. Raises `RecordError`, as
    `iterate` does.
    """
    lines = iterate(path)
    header = cast(Header, next(lines))
    iterations: list[Iteration] = []
    clocks: list[Clock] = []
    end: End | None = None
    cut: Cut | None = None
    notes: list[str] = []
    for number, line in enumerate(lines, start=2):
        match line:
            case Iteration():
                iterations.append(line)
            case Clock():
                clocks.append(line)
            case End() if end is None:
                end = line
            case End():
                notes.append(f"line {number}, {second_end(line)}")
            case Cut():
                cut = line
                notes.append(f"line {number}, {cut}")
    return Record(
        path=path,
        header=header,
        iterations=iterations,
        clocks=clocks,
        end=end,
        truncated=cut is not None,
        notes=notes,
    )


def second_end(end: End) -> str:
    """Note on an end line that follows another: two ranks saw the run end."""
    return f"a second end line ({end.status}: {end.reason}), was dropped: the first counts"


def iterate(path: Path) -> Iterator[Line | Cut]:
    """Read a record line by line: the header, every line after it, and a `Cut` where the last line is cut.

    Item i is line i + 1 of the file. A last line that lacks only its line feed is complete. Raises `RecordError`
    where the file cannot be read, is no record, or has a damaged line.
    """
    try:
        with _open(path) as file:
            yield _header(path, file)
            for number, text in enumerate(file, start=2):
                yield _line(path, number, text)
    except FileNotFoundError:
        raise UnreadableRecord(path, "does not exist") from None
    except IsADirectoryError:
        raise UnreadableRecord(path, "is a folder; name a record NAME.jsonl in it") from None
    except OSError as error:
        raise UnreadableRecord(path, f"cannot be read: {error.strerror}") from None


def _open(path: Path) -> IO[bytes]:
    """Open a file, which neither a pipe nor an endless device can be: they would hold up whoever reads."""
    mode = path.stat().st_mode
    if not (S_ISREG(mode) or S_ISDIR(mode)):
        raise UnreadableRecord(path, "is a pipe or a device; a record is a file")
    return path.open("rb")


_NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def _line(path: Path, number: int, text: bytes) -> Line | Cut:
    try:
        line = _DECODER.decode(text)
    except msgspec.ValidationError as error:
        raise UnreadableRecord(path, f"{error}; the format is in docs/records.md", number) from None
    except _NO_JSON:
        if not text.endswith(b"\n"):
            return Cut(len(text))
        raise UnreadableRecord(
            path, "is damaged; every line must be one JSON object of kind iteration, clock or end", number
        ) from None
    if isinstance(line, Header):
        raise UnreadableRecord(path, "is a second header; a file holds one record: split it here", number)
    return line


class _Version(msgspec.Struct):
    kind: str
    schema_version: int = SCHEMA_VERSION


def _header(path: Path, file: IO[bytes]) -> Header:
    start = file.read(2)
    if not start:
        raise UnreadableRecord(path, "is empty; a run record begins with a header line")
    if start == b"\x1f\x8b":
        raise UnreadableRecord(path, "is compressed with gzip; decompress it first")
    # A foreign binary file may have no line feed for gigabytes: do not look for one.
    text = start + file.readline() if start.startswith(b"{") else b""
    try:
        line = _DECODER.decode(text)
    except _NO_JSON as error:
        raise _no_header(path, text, error) from None
    if not isinstance(line, Header):
        raise UnreadableRecord(path, "is no header; a run record begins with one", 1)
    return line


def _no_header(path: Path, text: bytes, error: Exception) -> UnreadableRecord:
    """What is wrong with a first line that is no header of this version."""
    try:
        version = msgspec.json.decode(text, type=_Version)
    except _NO_JSON:
        if text and text[: len(HEADER_START)] == HEADER_START[: len(text)] and not text.endswith(b"\n"):
            return UnreadableRecord(path, "the header is cut: the run was killed before its first iteration", 1)
        return UnreadableRecord(path, "is no run record; one begins with a header line")
    if version.kind == "header" and version.schema_version != SCHEMA_VERSION:
        found = f"has schema version {version.schema_version}"
        return UnreadableRecord(path, f"{found}; this dlbench reads version {SCHEMA_VERSION}")
    return UnreadableRecord(path, f"{error}; the format is in docs/records.md", 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpsReader:
    """The ops arrays of a record; array i belongs to its i-th iteration.

    An array has shape (ranks, ops, 2) and is a read-only view of the mapped file: only what is looked at is read, and
    the file is open only as long as an array of it lives.
    """

    path: Path
    shape: tuple[int, int, int]
    truncated: bool
    """Whether the last array was cut."""
    notes: list[str]
    """What was dropped, in words."""
    _starts: range = field(repr=False)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> NDArray[np.float64]:
        mapped = np.memmap(self.path, dtype="<f8", mode="r", offset=self._starts[index], shape=self.shape)
        return mapped.view(np.ndarray)

    def __iter__(self) -> Iterator[NDArray[np.float64]]:
        return (self[index] for index in range(len(self)))


def read_ops(path: Path) -> OpsReader:
    """Open the ops arrays of the record `path` (the `.jsonl`).

    A cut last array, and an array without an iteration line, are dropped and noted. Raises `RecordError` where the
    run recorded no ops, the file is missing or foreign, or an array has another shape than the header's op tables say.
    """
    lines = iterate(path)
    header = cast(Header, next(lines))
    iterations = sum(isinstance(line, Iteration) for line in lines)
    if not header.op_tables:
        raise UnreadableRecord(path, "the run recorded no ops; record them with --record-ops")
    arrays = ops_path(path)
    shape = ops_shape(header)
    try:
        starts, cut = _array_starts(arrays, shape)
    except FileNotFoundError:
        raise UnreadableRecord(arrays, f"does not exist; it belongs beside {path.name}") from None
    except OSError as error:
        raise UnreadableRecord(arrays, f"cannot be read: {error.strerror}") from None
    notes = []
    if cut:
        notes.append(f"array {len(starts)} is cut and was dropped: the run was killed while it was written")
    if len(starts) > iterations:
        notes.append(f"{len(starts)} arrays for {iterations} iterations: those without an iteration line were dropped")
    if len(starts) < iterations:
        notes.append(f"{len(starts)} arrays for {iterations} iterations: the last iterations have none")
    return OpsReader(path=arrays, shape=shape, truncated=cut, notes=notes, _starts=starts[:iterations])


def _array_starts(path: Path, shape: tuple[int, int, int]) -> tuple[range, bool]:
    """Offset of the data of each complete array, and whether a cut one follows.

    All arrays have the same shape, so the header of the first, repeated, must stand before every other.
    """
    with _open(path) as file:
        size = file.seek(0, SEEK_END)
        file.seek(0)
        start = file.read(_LONGEST_HEADER)
        if size < _SHORTEST_HEADER and (_MAGIC.startswith(start) or start.startswith(_MAGIC)):
            return range(0), size > 0
        found = _ARRAY_HEADER.match(start)
        if found is None or int.from_bytes(found["size"], "little") != len(found["text"]):
            raise UnreadableRecord(path, "holds no arrays of numpy.save")
        layout = f"{found['dtype'].decode()} {found['shape'].decode()}"
        if found["order"] == b"True" or layout != f"<f8 {shape}":
            raise UnreadableRecord(path, f"holds arrays of {layout}; the op tables say <f8 {shape} in C order")
        first = found.end()
        stride = first + _bytes(shape)
        header = found[0]
        for offset in range(stride, size, stride):
            file.seek(offset)
            if not header.startswith(file.read(first)):
                raise UnreadableRecord(path, f"array {offset // stride}: no array of shape {shape} begins here")
    return range(first, size - _bytes(shape) + 1, stride), size % stride > 0


_MAGIC = npy.magic(1, 0)
_SHORTEST_HEADER = 128
"""`numpy.save` pads the header of a small array to this size."""
_LONGEST_HEADER = 512
_ARRAY_HEADER = re.compile(
    re.escape(_MAGIC)
    + rb"(?P<size>(?s:..))(?P<text>\{'descr': '(?P<dtype>[<>|=]\w+)', 'fortran_order': (?P<order>True|False), "
    + rb"'shape': (?P<shape>\([\d, ]*\)), \} *\n)"
)
"""What `numpy.save` writes for numbers. NumPy's own reader has an exception for every kind of damage."""


def _bytes(shape: tuple[int, int, int]) -> int:
    return math.prod(shape) * 8
