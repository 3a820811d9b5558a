"""The job pool: all jobs of an experiment at once, each started again as it ends, until a global timeout.

The method is that of Raffi et al., SC26: the load that the jobs put on the network stays the same for the whole time,
and a job that takes longer than the timeout is waited for until it has completed once.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from types import FrameType
from uuid import uuid4

from dlbench.errors import DlbenchError, PreflightError, RunError
from dlbench.slurm.job_arguments import RESULTS
from dlbench.slurm.job_launchers import JobLauncher, Ranks
from dlbench.slurm.pool_jobs import LOGS, PoolExperiment, PoolJob
from dlbench.slurm.pool_log import (
    LOG_NAME,
    Ended,
    Event,
    GivenUp,
    JobFacts,
    JobTally,
    PoolEnded,
    PoolLog,
    PoolStarted,
    Running,
    Started,
    Status,
    read_pool_log,
    unended,
)
from dlbench.slurm.pool_runs import Found, Records, has_output, last_lines, said, says_ok

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_USER_ERROR = 2
_LOOK_SECONDS = 0.1
_SECONDS_AFTER_FAILURE = 1.0
"""A failed job waits so long, times its failures in a row, before it is started again."""
_LEAST_EXTENSION_SECONDS = 60
"""A run takes seconds to start, and on a busy machine tens of them, however short the timeout is."""
_LEAST_SPACE_BYTES = 4096
_KILL_SECONDS = 10.0
"""How long what was killed may take to be gone."""

Report = Callable[[Event], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """When a pool ends, and what it puts up with. Times are seconds."""

    timeout: float
    """From then on the pool ends as soon as every job has completed once."""
    extension: float
    """How long after the timeout it ends in any case."""
    grace: float
    """How long runs may take to end in peace."""
    respawns: int
    """How often in a row a job that fails is started again."""


def default_extension(timeout_seconds: float) -> float:
    """Seconds of the extension unless it is told otherwise: as long again as the timeout, and at least a minute."""
    return max(timeout_seconds, _LEAST_EXTENSION_SECONDS)


@dataclass(slots=True)
class _Run:
    """A run that is under way."""

    name: str
    attempt: int
    process: subprocess.Popen[bytes]
    output: Path
    errors: Path
    running: bool = False
    stopped: Status | None = None
    """How the pool has ended it, if it has."""


@dataclass(slots=True)
class _Slot:
    """A job, its present run, and what has become of those before."""

    job: PoolJob
    attempts: int
    """Starts in this and earlier pools."""
    run: _Run | None = None
    due: float = 0.0
    """When it may be started."""
    starts: int = 0
    completed: int = 0
    failed: int = 0
    failures: int = 0
    """In a row."""
    iterations: int = 0
    given_up: str = ""

    def tally(self) -> JobTally:
        return JobTally(
            job=self.job.name,
            starts=self.starts,
            completed=self.completed,
            failed=self.failed,
            iterations=self.iterations,
            given_up=self.given_up,
        )


@dataclass(slots=True)
class _Signals:
    """Signals to the pool, in order of arrival."""

    received: list[int] = field(default_factory=list)

    @contextmanager
    def caught(self) -> Iterator[None]:
        previous = {number: signal.signal(number, self._take) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _take(self, number: int, _: FrameType | None) -> None:
        self.received.append(number)


class Pool:
    """Runs an experiment once; every event goes to its log and to `report`."""

    def __init__(self, experiment: PoolExperiment, launcher: JobLauncher, policy: Policy, report: Report) -> None:
        self._experiment = experiment
        self._launcher = launcher
        self._policy = policy
        self._report = report
        folder = experiment.folder
        self._logs = folder / LOGS
        self._records = Records(folder / RESULTS)
        self._signals = _Signals()
        for path in (self._logs, folder / RESULTS):
            path.mkdir(exist_ok=True)
        self._log = PoolLog(folder / LOG_NAME)
        earlier = read_pool_log(folder / LOG_NAME)
        attempts = _attempts(earlier)
        self._slots = [_Slot(job, attempts.get(job.name, 0)) for job in experiment.jobs]
        self._lost: OSError | None = None
        self._begin = 0.0
        self._names = sorted(unended(earlier))
        """Runs that must be gone in the end: all that it starts, and what a pool that was killed has left behind."""
        self._waited_for: list[str] = []
        """Jobs that had not completed yet when the pool last looked after the timeout."""

    def run(self) -> PoolEnded:
        """Run to the end, with nothing left behind where that can be helped.

        Raises `PreflightError` where the launcher cannot be started, `RunError` where the log could not be written.
        """
        with self._signals.caught():
            if self._names:
                self._launcher.kill(self._names)
            self._begin = monotonic()
            self._write(self._started())
            reason = ""
            try:
                while not (reason := self._reason_to_end()):
                    self._start_due()
                    sleep(_LOOK_SECONDS)
                    self._look_unless_told_to_end()
            except DlbenchError as error:
                reason = str(error)
                raise
            finally:
                ended = self._end(reason or "an error of the pool itself")
        if self._lost:
            raise RunError(f"{self._experiment.folder / LOG_NAME} is not complete: {self._lost.strerror}")
        return ended

    def _write(self, event: Event) -> None:
        """Log an event and tell of it. Neither a full disk nor a closed pipe keeps the pool from ending its runs."""
        try:
            self._log.write(event)
        except OSError as error:
            self._lost = error
        with suppress(OSError):
            self._report(event)

    def _started(self) -> PoolStarted:
        policy = self._policy
        return PoolStarted(
            experiment=self._experiment.name,
            launcher=self._launcher.name,
            slurm_job=os.environ.get("SLURM_JOB_ID", ""),
            timeout_seconds=policy.timeout,
            extension_seconds=policy.extension,
            grace_seconds=policy.grace,
            respawns=policy.respawns,
            jobs=[
                JobFacts(
                    job=job.name,
                    strategy=job.strategy,
                    gpus=job.gpus,
                    placement=job.placement,
                    nodes=list(job.nodes),
                )
                for job in self._experiment.jobs
            ],
        )

    def _reason_to_end(self) -> str:
        """Why the pool ends now; empty while it goes on."""
        if self._signals.received:
            return signal.Signals(self._signals.received[0]).name
        if all(slot.given_up for slot in self._slots):
            return "every job was given up"
        policy, over = self._policy, monotonic() - self._begin - self._policy.timeout
        if over < 0:
            return ""
        waiting = [slot.job.name for slot in self._slots if not (slot.completed or slot.given_up)]
        if waiting and over < policy.extension:
            self._waited_for = waiting
            return ""
        if waiting:
            return (
                f"timeout of {policy.timeout:g} s and its extension of {policy.extension:g} s, "
                f"in which {', '.join(waiting)} never completed"
            )
        extended = f", extended by {over:.1f} s for {', '.join(self._waited_for)}" if self._waited_for else ""
        return f"timeout of {policy.timeout:g} s{extended}"

    def _start_due(self) -> None:
        for slot in self._slots:
            if slot.run is None and not slot.given_up and monotonic() >= slot.due:
                self._start(slot)

    def _look_unless_told_to_end(self) -> None:
        """Take in what has ended. A signal from SLURM ends the launchers too, which is no failure of theirs."""
        if not self._signals.received:
            self._look()

    def _look(self) -> None:
        for slot in self._slots:
            if slot.run is None:
                continue
            code = slot.run.process.poll()
            self._note_running(slot.job, slot.run)
            if code is not None:
                self._take_in(slot, slot.run, code)

    def _note_running(self, job: PoolJob, run: _Run) -> None:
        if not run.running and has_output(run.output):
            run.running = True
            self._write(Running(job=job.name, attempt=run.attempt))

    def _start(self, slot: _Slot) -> None:
        job = slot.job
        slot.attempts += 1
        slot.starts += 1
        attempt = slot.attempts
        name = f"{job.name}-{attempt}-{uuid4().hex[:8]}"
        launch = self._launcher.launch(Ranks(name=name, count=job.gpus, nodes=job.nodes, per_node=job.per_node))
        command = [*launch.command, *job.program(attempt)]
        # What the user has set in the environment is kept.
        environment = {**launch.environment, **job.environment, **os.environ, **launch.own}
        output, errors = (self._logs / f"{job.name}-{attempt}.{ending}" for ending in ("out", "err"))
        with output.open("wb") as stdout, errors.open("wb") as stderr:
            try:
                # In a session of its own, so that Ctrl-C reaches the pool alone, which ends its runs in peace.
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    env=environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise PreflightError(f"cannot start {command[0]}: {error.strerror}") from None
        slot.run = _Run(name, attempt, process, output, errors)
        self._names.append(name)
        self._write(Started(job=job.name, attempt=attempt, run=name, command=command))

    def _take_in(self, slot: _Slot, run: _Run, code: int) -> None:
        """Account for a run that is over, and decide whether its job is started again."""
        slot.run = None
        found = self._records.of(run.name)
        status = _status(run, code, found)
        error = last_lines(run.errors) if status == "failed" else ""
        reason = _reason(run, code, found, error)
        slot.iterations += found.iterations
        self._write(
            Ended(
                job=slot.job.name,
                attempt=run.attempt,
                exit_code=code,
                status=status,
                reason=reason,
                iterations=found.iterations,
                record=found.name,
                error=error,
            )
        )
        if status == "completed":
            slot.completed += 1
            slot.failures = 0
        elif status == "failed":
            self._take_failure(slot, run, code, reason)

    def _take_failure(self, slot: _Slot, run: _Run, code: int, reason: str) -> None:
        # A launcher that died alone leaves its ranks on the nodes that the next run needs.
        self._launcher.kill([run.name])
        slot.failed += 1
        slot.failures += 1
        slot.due = monotonic() + _SECONDS_AFTER_FAILURE * slot.failures
        if code == _USER_ERROR:
            self._give_up(slot, reason)
        elif slot.failures > self._policy.respawns:
            often = f"{slot.failures} times in a row" if slot.failures > 1 else "once"
            self._give_up(slot, f"failed {often}: {reason}; see {run.errors}")

    def _give_up(self, slot: _Slot, reason: str) -> None:
        slot.given_up = reason
        self._write(GivenUp(job=slot.job.name, reason=reason))

    def _end(self, reason: str) -> PoolEnded:
        """End all runs: in peace, then after the grace, or at a second signal, by force."""
        told = self._signals.received[:1]  # one that comes from now on only makes it end faster
        self._end_in_peace()
        self._end_by_force()
        for slot in self._slots:
            if slot.failures and not slot.iterations and not slot.given_up:
                self._give_up(slot, "failed, and had no iteration when the pool ended")
        ended = PoolEnded(
            reason=reason,
            exit_code=128 + told[0] if told else self._exit_code(),
            jobs=[slot.tally() for slot in self._slots],
            left=self._left(),
        )
        self._write(ended)
        self._log.close()
        return ended

    def _exit_code(self) -> int:
        return RunError.exit_code if any(slot.given_up or not slot.completed for slot in self._slots) else 0

    def _under_way(self) -> list[_Run]:
        return [slot.run for slot in self._slots if slot.run]

    def _end_in_peace(self) -> None:
        self._look_unless_told_to_end()
        runs = self._under_way()
        for run in runs:
            run.stopped = "terminated"
        if not runs:
            return
        try:
            self._launcher.end({run.name: run.process.pid for run in runs})
        except DlbenchError:  # SLURM does not answer; what it cannot end in peace is killed
            return
        signals = len(self._signals.received)
        self._wait(self._policy.grace, lambda: len(self._signals.received) > signals)

    def _end_by_force(self) -> None:
        runs = self._under_way()
        for run in runs:
            run.stopped = "killed"
        if runs:
            self._launcher.kill([run.name for run in runs])
            self._wait(_KILL_SECONDS, lambda: False)

    def _wait(self, seconds: float, enough: Callable[[], bool]) -> None:
        """Wait for all runs to end."""
        deadline = monotonic() + seconds
        while self._under_way() and monotonic() < deadline and not enough():
            self._look()
            sleep(_LOOK_SECONDS)

    def _left(self) -> list[str]:
        """What runs have left behind although it was killed too."""
        deadline = monotonic() + _KILL_SECONDS
        try:
            while (left := self._launcher.left(self._names)) and monotonic() < deadline:
                self._launcher.kill(self._names)
                sleep(_LOOK_SECONDS)
        except DlbenchError as error:
            return [f"not known: {error}"]
        return left


def _status(run: _Run, code: int, found: Found) -> Status:
    """How a run has ended; one that was complete when the pool ended it is complete.

    The exit code alone proves nothing: srun leaves with 0 where it has lost a node. A record that a file system does
    not show yet is stood in for by the last word of the ranks.
    """
    complete = found.end.status == "completed" if found.end else says_ok(run.output) or says_ok(run.errors)
    if complete and (code == 0 or run.stopped):
        return "completed"
    return run.stopped or "failed"


def _reason(run: _Run, code: int, found: Found, error: str) -> str:
    """Why a run has ended: in the words of its record, of its ranks, or of its launcher."""
    if found.end:
        return found.end.reason
    if words := said(run.errors) or error.rpartition("\n")[2]:
        return f"exit code {code}: {words}"
    full = f"; no space is left in {run.errors.parent}" if _is_full(run.errors.parent) else ""
    return f"exit code {code}, and no complete record{full}"


def _is_full(folder: Path) -> bool:
    """Whether not even a line can be written there."""
    free = os.statvfs(folder)
    return free.f_bavail * free.f_frsize < _LEAST_SPACE_BYTES


def _attempts(events: Iterable[Event]) -> dict[str, int]:
    """Last attempt of every job in earlier pools."""
    return {event.job: event.attempt for event in events if isinstance(event, Started)}
