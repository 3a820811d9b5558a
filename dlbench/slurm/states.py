"""What has become of the experiments of a campaign, from the pools' logs and, for what these leave open, SLURM's queue.

Accounting (`sacct`) is not asked: many clusters have none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from dlbench.allocators.experiment import Experiment
from dlbench.errors import RunError, UserError
from dlbench.slurm.campaign import LOCAL, POOL_ERRORS, Campaign, Submission, submitter
from dlbench.slurm.job_arguments import RESULTS
from dlbench.slurm.pool_log import LOG_NAME, Ended, Event, PoolEnded, PoolStarted, read_pool_log, unended
from dlbench.slurm.pool_runs import Records, last_lines, said
from dlbench.slurm.steps import slurm_output


class State(StrEnum):
    """State of an experiment."""

    PLANNED = "planned"
    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    """It ran, but a job was given up or never completed."""
    FAILED = "failed"
    """It ended without a single measured iteration, its pool refused it, or SLURM ended it."""
    CANCELLED = "cancelled"
    LOST = "lost"
    """SLURM does not know it any more, and its pool has not said how it ended."""


MISSING = frozenset({State.PLANNED, State.FAILED, State.CANCELLED, State.LOST})
"""States whose experiments are submitted again."""
UNDER_WAY = frozenset({State.PENDING, State.RUNNING})

_WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)
_ACTIVE = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """An experiment, as `dlbench status` shows it."""

    experiment: str
    kind: str
    jobs: int
    nodes: int
    state: State
    job_id: str
    """Of SLURM's; empty where it was never submitted."""
    iterations: int
    """Measured by all its runs so far, warm-ups left out as everywhere."""
    reason: str


class Queued(NamedTuple):
    """What SLURM says of a job."""

    state: str
    reason: str


def survey(campaign: Campaign, *, locked: bool = False) -> list[Status]:
    """The state of every experiment, in the plan's order. Raises `UserError` where SLURM does not answer.

    `locked` says that the caller holds the campaign's lock, so that nobody else runs its experiments here.
    """
    submissions = campaign.submissions()
    events = {
        experiment.name: read_pool_log(campaign.folder_of(experiment) / LOG_NAME)
        for experiment in campaign.plan.experiments
    }
    undecided = {
        name: submission
        for name, submission in submissions.items()
        if name in events and _ended(events[name], submission) is None
    }
    queue = read_queue([submission.job_id for submission in undecided.values() if submission.job_id != LOCAL])
    queued = {name: queue.get(submission.job_id) for name, submission in undecided.items()}
    here = [name for name, submission in submissions.items() if submission.job_id == LOCAL]
    if here and not locked and submitter(campaign.folder) is not None:
        queued[max(here, key=lambda name: submissions[name].time)] = Queued("RUNNING", "")  # one after the other
    return [
        _status(campaign, experiment, submissions.get(experiment.name), events[experiment.name], queued)
        for experiment in campaign.plan.experiments
    ]


def read_queue(job_ids: Collection[str]) -> dict[str, Queued]:
    """State and reason of the jobs that SLURM still knows, in one call. Raises `UserError` where it does not answer."""
    if not job_ids:
        return {}
    command = ["squeue", "-h", "-t", "all", "-j", ",".join(job_ids), "-o", "%i %T %r"]
    try:
        lines = slurm_output(command).splitlines()
    except RunError as error:
        if "Invalid job id" in str(error):  # said only where it knows none of them
            return {}
        raise UserError(str(error)) from None
    fields = (line.split(maxsplit=2) for line in lines)
    return {job_id: Queued(state, "" if reason == "None" else reason) for job_id, state, reason in fields}


def _status(
    campaign: Campaign,
    experiment: Experiment,
    submission: Submission | None,
    events: Sequence[Event],
    queued: Mapping[str, Queued | None],
) -> Status:
    folder = campaign.folder_of(experiment)
    state, reason = State.PLANNED, ""
    if submission is not None:
        state, reason = _judge(submission, events, queued.get(experiment.name), folder)
    return Status(
        experiment=experiment.name,
        kind=experiment.kind,
        jobs=len(experiment.jobs),
        nodes=experiment.nodes(campaign.plan.gpus_per_node),
        state=state,
        job_id=submission.job_id if submission else "",
        iterations=_iterations(events, folder / RESULTS),
        reason=reason,
    )


def _judge(submission: Submission, events: Sequence[Event], queued: Queued | None, folder: Path) -> tuple[State, str]:
    """State and reason: the pool's own word first, then the queue's, then what their silence means."""
    cancelled = submission.event == "cancelled"
    if (ended := _ended(events, submission)) is not None:
        return _outcome(ended)
    if queued is not None and queued.state in _WAITING | _ACTIVE:
        state = State.PENDING if queued.state in _WAITING else State.RUNNING
        return state, "is being cancelled" if cancelled else queued.reason
    if cancelled or (queued is not None and queued.state == "CANCELLED"):
        return State.CANCELLED, ""
    begun = _started(events, submission) is not None
    if submission.job_id == LOCAL:
        return _gone_here(said(folder / POOL_ERRORS), begun=begun)
    words = last_lines(folder / f"slurm-{submission.job_id}.out").rpartition("\n")[2]
    if queued is not None:
        return State.FAILED, f"{queued.state}: {words or queued.reason}"
    gone = f"its SLURM job is gone, and its pool has not {'ended' if begun else 'begun'}"
    return State.LOST, f"{gone}: {words}" if words else gone


def _gone_here(refusal: str, *, begun: bool) -> tuple[State, str]:
    """What it means that no pool runs here; `refusal` is what the last one has said on standard error."""
    if begun:
        return State.LOST, "its pool was killed"
    if refusal:
        return State.FAILED, f"its pool has not begun: {refusal}"
    return State.LOST, "its submitter is gone, and its pool has not begun"


def _outcome(ended: PoolEnded) -> tuple[State, str]:
    given_up = "; ".join(f"{job.job}: {job.given_up}" for job in ended.jobs if job.given_up)
    if ended.exit_code > 128:  # noqa: PLR2004 - a signal, as shells count
        return State.CANCELLED, f"ended by {ended.reason}"
    if not any(job.iterations for job in ended.jobs):
        return State.FAILED, given_up or ended.reason
    if given_up or not all(job.completed for job in ended.jobs):
        return State.INCOMPLETE, given_up or ended.reason
    return State.COMPLETED, ""


def _started(events: Sequence[Event], submission: Submission) -> int | None:
    """Where the last pool of the submission began; None if it has not."""
    for index in reversed(range(len(events))):
        event = events[index]
        if isinstance(event, PoolStarted) and _belongs(event, submission):
            return index
    return None


def _belongs(event: PoolStarted, submission: Submission) -> bool:
    if submission.job_id != LOCAL:
        return event.slurm_job == submission.job_id
    return submission.event == "cancelled" or event.time >= submission.time


def _ended(events: Sequence[Event], submission: Submission) -> PoolEnded | None:
    """How the last pool of the submission ended; None if it has not."""
    begin = _started(events, submission)
    found = [] if begin is None else [event for event in events[begin:] if isinstance(event, PoolEnded)]
    return found[0] if found else None


def _iterations(events: Sequence[Event], results: Path) -> int:
    """Measured iterations of runs that are over, by the log, and of those under way, by their records."""
    over = sum(event.iterations for event in events if isinstance(event, Ended))
    records = Records(results)
    return over + sum(records.of(run).iterations for run in unended(events))
