"""What is wrong with a machine, from what its ranks have found: pure functions of the facts, each with its findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Literal

import msgspec

from dlbench.quantities import duration, si
from dlbench.runtime.machine.devices import devices_of, visible
from dlbench.runtime.machine.options import CLOCK_FAILS_SECONDS, Asked
from dlbench.runtime.machine.survey import Hop, RankFacts, Survey, compressed_ranks

_OUTLIER_RATIO = 3.0
_OUTLIER_DEVIATIONS = 6.0
_NORMAL_DEVIATION = 1.4826
"""Standard deviations of a normal distribution per median absolute deviation."""
_LITTLE_MEMORY = 0.5
"""Of the median over the hosts."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong, or looks as if."""

    severity: Literal["error", "warning"]
    check: str
    message: str
    rank: int | None = None
    host: str | None = None


def judge(survey: Survey, asked: Asked) -> list[Finding]:
    """All findings, the errors first."""
    found = [
        *check_allocation(survey, asked),
        *check_ring(survey),
        *check_links(survey),
        *check_ranks_per_node(survey, asked),
        *check_rank_order(survey),
        *check_hosts(survey),
        *check_devices(survey),
        *check_clocks(survey, asked.clock_limit),
        *check_versions(survey),
        *check_memory(survey),
        *check_cores(survey),
    ]
    return sorted(found, key=lambda finding: finding.severity)


def check_allocation(survey: Survey, asked: Asked) -> Iterator[Finding]:
    """A part of the allocation that no rank is on."""
    ranks, hosts = len(survey.facts), len(survey.hosts)
    if asked.tasks is not None and asked.tasks != ranks:
        yield _warning("world size", f"{_count(ranks, 'rank')}, but the allocation is for {asked.tasks} (SLURM_NTASKS)")
    if asked.nodes is not None and asked.nodes > hosts:
        yield _warning("world size", f"the ranks are on {_count(hosts, 'host')}, but the allocation has {asked.nodes}")


def check_ring(survey: Survey) -> Iterator[Finding]:
    """Messages that arrived with other content than was sent."""
    for fault in (fault for lap in survey.laps for fault in lap.faults):
        link = f"{survey.who(fault.sender)} → {survey.who(fault.receiver)}"
        wrong = f"{fault.count} of {fault.size} bytes are wrong, the first is byte {fault.byte}"
        yield _error("ring", f"{link} corrupts messages: {wrong}", survey, fault.receiver)


def check_links(survey: Survey) -> Iterator[Finding]:
    """Links far slower than others of their kind: within a host, or between hosts.

    A link is an outlier where it takes more than 3 times the median, and lies more than 6 standard deviations above
    it, estimated from the median absolute deviation. Times are compared, so a bandwidth enters by its inverse. Where
    ranks take turns on cores the times are those of the scheduler, and are not judged.
    """
    crowded = {host.name for host in survey.hosts if host.crowded}
    timed = [lap.hop for lap in survey.laps if lap.hop and not crowded.intersection(_ends(survey, lap.hop))]
    for inside in (True, False):
        hops = [hop for hop in timed if (len(_ends(survey, hop)) == 1) == inside]
        kind = "within hosts" if inside else "between hosts"
        for hop, usual in outliers(hops, [hop.latency for hop in hops]):
            yield _slow(survey, hop, f"latency {duration(hop.latency)}, median of the links {kind} {duration(usual)}")
        for hop, usual in outliers(hops, [1 / hop.bandwidth for hop in hops]):
            bandwidth = f"bandwidth {si(hop.bandwidth, 'B/s')}"
            yield _slow(survey, hop, f"{bandwidth}, median of the links {kind} {si(1 / usual, 'B/s')}")


def outliers(hops: Sequence[Hop], times: Sequence[float]) -> Iterator[tuple[Hop, float]]:
    """Hops whose time stands out above the others', with the median time."""
    if not hops:
        return
    usual = median(times)
    deviation = _NORMAL_DEVIATION * median(abs(time - usual) for time in times)
    for hop, time in zip(hops, times, strict=True):
        if time > _OUTLIER_RATIO * usual and time - usual > _OUTLIER_DEVIATIONS * deviation:
            yield hop, usual


