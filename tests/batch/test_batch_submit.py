"""Submitting and cancelling, with commands of SLURM that write down what they were asked."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from campaigns import Slurm, log, make_campaign

from dlbench.errors import OptionError, UserError
from dlbench.slurm import submit as module
from dlbench.slurm.campaign import LOCAL, Campaign, locked
from dlbench.slurm.pool_log import JobTally, PoolEnded, PoolStarted, Started, read_pool_log
from dlbench.slurm.processes import marked
from dlbench.slurm.settings import SiteSettings
from dlbench.slurm.states import State, survey
from dlbench.slurm.submit import cancel, missing, run_here, submit_all, write_scripts
from dlbench.specs import load_system

SITE = SiteSettings(account="ABC", reservation="XYZ")


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    commands = Slurm(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(commands.folder))
    return commands


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    return make_campaign(tmp_path / "campaign")


def submit(campaign: Campaign) -> list[str]:
    """Submit what is missing; gives what was reported."""
    said: list[str] = []
    experiments = missing(campaign)
    submit_all(campaign, experiments, write_scripts(campaign, experiments, load_system("leonardo"), SITE), said.append)
    return said


def wait_for(condition: Callable[[], bool]) -> bool:
    """Whether the condition comes true within some seconds."""
    deadline = time.monotonic() + 10
    while not (reached := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return reached


def jobs(campaign: Campaign) -> dict[str, str]:
    return {name: event.job_id for name, event in campaign.submissions().items()}


def completed(campaign: Campaign, experiment: str, job_id: str, given_up: str = "") -> None:
    """Let the pool of a submission end, well or with a job `given_up`."""
    begun = PoolStarted(
        experiment=experiment,
        launcher="srun",
        slurm_job=job_id,
        timeout_seconds=1,
        extension_seconds=1,
        grace_seconds=1,
        respawns=0,
        jobs=[],
    )
    tally = JobTally(job="j000", starts=1, completed=1, failed=0, iterations=5, given_up=given_up)
    log(campaign, experiment, begun, PoolEnded(reason="timeout", exit_code=int(bool(given_up)), jobs=[tally], left=[]))


def test_every_experiment_is_submitted_once_with_its_own_script(campaign: Campaign, slurm: Slurm) -> None:
    assert submit(campaign) == ["mix-000: job 101", "alone-000: job 102"]
    scripts = [str(campaign.folder / name / "job.sh") for name in ("mix-000", "alone-000")]
    assert slurm.calls("sbatch") == [["--parsable", script] for script in scripts]
    assert jobs(campaign) == {"mix-000": "101", "alone-000": "102"}


def test_only_what_is_missing_is_submitted_again(campaign: Campaign, slurm: Slurm) -> None:
    submit(campaign)
    completed(campaign, "mix-000", "101")
    slurm.prints("squeue", "102 PENDING None")
    assert submit(campaign) == []
    slurm.prints("squeue", "102 NODE_FAIL None")
    assert submit(campaign) == ["alone-000: job 103"]


def test_what_is_incomplete_is_submitted_again_where_that_is_asked_for(campaign: Campaign, slurm: Slurm) -> None:
    submit(campaign)
    completed(campaign, "mix-000", "101", given_up="boom")
    completed(campaign, "alone-000", "102")
    assert missing(campaign) == []
    assert [experiment.name for experiment in missing(campaign, again=True)] == ["mix-000"]


def test_a_name_of_a_cluster_behind_the_id_is_left_out(campaign: Campaign, slurm: Slurm) -> None:
    slurm.prints("sbatch", "17;leonardo")
    submit(campaign)
    assert set(jobs(campaign).values()) == {"17"}


def test_lines_that_a_site_prints_before_the_id_are_left_out_and_an_answer_without_one_is_an_error(
    campaign: Campaign, slurm: Slurm
) -> None:
    slurm.answers("sbatch", "print('Welcome\\n101') if 'mix' in sys.argv[-1] else print('queued')")
    with pytest.raises(
        UserError, match="^experiment alone-000: sbatch printed 'queued' and no id of a job; see squeue"
    ):
        submit(campaign)
    assert jobs(campaign) == {"mix-000": "101"}


def test_ctrl_c_while_slurm_takes_a_job_leaves_none_that_is_not_in_the_log(campaign: Campaign, slurm: Slurm) -> None:
    ctrl_c = f"os.kill({os.getpid()}, {int(signal.SIGINT)})"
    out_of_reach_of_the_terminal = "assert os.getsid(0) == os.getpid()"
    slurm.answers("sbatch", "\n".join(["import os", ctrl_c, out_of_reach_of_the_terminal, "print(101)"]))
    with pytest.raises(KeyboardInterrupt):
        submit(campaign)
    assert jobs(campaign) == {"mix-000": "101"}


def test_variables_of_sbatch_do_not_win_over_the_script(
    campaign: Campaign, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "debug")
    slurm.answers("sbatch", "import os\nassert 'SBATCH_PARTITION' not in os.environ\nprint(101)")
    assert len(submit(campaign)) == 2


def test_a_refusal_is_passed_on_and_what_was_submitted_stays(campaign: Campaign, slurm: Slurm) -> None:
    refusal = "sbatch: error: Batch job submission failed: Requested reservation is invalid"
    slurm.answers("sbatch", f"sys.exit({refusal!r}) if 'alone' in sys.argv[-1] else print(101)")
    with pytest.raises(UserError) as error:
        submit(campaign)
    assert str(error.value) == f"experiment alone-000: sbatch failed: {refusal}"
    assert jobs(campaign) == {"mix-000": "101"}
    slurm.prints("squeue", "101 PENDING None")
    slurm.prints("sbatch", "102")
    assert submit(campaign) == ["alone-000: job 102"]


def test_no_script_is_written_where_a_setting_is_missing(campaign: Campaign) -> None:
    with pytest.raises(OptionError, match="system leonardo needs your account"):
        write_scripts(campaign, campaign.plan.experiments, load_system("leonardo"), SiteSettings())
    assert not (campaign.folder / "mix-000").exists()


def test_scripts_of_one_plan_are_the_same_byte_for_byte(campaign: Campaign) -> None:
    def written() -> list[bytes]:
        scripts = write_scripts(campaign, campaign.plan.experiments, load_system("leonardo"), SITE)
        return [file.read_bytes() for script in scripts for file in sorted(script.parent.iterdir())]

    assert written() == written()


def test_cancelling_ends_running_experiments_in_peace_and_pending_ones_at_once(
    campaign: Campaign, slurm: Slurm
) -> None:
    submit(campaign)
    slurm.prints("squeue", "101 RUNNING None", "102 PENDING None")
    said: list[str] = []
    cancel(campaign, [], said.append)
    assert slurm.calls("scancel") == [["--batch", "--signal=TERM", "101"], ["102"]]
    assert said == ["mix-000: ending", "alone-000: cancelled"]
    slurm.prints("squeue", "101 CANCELLED None", "102 CANCELLED None")
    assert [experiment.name for experiment in missing(campaign)] == ["mix-000", "alone-000"]


def test_only_the_named_experiments_are_cancelled(campaign: Campaign, slurm: Slurm) -> None:
    submit(campaign)
    slurm.prints("squeue", "101 RUNNING None", "102 PENDING None")
    cancel(campaign, ["alone-000"], str)
    assert slurm.calls("scancel") == [["102"]]
    with pytest.raises(OptionError, match="has no experiment 'mix-1'; it has alone-000, mix-000"):
        cancel(campaign, ["mix-1"], str)


def test_there_may_be_nothing_to_cancel(campaign: Campaign, slurm: Slurm) -> None:
    said: list[str] = []
    cancel(campaign, [], said.append)
    assert said == ["nothing to cancel: no experiment is pending or running"]


_SUBMITTER = """
import sys, time
from pathlib import Path
from dlbench.slurm.campaign import locked
with locked(Path(sys.argv[1])):
    print("ready", flush=True)
    time.sleep(60)
