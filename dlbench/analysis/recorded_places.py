"""Where the collectives of a run stand in the programs of its ranks.

Collectives belong together by operation, scope and their place among those: MPI performs the collectives of a
communicator in one order on all ranks. A blocking collective is entered and left with its op; a non-blocking one is
entered with the op that starts it, and left with the wait that completes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlbench.analysis.programs import Programs, communication_class
from dlbench.errors import one_line
from dlbench.records.reader import Record, UnreadableRecord
from dlbench.records.schema import OpEntry

_NO_COLLECTIVE = frozenset({"compute", "wait", "send", "recv"})
_MOST_ELEMENTS = 2**60
"""Sizes in bytes have 64 bits."""


class _Performed(NamedTuple):
    """A collective in the program of a rank: the numbers of the ops that enter and that leave it."""

    entry: OpEntry
    enter: int
    leave: int


class Places(NamedTuple):
    """Where the times of a group's collectives stand in an ops array; arrays of shape (collectives, ranks)."""

    name: str
    scope: str
    ranks: range
    entries: list[OpEntry]
    enter: NDArray[np.int64]
    leave: NDArray[np.int64]

    def times(self, array: NDArray[np.float64]) -> NDArray[np.float64]:
        """Enter, leave and begin of the waiting in one iteration, shape (3, collectives, ranks)."""
        ranks = np.array(self.ranks)
        return np.stack([array[ranks, self.enter, 0], array[ranks, self.leave, 1], array[ranks, self.leave, 0]])


def places(record: Record, programs: Programs) -> Iterator[Places]:
    """The collectives of every class and group of several ranks. Ranks of a table run one program: it is read once."""
    performed: dict[int, dict[str, list[_Performed]]] = {}
    for table in record.header.op_tables:
        performed |= dict.fromkeys(table.ranks, _performed(record.path, programs, table.ranks[:1]))
    classes = dict.fromkeys(name for rank in sorted(performed) for name in performed[rank])
    for name in classes:
        scope = name.partition("/")[2]
        for rank in range(record.header.world_size):
            group = programs.group(scope, rank)
            if not group or group[-1] >= record.header.world_size:
                raise UnreadableRecord(record.path, f"groups do not say who is in a group of scope {scope!r}")
            if rank == group[0] and len(group) > 1:
                yield from _place(record.path, name, group, [performed[member].get(name, []) for member in group])


def _performed(path: Path, programs: Programs, ranks: list[int]) -> dict[str, list[_Performed]]:
    """Collectives of the first of the ranks, by class; nothing where there is no rank."""
    found: dict[str, list[_Performed]] = {}
    for rank in ranks:
        ends = {link.start.op: link.end.op for link in programs.requests([rank])}
        for number, entry in enumerate(programs.of(rank)):
            if entry.op in _NO_COLLECTIVE:
                continue
            if not entry.blocking and number not in ends:
                raise UnreadableRecord(path, f"op {number} of rank {rank} starts a collective that no wait completes")
            if abs(entry.elements) >= _MOST_ELEMENTS:
                raise UnreadableRecord(
                    path, f"op {number} of rank {rank} has {entry.elements} elements: no message has"
                )
            end = number if entry.blocking else ends[number]
            found.setdefault(one_line(communication_class(entry)), []).append(_Performed(entry, number, end))
    return found


def _place(path: Path, name: str, group: range, members: list[list[_Performed]]) -> Iterator[Places]:
    """Where the times of the group stand; nothing where none of its ranks performs any."""
    counts = [len(member) for member in members]
    if min(counts) != max(counts):
        few, many = counts.index(min(counts)), counts.index(max(counts))
        raise UnreadableRecord(
            path,
            f"rank {group[few]} performs {counts[few]} of {name}, rank {group[many]} of its group {counts[many]}; "
            "ranks of a group perform the same collectives",
        )
    if members[0]:
        yield Places(
            name=name,
            scope=name.partition("/")[2],
            ranks=group,
            entries=[each.entry for each in members[0]],
            enter=np.array([[each.enter for each in member] for member in members]).T,
            leave=np.array([[each.leave for each in member] for member in members]).T,
        )