def check_ranks_per_node(survey: Survey, asked: Asked) -> Iterator[Finding]:
    """Hosts with another number of ranks than was asked for, or than most have. The last one may have the rest."""
    counts = [len(host.ranks) for host in survey.hosts]
    wanted = asked.ranks_per_node or Counter(counts).most_common(1)[0][0]
    rest = len(survey.facts) % wanted
    for host, count in zip(survey.hosts, counts, strict=True):
        if count == wanted or (count == rest and host is survey.hosts[-1]):
            continue
        has = f"host {host.name} has {_ranks(host.numbers)}"
        if asked.ranks_per_node:
            yield _error("ranks per node", f"{has}, asked for were {wanted} per node", survey, host.numbers[0])
        else:
            yield _warning("ranks per node", f"{has}, most hosts have {wanted}", survey, host.numbers[0])


def check_rank_order(survey: Survey) -> Iterator[Finding]:
    """Hosts whose ranks do not follow each other: groups that should share a node would not."""
    for host in survey.hosts:
        first, last = host.numbers[0], host.numbers[-1]
        if last - first >= len(host.ranks):
            yield _error(
                "rank order",
                f"host {host.name} has {_ranks(host.numbers)}: ranks must follow each other on a host; "
                "use srun -m block, mpiexec -ppn, or mpiexec --map-by core",
                survey,
                first,
            )


def check_hosts(survey: Survey) -> Iterator[Finding]:
    """Machines that share a name, and names that share a machine."""
    first_of: dict[str, RankFacts] = {}
    names: dict[str, list[str]] = {}
    for facts in survey.facts:
        if not facts.boot:
            continue
        first = first_of.setdefault(facts.host, facts)
        if first.boot != facts.boot:
            message = f"{survey.who(facts.rank)} is on another machine than rank {first.rank}, of the same name"
            yield _error("hosts", message, survey, facts.rank)
        members = names.setdefault(facts.boot, [])
        if facts.host not in members:
            members.append(facts.host)
    for members in names.values():
        if len(members) > 1:
            yield _warning("hosts", f"{_listed(members)} are one machine: their ranks share its cores and its network")


def check_devices(survey: Survey) -> Iterator[Finding]:
    """GPUs with several ranks, ranks without a GPU beside ranks with one, and variables that name what is not there."""
    somewhere = any(any(devices_of(host)) for host in survey.hosts)
    for host in survey.hosts:
        users: dict[str, list[RankFacts]] = {}
        for facts, device in zip(host.ranks, devices_of(host), strict=True):
            seen = visible(facts.devices)
            if seen.problem:
                yield _error("devices", f"{survey.who(facts.rank)}: {seen.problem}", survey, facts.rank)
            elif somewhere and not device:
                yield _error("devices", f"{survey.who(facts.rank)} sees no GPU{_why(facts)}", survey, facts.rank)
            if device:
                users.setdefault(device, []).append(facts)
        for device, members in users.items():
            if len(members) > 1:
                yield _shared(survey, device, members)


def check_clocks(survey: Survey, limit: float) -> Iterator[Finding]:
    """Hosts whose wall clock is beyond doubt further from rank 0's than the limit."""
    for host in survey.hosts:
        clock = survey.clocks[host.numbers[0]]
        off = abs(clock.offset) - clock.uncertainty
        if off <= min(limit, CLOCK_FAILS_SECONDS):
            continue
        report = _error if off > CLOCK_FAILS_SECONDS else _warning
        direction = "ahead of" if clock.offset > 0 else "behind"
        yield report(
            "clock",
            f"the clock of host {host.name} is {duration(abs(clock.offset))} {direction} that of rank 0, "
            f"± {duration(clock.uncertainty)}: slowdowns compare times of day, so let NTP or chrony set it",
            survey,
            host.numbers[0],
        )


def check_versions(survey: Survey) -> Iterator[Finding]:
    """Ranks whose software differs from that of most ranks."""
    for name in survey.facts[0].versions:
        yield from _odd(survey, name, [facts.versions.get(name, "none") for facts in survey.facts])
    hashes: dict[tuple[str, str], str] = {}
    for facts in survey.facts:
        if facts.source_hash:
            hashes[facts.host, facts.source] = facts.source_hash
    contents = [hashes.get((facts.host, facts.source), "unknown")[:12] for facts in survey.facts]
    yield from _odd(survey, "content of the package dlbench, SHA-256", contents)
    for finding in _odd(survey, "folder of the package dlbench", [facts.source for facts in survey.facts]):
        yield msgspec.structs.replace(finding, severity="warning")