"""


def test_experiments_that_run_here_are_cancelled_through_their_submitter(campaign: Campaign, slurm: Slurm) -> None:
    campaign.note("submitted", "mix-000", LOCAL)
    command = [sys.executable, "-c", _SUBMITTER, str(campaign.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as submitter:
        assert submitter.stdout is not None
        assert submitter.stdout.readline() == "ready\n"
        said: list[str] = []
        cancel(campaign, [], said.append)
        assert submitter.wait(20) == -signal.SIGTERM
    assert said == ["mix-000: ending"]
    assert slurm.calls("scancel") == []
    assert survey(campaign)[0].state is State.CANCELLED


def test_a_submitter_between_two_experiments_is_cancelled_too(campaign: Campaign, slurm: Slurm) -> None:
    campaign.note("submitted", "mix-000", LOCAL)
    command = [sys.executable, "-c", _SUBMITTER, str(campaign.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as submitter:
        assert submitter.stdout is not None
        assert submitter.stdout.readline() == "ready\n"
        completed(campaign, "mix-000", "")
        assert survey(campaign)[0].state is State.COMPLETED
        said: list[str] = []
        cancel(campaign, ["mix-000"], said.append)
        assert submitter.poll() is None
        cancel(campaign, [], said.append)
        assert submitter.wait(20) == -signal.SIGTERM
    assert said == [
        "nothing to cancel: no experiment is pending or running",
        "ending 'dlbench submit', which was between two experiments",
    ]


def test_a_signal_between_two_experiments_starts_no_other(campaign: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_pool", lambda *_: [sys.executable, "-c", ""])
    monkeypatch.setattr(module, "kill_marked", lambda _: os.kill(os.getpid(), signal.SIGTERM))
    with locked(campaign.folder) as lock:
        assert run_here(campaign, campaign.plan.experiments, str, lock) == 128 + signal.SIGTERM
    assert jobs(campaign) == {"mix-000": LOCAL}


def test_a_terminal_that_closes_ends_the_pool_in_peace(campaign: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(open(sys.argv[1] + '/ended', 'w').close()))\n"
        "os.kill(os.getppid(), signal.SIGHUP)\n"
        "time.sleep(20)\n"
    )
    monkeypatch.setattr(module, "_pool", lambda folder, _: [sys.executable, "-c", program, str(folder)])
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with locked(campaign.folder) as lock:
            assert run_here(campaign, campaign.plan.experiments, str, lock) == 128 + signal.SIGHUP
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (campaign.folder / "mix-000" / "ended").exists()
    assert jobs(campaign) == {"mix-000": LOCAL}


def test_a_signal_that_is_ignored_stays_ignored(campaign: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import os, signal; os.kill(os.getppid(), signal.SIGHUP)"
    monkeypatch.setattr(module, "_pool", lambda *_: [sys.executable, "-c", program])
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with locked(campaign.folder) as lock:
            assert run_here(campaign, campaign.plan.experiments, str, lock) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_experiments_run_here_one_after_the_other(campaign: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import pathlib, sys; pathlib.Path(sys.argv[1], 'ran').touch(); sys.exit('alone' in sys.argv[1])"
    monkeypatch.setattr(module, "_pool", lambda folder, _: [sys.executable, "-c", program, str(folder)])
    said: list[str] = []
    with locked(campaign.folder) as lock:
        assert run_here(campaign, campaign.plan.experiments, said.append, lock) == 1
    assert said == ["[1/2] mix-000: concurrent, 2 jobs", "[2/2] alone-000: baseline, 1 job"]
    assert all((campaign.folder / name / "ran").exists() for name in ("mix-000", "alone-000"))
    assert jobs(campaign) == {"mix-000": LOCAL, "alone-000": LOCAL}


def test_a_pool_that_refuses_is_heard_and_its_experiment_has_failed_with_the_reason(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program = "import sys; sys.exit('dlbench: no launcher here' if 'mix' in sys.argv[1] else 0)"
    monkeypatch.setattr(module, "_pool", lambda folder, _: [sys.executable, "-c", program, str(folder)])
    with locked(campaign.folder) as lock:
        assert run_here(campaign, campaign.plan.experiments, str, lock) == 1
    assert capfd.readouterr().err == "dlbench: no launcher here\n"
    status = survey(campaign)[0]
    assert (status.state, status.reason) == (State.FAILED, "its pool has not begun: no launcher here")
    assert [experiment.name for experiment in missing(campaign)] == ["mix-000", "alone-000"]


_STOPPED = """
import sys
from pathlib import Path
from dlbench.slurm import submit
from dlbench.slurm.campaign import locked, open_campaign
program = (
    "import signal, sys, time; signal.signal(2, lambda *_: sys.exit(130)); print('ready', flush=True); time.sleep(60)"
)
submit._pool = lambda folder, _: [sys.executable, "-c", program]
campaign = open_campaign(Path(sys.argv[1]))
with locked(campaign.folder) as lock:
    sys.exit(submit.run_here(campaign, campaign.plan.experiments, print, lock))
