"""An op before which a rank sleeps in a live run is the culprit of the tax, also where another rank comes last."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from launch import Mpi
from live_runs import last_line, on_mpich, record_path, run
from test_live_analysis import dlbench
from test_live_tax import MOST, RANKS, STRAGGLER, delayed, first_collective, tax_of

from dlbench.records.reader import read

pytestmark = pytest.mark.alone


def rows_of(record: Path, folder: Path) -> list[dict[str, str]]:
    dlbench("tax", record, "--csv", folder)
    with (folder / "collectives.csv").open() as file:
        return list(csv.DictReader(file))


@on_mpich
def test_the_delayed_op_is_the_culprit(mpi: Mpi, tmp_path: Path) -> None:
    op = first_collective(mpi, tmp_path / "probe")
    record = delayed(mpi, tmp_path / "records", op, 40)
    rows = [row for row in rows_of(record, tmp_path / "tables") if row["place"] == "0"]
    blamed = [row for row in rows if (row["culprit_rank"], row["culprit_number"]) == (str(STRAGGLER), str(op))]
    assert len(blamed) >= MOST
    assert {(row["culprit_class"], row["culprit_idle"]) for row in blamed} == {("idle", "True")}
    assert all(float(row["culprit_seconds"]) >= 0.04 for row in blamed)
    # The paths begin at one moment of one clock, so their difference is the tax.
    assert all(abs(float(row["predicted"]) - float(row["tau_range"])) < 1e-6 for row in rows)
    first = tax_of(record)["culprits"][0]
    assert (first["culprit_rank"], first["culprit_class"]) == (STRAGGLER, "idle")
    printed = dlbench("tax", record)
    assert "# What made ranks late" in printed
    dlbench("report", record, "-o", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "What made ranks late, by class" in page
    assert "Tax by critical paths against the tax" in page


@on_mpich
def test_a_stage_that_waits_for_a_late_one_is_not_the_culprit(mpi: Mpi, tmp_path: Path) -> None:
    # Rank 0 is the first stage of a pipeline of two, whose last comes late for the all-reduce of its replicas.
    options = ("--pp", "2", "--microbatches", "2", "--iterations", "8", "--warmup", "1", "--record-ops")
    completed = run(mpi, "dp_pp", RANKS, *options, "--delay", "0:0:60", "--record", str(tmp_path / "records"))
    assert (completed.returncode, last_line(completed.stdout)) == (0, "OK"), completed
    record = record_path(tmp_path / "records")
    assert read(record).header.op_tables[0].ops[0].op == "compute"
    rows = [row for row in rows_of(record, tmp_path / "tables") if "1" in row["group"].replace("-", " ").split()[1:]]
    assert sum((row["culprit_rank"], row["culprit_number"]) == ("0", "0") for row in rows) >= MOST
    assert {row["straggler"] for row in rows if row["culprit_rank"] == "0"} == {"1"}
