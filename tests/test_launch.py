"""The launcher of the live tests: real ranks, no hang, no leftovers."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path

import pytest
from launch import IMPLEMENTATIONS, SHARED_MEMORY, Mpi, find_mpi

SLEEP = "import sys, time; print('asleep', flush=True); time.sleep(600)"


REPORT_RANKS = """
from mpi4py import MPI

total = MPI.COMM_WORLD.allreduce(MPI.COMM_WORLD.rank)
if MPI.COMM_WORLD.rank == 0:
    print(f"{MPI.COMM_WORLD.size} ranks, sum {total}, {MPI.Get_library_version()}")
"""

FAIL_ON_RANK_ONE = """
from mpi4py import MPI

assert MPI.COMM_WORLD.rank != 1, "rank one is unhappy"
MPI.COMM_WORLD.Barrier()
"""


def raise_with(message: str) -> None:
    raise ValueError(f"got {message}")


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def test_a_job_has_the_ranks_and_the_library_that_were_asked_for(mpi: Mpi) -> None:
    library = {"mpich": "MPICH", "openmpi": "Open MPI"}[mpi.name]

    stdout = mpi.run_ranks(REPORT_RANKS, 4).stdout

    assert stdout.startswith("4 ranks, sum 6, ")
    assert library in stdout


def test_the_exit_code_and_the_output_of_a_program_come_back(mpi: Mpi) -> None:
    program = "import sys; from mpi4py import MPI; print('out'); print('err', file=sys.stderr); sys.exit(3)"

    completed = mpi.launch(1, ["-c", program])

    assert completed.returncode == 3
    assert "out" in completed.stdout
    assert "err" in completed.stderr


def test_an_assertion_on_one_rank_fails_the_test_and_is_shown(mpi: Mpi) -> None:
    with pytest.raises(pytest.fail.Exception, match="rank one is unhappy"):
        mpi.run_ranks(FAIL_ON_RANK_ONE, 2, timeout=30)


def test_a_function_can_be_a_program_and_gets_its_arguments(mpi: Mpi) -> None:
    with pytest.raises(pytest.fail.Exception, match="ValueError: got three"):
        mpi.run_ranks(raise_with, 1, "three", timeout=30)


def test_a_job_that_hangs_fails_the_test_with_its_output_and_leaves_no_process(mpi: Mpi) -> None:
    began = time.monotonic()
    with mpi.start(2, ["-c", SLEEP]) as job:
        job.wait_for_output("asleep")
        pids = [*job.rank_pids(), *job.alive()]
        with pytest.raises(pytest.fail.Exception, match=r"(?s)still running after 0\.5 s.*asleep"):
            job.wait(timeout=0.5)

        assert all(gone(pid) for pid in pids)
    assert time.monotonic() - began < 30


def test_a_killed_launcher_leaves_nothing_that_stops_a_later_one_with_its_process_id(mpi: Mpi) -> None:
    elsewhere = set(Path(tempfile.gettempdir()).glob("ompi.*"))
    with mpi.start(2, ["-c", SLEEP]) as job:
        job.rank_pids()
        directory = f"ompi.{job.process.pid}"
        found = list(SHARED_MEMORY.glob(f"dlbench-job-*/{directory}"))
        assert len(found) == (mpi.name == "openmpi")

    assert not [path for path in found if path.parent.exists()]
    assert Path(tempfile.gettempdir(), directory) not in set(Path(tempfile.gettempdir()).glob("ompi.*")) - elsewhere


def test_a_test_can_kill_one_rank(mpi: Mpi) -> None:
    with mpi.start(2, ["-c", f"from mpi4py import MPI; {SLEEP}"]) as job:
        job.wait_for_output("asleep")
        os.kill(job.rank_pids()[1], signal.SIGKILL)

        assert job.wait(timeout=30).returncode != 0


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_a_missing_implementation_is_named_with_the_variable_that_helps(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(f"DLBENCH_{name.upper()}_PYTHON", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))

    reason = find_mpi(name)

    assert isinstance(reason, str)
    assert f"DLBENCH_{name.upper()}_PYTHON" in reason
    assert str(tmp_path / "python") in reason
