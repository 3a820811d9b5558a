"""`dlbench pool`, as a user sees it; the pool itself is played."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlbench.allocators.experiment import Experiment, Job, Plan, write_plan
from dlbench.cli.main import main
from dlbench.slurm import job_launchers, pool
from dlbench.slurm.pool_log import Ended, Event, GivenUp, JobFacts, JobTally, PoolEnded, PoolStarted, Running, Started

Command = Callable[..., tuple[int, str, str]]

STARTED = PoolStarted(
    experiment="trial",
    launcher="srun",
    slurm_job="77",
    timeout_seconds=240.0,
    extension_seconds=240.0,
    grace_seconds=25.0,
    respawns=2,
    jobs=[
        JobFacts(job="a", strategy="dp", gpus=8, placement="intra-l1", nodes=["n1", "n2"]),
        JobFacts(job="b", strategy="fsdp", gpus=2, placement="", nodes=[]),
    ],
)
GOOD = JobTally(job="a", starts=3, completed=3, failed=0, iterations=33, given_up="")
BAD = JobTally(job="b", starts=1, completed=0, failed=1, iterations=0, given_up="exit code 2: no such\nmodel")
FAILURE = Ended(job="b", attempt=1, exit_code=2, status="failed", reason="no model", iterations=0, error="one\ntwo")


class Played:
    """Takes what a pool takes, and reports what the test says."""

    events: tuple[Event, ...] = ()
    ended = PoolEnded(reason="timeout of 240 s", exit_code=0, jobs=[GOOD], left=[])
    policy: Any = None

    def __init__(self, experiment: Any, launcher: Any, policy: Any, report: Callable[[Event], object]) -> None:
        type(self).policy = policy
        self._report = report

    def run(self) -> PoolEnded:
        for event in (*self.events, self.ended):
            self._report(event)
        return self.ended


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> type[Played]:
    class Own(Played):
        pass

    monkeypatch.setattr(pool, "Pool", Own)
    monkeypatch.setattr(job_launchers, "job_launcher", lambda *_, **__: None)
    return Own


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    job = Job(name="a", strategy="dp", model="vit-b", gpus=1, placement="intra-l1", nodes=("slot000",))
    experiment = Experiment(name="trial", kind="baseline", timeout_seconds=240, jobs=(job,))
    plan = Plan(system="local", mode="reserved", seed=1, gpus=1, gpus_per_node=1, experiments=(experiment,))
    write_plan(plan, tmp_path / "experiment.yaml")

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dlbench", "pool", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        captured = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return left.value.code, captured.out, captured.err

    return command


def test_every_event_is_a_line_with_its_time(run: Command, played: type[Played], tmp_path: Path) -> None:
    played.events = (
        STARTED,
        Started(job="a", attempt=2, run="a-2-f", command=[]),
        Running(job="a", attempt=2),
        Ended(job="a", attempt=2, exit_code=0, status="completed", reason="10 iterations measured", iterations=11),
        FAILURE,
        GivenUp(job="b", reason="no model"),
    )
    code, out, err = run(str(tmp_path))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert all(line[:12].endswith(" s  ") for line in lines[:9])
    assert [line[12:] for line in lines[:9]] == [
        "trial: 2 jobs, srun, timeout 240 s",
        "  a: dp on 8 GPUs, intra-l1 on n[1-2]",
        "  b: fsdp on 2 GPUs",
        "a: start 2",
        "a: running",
        "a: completed, 11 iterations: 10 iterations measured",
        "b: failed, 0 iterations: no model",
        "b: given up",
        "ended: timeout of 240 s",
    ]


def test_a_table_and_a_verdict_come_last(run: Command, played: type[Played], tmp_path: Path) -> None:
    code, out, _ = run(str(tmp_path))
    assert code == 0
    heading, row, verdict = (line.split() for line in out.splitlines()[-3:])
    assert heading == ["job", "starts", "completed", "failed", "iterations", "given", "up"]
    assert row == ["a", "3", "3", "0", "33", "-"]
    assert verdict == ["OK"]


def test_a_job_that_was_given_up_fails_the_pool(run: Command, played: type[Played], tmp_path: Path) -> None:
    played.ended = PoolEnded(reason="timeout of 9 s", exit_code=1, jobs=[GOOD, BAD], left=["step 77.1 of b-1-f"])
    code, out, _ = run(str(tmp_path))
    assert code == 1
    assert "could not be ended: step 77.1 of b-1-f" in out
    assert "b    1       0          1       0           exit code 2: no such\\nmodel" in out
    assert out.splitlines()[-1] == "FAILED: given up: b"


def test_a_job_that_never_completed_fails_the_pool(run: Command, played: type[Played], tmp_path: Path) -> None:
    slow = JobTally(job="c", starts=1, completed=0, failed=0, iterations=7, given_up="")
    played.ended = PoolEnded(reason="timeout of 9 s and its extension", exit_code=1, jobs=[GOOD, BAD, slow], left=[])
    code, out, _ = run(str(tmp_path))
    assert (code, out.splitlines()[-1]) == (1, "FAILED: given up: b; never completed: c")


def test_a_pool_that_a_signal_ended_says_so(run: Command, played: type[Played], tmp_path: Path) -> None:
    played.ended = PoolEnded(reason="SIGUSR1", exit_code=138, jobs=[GOOD], left=[])
    code, out, _ = run(str(tmp_path))
    assert (code, out.splitlines()[-1]) == (138, "FAILED: ended by SIGUSR1")


def test_json_is_one_object_on_stdout_and_the_rest_on_stderr(
    run: Command, played: type[Played], tmp_path: Path
) -> None:
    played.events = (STARTED,)
    code, out, err = run(str(tmp_path), "--json")
    assert code == 0
    document = json.loads(out)
    assert document["reason"] == "timeout of 240 s"
    assert document["jobs"][0] == {
        **{"job": "a", "starts": 3, "completed": 3, "failed": 0, "iterations": 33, "given_up": ""},
    }
    assert "trial: 2 jobs" in err


def test_the_plan_says_the_timeout_unless_the_command_does(run: Command, played: type[Played], tmp_path: Path) -> None:
    run(str(tmp_path))
    policy = played.policy
    assert (policy.timeout, policy.extension, policy.grace, policy.respawns) == (240, 240, 25, 2)
    run(str(tmp_path), "--timeout=60", "--grace=5", "--respawns=0")
    policy = played.policy
    assert (policy.timeout, policy.extension, policy.grace, policy.respawns) == (60, 60, 5, 0)
    run(str(tmp_path), "--timeout=10")
    assert played.policy.extension == 60
    run(str(tmp_path), "--extension=0")
    assert played.policy.extension == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--timeout=0"], "argument --timeout: expected a number above 0, found '0'"),
        (["--respawns=-1"], "argument --respawns: expected an integer of 0 or more, found '-1'"),
        (["--grace=0"], "argument --grace: expected a number above 0, found '0'"),
        (["--time=9"], "unknown option --time, did you mean --timeout?"),
    ],
)
def test_a_wrong_option_is_one_line(arguments: list[str], message: str, run: Command, tmp_path: Path) -> None:
    code, out, err = run(str(tmp_path), *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_folder_without_an_experiment_is_one_line(run: Command, tmp_path: Path) -> None:
    code, _, err = run(str(tmp_path / "none"))
    assert code == 2
    assert "none/experiment.yaml" in err
    assert err.count("\n") == 1


def test_a_job_that_no_rank_would_accept_is_one_line_and_nothing_is_written(run: Command, tmp_path: Path) -> None:
    plan = tmp_path / "experiment.yaml"
    plan.write_text(plan.read_text().replace("options: {}", 'options: {"backend": "nccl", "buffers": "host"}'))
    code, _, err = run(str(tmp_path))
    assert code == 2
    assert err.startswith(f"dlbench: {plan}: job a: --backend nccl: its buffers are in the memory of the GPU")
    assert list(tmp_path.iterdir()) == [plan]


def test_an_unknown_launcher_is_one_line(run: Command, tmp_path: Path) -> None:
    code, _, err = run(str(tmp_path), "--launcher=jsrun")
    assert (code, err) == (2, "dlbench: unknown launcher 'jsrun'; valid: auto, srun, mpiexec\n")


def test_help_explains_when_a_pool_ends(run: Command) -> None:
    code, out, _ = run("--help")
    assert code == 0
    assert "every job has completed at least once" in out
    assert "exit codes: 0 every job has completed" in out
