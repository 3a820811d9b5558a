"""The topology of a SLURM cluster, from what `scontrol show topology` prints or from its `topology.conf`.

Both are lines of `SwitchName=NAME` with `Nodes=` (a leaf switch, here an L1 switch) or `Switches=` (a switch of
switches); the former lists the nodes of these as well.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from dlbench.allocators.topology import Group, Switch, Topology, TopologyError
from dlbench.slurm.hostlist import HostListError, expand
from dlbench.slurm.text import read_text

TOP = "top"
"""Name of the group of leaf switches that stand under no other switch."""

_KEYS = {key.lower(): key for key in ("SwitchName", "Nodes", "Switches", "Level", "LinkSpeed")}
_PAIR = re.compile(r"""\s*(?P<key>[A-Za-z]+)\s*=\s*(?:"(?P<quoted>[^"]*)"|(?P<plain>[^\s="]*))(?=\s|$)""")
_EXPECTED = "expected 'SwitchName=NAME Nodes=LIST' or 'SwitchName=NAME Switches=LIST'"
_SHOWN_CHARACTERS = 40
_SHOWN_NAMES = 5


@dataclass(frozen=True, slots=True)
class _Line:
    """What the file says of one switch."""

    place: str
    """File and line number, for errors."""
    name: str
    nodes: tuple[str, ...]
    switches: tuple[str, ...]
    """Switches beneath it; none for a leaf switch."""


def read_topology(path: Path, *, gpus_per_node: int) -> Topology:
    """Topology of a file or a pipe, as `parse_topology`; its name is the path. Raises `UserError`."""
    return parse_topology(read_text(path), gpus_per_node=gpus_per_node, source=str(path))


def parse_topology(text: str, *, gpus_per_node: int, source: str) -> Topology:
    """Topology, named `source`, of what `scontrol show topology` prints or of a `topology.conf`.

    A group is what hangs on a switch just above leaf switches, whatever is higher in the tree. Leaf switches under no
    other switch form one group, `TOP`. Nodes under several leaf switches hang on these together: on a switch named
    `a+b`; likewise a group under several switches. Switches and groups stand in the order of the leaf switches.

    Raises `TopologyError` with the line of what is wrong, counted from 1.
    """
    lines = _by_name(_line(f"{source}: line {number}", line) for number, line in _logical_lines(text))
    leaves = [line for line in lines.values() if not line.switches]
    if not leaves:
        raise TopologyError(f"{source}: has no switch with nodes; {_EXPECTED}")
    _check_tree(lines)
    parents: dict[str, list[str]] = {line.name: [] for line in leaves}
    for line in lines.values():
        for below in line.switches:
            if below in parents:
                parents[below].append(line.name)
    return Topology(source, tuple(_groups(leaves, parents)), gpus_per_node)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with content, without comments and with those that a backslash continues in one, by their first number."""
    first, whole = 0, ""
    for number, line in enumerate(text.splitlines(), start=1):
        first = first if whole else number
        content = line.partition("#")[0].rstrip()
        whole += content.removesuffix("\\")
        if not content.endswith("\\"):
            if whole.strip():
                yield first, whole
            whole = ""
    if whole.strip():
        yield first, whole


def _line(place: str, text: str) -> _Line:
    pairs: dict[str, str] = {}
    for key, value in _pairs(place, text):
        if key.lower() not in _KEYS:
            raise TopologyError(f"{place}: unknown key {key}; {_did_you_mean(key, list(_KEYS.values()))}")
        if key.lower() in pairs:
            raise TopologyError(f"{place}: {_KEYS[key.lower()]} stands twice; write it once")
        pairs[key.lower()] = value
    name = pairs.get("switchname", "")
    nodes = _expanded(place, "Nodes", pairs.get("nodes", ""))
    switches = _expanded(place, "Switches", pairs.get("switches", ""))
    if not name or not (nodes or switches):
        raise TopologyError(f"{place}: has no {'Nodes or Switches' if name else 'SwitchName'}; {_EXPECTED}")
    return _Line(place, name, nodes, switches)


def _pairs(place: str, text: str) -> Iterator[tuple[str, str]]:
    end = 0
    while text[end:].strip():
        found = _PAIR.match(text, end)
        if found is None:
            rest = text[end:].strip()
            shown = rest if len(rest) <= _SHOWN_CHARACTERS else f"{rest[:_SHOWN_CHARACTERS]}…"
            raise TopologyError(f"{place}: {_EXPECTED}, found {shown!r}")
        yield found["key"], found["plain"] if found["quoted"] is None else found["quoted"]
        end = found.end()


def _expanded(place: str, key: str, hosts: str) -> tuple[str, ...]:
    try:
        names = tuple(expand(hosts))
    except HostListError as error:
        raise TopologyError(f"{place}: at {key}: {error}") from None
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise TopologyError(f"{place}: {key} has {twice} twice; name it once")
    return names


def _by_name(lines: Iterator[_Line]) -> dict[str, _Line]:
    found: dict[str, _Line] = {}
    for line in lines:
        if earlier := found.get(line.name):
            raise TopologyError(f"{line.place}: switch {line.name} has a line already; merge it with {earlier.place}")
        found[line.name] = line
    return found


def _check_tree(lines: dict[str, _Line]) -> None:
    """Every switch beneath another has a line, none is beneath itself, and nodes listed above stand below as well."""
    for line in lines.values():
        for below in line.switches:
            if below not in lines:
                hint = _did_you_mean(below, list(lines))
                raise TopologyError(f"{line.place}: Switches names {below}, which has no line; {hint}")
    try:
        order = list(TopologicalSorter({name: line.switches for name, line in lines.items()}).static_order())
    except CycleError as error:
        cycle = " > ".join(reversed(error.args[1]))
        raise TopologyError(f"{lines[error.args[1][0]].place}: a switch is beneath itself: {cycle}") from None
    _check_nodes(map(lines.__getitem__, order))


def _check_nodes(lines: Iterable[_Line]) -> None:
    """Every node listed for a switch of switches hangs beneath it; the lines come from the leaves up."""
    nodes_below: dict[str, set[str]] = {}
    for line in lines:
        beneath = {node for name in line.switches for node in nodes_below[name]}
        if line.switches and (strays := [node for node in line.nodes if node not in beneath]):
            raise TopologyError(
                f"{line.place}: {strays[0]} is under {line.name} but under none of its Switches; "
                "name it in the Nodes of one of them"
            )
        nodes_below[line.name] = beneath or set(line.nodes)


def _groups(leaves: Sequence[_Line], parents: dict[str, list[str]]) -> Iterator[Group]:
    hung_on: dict[str, list[str]] = {}
    for leaf in leaves:
        for node in leaf.nodes:
            hung_on.setdefault(node, []).append(leaf.name)
    groups: dict[tuple[str, ...], dict[tuple[str, ...], list[str]]] = {}
    for node, pair in hung_on.items():
        above = tuple(dict.fromkeys(parent for switch in pair for parent in parents[switch]))
        groups.setdefault(above, {}).setdefault(tuple(pair), []).append(node)
    for names, members in groups.items():
        switches = tuple(Switch("+".join(on), tuple(nodes)) for on, nodes in members.items())
        yield Group("+".join(names) or TOP, switches)


def _did_you_mean(name: str, valid: list[str]) -> str:
    close = difflib.get_close_matches(name, valid, n=1)
    return (
        f"did you mean {close[0]}?"
        if close
        else f"valid are {', '.join(valid[:_SHOWN_NAMES])}{', …' * (len(valid) > _SHOWN_NAMES)}"
    )
