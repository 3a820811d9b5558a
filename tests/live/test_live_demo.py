"""The demonstration in `examples/`: all five strategies, on one machine, in little time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launch import REPOSITORY, Mpi
from live_runs import on_mpich

from dlbench.records.reader import read
from dlbench.records.validator import validate
from dlbench.strategies import STRATEGIES


@pytest.mark.patient
@on_mpich
def test_the_demonstration_leaves_a_valid_record_of_every_strategy_and_says_where(mpi: Mpi, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    completed = subprocess.run(
        [REPOSITORY / "examples" / "demo.sh", "records"],
        env={**os.environ, "PATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert completed.returncode == 0, completed
    alone = sorted((tmp_path / "records").glob("*.jsonl"))
    assert sorted(read(record).header.strategy for record in alone) == sorted(STRATEGIES)
    side_by_side = sorted((tmp_path / "records" / "side-by-side").glob("*/results/*.jsonl"))
    assert {read(record).header.concurrent_jobs for record in side_by_side} == {1, 2}
    for record in [*alone, *side_by_side]:
        assert list(validate(record)) == []
        assert record.name in completed.stdout.rpartition("The records are in")[2]
    assert f"The records are in {tmp_path / 'records'}:" in completed.stdout
    report = tmp_path / "records" / "report.html"
    assert f"The report is {report}:" in completed.stdout
    assert all(f"{name}</td>" in report.read_text() for name in STRATEGIES)
    assert "Largest slowdown" in report.read_text()
    assert len(re.findall(r"^OK$", completed.stdout, re.MULTILINE)) == 5 + 3
