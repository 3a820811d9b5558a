"""A trace as batches of events, at a memory that does not grow with the file.

The array `traceEvents` is cut where one event ends and the next begins. A place is found by its look and proved by the
decoder: what stands before it is a JSON array of whole objects, or the place lies inside a string or an object, and an
earlier one is tried. What cannot be decoded is mended, and after that dropped event by event; the reader counts both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import msgspec

from dlbench.analysis.traces.format import Event, counted
from dlbench.analysis.traces.repair import repaired
from dlbench.analysis.traces.source import Source, UnreadableTrace
from dlbench.errors import one_line

_LONGEST_EVENT = 1 << 20
"""Bytes after which an event without an end is taken to be damaged."""
_LONGEST_METADATA = 1 << 26
_ATTEMPTS = 4
"""Places that are tried to cut a block; in the common case the first is right."""

_NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)
_decode_events = msgspec.json.Decoder(list[Event]).decode
_decode_event = msgspec.json.Decoder(Event).decode
_decode_mapping = msgspec.json.Decoder(dict[str, Any]).decode

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"[\s,]*")
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"?|[{}\[\]]', re.DOTALL)
"""A bracket, or a string, which may lack its end where the text has one."""
_RESUME = re.compile(
    rb',\s*(?=\{\s*"(?:ph|cat|name|ts|pid|tid)"\s*:)'
    rb'|(?=\]\s*,\s*"(?:traceName|displayTimeUnit|baseTimeNanoseconds|distributedInfo|schemaVersion)"\s*:)'
)
"""What the begin of an event, or the end of all, looks like: the way back out of a damaged text."""
_LOST_NUMBER = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d+)')


@dataclass(slots=True)
class _Count:
    """How often something happened, and where first."""

    times: int = 0
    bytes: int = 0
    offset: int = 0

    def add(self, offset: int, times: int = 1, size: int = 0) -> None:
        if not self.times:
            self.offset = offset
        self.times += times
        self.bytes += size


class TraceReader:
    """Reads a trace once: `batches`, then `metadata` and `notes`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        """What stands beside `traceEvents`, before and after it."""
        self._source = Source(path)
        self._dropped = _Count()
        self._mended = _Count()
        self._faults: list[str] = []
        self._ended = False

    def batches(self) -> Iterator[list[Event]]:
        """The events in the order of the file. Raises `UnreadableTrace` where it is no trace at all."""
        blocks = self._source.blocks()
        text = self._head(blocks)
        for block in chain([b""], blocks):
            text += block
            events, used = self._cut(text)
            yield events
            text = text[used:]
            if self._ended:
                self._tail(text, blocks)
                return
        events, used = self._salvage(text, final=True)
        yield events
        if self._ended:
            self._tail(text[used:], blocks)
        else:
            self._fault(f"ends at byte {self._source.size}, {_inside(len(text) - used)}: the file is cut")

    @property
    def notes(self) -> list[str]:
        """What was mended, dropped or lost, one line each, with the file."""
        notes = list(self._faults)
        if self._mended.times:
            what = counted(self._mended.times, "value")
            kinds = "NaN, control characters, broken UTF-8 or escapes"
            notes.append(f"{what} mended ({kinds}), the first at byte {self._mended.offset}")
        if self._dropped.times:
            what = f"{self._dropped.bytes} damaged bytes in {counted(self._dropped.times, 'place')}"
            notes.append(f"{what} dropped, the first at byte {self._dropped.offset}")
        return [one_line(f"{self.path}: {note}") for note in notes]

    def _fault(self, text: str) -> None:
        self._faults.append(f"{text}; {self._source.fault}" if self._source.fault else text)

    def _head(self, blocks: Iterator[bytes]) -> bytes:
        """Read up to the first event; what was read of the events."""
        text = b""
        for block in blocks:
            seen = max(0, len(text) - 64)
            text = text + block if text else block.removeprefix(b"\xef\xbb\xbf")
            first = text[:64].lstrip()[:1]
            if first == b"[":
                return text.lstrip()[1:]
            if first not in (b"{", b""):
                raise UnreadableTrace(self.path, "is no trace; one is a JSON object with traceEvents", 0)
            if found := self._events_key(text, seen):
                return text[found.end() :]
            if len(text) > _LONGEST_METADATA:
                break
        if not text.strip():
            raise UnreadableTrace(self.path, f"is empty; {self._source.fault or 'a trace is a JSON object'}")
        fault = self._source.fault or "the file was cut, or is no trace"
        raise UnreadableTrace(self.path, f"no array traceEvents up to here: {fault}", self._source.size)

    def _events_key(self, text: bytes, seen: int) -> re.Match[bytes] | None:
        """The key of the events, and not one of that name inside of the metadata, which is read on the way."""
        keys = list(_EVENTS_KEY.finditer(text, seen))
        for found in keys:
            mapping = self._mapping(text[: found.start()].rstrip().removesuffix(b",") + b"}", 0)
            if mapping is not None:
                self.metadata |= mapping
                return found
        if keys:
            self._fault("byte 0: the metadata before the events is damaged and was dropped")
            return keys[0]
        return None

    def _tail(self, text: bytes, blocks: Iterator[bytes]) -> None:
        """Read the metadata after the events, where `text` begins behind their bracket."""
        offset = self._source.size - len(text)
        parts = [text]
        size = len(text)
        for block in blocks:
            parts.append(block)
            size += len(block)
            if size > _LONGEST_METADATA:
                break
        text = b"".join(parts).strip().removeprefix(b",")
        mapping = self._mapping(b"{" + text, offset) if text else {}
        if mapping is not None:
            self.metadata |= mapping
            return
        if found := _LOST_NUMBER.search(text):
            self.metadata["baseTimeNanoseconds"] = int(found[1])
        self._fault(f"byte {offset}: the metadata after the events is damaged or cut and was dropped")

    def _mapping(self, text: bytes, offset: int) -> dict[str, Any] | None:
        try:
            return _decode_mapping(text)
        except _NO_JSON:
            mended, times, first = repaired(text)
        try:
            mapping = _decode_mapping(mended)
        except _NO_JSON:
            return None
        self._mended.add(offset + first, times)
        return mapping

    def _cut(self, text: bytes) -> tuple[list[Event], int]:
        """The whole events at the begin of a text, and how many of its bytes they are."""
        commas = list(islice(_commas(text), _ATTEMPTS))
        for comma in commas:
            try:
                return _decode_events(b"[%b]" % text[:comma]), comma + 1
            except _NO_JSON:
                continue
        for comma in commas[:1]:
            mended, times, first = repaired(b"[%b]" % text[:comma])
            try:
                events = _decode_events(mended)
            except _NO_JSON:
                continue
            self._mended.add(self._source.size - len(text) + first - 1, times)
            return events, comma + 1
        return self._salvage(text, final=False)

    def _salvage(self, text: bytes, *, final: bool) -> tuple[list[Event], int]:
        """As `_cut`, one event after the other: to the end of the array or of a cut file, and around damage."""
        offset = self._source.size - len(text)
        events: list[Event] = []
        begin = _skip(text, 0)
        while begin < len(text):
            if text.startswith(b"]", begin):
                self._ended = True
                return events, begin + 1
            end = _object_end(text, begin)
            event = self._event(text[begin:end], offset + begin) if end else None
            if event is not None:
                events.append(event)
            else:
                found = _RESUME.search(text, begin + 1)
                unfinished = not end and len(text) - begin <= _LONGEST_EVENT
                if unfinished and not (final and found):
                    break
                end = min(end or len(text), found.end() if found else len(text))
                self._dropped.add(offset + begin, size=end - begin)
            begin = _skip(text, end)
        return events, begin

    def _event(self, text: bytes, offset: int) -> Event | None:
        try:
            return _decode_event(text)
        except _NO_JSON:
            mended, times, first = repaired(text)
        try:
            event = _decode_event(mended)
        except _NO_JSON:
            return None
        self._mended.add(offset + first, times)
        return event


def _inside(size: int) -> str:
    """Where a file ends whose last `size` bytes are no whole event."""
    return f"inside an event, of which {counted(size, 'byte')} dropped" if size else "before the array of events does"


def _commas(text: bytes) -> Iterator[int]:
    """Commas between two objects, from the last backwards."""
    brace = len(text)
    while (brace := text.rfind(b"{", 0, brace)) > 0:
        before = text[max(0, brace - 64) : brace].rstrip()
        if before.endswith(b",") and before[:-1].rstrip().endswith(b"}"):
            yield text.rfind(b",", 0, brace)


def _skip(text: bytes, position: int) -> int:
    found = _BETWEEN.match(text, position)
    return found.end() if found else position


def _object_end(text: bytes, begin: int) -> int:
    """End of the object that begins here, 0 where there is none, or none that ends in the text."""
    if not text.startswith(b"{", begin):
        return 0
    depth = 0
    for token in _TOKEN.finditer(text, begin):
        if token[0] in (b"{", b"["):
            depth += 1
        elif token[0] in (b"}", b"]"):
            depth -= 1
            if not depth:
                return token.end()
    return 0
