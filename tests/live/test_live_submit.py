"""`dlbench submit` on this machine: real experiments one after the other, stopped and gone on with."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from time import monotonic, sleep

from launch import Mpi

OPTIONS = ("--system=local", "--pattern=tier", "--experiments=1", "--gpus=4", "--timeout=2", "-o", "c")
"""One experiment and its baselines, some seconds each."""


def submit(mpi: Mpi, folder: Path) -> subprocess.Popen[str]:
    command = [mpi.python, "-m", "dlbench", "submit", *OPTIONS, "--time-scale=0.0001", "--min-seconds=0"]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def states(mpi: Mpi, folder: Path) -> list[str]:
    command = [mpi.python, "-m", "dlbench", "status", "c", "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=True)
    return [entry["state"] for entry in json.loads(done.stdout)]


def test_a_set_that_ctrl_c_has_stopped_is_gone_on_with_where_it_was(mpi: Mpi, tmp_path: Path) -> None:
    with submit(mpi, tmp_path) as first:
        deadline = monotonic() + 60
        while not list(tmp_path.glob("c/mix-000/results/*.jsonl")) and monotonic() < deadline:
            sleep(0.1)
        first.send_signal(signal.SIGINT)
        out, _ = first.communicate(timeout=60)
    assert first.returncode == 130, out
    assert states(mpi, tmp_path)[0] == "cancelled"
    assert set(states(mpi, tmp_path)[1:]) == {"planned"}
    kept = len(list(tmp_path.glob("c/mix-000/results/*.jsonl")))

    with submit(mpi, tmp_path) as second:
        out, _ = second.communicate(timeout=120)
    assert second.returncode == 0, out
    assert set(states(mpi, tmp_path)) == {"completed"}, out
    assert len(list(tmp_path.glob("c/mix-000/results/*.jsonl"))) > kept
    with submit(mpi, tmp_path) as third:
        out, _ = third.communicate(timeout=60)
    assert "[1/" not in out
