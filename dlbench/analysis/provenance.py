"""On what a campaign ran: machines, libraries and packages of each system, from the headers of its records."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from dlbench.analysis.campaign import Campaign
from dlbench.analysis.columns import counted
from dlbench.errors import one_line
from dlbench.records.reader import iterate
from dlbench.records.schema import Header


@dataclass(slots=True)
class System:
    """What the headers of the runs on one system name."""

    name: str
    runs: int = 0
    hosts: dict[str, None] = field(default_factory=dict)
    found: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Per kind of fact, how many runs name a value."""

    def facts(self) -> Iterator[tuple[str, list[str]]]:
        """Kinds of facts and their values; a value that not every run has says how many do."""
        yield "runs", [f"{self.runs:,}"]
        yield f"hosts ({len(self.hosts)})", sorted(map(one_line, self.hosts))
        for kind, counts in self.found.items():
            yield kind, [_with_count(value, count, self.runs) for value, count in counts.most_common()]


def systems(campaign: Campaign) -> list[System]:
    """One entry per system, in the order of their names; reads the header of every run once more."""
    found: dict[str, System] = {}
    for run, name in campaign.runs["system"].items():
        system = found.setdefault(name, System(one_line(name) or "system not named"))
        _add(system, _header(campaign.paths[cast(int, run)]))
    return [found[name] for name in sorted(found)]


def _header(path: Path) -> Header:
    return cast(Header, next(iterate(path)))


def _add(system: System, header: Header) -> None:
    system.runs += 1
    system.hosts.update(dict.fromkeys(header.hosts))
    for kind, value in _facts(header):
        system.found[kind][value] += 1


def _facts(header: Header) -> Iterator[tuple[str, str]]:
    """Kind and value of what a header says; each pair once."""
    yield "roofline of", str(header.gpu.get("name", ""))
    yield from (("devices", device) for device in dict.fromkeys(header.devices))
    yield "library", header.backend.library
    yield "carried as", f"{header.dtype} in {header.backend.carrier} over {header.backend.name}"
    if header.backend.launcher:
        yield "launcher", header.backend.launcher
    yield from (("packages", f"{name} {version}") for name, version in header.packages.items())
    yield from (("environment", f"{name}={value}") for name, value in header.environment.items())


def _with_count(value: str, count: int, runs: int) -> str:
    text = one_line(value)
    return text if count == runs else f"{text} ({counted(count, 'run')})"
