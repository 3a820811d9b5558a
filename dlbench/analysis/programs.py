"""What the ranks of a recorded run do, from the op tables of its header, and which of their ops belong together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dlbench.records.reader import UnreadableRecord
from dlbench.records.schema import Header, OpEntry


class Place(NamedTuple):
    """Op number `op`, from 0, of a rank."""

    rank: int
    op: int


class Link(NamedTuple):
    """Two ops of which the one completes the other."""

    start: Place
    end: Place


class Programs:
    """The programs of all ranks. Raises `RecordError` where the op tables do not name every rank once."""

    def __init__(self, path: Path, header: Header) -> None:
        named = sum(len(table.ranks) for table in header.op_tables)
        self._ops = {rank: table.ops for table in header.op_tables for rank in table.ranks}
        # The number first: a damaged world size can be larger than any memory.
        if named != header.world_size or set(self._ops) != set(range(named)):
            raise UnreadableRecord(path, f"op_tables must name each of the {header.world_size} ranks once")
        self._groups = header.groups

    def of(self, rank: int) -> Sequence[OpEntry]:
        """The ops of a rank in order."""
        return self._ops[rank]

    def group(self, scope: str, rank: int) -> range:
        """World ranks of the group of `rank`, in group order; empty where the record does not say."""
        group = self._groups.get(scope)
        if group is None:
            return range(0)
        first = rank - rank // group.stride % group.size * group.stride
        return range(first, first + group.size * group.stride, group.stride)

    def peer(self, entry: OpEntry, rank: int) -> int | None:
        """World rank that a send or receive of `rank` talks to; None where the record does not say."""
        if entry.peer < 0:
            return None
        group = self.group(entry.scope, rank)
        return group[entry.peer] if entry.peer < len(group) else None

    def messages(self, ranks: Iterable[int]) -> Iterator[Link]:
        """From each send to its receive: within a scope, the k-th from a rank to another is the k-th received there."""
        sends: dict[tuple[str, int, int], list[Place]] = {}
        receives: dict[tuple[str, int, int], list[Place]] = {}
        for rank in ranks:
            for number, entry in enumerate(self.of(rank)):
                peer = self.peer(entry, rank)
                if peer is None:
                    continue
                if entry.op == "send":
                    sends.setdefault((entry.scope, rank, peer), []).append(Place(rank, number))
                elif entry.op == "recv":
                    receives.setdefault((entry.scope, peer, rank), []).append(Place(rank, number))
        for route, starts in sends.items():
            yield from map(Link, starts, receives.get(route, []))

    def requests(self, ranks: Iterable[int]) -> Iterator[Link]:
        """From the start of each non-blocking communication to the wait that completes it."""
        for rank in ranks:
            started: dict[str, Place] = {}
            for number, entry in enumerate(self.of(rank)):
                place = Place(rank, number)
                if not entry.blocking:
                    started[entry.name] = place
                yield from (Link(started.pop(name), place) for name in entry.requests if name in started)


def communication_class(entry: OpEntry) -> str:
    """Communication class, `operation/scope`, as in the times of the record."""
    return f"{entry.op}/{entry.scope}"
