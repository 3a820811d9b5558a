"""What a preflight prints: a table of the hosts, a line a finding, the verdict; or all of it as one document.

The document has: status (ok, failed), reason, ranks, launcher, versions (of most ranks), hosts (name, ranks, devices,
memory_bytes, clock_offset_seconds, clock_uncertainty_seconds, latency_seconds and bandwidth_bytes_per_second: the
worst of the links from it), links (sender, receiver, latency, bandwidth) and findings (severity, check, message, rank,
host). What is not known is null. A preflight that breaks off has status, reason and findings alone.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from dlbench import __version__
from dlbench.quantities import duration, si
from dlbench.runtime.machine.devices import devices_of
from dlbench.runtime.machine.survey import Hop, Host, Survey, compressed_ranks
from dlbench.runtime.machine.verdict import Finding

_MOST_LINES = 20
"""Lines of one check and severity: a mistake in a script shows on every host."""
_UNKNOWN = "-"
_COLUMNS = ("host", "ranks", "devices", "clock offset", "memory", "latency", "bandwidth")


def failed(findings: Sequence[Finding]) -> bool:
    """Whether there is an error among the findings."""
    return any(finding.severity == "error" for finding in findings)


def report_lines(survey: Survey, findings: Sequence[Finding], launcher: str) -> Iterator[str]:
    """The report for people, line by line; the last is OK or begins with FAILED."""
    ranks, hosts = len(survey.facts), len(survey.hosts)
    yield f"# dlbench {__version__}  preflight"
    yield f"# ranks      {ranks} on {hosts} host{'s' if hosts != 1 else ''}" + (f", by {launcher}" if launcher else "")
    yield f"# versions   {', '.join(f'{name} {version}' for name, version in _usual_versions(survey).items())}"
    yield "#"
    yield from _table(survey)
    yield from _finding_lines(findings)
    errors = [finding for finding in findings if finding.severity == "error"]
    yield f"FAILED: {_counted(errors)}; first: {errors[0].message}" if errors else "OK"


def _counted(errors: Sequence[Finding]) -> str:
    return f"{len(errors)} error{'s' if len(errors) != 1 else ''}"


def _table(survey: Survey) -> Iterator[str]:
    rows = [_COLUMNS, *(_row(survey, host) for host in survey.hosts)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for index, cells in enumerate(rows):
        mark = " " if index else "#"
        yield f"{mark} {'  '.join(f'{cell:<{width}}' for cell, width in zip(cells, widths, strict=True))}".rstrip()


def _row(survey: Survey, host: Host) -> tuple[str, ...]:
    clock = survey.clocks[host.numbers[0]]
    links = _links_from(survey, host)
    return (
        host.name,
        compressed_ranks(host.numbers),
        _devices(devices_of(host)),
        f"{clock.offset * 1e3:+.3f} ± {clock.uncertainty * 1e3:.3f} ms",
        _UNKNOWN if host.memory is None else si(host.memory, "B"),
        duration(max(hop.latency for hop in links)) if links else _UNKNOWN,
        si(min(hop.bandwidth for hop in links), "B/s") if links else _UNKNOWN,
    )


def _devices(devices: Sequence[str]) -> str:
    return ",".join(device or _UNKNOWN for device in devices) if any(devices) else "cpu"


def _links_from(survey: Survey, host: Host) -> list[Hop]:
    return [hop for rank in host.numbers if (hop := survey.laps[rank].hop)]


def _finding_lines(findings: Sequence[Finding]) -> Iterator[str]:
    shown: Counter[tuple[str, str]] = Counter()
    for finding in findings:
        key = finding.severity, finding.check
        shown[key] += 1
        if shown[key] <= _MOST_LINES:
            yield f"{finding.severity}: {finding.check}: {finding.message}"
    for (severity, check), count in shown.items():
        if count > _MOST_LINES:
            yield f"{severity}: {check}: and {count - _MOST_LINES} more of this kind; --json has them all"


def document(survey: Survey, findings: Sequence[Finding], launcher: str) -> dict[str, Any]:
    """The report for scripts; the module's docstring lists the keys."""
    errors = [finding for finding in findings if finding.severity == "error"]
    return {
        "status": "failed" if errors else "ok",
        "reason": errors[0].message if errors else "",
        "ranks": len(survey.facts),
        "launcher": launcher or None,
        "versions": _usual_versions(survey),
        "hosts": [_host(survey, host) for host in survey.hosts],
        "links": [lap.hop for lap in survey.laps if lap.hop],
        "findings": list(findings),
    }


def _host(survey: Survey, host: Host) -> dict[str, Any]:
    clock, links = survey.clocks[host.numbers[0]], _links_from(survey, host)
    return {
        "name": host.name,
        "ranks": host.numbers,
        "devices": [device or None for device in devices_of(host)],
        "memory_bytes": host.memory,
        "clock_offset_seconds": clock.offset,
        "clock_uncertainty_seconds": clock.uncertainty,
        "latency_seconds": max((hop.latency for hop in links), default=None),
        "bandwidth_bytes_per_second": min((hop.bandwidth for hop in links), default=None),
    }


def _usual_versions(survey: Survey) -> dict[str, str]:
    names = survey.facts[0].versions
    return {name: Counter(facts.versions[name] for facts in survey.facts).most_common(1)[0][0] for name in names}


def broken_off(reason: str) -> dict[str, Any]:
    """The document of a preflight that did not come to its end."""
    finding = Finding(severity="error", check="ranks", message=reason)
    return {"status": "failed", "reason": reason, "findings": [finding]}


def print_document(content: dict[str, Any]) -> None:
    """Print a document on standard output, on one line."""
    sys.stdout.write(msgspec.json.encode(content).decode() + "\n")
    sys.stdout.flush()
