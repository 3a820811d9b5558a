"""A rank that is made late in a live run: the tax names it, and is as large as the delay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launch import Mpi
from live_runs import last_line, on_mpich, record_path, run
from test_live_analysis import dlbench

from dlbench.records.reader import read

pytestmark = pytest.mark.alone

RANKS, BUCKETS = 4, 4
STRAGGLER = 2
MOST = 6
"""Of 8 iterations: on a busy machine another rank can lose its core for longer than the delay."""
RECORDED = ("--buckets", str(BUCKETS), "--iterations", "8", "--warmup", "1", "--record-ops")


def delayed(mpi: Mpi, folder: Path, op: int, milliseconds: float) -> Path:
    """Record of a run of DP in which the straggler sleeps before one of its ops."""
    delay = f"{STRAGGLER}:{op}:{milliseconds}"
    completed = run(mpi, "dp", RANKS, *RECORDED, "--delay", delay, "--record", str(folder))
    assert (completed.returncode, last_line(completed.stdout)) == (0, "OK"), completed
    return record_path(folder)


def first_collective(mpi: Mpi, folder: Path) -> int:
    """Number of the op that starts the first all-reduce of an iteration."""
    ops = read(delayed(mpi, folder, 0, 1)).header.op_tables[0].ops
    return next(number for number, op in enumerate(ops) if op.op == "allreduce")


def tax_of(record: Path, *options: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(dlbench("tax", record, "--json", *options))
    return document


@on_mpich
def test_an_injected_straggler_is_named_by_the_command_and_the_report(mpi: Mpi, tmp_path: Path) -> None:
    op = first_collective(mpi, tmp_path / "probe")
    record = delayed(mpi, tmp_path / "records", op, 40)
    printed = dlbench("tax", record)
    assert f"# allreduce/world, world 0-3: rank {STRAGGLER} is last in" in printed
    assert printed.rstrip().endswith("it persists")
    document = tax_of(record)
    (group,) = document["groups"]
    assert (group["collectives"], group["straggler"], group["verdict"]) == (8 * BUCKETS, STRAGGLER, "persists")
    assert group["tau_range"] >= 0.04
    assert document["stragglers"][0]["rank"] == STRAGGLER
    assert sum(row["straggler"] == STRAGGLER for row in document["iterations"]) >= MOST
    dlbench("report", record, "-o", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert '<section id="tax"><h3>Synchronisation tax</h3>' in page
    assert "Waits of each rank in each collective" in page


@on_mpich
def test_past_the_slack_the_tax_grows_by_as_much_as_the_delay(mpi: Mpi, tmp_path: Path) -> None:
    op = first_collective(mpi, tmp_path / "probe")
    delays = [40.0, 80.0, 120.0]
    taxes = []
    for delay in delays:
        record = delayed(mpi, tmp_path / f"{delay:g}", op, delay)
        dlbench("tax", record, "--csv", tmp_path / f"tables-{delay:g}")
        table = np.genfromtxt(tmp_path / f"tables-{delay:g}" / "collectives.csv", delimiter=",", names=True, dtype=None)
        first = table[table["place"] == 0]
        assert np.count_nonzero(first["straggler"] == STRAGGLER) >= MOST
        taxes.append(1e3 * float(np.median(first["tau_range"])))
    slope, _ = np.polyfit(delays, taxes, 1)
    assert slope == pytest.approx(1, abs=0.05), taxes
