"""What a run leaves behind: its output, and its record."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dlbench.errors import RecordError
from dlbench.records.reader import iterate
from dlbench.records.schema import END_START, End, Header
from dlbench.slurm.processes import MARK_VARIABLE

_MEASURED_START = re.compile(rb'\{"kind":"iteration","index":[0-9]+,"warmup":false')
_LAST_BYTES = 16_384
_LAST_LINES = 10
_SHOWN_CHARACTERS = 1000


@dataclass(frozen=True, slots=True)
class Found:
    """What a record says of its run."""

    name: str = ""
    """File name; empty where there is no record."""
    iterations: int = 0
    """Finished ones that count: no warm-ups."""
    end: End | None = None
    """None where the run was killed, or still runs."""


@dataclass(slots=True)
class Records:
    """The records of a folder by the run that wrote them, which their header names."""

    folder: Path
    _runs: dict[str, Path] = field(default_factory=dict)
    _seen: set[Path] = field(default_factory=set)

    def of(self, run: str) -> Found:
        """What the run with this name has written."""
        if run not in self._runs:
            self._look()
        path = self._runs.get(run)
        return _found(path) if path else Found()

    def _look(self) -> None:
        for path in set(self.folder.glob("*.jsonl")) - self._seen:
            try:
                header = next(iterate(path))
            except (RecordError, StopIteration):  # it has only begun, or is none of ours
                continue
            self._seen.add(path)
            if isinstance(header, Header) and (run := header.environment.get(MARK_VARIABLE)):
                self._runs[run] = path


def _found(path: Path) -> Found:
    """Iterations are counted, not decoded: a record of thousands of ranks has gigabytes."""
    iterations, end = 0, None
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            iterations += _MEASURED_START.match(line) is not None
            if line.startswith(END_START) and end is None:
                end = msgspec.json.decode(line, type=End)
    return Found(path.name, iterations, end)


def has_output(path: Path) -> bool:
    """Whether a file has content."""
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def last_lines(path: Path) -> str:
    """The last lines of a text file that are not empty, joined by line feeds."""
    return "\n".join(list(_lines(path))[-_LAST_LINES:])[-_SHOWN_CHARACTERS:]


def said(path: Path) -> str:
    """The last line that dlbench itself has written on standard error; empty where there is none."""
    own = [line.removeprefix("dlbench: ") for line in _lines(path) if line.startswith("dlbench: ")]
    return own[-1] if own else ""


def says_ok(path: Path) -> bool:
    """Whether the last line of what a run has written is the verdict of one that is complete."""
    return last_lines(path).rpartition("\n")[2] == "OK"


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LAST_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return
    yield from (line for line in text.splitlines() if line.strip())
