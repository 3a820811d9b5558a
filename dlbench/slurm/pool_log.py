"""The log of a job pool: JSON Lines, one event a line, appended as it happens. Times are Unix times in seconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path
from time import time
from typing import Literal

import msgspec

from dlbench.errors import PreflightError, RecordError
from dlbench.slurm.journal import append, complete_lines, lock, mend

LOG_NAME = "pool.log"

Status = Literal["completed", "terminated", "failed", "killed"]


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    time: float = msgspec.field(default_factory=time)
    """Unix time."""


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the pool runs it."""

    job: str
    strategy: str
    gpus: int
    placement: str
    nodes: list[str]
    """In rank order; none where the launcher chooses."""


class PoolStarted(_Event, frozen=True, kw_only=True, tag="pool_started"):
    """First event of a pool; an experiment that is run again appends a second one."""

    experiment: str
    launcher: str
    slurm_job: str
    """Empty outside of SLURM."""
    timeout_seconds: float
    extension_seconds: float
    grace_seconds: float
    respawns: int
    jobs: list[JobFacts]


class Started(_Event, frozen=True, kw_only=True, tag="started"):
    """The launcher of a run was started; its ranks may still wait for nodes."""

    job: str
    attempt: int
    """Counts from 1, over all pools of the experiment."""
    run: str
    """Name of the run: of its step, and in the environment of its processes."""
    command: list[str]


class Running(_Event, frozen=True, kw_only=True, tag="running"):
    """The ranks of a run have written their first line: they really run."""

    job: str
    attempt: int


class Ended(_Event, frozen=True, kw_only=True, tag="ended"):
    """A run is over."""

    job: str
    attempt: int
    exit_code: int
    """Of the launcher; -N where signal N ended it."""
    status: Status
    """completed; terminated by the pool, in peace; killed by it after the grace; failed."""
    reason: str
    iterations: int
    """Finished ones in the record that were measured: no warm-ups."""
    record: str = ""
    """File name of the record; empty where there is none."""
    error: str = ""
    """Last lines of what a failed run wrote on standard error."""


class GivenUp(_Event, frozen=True, kw_only=True, tag="given_up"):
    """A job is not started again; the others go on."""

    job: str
    reason: str


class JobTally(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of a job in one pool."""

    job: str
    starts: int
    completed: int
    failed: int
    iterations: int
    given_up: str
    """Why; empty where it was not."""


class PoolEnded(_Event, frozen=True, kw_only=True, tag="pool_ended"):
    """Last event of a pool."""

    reason: str
    exit_code: int
    jobs: list[JobTally]
    left: list[str]
    """Processes and steps that could not be ended."""


Event = PoolStarted | Started | Running | Ended | GivenUp | PoolEnded

_DECODER = msgspec.json.Decoder(Event)


class PoolLog:
    """Appends events to a file; each is there for readers at once.

    Raises `PreflightError` while another pool writes to the file.
    """

    def __init__(self, path: Path) -> None:
        self._file = FileIO(path, "a+")
        if not lock(self._file.fileno()):
            self._file.close()
            raise PreflightError(f"{path}: another pool runs this experiment; wait for its end")
        mend(self._file)

    def write(self, event: Event) -> None:
        """Append an event. Raises `OSError`, and then has written nothing of it."""
        append(self._file, msgspec.json.encode(event))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_pool_log(path: Path) -> list[Event]:
    """The events of a log; none where the pool has not begun, and a last line that is cut is left out.

    Raises `RecordError` with the line of what is no event.
    """
    try:
        lines = complete_lines(path)
    except OSError as error:
        raise RecordError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    return list(_events(path, lines))


def unended(events: Iterable[Event]) -> set[str]:
    """Names of the runs without an end: their pool is at work, or was killed and has left them behind."""
    runs = {}
    for event in events:
        if isinstance(event, Started):
            runs[event.job, event.attempt] = event.run
        elif isinstance(event, Ended):
            runs.pop((event.job, event.attempt), None)
    return set(runs.values())


def _events(path: Path, lines: list[bytes]) -> Iterator[Event]:
    for number, line in enumerate(lines, start=1):
        try:
            yield _DECODER.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RecordError(f"{path}: line {number}: no event of a job pool: {error}") from None
