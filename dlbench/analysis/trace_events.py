"""Chrome's Trace Event Format: the events that Perfetto and chrome://tracing draw, and the file that holds them.

Times are microseconds, with a fraction: the format counts so, whatever a viewer shows.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from dlbench.analysis.writing import new_file


class Slice(msgspec.Struct, frozen=True, tag="X", tag_field="ph"):
    """A complete event: a bar on the track of a thread. Bars of a track lie side by side or one in another."""

    name: str
    cat: str
    """Categories, separated by commas."""
    pid: int
    tid: int
    ts: float
    dur: float
    args: dict[str, Any]


class ArrowStart(msgspec.Struct, frozen=True, tag="s", tag_field="ph"):
    """Start of a flow: the arrow leaves the bar of its track that began last. Both ends share name, cat and id."""

    name: str
    cat: str
    id: int
    pid: int
    tid: int
    ts: float


class ArrowEnd(msgspec.Struct, frozen=True, tag="f", tag_field="ph"):
    """End of a flow, on the bar around it; it must come later than the start, or Perfetto drops the arrow."""

    name: str
    cat: str
    id: int
    pid: int
    tid: int
    ts: float
    bp: str = "e"
    """Binding point: the enclosing bar, not the next one."""


class Metadata(msgspec.Struct, frozen=True, tag="M", tag_field="ph"):
    """Name or place of a process or thread: process_name, process_sort_index, thread_name, thread_sort_index."""

    name: str
    pid: int
    tid: int
    args: dict[str, Any]


Event = Slice | ArrowStart | ArrowEnd | Metadata


class TraceFile:
    """Writes events as they come, one a line; `write` takes the bytes."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._encode = msgspec.json.Encoder().encode
        # The events come first: some Perfettos stop reading at a key that they do not know.
        self._before = b'{"traceEvents":[\n'

    def add(self, event: Event) -> None:
        """Append an event. Those of one track that begin together nest in this order."""
        self._write(self._before + self._encode(event))
        self._before = b",\n"

    def close(self, other: dict[str, Any]) -> None:
        """End the trace with what viewers show beside the events."""
        self._write(b'\n],"otherData":' + self._encode(other) + b"}\n")


@contextmanager
def new_trace(path: Path) -> Iterator[TraceFile]:
    """A trace that stands under its name once it is whole, compressed where that ends in `.gz`.

    Raises `OptionError` where it cannot be written; then, as after every other error, what stood there before stays.
    """
    with new_file(path) as file:
        if path.suffix == ".gz":
            with gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as compressed:
                yield TraceFile(compressed.write)
        else:
            yield TraceFile(file.write)
