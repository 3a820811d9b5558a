"""`dlbench doctor`: what this machine has for runs, and what brings the rest.

With `--json` the output is one object:

- dlbench (version), host, cores (that this process may use), ok (whether runs on CPUs can work)
- pieces, always the same ones in the same order: name, state (ok, warning, missing, broken, unknown), found, note,
  remedy, needed_for (an array), facts (an object; keys by piece: version, path, family, devices and so on, and none
  where the piece was not found)
- uses: name, possible, lacks (names of pieces)
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from dlbench import __version__
from dlbench.analysis.screen import broken, terminal_columns
from dlbench.arguments import ArgumentParser, more_than
from dlbench.cli.forwarding import add_command
from dlbench.quantities import counted
from dlbench.runtime.preflight import usable_cores

if TYPE_CHECKING:
    from dlbench.doctor.finding import Finding
    from dlbench.doctor.isolation import Prober

HELP = "Show what this machine has for runs, and what brings the rest."
EPILOG = """Every probe has a process of its own, all at the same time: a library that crashes or hangs is a line of the
table. Nothing is started with a launcher; 'dlbench preflight -n 2' does that.

examples:
  dlbench doctor
  dlbench doctor --json | jq '.pieces[] | select(.state == "missing") | .remedy'

states:
  ok        runs can use it
  warning   they can, but read the line beneath
  missing   not here; the line beneath says what needs it and what brings it
  broken    here, but it fails, crashes or hangs
  unknown   cannot be asked, since another piece is not there

exit codes: 0 runs on CPUs work, whatever else is missing; 1 they do not: mpi4py, an MPI library or a launcher that
belongs to it is missing (srun is one where SLURM answers and offers its PMI); 2 wrong options"""
_MARGIN = " " * 21
_NARROWEST = 2 * len(_MARGIN)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    add_command(app, "doctor", HELP, doctor)


def doctor(argv: Sequence[str], prober: Prober | None = None) -> int:
    """Print what is here; the exit code says whether runs on CPUs can work. Raises `OptionError`.

    `prober` asks another machine than this one.
    """
    parser = ArgumentParser(prog="dlbench doctor", description=HELP, epilog=EPILOG)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument(
        "--timeout",
        type=more_than(0.0),
        default=10.0,
        metavar="S",
        help="seconds that a probe may take (default 10): more on a slow file system",
    )
    options = parser.parse_args(argv)
    from dlbench.doctor.examination import CPU_RUNS, examine  # noqa: PLC0415 - not while help is printed
    from dlbench.doctor.isolation import Processes  # noqa: PLC0415

    findings = asyncio.run(examine(prober or Processes(os.environ, options.timeout)))
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(document(findings))).decode())
    else:
        for line in report_lines(findings):
            print(_wrapped(line))
    return 1 if CPU_RUNS.lacks(findings) else 0


def document(findings: Mapping[str, Finding]) -> dict[str, Any]:
    """What `--json` prints; the module's docstring lists the keys."""
    from dlbench.doctor.examination import CPU_RUNS, USES, needed_for  # noqa: PLC0415

    return {
        "dlbench": __version__,
        "host": os.uname().nodename,
        "cores": len(usable_cores()),
        "ok": not CPU_RUNS.lacks(findings),
        "pieces": [
            {"name": piece, **msgspec.to_builtins(finding), "needed_for": needed_for(piece)}
            for piece, finding in findings.items()
        ],
        "uses": [{"name": use.name, "possible": not use.lacks(findings), "lacks": use.lacks(findings)} for use in USES],
    }


def report_lines(findings: Mapping[str, Finding]) -> Iterator[str]:
    """The table for people, line by line; the last is OK or begins with FAILED."""
    from dlbench.doctor.examination import CPU_RUNS, USES  # noqa: PLC0415

    yield f"# dlbench {__version__}  doctor"
    yield f"# host {os.uname().nodename}, {counted(len(usable_cores()), 'core')}"
    yield "#"
    yield f"# {'piece':<10}{'state':<9}found"
    for piece, finding in findings.items():
        yield from _piece_lines(piece, finding)
    yield "#"
    yield f"# {'what works':<34}lacks"
    for use in USES:
        lacks = use.lacks(findings)
        yield f"  {use.name:<29}{'no   ' + ', '.join(lacks) if lacks else 'yes'}"
    lacks = CPU_RUNS.lacks(findings)
    yield f"FAILED: no run can start without {' and '.join(lacks)}" if lacks else "OK"


def _piece_lines(piece: str, finding: Finding) -> Iterator[str]:
    from dlbench.doctor.examination import needed_for  # noqa: PLC0415

    yield f"  {piece:<10}{finding.state:<9}{finding.found}"
    if finding.note:
        yield f"{_MARGIN}{finding.note}"
    if finding.state in {"missing", "broken"}:
        yield f"{_MARGIN}needed for {', '.join(needed_for(piece))}"
    if finding.remedy:
        yield f"{_MARGIN}remedy: {finding.remedy}"


def _wrapped(line: str) -> str:
    """The line, on a terminal wrapped beneath what was found; whole where a program reads it."""
    columns = terminal_columns() or 0
    return line if columns < _NARROWEST else "\n".join(broken(line, columns, _MARGIN))
