"""An independent reading of Chrome's Trace Event Format: whether a trace keeps its rules, and what viewers make of it.

The rules: an object whose first key is traceEvents; M, X, s and f events with their fields; the X events of a track
in order, side by side or one in another; one start and one end to each flow, the start first.
"""

from __future__ import annotations

import gzip
import json
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Event = dict[str, Any]

_FIELDS = {
    "M": {"ph", "name", "pid", "tid", "args"},
    "X": {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"},
    "s": {"ph", "name", "cat", "id", "pid", "tid", "ts"},
    "f": {"ph", "name", "cat", "id", "pid", "tid", "ts", "bp"},
}
_META = {
    "process_name": "name",
    "process_sort_index": "sort_index",
    "thread_name": "name",
    "thread_sort_index": "sort_index",
}


@dataclass(frozen=True)
class Trace:
    """A trace that keeps the rules."""

    events: list[Event]
    other: dict[str, Any]

    def slices(self, rank: int | None = None, cat: str | None = None) -> list[Event]:
        """X events in the order of the file, of one rank or category."""
        return [
            event
            for event in self.events
            if event["ph"] == "X" and rank in (None, event["tid"]) and cat in (None, event["cat"])
        ]

    def ops(self, rank: int | None = None) -> list[Event]:
        """The slices that are ops."""
        return [event for event in self.slices(rank) if "op" in event["args"]]

    def names(self, name: str) -> dict[tuple[int, int], Any]:
        """Value of a kind of metadata, per process and thread that it stands at."""
        return {
            (event["pid"], event["tid"]): event["args"][_META[name]]
            for event in self.events
            if event["ph"] == "M" and event["name"] == name
        }

    def arrows(self, name: str) -> list[tuple[Event, Event]]:
        """The slices that the flows of a name connect: those that began last on their track, as Perfetto binds them.

        An arrow whose end comes before its start is dropped, as Perfetto does.
        """
        open_slices: dict[tuple[int, int], Event] = {}
        starts: dict[tuple[str, str, int], Event] = {}
        found = []
        for event in sorted((event for event in self.events if event["ph"] != "M"), key=lambda event: event["ts"]):
            track = event["pid"], event["tid"]
            if event["ph"] == "X":
                open_slices[track] = event
                continue
            flow = event["cat"], event["name"], event["id"]
            if event["ph"] == "s":
                starts[flow] = open_slices[track]
            elif event["name"] == name and flow in starts:
                found.append((starts[flow], open_slices[track]))
        return found


def checked(path: Path) -> Trace:
    """The trace in a file; the test fails where it breaks a rule."""
    text = (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).decode()
    document = json.loads(text, parse_constant=_not_json)
    assert next(iter(document)) == "traceEvents"
    assert set(document) == {"traceEvents", "otherData"}
    events = document["traceEvents"]
    for event in events:
        _check_fields(event)
    _check_names(events)
    _check_tracks(events)
    _check_flows(events)
    return Trace(events, document["otherData"])


def _not_json(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def _check_fields(event: Event) -> None:
    assert set(event) == _FIELDS[event["ph"]], event
    assert isinstance(event["name"], str) and event["name"], event
    assert all(type(event[key]) is int for key in ("pid", "tid", "id") if key in event), event
    assert all(isinstance(event[key], int | float) and event[key] >= 0 for key in ("ts", "dur") if key in event), event
    assert event.get("bp", "e") == "e"
    if event["ph"] == "M":
        assert list(event["args"]) == [_META[event["name"]]], event


def _check_names(events: list[Event]) -> None:
    named = {name: {event["pid"] for event in events if event["name"] == name} for name in _META}
    threads = [(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"]
    shown = {(event["pid"], event["tid"]) for event in events if event["ph"] != "M"}
    assert len(threads) == len(set(threads))
    assert shown <= set(threads)
    assert named["process_name"] == named["process_sort_index"] == {pid for pid, _ in threads}
    assert not {pid for pid, _ in threads} & {tid for _, tid in threads}, "viewers would take these for main threads"


def _check_tracks(events: list[Event]) -> None:
    tracks: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    for track in tracks.values():
        open_ends: list[int] = []
        previous = 0
        for event in track:
            begin = nanoseconds(event["ts"])
            end = begin + nanoseconds(event["dur"])
            assert begin >= previous, f"{event} begins before the event before it"
            while open_ends and open_ends[-1] <= begin:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1], f"{event} outlasts the event around it"
            open_ends.append(end)
            previous = begin


def _check_flows(events: list[Event]) -> None:
    """Both ends of a flow, each on the bar of its track that began last and goes on: viewers agree on that one."""
    flows: dict[tuple[str, str, int], list[Event]] = defaultdict(list)
    slices: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            flows[event["cat"], event["name"], event["id"]].append(event)
        elif event["ph"] == "X":
            begin = nanoseconds(event["ts"])
            slices[event["pid"], event["tid"]].append((begin, begin + nanoseconds(event["dur"])))
    for flow, ends in flows.items():
        assert sorted(event["ph"] for event in ends) == ["f", "s"], flow
    assert len({number for _, _, number in flows}) == len(flows)
    for event in (event for ends in flows.values() for event in ends):
        moment = nanoseconds(event["ts"])
        track = slices[event["pid"], event["tid"]]
        latest = bisect_right(track, moment, key=lambda borders: borders[0]) - 1
        assert latest >= 0 and moment < track[latest][1], f"{event} lies in no bar"


def nanoseconds(microseconds: float) -> int:
    """A time of the trace in the whole nanoseconds that it was written from."""
    whole = round(microseconds * 1000)
    assert abs(microseconds * 1000 - whole) < 1e-3 * max(1, abs(whole) * 1e-9), f"{microseconds} has parts of ns"
    return whole
