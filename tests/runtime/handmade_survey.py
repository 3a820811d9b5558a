"""What sound ranks would have found, made by hand, for tests to spoil."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dlbench.runtime.machine.options import Asked
from dlbench.runtime.machine.survey import ClockOffset, DeviceFacts, Hop, Lap, RankFacts, Survey
from dlbench.runtime.machine.verdict import Finding, judge

GB = 10**9
VERSIONS = {"dlbench": "1.0", "Python": "3.12.1", "NumPy": "2.1.0", "mpi4py": "4.0.1", "MPI": "MPICH Version: 5.0.2"}


def survey(hosts: Sequence[str] = ("n1", "n1", "n2", "n2"), **changes: Mapping[int, Mapping[str, Any]]) -> Survey:
    """A survey of a rank per entry of `hosts`, each bound to a core of its own.

    `changes` are facts, hops or clocks by rank: `facts={3: {"memory": None}}`.
    """
    facts = []
    for rank, host in enumerate(hosts):
        local = hosts[:rank].count(host)
        usual = RankFacts(
            rank=rank,
            host=host,
            boot=f"boot of {host}",
            versions=VERSIONS,
            source="/opt/dlbench",
            source_hash="" if local else "abc",
            cores=(local,),
            memory=None if local else 100 * GB,
            devices=DeviceFacts(),
        )
        facts.append(msgspec.structs.replace(usual, **changes.get("facts", {}).get(rank, {})))
    ranks = len(hosts)
    laps = []
    for rank in range(ranks):
        hop = Hop(sender=rank, receiver=(rank + 1) % ranks, latency=2e-6, bandwidth=10e9)
        hop = msgspec.structs.replace(hop, **changes.get("hops", {}).get(rank, {}))
        laps.append(msgspec.structs.replace(Lap(hop=hop), **changes.get("laps", {}).get(rank, {})))
    clocks = [
        ClockOffset(**{"offset": 0.0, "uncertainty": 1e-5, **changes.get("clocks", {}).get(rank, {})})
        for rank in range(ranks)
    ]
    return Survey(facts=tuple(facts), laps=tuple(laps), clocks=tuple(clocks))


def lines(found: Survey, **asked: Any) -> list[str]:
    """Findings as `severity check: message`."""
    return [f"{finding.severity} {finding.check}: {finding.message}" for finding in judged(found, **asked)]


def judged(found: Survey, **asked: Any) -> list[Finding]:
    """All findings."""
    return judge(found, Asked(**asked))