def check_memory(survey: Survey) -> Iterator[Finding]:
    """Hosts with far less free memory than the others: something else runs there, or has left files in memory."""
    known = [(host, host.memory) for host in survey.hosts if host.memory is not None]
    usual = median(memory for _, memory in known) if known else 0
    for host, memory in known:
        if memory < _LITTLE_MEMORY * usual:
            message = f"host {host.name} has {si(memory, 'B')} of memory available, the median is {si(usual, 'B')}"
            yield _warning("memory", message, survey, host.numbers[0])


def check_cores(survey: Survey) -> Iterator[Finding]:
    """Ranks that take turns on cores, or are bound to sets of cores that overlap."""
    for host in survey.hosts:
        bound: dict[tuple[int, ...], list[int]] = {}
        for facts in host.ranks:
            bound.setdefault(facts.cores, []).append(facts.rank)
        for cores, ranks in bound.items():
            if len(ranks) > len(cores):
                message = f"{_ranks(ranks)} of host {host.name} share {_count(len(cores), 'core')}"
                yield _warning("cores", message, survey, ranks[0])
        taken: dict[int, int] = {}
        overlapping = {rank for cores, ranks in bound.items() for rank in _earlier(taken, cores, ranks[0])}
        if overlapping:
            message = f"host {host.name} has ranks bound to cores of others: {compressed_ranks(sorted(overlapping))}"
            yield _warning("cores", message, survey, min(overlapping))


def _earlier(taken: dict[int, int], cores: Iterable[int], rank: int) -> Iterator[int]:
    """The rank, where one before it has one of its cores."""
    before = [taken.setdefault(core, rank) for core in cores]
    if any(other != rank for other in before):
        yield rank


def _odd(survey: Survey, what: str, values: Sequence[str]) -> Iterator[Finding]:
    """A finding per value that differs from the usual one: the most frequent, of equals that of the lowest rank."""
    usual = Counter(values).most_common(1)[0][0]
    for value in dict.fromkeys(values):
        if value != usual:
            ranks = [rank for rank, other in enumerate(values) if other == value]
            others = f" and {len(ranks) - 1} more" if len(ranks) > 1 else ""
            message = f"{survey.who(ranks[0])}{others}: {what} {value}, but {usual} on most ranks"
            yield _error("versions", message, survey, ranks[0])


def _shared(survey: Survey, device: str, members: Sequence[RankFacts]) -> Finding:
    """Ranks that would drive one GPU; where no variable chose it, there may just be more ranks than GPUs."""
    ranks = [facts.rank for facts in members]
    chosen = any(visible(facts.devices).chosen for facts in members)
    report = _error if chosen else _warning
    message = f"{_ranks(ranks)} of host {members[0].host} share {device}{_why(members[-1])}"
    return report("devices", message, survey, ranks[-1])


def _why(facts: RankFacts) -> str:
    given = ", ".join(f"{name}={value}" for name, value in facts.devices.variables.items())
    return f" ({given})" if given else ""


def _ends(survey: Survey, hop: Hop) -> set[str]:
    """The hosts that a link joins: one, or two."""
    return {survey.facts[hop.sender].host, survey.facts[hop.receiver].host}


def _slow(survey: Survey, hop: Hop, how: str) -> Finding:
    return _warning(
        "links", f"{survey.who(hop.sender)} → {survey.who(hop.receiver)} is slow: {how}", survey, hop.receiver
    )


def _error(check: str, message: str, survey: Survey, rank: int) -> Finding:
    return Finding(severity="error", check=check, message=message, rank=rank, host=survey.facts[rank].host)


def _warning(check: str, message: str, survey: Survey | None = None, rank: int | None = None) -> Finding:
    host = None if survey is None or rank is None else survey.facts[rank].host
    return Finding(severity="warning", check=check, message=message, rank=rank, host=host)


def _ranks(numbers: Sequence[int]) -> str:
    return f"{_count(len(numbers), 'rank')} ({compressed_ranks(numbers)})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"


def _listed(names: Iterable[str], most: int = 4) -> str:
    every = list(names)
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")
