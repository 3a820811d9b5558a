"""Partitions and the states of their nodes, from what `sinfo` prints.

Read are the default output, with its header or without (`-h`), any other output with a header that names PARTITION,
STATE and NODELIST, and `sinfo -h -o "%P %t %N"`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlbench.errors import UserError
from dlbench.slurm.hostlist import HostListError, expand
from dlbench.slurm.text import read_text

_LONG_NAMES = {
    "allocated": "alloc",
    "completing": "comp",
    "draining": "drng",
    "drained": "drain",
    "failing": "failg",
    "future": "futr",
    "maintenance": "maint",
    "mixed": "mix",
    "planned": "plnd",
    "powered_down": "pow_off",
    "powering_down": "pow_dn",
    "powering_up": "pow_up",
    "reserved": "resv",
    "unknown": "unk",
}
"""States as `sinfo -o %T` writes them, and as `%t` does."""
STATES = (*_LONG_NAMES.values(), "blocked", "boot", "down", "fail", "idle", "inval", "npc", "reboot")
"""States of a node, in sinfo's short form."""

_STATE = re.compile(r"(?P<base>[a-z_]+)(?P<flags>[-*~#!%$@^+]*)")
_HARMLESS_FLAGS = frozenset("-~#")
"""Planned for a later job, powered off until a job wants it, powering up."""
_NO_NODES = "n/a"
"""State that sinfo prints for a partition without nodes, in front of an empty list."""

_COLUMNS = ("PARTITION", "STATE", "NODELIST")
_WITHOUT_HEADER = {3: (0, 1, 2), 6: (0, 4, 5)}
"""Where the three columns are, by the number of columns."""
_EXPECTED = "expected the output of 'sinfo' or of 'sinfo -h -o \"%P %t %N\"'"
_SHOWN_CHARACTERS = 40


class SinfoError(UserError):
    """A text that `sinfo` did not print, or a partition or state that it does not know."""


@dataclass(frozen=True, slots=True)
class State:
    """State of a node."""

    base: str
    """In sinfo's short form, such as `idle`."""
    flags: str = ""
    """Suffixes, such as `*` for a node that does not respond."""

    def __str__(self) -> str:
        return self.base + self.flags

    def meets(self, wanted: State) -> bool:
        """Whether a node in this state is one of those that are wanted.

        Without flags, `idle` asks for nodes that a job gets: it leaves out those that do not respond (`*`), are
        reserved for maintenance (`$`), reboot or power down. With flags it asks for exactly these.
        """
        flags = set(self.flags) == set(wanted.flags) if wanted.flags else set(self.flags) <= _HARMLESS_FLAGS
        return self.base == wanted.base and flags


@dataclass(frozen=True, slots=True)
class Sinfo:
    """Partitions of a cluster."""

    source: str
    partitions: dict[str, dict[str, State]]
    """States of the nodes of each partition, in the order of the output."""
    default: str | None
    """The partition that sinfo marks with a star."""

    def nodes(self, partition: str | None = None, states: Collection[State] | None = None) -> list[str]:
        """Nodes of the partition (None: of all, each once) that are in one of the states (None: in any).

        Raises `SinfoError` for an unknown partition, and where no node meets both.
        """
        if partition is not None and partition not in self.partitions:
            raise SinfoError(f"{self.source}: has no partition {partition!r}; it has {', '.join(self.partitions)}")
        chosen = self.partitions.values() if partition is None else [self.partitions[partition]]
        found = {node: state for nodes in chosen for node, state in nodes.items()}
        if states is None:
            return list(found)
        met = [node for node, state in found.items() if any(map(state.meets, states))]
        if not met:
            asked, there = (", ".join(dict.fromkeys(map(str, group))) for group in (states, found.values()))
            raise SinfoError(f"{self.source}: no node is {asked}; the nodes asked for are {there or 'none'}")
        return met


def read_sinfo(path: Path) -> Sinfo:
    """Partitions of a file or a pipe, as `parse_sinfo`. Raises `UserError`."""
    return parse_sinfo(read_text(path), source=str(path))


def parse_sinfo(text: str, *, source: str) -> Sinfo:
    """Partitions and node states of what `sinfo` printed. Raises `SinfoError` with the line of what is wrong."""
    partitions: dict[str, dict[str, State]] = {}
    default = None
    for place, (partition, state, hosts) in _rows(text, source):
        name = partition.removesuffix("*")
        default = name if name != partition else default
        nodes = partitions.setdefault(name, {})
        if state == _NO_NODES:
            continue
        parsed = _parse_state(place, state)
        for node in _expanded(place, hosts):
            if node in nodes:
                raise SinfoError(f"{place}: node {node} stands in partition {name} twice; {_EXPECTED}")
            nodes[node] = parsed
    if not partitions:
        raise SinfoError(f"{source}: has no partition; {_EXPECTED}")
    return Sinfo(source, partitions, default)


def parse_states(text: str) -> list[State]:
    """States of a list such as `idle,mix,down*`, long forms (`mixed`) included. Raises `SinfoError`."""
    states = [_parse_state("states", name.strip()) for name in text.split(",") if name.strip()]
    for state in states:
        if state.base not in STATES:
            raise SinfoError(f"unknown node state {state.base!r}; valid: {', '.join(sorted(STATES))}")
    if not states:
        raise SinfoError(f"states {text!r}: expected one or more, such as idle,mix")
    return states


def _rows(text: str, source: str) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """File and line, and the partition, the state and the nodes in it."""
    header: tuple[int, ...] | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        place, fields = f"{source}: line {number}", line.split()
        if set(_COLUMNS) <= set(fields):
            header = tuple(map(fields.index, _COLUMNS))
        elif fields:
            yield place, _row(place, fields, header)


def _row(place: str, fields: list[str], header: Sequence[int] | None) -> tuple[str, str, str]:
    if _NO_NODES in fields:
        fields = [*fields, ""]
    columns = header or _WITHOUT_HEADER.get(len(fields))
    if columns is None or max(columns) >= len(fields):
        line = " ".join(fields)
        shown = line if len(line) <= _SHOWN_CHARACTERS else f"{line[:_SHOWN_CHARACTERS]}…"
        raise SinfoError(f"{place}: {_EXPECTED}, found {shown!r}")
    partition, state, hosts = (fields[column] for column in columns)
    return partition, state, hosts


def _parse_state(place: str, text: str) -> State:
    found = _STATE.fullmatch(text.lower())
    if found is None:
        raise SinfoError(f"{place}: expected a node state such as idle or down*, found {text!r}")
    return State(_LONG_NAMES.get(found["base"], found["base"]), found["flags"])


def _expanded(place: str, hosts: str) -> list[str]:
    try:
        return expand(hosts)
    except HostListError as error:
        raise SinfoError(f"{place}: {error}") from None
