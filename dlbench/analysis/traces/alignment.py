"""From the kernels of each rank to the collectives that they share.

Kernels belong together by process group, and by sequence number in it or else by their order. An order is only a guess
until it is verified: ranks must agree on the operation and the size, and leave at the same time. A group for which they
do not is refused, since a trace that lacks one kernel would set every later one against a wrong partner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlbench.analysis.timeline import ranks_text
from dlbench.analysis.traces.collectives import Collectives
from dlbench.analysis.traces.communication import Communication
from dlbench.analysis.traces.format import UNKNOWN, counted
from dlbench.analysis.traces.kernels import POINT_TO_POINT
from dlbench.analysis.traces.ranks import RankedTrace
from dlbench.analysis.traces.verification import Pairing
from dlbench.errors import UserError, one_line

TOLERANCE = 100e-6
"""Seconds between the first and the last rank to leave a collective. Ranks of one node agree within 10 µs."""

_NANOSECOND = 1e-9
_SHOWN_RANKS = 8
_SHOWN_LOST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """What could be aligned, and what could not."""

    groups: tuple[Collectives, ...]
    kernels: tuple[NDArray[np.int64], ...]
    """Per group, shape (collectives, ranks): place of each among the communication kernels of the rank."""
    refused: tuple[str, ...]
    """Why a group is not among `groups`, one line each."""
    notes: tuple[str, ...]
    """What was left out of `groups`, one line each."""
    lost: tuple[str, ...]
    """What was dropped of traces that have no kernel left, one line each."""
    origin: int
    """Nanoseconds: moment 0 of the times of `groups`, as the traces count them."""

    def require_groups(self) -> Alignment:
        """The alignment itself. Raises `UserError` where no group is in it: why none is, and which kernels it lacks."""
        if self.groups:
            return self
        reasons = (*(self.refused or self.notes or ("no rank has communication kernels",)), *self.lost[:_SHOWN_LOST])
        raise UserError(f"no collectives to compare: {'; '.join(reasons)}")


class _Key(NamedTuple):
    """What the kernels of a group have in common on all its ranks."""

    name: str
    ranks: tuple[int, ...]
    size: int
    operation: str
    """"" where the group has a name: it may perform several."""

    def label(self, description: str) -> str:
        """The group in words."""
        name = description if description not in ("", "undefined") else self.name or self.operation
        who = f"{self.size} ranks" if self.size != UNKNOWN else "all ranks"
        return f"{name} ({_ranks_text(self.ranks) if self.ranks else who})"


class _Member(NamedTuple):
    """Kernels of one rank in a group, by position in the trace."""

    rank: int
    trace: Communication
    rows: NDArray[np.int64]

    def operations(self) -> NDArray[np.object_]:
        return np.array(self.trace.operations, dtype=object)[self.trace.operation[self.rows]]


class _Refused(Exception):
    """A group whose kernels do not belong together as they must."""


def align(traces: Sequence[RankedTrace], *, tolerance: float = TOLERANCE) -> Alignment:
    """Collectives of all groups that at least two of the traces, one per rank, take part in.

    `tolerance` in seconds is how far the ends of a collective may lie apart; ranks of several nodes differ by what
    their clocks do.
    """
    origin = min((int(each.communication.start[0]) for each in traces if len(each.communication.start)), default=0)
    groups: list[Collectives] = []
    kernels: list[NDArray[np.int64]] = []
    refused: list[str] = []
    notes = _messages_left_out(traces)
    ranks = tuple(each.rank for each in traces)
    for label, key, members in _groups(traces):
        try:
            group = _Group(label, key, members, ranks, notes)
            aligned = group.aligned()
            pairing = _paired(aligned, origin, group.numbered)
            if disagreement := pairing.disagreement(tolerance):
                raise _Refused(disagreement)
            groups.append(_collectives(label, aligned, pairing))
            kernels.append(np.stack([member.rows for member in aligned], axis=1))
        except _Refused as reason:
            refused.append(f"{label}: {reason}")
    return Alignment(
        groups=tuple(groups),
        kernels=tuple(kernels),
        refused=tuple(map(one_line, refused)),
        notes=tuple(map(one_line, notes)),
        lost=tuple(
            note for trace in traces if not len(trace.communication.start) for note in trace.communication.notes
        ),
        origin=origin,
    )


def _groups(traces: Sequence[RankedTrace]) -> Iterator[tuple[str, _Key, list[_Member]]]:
    """Label, key and members of every group that performs collectives."""
    adopted = _adopted_ranks(traces)
    members: dict[_Key, list[_Member]] = {}
    descriptions: dict[_Key, str] = {}
    for rank, trace in ((each.rank, each.communication) for each in traces):
        rows: dict[_Key, list[NDArray[np.int64]]] = {}
        for group, operation in np.unique(np.stack([trace.group, trace.operation]), axis=1).T.tolist():
            described, name = trace.groups[group], trace.operations[operation]
            ranks = described.ranks or adopted.get(described.name, ())
            size = max(described.size, len(ranks) or UNKNOWN)
            key = _Key(described.name, ranks, size, "" if described.name else name)
            descriptions.setdefault(key, described.description)
            if name not in POINT_TO_POINT:
                rows.setdefault(key, []).append(np.flatnonzero((trace.group == group) & (trace.operation == operation)))
        for key, parts in rows.items():
            members.setdefault(key, []).append(_Member(rank, trace, np.sort(np.concatenate(parts))))
    for key, those in members.items():
        yield key.label(descriptions[key]), key, those


def _messages_left_out(traces: Sequence[RankedTrace]) -> list[str]:
    """A note on kernels that are no collectives: they know two ranks of a group only."""
    count = 0
    for trace in (each.communication for each in traces):
        codes = [code for code, name in enumerate(trace.operations) if name in POINT_TO_POINT]
        count += int(np.isin(trace.operation, codes).sum())
    return [f"{counted(count, 'point-to-point kernel')} left out: no collectives"] if count else []


def _adopted_ranks(traces: Sequence[RankedTrace]) -> dict[str, tuple[int, ...]]:
    """Ranks by name of a group, where all traces that know them agree: for kernels and traces that do not."""
    known: dict[str, set[tuple[int, ...]]] = {}
    for trace in traces:
        for group in trace.communication.groups:
            if group.name and group.ranks:
                known.setdefault(group.name, set()).add(group.ranks)
    return {name: next(iter(ranks)) for name, ranks in known.items() if len(ranks) == 1}


class _Group(NamedTuple):
    """A group before its kernels are aligned."""

    label: str
    key: _Key
    members: list[_Member]
    traced: tuple[int, ...]
    """Ranks that have a trace, whether they are members or not."""
    notes: list[str]

    @property
    def numbered(self) -> bool:
        """Whether all kernels have a sequence number."""
        return all((member.trace.seq[member.rows] != UNKNOWN).all() for member in self.members)

    def aligned(self) -> list[_Member]:
        """Members whose rows belong together one by one. Notes what is left out; raises `_Refused`."""
        self._check_ranks()
        return self._by_seq() if self.numbered else self._by_index()

    def _check_ranks(self) -> None:
        there = [member.rank for member in self.members]
        if not self.key.name and 0 < self.key.size < len(there):
            raise _Refused(
                f"{len(there)} ranks have kernels of groups of {self.key.size}, which name neither group nor ranks: "
                "the groups cannot be told apart"
            )
        if len(there) < 2:  # noqa: PLR2004
            raise _Refused(f"only rank {there[0]} has kernels of it here; two at least are needed")
        if strangers := set(there) - set(self.key.ranks or there):
            raise _Refused(f"rank {min(strangers)} has kernels of it, but is none of its ranks")
        if len(there) < self.key.size:
            self.notes.append(
                f"{self.label}: {len(there)} of its {self.key.size} ranks have kernels of it here, so the tax is a "
                "lower bound"
            )
        elif self.key.size == UNKNOWN and (absent := sorted(set(self.traced) - set(there))):
            self.notes.append(
                f"{self.label}: {len(absent)} of {len(self.traced)} traces have no kernels of it, the first that of "
                f"rank {absent[0]}; if it takes part, the tax is a lower bound"
            )

    def _by_seq(self) -> list[_Member]:
        """Kernels with the same sequence number; of several with one number, those at the same place among them."""
        numbered = [dict(zip(_occurrences(member), member.rows.tolist(), strict=True)) for member in self.members]
        everywhere = set.intersection(*(set(rows) for rows in numbered))
        anywhere = set.union(*(set(rows) for rows in numbered))
        if not everywhere:
            raise _Refused("no sequence number is in the traces of all its ranks")
        if partial := sorted(anywhere - everywhere):
            lacking = next(
                member.rank for member, rows in zip(self.members, numbered, strict=True) if partial[0] not in rows
            )
            self.notes.append(
                f"{self.label}: {len(partial)} of {len(anywhere)} collectives lack a rank and were left out, the first "
                f"with Seq {partial[0][0]} on rank {lacking}"
            )
        order = sorted(everywhere)
        return [
            member._replace(rows=np.array([rows[number] for number in order]))
            for member, rows in zip(self.members, numbered, strict=True)
        ]

    def _by_index(self) -> list[_Member]:
        """Kernels with the same index, as far as all ranks have one."""
        counts = [len(member.rows) for member in self.members]
        if min(counts) != max(counts):
            fewest = self.members[int(np.argmin(counts))].rank
            fewer = f"rank {fewest} has {counted(min(counts), 'collective')}, others up to {max(counts)}"
            self.notes.append(f"{self.label}: {fewer}; those beyond were left out")
        return [member._replace(rows=member.rows[: min(counts)]) for member in self.members]


def _occurrences(member: _Member) -> list[tuple[int, int]]:
    """Sequence number of each kernel, and how many kernels had it before."""
    seen: Counter[int] = Counter()
    found = []
    for seq in member.trace.seq[member.rows].tolist():
        found.append((seq, seen[seq]))
        seen[seq] += 1
    return found


def _paired(members: list[_Member], origin: int, numbered: bool) -> Pairing:
    """Kernels of members whose rows belong together, beside each other."""
    return Pairing(
        ranks=tuple(member.rank for member in members),
        operations=np.stack([member.operations() for member in members], axis=1),
        sizes=np.stack([member.trace.bytes[member.rows] for member in members], axis=1),
        starts=np.stack([member.trace.start[member.rows] for member in members], axis=1) - origin,
        ends=np.stack([member.trace.end[member.rows] for member in members], axis=1) - origin,
        numbered=numbered,
    )


def _collectives(label: str, members: list[_Member], pairing: Pairing) -> Collectives:
    first = members[0]
    names = np.array(first.trace.names, dtype=object)[first.trace.name[first.rows]]
    resolution = max(member.trace.resolution for member in members)
    return Collectives(
        group=label,
        ranks=pairing.ranks,
        operations=tuple(pairing.operations[:, 0].tolist()),
        names=tuple(names.tolist()),
        bytes=pairing.sizes.max(axis=1),
        enter=np.multiply(pairing.starts, _NANOSECOND, dtype=np.float64),
        leave=np.multiply(pairing.ends, _NANOSECOND, dtype=np.float64),
        error=np.full(pairing.ends.shape, resolution * _NANOSECOND),
    )


def _ranks_text(ranks: tuple[int, ...]) -> str:
    steps = {following - rank for rank, following in pairwise(ranks)}
    if len(steps) <= 1 and min(steps, default=1) > 0:
        step = min(steps, default=1)
        return ranks_text(range(ranks[0], ranks[-1] + 1, step))
    shown = ",".join(map(str, ranks[:_SHOWN_RANKS]))
    return shown + (f",… {len(ranks)} in all" if len(ranks) > _SHOWN_RANKS else "")
