"""States of experiments: the pool's word, then the queue's, then what silence means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from campaigns import Slurm, log, make_campaign

from dlbench.errors import UserError
from dlbench.slurm.campaign import LOCAL, Campaign, locked
from dlbench.slurm.pool_log import Ended, JobTally, PoolEnded, PoolStarted, Started
from dlbench.slurm.settings import NAMES
from dlbench.slurm.states import State, read_queue, survey


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    commands = Slurm(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(commands.folder))
    return commands


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    return make_campaign(tmp_path / "campaign")


def begun(job_id: str) -> PoolStarted:
    return PoolStarted(
        experiment="mix-000",
        launcher="srun",
        slurm_job=job_id,
        timeout_seconds=60,
        extension_seconds=60,
        grace_seconds=20,
        respawns=2,
        jobs=[],
    )


def tally(job: str, completed: int = 1, iterations: int = 5, given_up: str = "") -> JobTally:
    return JobTally(job=job, starts=1, completed=completed, failed=0, iterations=iterations, given_up=given_up)


def over(*jobs: JobTally, exit_code: int = 0, reason: str = "timeout of 60 s") -> PoolEnded:
    return PoolEnded(reason=reason, exit_code=exit_code, jobs=list(jobs), left=[])


def ended(job: str, iterations: int) -> Ended:
    return Ended(
        job=job, attempt=1, exit_code=0, status="completed", reason="", iterations=iterations, record="r.jsonl"
    )


def mix(campaign: Campaign, **how: Any) -> tuple[State, str]:
    """State and reason of the first experiment."""
    status = survey(campaign, **how)[0]
    return status.state, status.reason


def test_what_was_never_submitted_is_planned_and_slurm_is_not_asked(campaign: Campaign, slurm: Slurm) -> None:
    assert [
        (status.experiment, status.kind, status.jobs, status.nodes, status.state) for status in survey(campaign)
    ] == [
        ("mix-000", "concurrent", 2, 4, State.PLANNED),
        ("alone-000", "baseline", 1, 2, State.PLANNED),
    ]
    assert slurm.calls("squeue") == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("7 PENDING Resources", (State.PENDING, "Resources")),
        ("7 CONFIGURING None", (State.PENDING, "")),
        ("7 RUNNING None", (State.RUNNING, "")),
        ("7 COMPLETING None", (State.RUNNING, "")),
        ("7 CANCELLED None", (State.CANCELLED, "")),
        ("7 TIMEOUT TimeLimit", (State.FAILED, "TIMEOUT: TimeLimit")),
        ("8 RUNNING None", (State.LOST, "its SLURM job is gone, and its pool has not begun")),
    ],
)
def test_the_queue_decides_while_the_pool_has_said_nothing(
    campaign: Campaign, slurm: Slurm, line: str, expected: tuple[State, str]
) -> None:
    campaign.note("submitted", "mix-000", "7")
    slurm.prints("squeue", line)
    assert mix(campaign) == expected


def test_all_jobs_are_asked_for_in_one_call(campaign: Campaign, slurm: Slurm) -> None:
    campaign.note("submitted", "mix-000", "7")
    campaign.note("submitted", "alone-000", "8")
    slurm.prints("squeue", "8 RUNNING None", "7 PENDING Priority")
    assert [status.state for status in survey(campaign)] == [State.PENDING, State.RUNNING]
    assert slurm.calls("squeue") == [["-h", "-t", "all", "-j", "7,8", "-o", "%i", "%T", "%r"]]


def test_a_script_that_failed_before_its_pool_says_why_in_its_output(campaign: Campaign, slurm: Slurm) -> None:
    campaign.note("submitted", "mix-000", "7")
    campaign.folder_of(campaign.plan.experiments[0]).mkdir()
    (campaign.folder / "mix-000/slurm-7.out").write_text("ring\ndlbench: node lrdn0003 has no GPU\n")
    slurm.prints("squeue", "7 FAILED NonZeroExitCode")
    assert mix(campaign) == (State.FAILED, "FAILED: dlbench: node lrdn0003 has no GPU")
    slurm.prints("squeue")  # after some minutes SLURM forgets a job
    gone = "its SLURM job is gone, and its pool has not begun"
    assert mix(campaign) == (State.LOST, f"{gone}: dlbench: node lrdn0003 has no GPU")


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (over(tally("a"), tally("b")), (State.COMPLETED, "")),
        (over(tally("a"), tally("b", given_up="boom"), exit_code=1), (State.INCOMPLETE, "b: boom")),
        (over(tally("a"), tally("b", completed=0), reason="late"), (State.INCOMPLETE, "late")),
        (over(tally("a", completed=0, iterations=0, given_up="boom"), exit_code=1), (State.FAILED, "a: boom")),
        (over(tally("a"), exit_code=143, reason="SIGTERM"), (State.CANCELLED, "ended by SIGTERM")),
    ],
)
def test_the_pools_end_decides_and_slurm_is_not_asked(
    campaign: Campaign, slurm: Slurm, end: PoolEnded, expected: tuple[State, str]
) -> None:
    campaign.note("submitted", "mix-000", "7")
    log(campaign, "mix-000", begun("7"), end)
    assert mix(campaign) == expected
    assert slurm.calls("squeue") == []


def test_the_end_of_an_earlier_submission_does_not_count(campaign: Campaign, slurm: Slurm) -> None:
    log(campaign, "mix-000", begun("7"), over(tally("a", completed=0, iterations=0)))
    campaign.note("submitted", "mix-000", "8")
    slurm.prints("squeue", "8 PENDING None")
    assert mix(campaign) == (State.PENDING, "")
    log(campaign, "mix-000", begun("8"))
    slurm.refuses("squeue", "slurm_load_jobs error: Invalid job id specified")
    assert mix(campaign) == (State.LOST, "its SLURM job is gone, and its pool has not ended")


def test_one_that_is_being_cancelled_runs_until_its_pool_has_ended(campaign: Campaign, slurm: Slurm) -> None:
    campaign.note("submitted", "mix-000", "7")
    campaign.note("cancelled", "mix-000", "7")
    slurm.prints("squeue", "7 RUNNING None")
    assert mix(campaign) == (State.RUNNING, "is being cancelled")
    slurm.prints("squeue", "7 COMPLETED None")
    assert mix(campaign) == (State.CANCELLED, "")


def test_iterations_are_those_of_all_runs_of_all_submissions(campaign: Campaign, slurm: Slurm) -> None:
    log(campaign, "mix-000", begun("7"), ended("a", 4), ended("b", 3), over(), begun("8"))
    log(campaign, "mix-000", Started(job="a", attempt=2, run="a-2-f00", command=[]))
    assert survey(campaign)[0].iterations == 7


def test_one_that_runs_here_runs_as_long_as_its_submitter(campaign: Campaign, slurm: Slurm) -> None:
    campaign.note("submitted", "mix-000", LOCAL)
    with locked(campaign.folder):
        assert mix(campaign) == (State.RUNNING, "")
        assert mix(campaign, locked=True) == (State.LOST, "its submitter is gone, and its pool has not begun")
    assert mix(campaign)[0] is State.LOST
    log(campaign, "mix-000", begun(""))
    assert mix(campaign) == (State.LOST, "its pool was killed")
    log(campaign, "mix-000", over(tally("a")))
    assert mix(campaign) == (State.COMPLETED, "")
    assert slurm.calls("squeue") == []


def test_a_pool_that_refused_to_begin_here_says_why(campaign: Campaign) -> None:
    campaign.note("submitted", "mix-000", LOCAL)
    campaign.write_experiment(campaign.plan.experiments[0])
    (campaign.folder / "mix-000/pool.err").write_text("some library's warning\ndlbench: job j000: no such model\n")
    assert mix(campaign) == (State.FAILED, "its pool has not begun: job j000: no such model")
    log(campaign, "mix-000", begun(""))
    assert mix(campaign) == (State.LOST, "its pool was killed")


def test_of_those_that_run_here_only_the_last_one_runs(campaign: Campaign) -> None:
    campaign.note("submitted", "mix-000", LOCAL)
    log(campaign, "mix-000", begun(""))  # its pool is killed, and the submitter goes on
    campaign.note("submitted", "alone-000", LOCAL)
    with locked(campaign.folder):
        assert [status.state for status in survey(campaign)] == [State.LOST, State.RUNNING]


def test_what_runs_here_again_has_not_the_state_of_the_time_before(campaign: Campaign) -> None:
    campaign.note("submitted", "mix-000", LOCAL)
    log(campaign, "mix-000", begun(""), over(tally("a"), exit_code=130, reason="SIGINT"))
    assert mix(campaign)[0] is State.CANCELLED
    campaign.note("cancelled", "mix-000", LOCAL)
    assert mix(campaign) == (State.CANCELLED, "ended by SIGINT")
    campaign.note("submitted", "mix-000", LOCAL)
    with locked(campaign.folder):
        assert mix(campaign) == (State.RUNNING, "")
    assert mix(campaign) == (State.LOST, "its submitter is gone, and its pool has not begun")


def test_a_slurm_that_does_not_answer_is_an_error_and_no_state(slurm: Slurm) -> None:
    slurm.refuses("squeue", "slurm_load_jobs error: Unable to contact slurm controller")
    with pytest.raises(UserError, match="no SLURM controller answers squeue"):
        read_queue(["7"])


def test_the_documentation_names_every_state_and_every_setting() -> None:
    page = (Path(__file__).parents[2] / "docs/campaigns.md").read_text(encoding="utf-8")
    states = {name for row in page.splitlines() if row.startswith("| ") for name in row.split("|")[1].split(", ")}
    assert {str(state) for state in State} <= {name.strip() for name in states}
    assert [name for name in NAMES if f"| `{name}`" not in page] == []