"""


def test_ctrl_c_ends_the_pool_that_runs_and_starts_no_other(campaign: Campaign) -> None:
    command = [sys.executable, "-c", _STOPPED, str(campaign.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert "mix-000" in running.stdout.readline()
        assert running.stdout.readline() == "ready\n"
        began = time.monotonic()
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == 130
        assert time.monotonic() - began < 15
        assert running.stdout.read() == ""
    assert jobs(campaign) == {"mix-000": LOCAL}


def test_a_pool_that_outlives_its_submitter_still_counts_as_running(campaign: Campaign) -> None:
    command = [sys.executable, "-c", _STOPPED, str(campaign.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert [running.stdout.readline()[:9], running.stdout.readline()] == ["[1/2] mix", "ready\n"]
        pool = int(Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()[0])
        running.kill()
        running.wait(20)
        try:
            assert survey(campaign)[0].state is State.RUNNING
            with pytest.raises(UserError, match="is at work"), locked(campaign.folder):
                pytest.fail("the pool did not keep the lock")
            cancel(campaign, [], str)
            assert wait_for(lambda: not Path(f"/proc/{pool}").exists())
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pool, signal.SIGKILL)
    assert survey(campaign)[0].state is State.CANCELLED


_KILLED = """
import os, signal, subprocess, sys
from pathlib import Path
from dlbench.slurm.pool_log import PoolLog, Started
folder = Path(sys.argv[1])
if folder.name == "mix-000":
    PoolLog(folder / "pool.log").write(Started(job="a", attempt=1, run="a-1-left", command=[]))
    subprocess.Popen(["/bin/sleep", "60"], env={"DLBENCH_POOL_RUN": "a-1-left"}, start_new_session=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_pool_has_left_does_not_run_beside_the_next_experiment(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_pool", lambda folder, _: [sys.executable, "-c", _KILLED, str(folder)])
    gone: list[bool] = []

    def look(_: str) -> None:  # before each of the two experiments
        gone.append(wait_for(lambda: not marked({"a-1-left"})))

    with locked(campaign.folder) as lock:
        assert run_here(campaign, campaign.plan.experiments, look, lock) == 1
    assert gone == [True, True]
    assert [event.run for event in read_pool_log(campaign.folder / "mix-000/pool.log") if isinstance(event, Started)]
