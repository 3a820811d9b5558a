"""A start that goes wrong: ranks that stop, die or are signalled before MPI is there, and streams that are closed."""

from __future__ import annotations

import os
import re
import shlex
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from launch import Job, Mpi
from live_runs import command, last_line, on_mpich, said

WAITING = """
import os, sys, time

RANK = os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"]


class Waiting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            print("waiting", flush=True)
            time.sleep(60)


if RANK in {ranks!r}:
    sys.meta_path.insert(0, Waiting())
from dlbench.runtime.entry import main

main("dp")
"""


def shell(mpi: Mpi) -> Mpi:
    """Launches the shell in place of Python."""
    return replace(mpi, python="sh")


def waiting(mpi: Mpi, folder: Path, module: str, *ranks: str) -> Job:
    """Two ranks of DP, of which some wait where a module is imported."""
    program = folder / "ranks.py"
    program.write_text(WAITING.format(module=module, ranks=ranks))
    job = mpi.start(2, [str(program), "--no-record"])
    job.wait_for_output("waiting")
    time.sleep(1)  # for a rank that does not wait there to be where it waits for the other
    return job


@pytest.mark.parametrize(
    ("mpi", "other"),
    [("mpich", "kill -STOP $$"), ("openmpi", "kill -STOP $$"), ("mpich", "exit 1")],
    ids=["stopped under MPICH", "stopped under Open MPI", "dead under MPICH"],
    indirect=["mpi"],
)
def test_a_rank_that_never_starts_ends_the_job_at_the_limit(mpi: Mpi, other: str) -> None:
    ranks = [*command("dp"), "--no-record", ":", "-n", "1", "sh", "-c", other]

    completed = mpi.launch(1, ranks, env={"DLBENCH_START_TIMEOUT": "2.5"}, timeout=30)

    assert completed.returncode not in (0, 2)
    hang, failed = said(completed.stderr)
    assert re.fullmatch(r"rank 0 \(\S+, cpu\) is in starting MPI after \d\.\d s", hang)
    assert failed == f"FAILED: hang: {hang}; the limit is DLBENCH_START_TIMEOUT 2.5"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_while_the_ranks_import_is_one_line(mpi: Mpi, number: signal.Signals, tmp_path: Path) -> None:
    with waiting(mpi, tmp_path, "dlbench.runtime.runner", "0", "1") as job:
        os.kill(job.rank_pids()[1], number)
        completed = job.wait(20)

    assert completed.returncode == 128 + number
    assert "Traceback" not in completed.stderr
    (line,) = said(completed.stderr)
    expected = rf"FAILED: {number.name} on rank 1 \(\S+, cpu\); importing was still running 2 s after the signal"
    assert re.fullmatch(expected, line)


def test_a_signal_while_a_rank_waits_in_mpi_init_is_one_line(mpi: Mpi, tmp_path: Path) -> None:
    with waiting(mpi, tmp_path, "dlbench.comm.library", "1") as job:
        os.kill(job.rank_pids()[0], signal.SIGINT)
        completed = job.wait(20)

    assert completed.returncode not in (0, 1, 2)
    assert "Traceback" not in completed.stderr
    (line,) = said(completed.stderr)
    expected = r"FAILED: SIGINT on rank 0 \(\S+, cpu\); starting MPI was still running 2 s after the signal"
    assert re.fullmatch(expected, line)


def test_ranks_of_two_strategies_are_refused(mpi: Mpi) -> None:
    other = [mpi.python, *command("fsdp"), "--no-record"]

    completed = mpi.launch(1, [*command("dp"), "--no-record", ":", "-n", "1", *other])

    assert completed.returncode == 2
    assert said(completed.stderr) == [
        "rank 0 runs dlbench.dp, but rank 1 dlbench.fsdp; start one strategy on all ranks"
    ]


@on_mpich
@pytest.mark.parametrize(
    ("options", "exit_code"),
    [("--bogus", 2), ("--no-record --delay 1:0:60000 --timeout 1", 1)],
    ids=["wrong option", "hang"],
)
def test_a_rank_needs_no_standard_error(mpi: Mpi, options: str, exit_code: int) -> None:
    program = f"exec {shlex.join([mpi.python, *command('dp')])} {options} 2>&-"

    assert shell(mpi).launch(2, ["-c", program], timeout=30).returncode == exit_code


@on_mpich
@pytest.mark.parametrize(("streams", "output"), [(">&-", ""), ("", "OK")], ids=["closed", "ASCII"])
def test_a_run_needs_no_output_that_takes_everything(mpi: Mpi, streams: str, output: str) -> None:
    program = f"exec {shlex.join([mpi.python, *command('dp')])} --no-record --iterations 1 {streams}"

    completed = shell(mpi).launch(2, ["-c", program], env={"PYTHONIOENCODING": "ascii"})

    assert (completed.returncode, said(completed.stderr)) == (0, [])
    assert last_line(completed.stdout or "\n") == output
