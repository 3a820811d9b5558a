"""Signals to the launcher and to single ranks: what was finished is in the record, and the end line says why."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from launch import Job, Mpi
from live_runs import command, last_line, said, valid_record

from dlbench.records.reader import read_ops

SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]
NAMES = [number.name for number in SIGNALS]
GRACE = 2


def endless(mpi: Mpi, folder: Path, *options: str) -> Job:
    """A run of DP on 4 ranks that only a signal ends."""
    return mpi.start(4, [*command("dp"), "--iterations", "1000000", "--record", str(folder), *options])


def in_iteration(job: Job, index: int) -> None:
    """Wait until the row before that iteration is there."""
    job.wait_for_output(f"\n{index - 1:>14} " if index else "[samples/s]")
    time.sleep(0.3)


@pytest.mark.parametrize("number", SIGNALS, ids=NAMES)
def test_a_signal_to_one_rank_ends_the_run_after_its_iteration(
    mpi: Mpi, number: signal.Signals, tmp_path: Path
) -> None:
    with endless(mpi, tmp_path) as job:
        in_iteration(job, 2)
        os.kill(job.rank_pids()[2], number)
        completed = job.wait(20)

    assert completed.returncode == 128 + number
    assert re.fullmatch(rf"FAILED: terminated by {number.name} on rank 2 \(\S+\)", last_line(completed.stdout))
    assert said(completed.stderr) == []
    record = valid_record(tmp_path)
    assert record.end is not None
    assert re.fullmatch(rf"{number.name} on rank 2 \(\S+\)", record.end.reason)
    assert (record.end.status, record.end.iterations) == ("terminated", len(record.iterations))
    assert len(record.iterations) >= 2
    assert f"\n{len(record.iterations) - 1:>14} " in completed.stdout


@pytest.mark.parametrize("number", SIGNALS, ids=NAMES)
def test_a_signal_to_the_launcher_ends_the_run_after_its_iteration(
    mpi: Mpi, number: signal.Signals, tmp_path: Path
) -> None:
    with endless(mpi, tmp_path) as job:
        in_iteration(job, 2)
        os.kill(job.process.pid, number)
        completed = job.wait(20)

    # Open MPI's mpiexec turns its own SIGTERM and SIGINT into SIGTERM for the ranks, and leaves with 1.
    absorbed = mpi.name == "openmpi" and number != signal.SIGUSR1
    assert completed.returncode == (1 if absorbed else 128 + number)
    assert said(completed.stderr) == []
    record = valid_record(tmp_path)
    assert len(record.iterations) >= 2
    if absorbed and record.end is None:
        return  # it sends SIGKILL half a second after, which a busy machine needs for less than an iteration
    assert record.end is not None
    received = signal.SIGTERM if absorbed else number
    assert re.fullmatch(rf"{received.name} on rank \d \(\S+\)", record.end.reason)
    assert (record.end.status, record.end.iterations) == ("terminated", len(record.iterations))


@pytest.mark.parametrize("sync", ["window", "none"])
def test_a_signal_ends_the_run_after_its_iteration_however_ranks_begin_one(mpi: Mpi, sync: str, tmp_path: Path) -> None:
    with endless(mpi, tmp_path, "--sync", sync, "--record-ops") as job:
        in_iteration(job, 2)
        os.kill(job.rank_pids()[3], signal.SIGTERM)
        completed = job.wait(20)

    assert (completed.returncode, said(completed.stderr)) == (143, [])
    record = valid_record(tmp_path)
    assert record.end is not None
    assert re.fullmatch(r"SIGTERM on rank 3 \(\S+\)", record.end.reason)
    assert (record.end.status, record.end.iterations) == ("terminated", len(record.iterations))
    assert len(read_ops(record.path)) == len(record.iterations) >= 2


@pytest.mark.parametrize("rank", [0, 2])
def test_a_killed_rank_takes_the_job_down_and_leaves_what_was_finished(mpi: Mpi, rank: int, tmp_path: Path) -> None:
    with endless(mpi, tmp_path, "--record-ops") as job:
        in_iteration(job, 2)
        killed = time.monotonic()
        os.kill(job.rank_pids()[rank], signal.SIGKILL)
        completed = job.wait(20)
        assert time.monotonic() - killed < 5
        assert job.alive() == []

    assert completed.returncode not in (0, 1, 2)
    record = valid_record(tmp_path)
    assert record.end is None
    assert len(record.iterations) >= 2


def test_no_rank_survives_its_launcher(mpi: Mpi, tmp_path: Path) -> None:
    with endless(mpi, tmp_path) as job:
        in_iteration(job, 2)
        os.kill(job.process.pid, signal.SIGKILL)
        job.process.wait(5)
        deadline = time.monotonic() + 5
        while job.alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert job.alive() == []

    assert len(valid_record(tmp_path).iterations) >= 2


@pytest.mark.parametrize("ranks", [[1], [0, 1, 2, 3]], ids=["to one rank", "to all"])
def test_an_iteration_that_does_not_finish_ends_after_the_grace(mpi: Mpi, ranks: list[int], tmp_path: Path) -> None:
    with endless(mpi, tmp_path, "--delay", "1:0:60000", "--grace", str(GRACE)) as job:
        in_iteration(job, 0)
        pids = job.rank_pids()
        sent = time.monotonic()
        for rank in ranks:
            os.kill(pids[rank], signal.SIGUSR1)
        completed = job.wait(20)
        assert GRACE <= time.monotonic() - sent < GRACE + 5

    assert completed.returncode == 138
    (line,) = said(completed.stderr)
    reason = rf"SIGUSR1 on rank {ranks[0]} \(\S+, cpu\); iteration 0 was still running {GRACE} s after the signal"
    assert re.fullmatch(f"FAILED: {reason}", line)
    record = valid_record(tmp_path)
    assert record.end is not None
    assert re.fullmatch(reason, record.end.reason)
    assert (record.end.status, record.end.iterations, record.iterations) == ("terminated", 0, [])
    assert record.notes == []


def test_an_iteration_that_finishes_within_the_grace_counts(mpi: Mpi, tmp_path: Path) -> None:
    with endless(mpi, tmp_path, "--delay", "1:0:2000", "--grace", "15") as job:
        in_iteration(job, 0)
        sent = time.monotonic()
        os.kill(job.rank_pids()[1], signal.SIGTERM)
        completed = job.wait(20)
        assert time.monotonic() - sent < 10  # no longer than it takes

    assert completed.returncode == 143
    assert len(valid_record(tmp_path).iterations) == 1


def test_a_signal_that_comes_again_ends_the_run_at_once(mpi: Mpi, tmp_path: Path) -> None:
    with endless(mpi, tmp_path, "--delay", "1:0:60000") as job:
        in_iteration(job, 0)
        pid = job.rank_pids()[1]
        os.kill(pid, signal.SIGTERM)
        time.sleep(0.5)
        os.kill(pid, signal.SIGTERM)
        sent = time.monotonic()
        completed = job.wait(20)
        assert time.monotonic() - sent < 3

    assert completed.returncode == 143
    record = valid_record(tmp_path)
    assert record.end is not None
    assert re.fullmatch(r"SIGTERM on rank 1 \(\S+, cpu\); the signal came again in iteration 0", record.end.reason)
