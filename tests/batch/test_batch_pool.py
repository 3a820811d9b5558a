"""The job pool with runs that are shell scripts: when it starts, waits, gives up and ends."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builder import header

from dlbench.errors import PreflightError, RunError
from dlbench.slurm import pool
from dlbench.slurm.job_launchers import JobLauncher, Ranks, Surroundings
from dlbench.slurm.launchers import FAMILIES, Launch, Library
from dlbench.slurm.pool import Policy, Pool
from dlbench.slurm.pool_jobs import PoolExperiment, PoolJob
from dlbench.slurm.pool_log import (
    Ended,
    Event,
    GivenUp,
    JobTally,
    PoolEnded,
    PoolLog,
    PoolStarted,
    Running,
    Started,
    read_pool_log,
)
from dlbench.slurm.processes import MARK_VARIABLE, marked

RECORD = """
write() {
    sed "s/THE-RUN/$DLBENCH_POOL_RUN/" "$FOLDER/header" > "$FOLDER/results/$DLBENCH_POOL_RUN.jsonl"
    for index in 0 1 2 3; do
        [ $index = 0 ] && warmup=true || warmup=false
        line='{"kind":"iteration","index":'$index',"warmup":'$warmup'}'
        echo "$line" >> "$FOLDER/results/$DLBENCH_POOL_RUN.jsonl"
    done
    end='{"kind":"end","status":"'$1'","reason":"'$2'","iterations":4,"ended":"2026-01-02T03:05:05Z"}'
    [ -z "$1" ] || echo "$end" >> "$FOLDER/results/$DLBENCH_POOL_RUN.jsonl"
}
"""
COMPLETES = "echo '# header'; write completed 'all measured'"
ENDLESS = "trap 'write terminated SIGUSR1; exit 138' USR1; echo '# header'; while :; do sleep 0.02; done"
DEAF = "trap '' USR1; echo '# header'; write; while :; do sleep 0.02; done"
CRASHES = "echo '# header'; echo first >&2; echo 'dlbench: FAILED: rank 1 (n1, cpu) failed' >&2; exit 1"
REFUSED = "echo 'dlbench: MPI sees a world of 1 rank; use another --mpi' >&2; exit 2"
LOSES_NODE = "write; echo 'srun: error: Node failure on n7' >&2; exit 0"
LEAVES_RANK = "sleep 60 & exit 1"
EVERY_SECOND_CRASHES = (
    "if [ -e $FOLDER/odd ]; then rm $FOLDER/odd; write completed 'all measured'; else touch $FOLDER/odd; exit 3; fi"
)
CUT = """write; printf '{"kind":"iteration","ind' >> "$FOLDER/results/$DLBENCH_POOL_RUN.jsonl"; exit 1"""
CRASHES_FIRST = "[ -e $FOLDER/tried ] || { touch $FOLDER/tried; exit 3; }; write completed 'all measured'"


class Shell(JobLauncher):
    """Runs the script of each job; SIGUSR1 ends it in peace."""

    name = "shell"

    def __init__(self, folder: Path, scripts: Mapping[str, str]) -> None:
        super().__init__(
            Surroundings(library=Library("none", None), family=FAMILIES[0], slurm_job=None, ranks=len(scripts))
        )
        self._folder = folder
        self._scripts = scripts

    def _launch(self, ranks: Ranks) -> Launch:
        script = self._scripts[ranks.name.partition("-")[0]]
        return Launch(["sh", "-c", RECORD + script], {"FOLDER": str(self._folder)})

    def end(self, launchers: Mapping[str, int]) -> None:
        for pid in launchers.values():
            os.kill(pid, signal.SIGUSR1)


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(pool, "_SECONDS_AFTER_FAILURE", 0.02)


class Trial:
    """A pool over scripts, and what it has reported."""

    def __init__(self, folder: Path, scripts: Mapping[str, str], **policy: Any) -> None:
        environment = {MARK_VARIABLE: "THE-RUN"}
        (folder / "header").write_text(
            json.dumps(header("r", 2, environment=environment), separators=(",", ":")) + "\n"
        )
        jobs = tuple(_job(name) for name in scripts)
        experiment = PoolExperiment(name="trial", folder=folder, timeout_seconds=1, jobs=jobs)
        settings = {"timeout": 0.3, "extension": 5.0, "grace": 5.0, "respawns": 2} | policy
        self.events: list[Event] = []
        self.folder = folder
        self.report: Callable[[Event], object] = self.events.append
        launcher = Shell(folder, scripts)
        self._pool = Pool(experiment, launcher, Policy(**settings), self._take)

    def _take(self, event: Event) -> None:
        self.report(event)

    def run(self) -> PoolEnded:
        ended = self._pool.run()
        assert ended.left == []
        assert marked({event.run for event in self.of(Started)}) == {}
        return ended

    def of(self, kind: type[Any], job: str = "") -> list[Any]:
        return [event for event in self.events if isinstance(event, kind) and job in ("", getattr(event, "job", ""))]

    def when(self, kind: type[Any], job: str, send: signal.Signals, times: int = 1) -> None:
        """Signal this process as soon as there is such an event."""

        def wait() -> None:
            while not self.of(kind, job):
                time.sleep(0.01)
            for _ in range(times):
                os.kill(os.getpid(), send)
                time.sleep(0.2)

        threading.Thread(target=wait, daemon=True).start()


def _job(name: str) -> PoolJob:
    return PoolJob(
        name=name,
        strategy="dp",
        gpus=2,
        per_node=2,
        nodes=(),
        placement="intra-l1",
        seed=40,
        options=("--job=" + name,),
        environment={},
    )


def tally(ended: PoolEnded, job: str) -> JobTally:
    (found,) = (tally for tally in ended.jobs if tally.job == job)
    return found


def test_every_job_is_started_at_once_and_again_until_the_timeout(tmp_path: Path) -> None:
    trial = Trial(tmp_path, {"a": COMPLETES, "b": COMPLETES, "c": ENDLESS}, extension=0.0)
    ended = trial.run()
    assert isinstance(trial.events[0], PoolStarted)
    assert [event.job for event in trial.events[1:4] if isinstance(event, Started)] == ["a", "b", "c"]
    for job in ("a", "b"):
        found = tally(ended, job)
        assert found.completed >= 3
        assert (found.iterations, found.failed) == (3 * found.completed, 0)
        assert [event.attempt for event in trial.of(Started, job)] == list(range(1, found.starts + 1))
    assert len(trial.of(Started, "c")) == 1
    (stopped,) = trial.of(Ended, "c")
    assert (stopped.status, stopped.exit_code, stopped.reason, stopped.iterations) == ("terminated", 138, "SIGUSR1", 3)
    assert stopped.record == f"{trial.of(Started, 'c')[0].run}.jsonl"


def test_every_attempt_has_a_seed_of_its_own(tmp_path: Path) -> None:
    trial = Trial(tmp_path, {"a": COMPLETES})
    trial.run()
    seeds = [event.command[-1] for event in trial.of(Started)]
    assert seeds == [f"--seed={40 + index}" for index in range(len(seeds))]
    assert len(seeds) > 1


def test_attempts_count_on_where_an_earlier_pool_of_the_experiment_stopped(tmp_path: Path) -> None:
    first = Trial(tmp_path, {"a": COMPLETES})
    starts = tally(first.run(), "a").starts
    second = Trial(tmp_path, {"a": COMPLETES})
    second.run()
    assert second.of(Started)[0].attempt == starts + 1
    assert (tmp_path / "logs" / "a-1.out").read_text() == "# header\n"


def test_a_long_job_is_waited_for_until_it_has_completed_once_while_the_others_go_on(tmp_path: Path) -> None:
    trial = Trial(tmp_path, {"long": f"sleep 1.2; {COMPLETES}", "short": COMPLETES})
    ended = trial.run()
    assert tally(ended, "long").completed == 1
    assert re.fullmatch(r"timeout of 0.3 s, extended by (0\.9|1\.\d) s for long", ended.reason)
    last_start = trial.of(Started, "short")[-1].time - trial.events[0].time
    assert last_start > 0.6


def test_the_job_that_the_pool_has_waited_for_is_not_started_again_to_be_ended_at_once(tmp_path: Path) -> None:
    trial = Trial(tmp_path, {"a": f"sleep 0.6; {COMPLETES}"})
    assert (tally(trial.run(), "a").starts, [event.status for event in trial.of(Ended)]) == (1, ["completed"])


def test_the_extension_has_an_end(tmp_path: Path) -> None:
    ended = Trial(tmp_path, {"a": ENDLESS, "b": COMPLETES}, extension=0.2).run()
    assert ended.reason == "timeout of 0.3 s and its extension of 0.2 s, in which a never completed"
    assert (ended.exit_code, tally(ended, "a").completed, tally(ended, "a").iterations) == (1, 0, 3)


def test_a_job_is_running_once_its_ranks_have_written_something(tmp_path: Path) -> None:
    trial = Trial(tmp_path, {"queued": f"sleep 0.2; {COMPLETES}"})
    trial.run()
    start, running = trial.of(Started)[0], trial.of(Running)[0]
    assert running.time - start.time > 0.15


@pytest.mark.parametrize(("respawns", "starts", "often"), [(0, 1, "once"), (2, 3, "3 times in a row")])
def test_a_job_that_fails_is_given_up_after_its_respawns_and_the_others_go_on(
    tmp_path: Path, respawns: int, starts: int, often: str
) -> None:
    trial = Trial(tmp_path, {"bad": CRASHES, "good": COMPLETES}, respawns=respawns)
    ended = trial.run()
    assert ended.exit_code == 1
    bad = tally(ended, "bad")
    assert (bad.starts, bad.failed, bad.completed) == (starts, starts, 0)
    assert bad.given_up.startswith(f"failed {often}: exit code 1: FAILED: rank 1 (n1, cpu) failed; see ")
    assert [event.reason for event in trial.of(GivenUp)] == [bad.given_up]
    assert tally(ended, "good").completed > 1
    failure = trial.of(Ended, "bad")[0]
    assert failure.error == "first\ndlbench: FAILED: rank 1 (n1, cpu) failed"
    assert (tmp_path / "logs" / "bad-1.err").read_text() == failure.error + "\n"


def test_a_job_that_fails_now_and_then_is_not_given_up(tmp_path: Path) -> None:
    ended = Trial(tmp_path, {"a": CRASHES_FIRST}, respawns=1).run()
    found = tally(ended, "a")
    assert (found.failed, found.given_up, ended.exit_code) == (1, "", 0)
    assert found.completed >= 1


def test_only_failures_in_a_row_count(tmp_path: Path) -> None:
    trial = Trial(tmp_path, {"a": EVERY_SECOND_CRASHES}, respawns=1, timeout=1.0)
    found = tally(trial.run(), "a")
    assert found.failed >= 2
    assert found.given_up == ""


def test_an_iteration_whose_line_is_cut_is_not_counted(tmp_path: Path) -> None:
    trial = Trial(tmp_path, {"a": CUT}, respawns=0)
    trial.run()
    assert [event.iterations for event in trial.of(Ended)] == [3]


def test_what_the_user_must_put_right_is_not_tried_again(tmp_path: Path) -> None:
    trial = Trial(tmp_path, {"a": REFUSED})
    ended = trial.run()
    assert tally(ended, "a").starts == 1
    assert tally(ended, "a").given_up == "exit code 2: MPI sees a world of 1 rank; use another --mpi"
    assert ended.reason == "every job was given up"


def test_a_launcher_that_leaves_with_0_but_without_a_complete_record_has_failed(tmp_path: Path) -> None:
    trial = Trial(tmp_path, {"a": LOSES_NODE}, respawns=0)
    ended = trial.run()
    (failure,) = trial.of(Ended)
    assert (failure.status, failure.exit_code, failure.iterations) == ("failed", 0, 3)
    assert failure.reason == "exit code 0: srun: error: Node failure on n7"
    assert ended.exit_code == 1


def test_a_rank_that_its_launcher_has_left_behind_is_ended_before_the_next_start(tmp_path: Path) -> None:
    trial = Trial(tmp_path, {"a": LEAVES_RANK}, respawns=1)
    there: list[dict[int, str]] = []

    def look(event: Event) -> None:
        if isinstance(event, Started):
            there.append(marked({earlier.run for earlier in trial.of(Started)}))
        trial.events.append(event)

    trial.report = look
    trial.run()
    assert there == [{}, {}]


def test_a_run_that_does_not_end_in_peace_is_killed_after_the_grace(tmp_path: Path) -> None:
    trial = Trial(tmp_path, {"deaf": DEAF, "endless": ENDLESS}, extension=0.0, grace=0.4)
    begin = time.monotonic()
    ended = trial.run()
    assert time.monotonic() - begin < 3
    assert [event.status for event in trial.of(Ended, "deaf")] == ["killed"]
    assert [event.status for event in trial.of(Ended, "endless")] == ["terminated"]
    assert (ended.exit_code, tally(ended, "deaf").iterations) == (1, 3)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1], ids=lambda number: number.name)
def test_a_signal_to_the_pool_ends_all_runs_in_peace(tmp_path: Path, number: signal.Signals) -> None:
    trial = Trial(tmp_path, {"a": ENDLESS, "b": ENDLESS}, timeout=60.0)
    trial.when(Running, "b", number)
    ended = trial.run()
    assert (ended.reason, ended.exit_code) == (number.name, 128 + number)
    assert [event.status for event in trial.of(Ended)] == ["terminated", "terminated"]


def test_a_second_signal_ends_what_is_left_at_once(tmp_path: Path) -> None:
    trial = Trial(tmp_path, {"deaf": DEAF}, timeout=60.0, grace=60.0)
    trial.when(Running, "deaf", signal.SIGTERM, times=2)
    begin = time.monotonic()
    trial.run()
    assert time.monotonic() - begin < 5
    assert [event.status for event in trial.of(Ended)] == ["killed"]


def test_a_signal_while_the_pool_ends_anyway_does_not_make_a_complete_experiment_a_cancelled_one(
    tmp_path: Path,
) -> None:
    second = "trap 'kill -TERM $PPID; sleep 60' USR1; while :; do sleep 0.02; done"
    script = f"[ -e $FOLDER/tried ] || {{ touch $FOLDER/tried; {COMPLETES}; exit; }}; {second}"
    trial = Trial(tmp_path, {"a": script})
    ended = trial.run()
    assert (ended.reason, ended.exit_code) == ("timeout of 0.3 s", 0)
    assert [event.status for event in trial.of(Ended)] == ["completed", "killed"]


def test_a_job_that_only_ever_failed_is_given_up_at_the_end(tmp_path: Path) -> None:
    trial = Trial(tmp_path, {"a": f"sleep 0.2; {CRASHES}"}, timeout=0.3, extension=0.0, respawns=9)
    ended = trial.run()
    assert ended.exit_code == 1
    assert tally(ended, "a").given_up == "failed, and had no iteration when the pool ended"


def test_a_launcher_that_is_not_there_ends_the_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(tmp_path, {"a": ENDLESS})
    monkeypatch.setattr(Shell, "_launch", lambda *_: Launch(["/nowhere/mpiexec"]))
    with pytest.raises(PreflightError, match="cannot start /nowhere/mpiexec: No such file or directory"):
        trial.run()
    (ended,) = trial.of(PoolEnded)
    assert ended.reason == "cannot start /nowhere/mpiexec: No such file or directory"


def test_what_the_user_has_set_in_the_environment_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("FOLDER", str(elsewhere))
    Trial(tmp_path, {"a": "touch $FOLDER/here; exit 2"}).run()
    assert (elsewhere / "here").exists()


def test_ctrl_c_reaches_the_pool_alone(tmp_path: Path) -> None:
    trial = Trial(tmp_path, {"a": "ps -o sid= -p $$ > $FOLDER/session; exit 2"})
    trial.run()
    own = subprocess.run(["ps", "-o", "sid=", "-p", str(os.getpid())], capture_output=True, text=True, check=True)
    assert (tmp_path / "session").read_text().strip() != own.stdout.strip()


def test_a_record_that_is_not_visible_yet_is_stood_in_for_by_the_verdict(tmp_path: Path) -> None:
    trial = Trial(tmp_path, {"a": "echo '# header'; echo OK"})
    ended = trial.run()
    assert tally(ended, "a").completed >= 1
    assert (tally(ended, "a").failed, tally(ended, "a").iterations) == (0, 0)


def test_what_a_killed_pool_has_left_behind_is_gone_before_the_first_run_starts(tmp_path: Path) -> None:
    PoolLog(tmp_path / "pool.log").write(Started(job="a", attempt=1, run="a-1-left", command=[]))
    with subprocess.Popen(["sleep", "60"], env={**os.environ, MARK_VARIABLE: "a-1-left"}) as left:
        trial = Trial(tmp_path, {"a": COMPLETES})
        codes: list[int | None] = []
        trial.report = lambda event: codes.append(left.poll()) if isinstance(event, Started) else None
        trial._pool.run()
    assert codes[0] == -signal.SIGKILL


@pytest.mark.parametrize(("free", "said"), [(0, "; no space is left in {}"), (2, "")])
def test_a_run_that_could_say_nothing_failed_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, said: str
) -> None:
    monkeypatch.setattr(pool.os, "statvfs", lambda _: SimpleNamespace(f_bavail=free, f_frsize=4096))
    trial = Trial(tmp_path, {"a": "exit 3"}, respawns=0)
    trial.run()
    (given_up,) = trial.of(GivenUp)
    why = f"exit code 3, and no complete record{said.format(tmp_path / 'logs')}"
    assert why in given_up.reason


def test_a_closed_pipe_keeps_no_run_from_its_end(tmp_path: Path) -> None:
    trial = Trial(tmp_path, {"a": COMPLETES, "b": ENDLESS}, extension=0.0)

    def broken(_: Event) -> None:
        raise BrokenPipeError

    trial.report = broken
    assert trial.run().exit_code == 1  # b has not completed
    assert len(read_pool_log(tmp_path / "pool.log")) > 5


def test_a_full_disk_ends_the_pool_with_an_error_and_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(tmp_path, {"a": ENDLESS}, extension=0.0)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(PoolLog, "write", full)
    with pytest.raises(RunError, match="pool.log is not complete: No space left on device"):
        trial.run()
    assert [event.status for event in trial.of(Ended)] == ["terminated"]
    assert marked({event.run for event in trial.of(Started)}) == {}
