"""Runs on several clocks: one machine plays several, and its ranks read clocks that drift apart."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch import Mpi
from live_runs import SHORT, SMALL, last_line, on_mpich, valid_record

from dlbench.records.reader import Record
from dlbench.records.schema import ClockModel

pytestmark = pytest.mark.alone

DRIFT = 200e-6
"""Of odd ranks; every rank has a clock domain of its own."""

SEVERAL_HOSTS = f"""
import os
import sys
import time

READ = time.perf_counter_ns
BEGIN = READ()
RANK = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")))
if RANK % 2:
    time.perf_counter_ns = lambda: READ() + round((READ() - BEGIN) * {DRIFT})

from dlbench.runtime import clock
from dlbench.runtime.entry import main

clock.clock_domain = lambda: f"host {{RANK}}"
clock.RESYNC_SECONDS = 0.2
main("dp")
"""

ONE_HOST = """
import sys

from dlbench.runtime import clock
from dlbench.runtime.entry import main

clock.RESYNC_SECONDS = 0.0
clock.GlobalClock._ask = clock.GlobalClock._answer = None
main("dp")
"""


def run_on_several_hosts(mpi: Mpi, folder: Path, sync: str) -> Record:
    program = folder / "several_hosts.py"
    program.write_text(SEVERAL_HOSTS, encoding="utf-8")
    stop = ("--iterations", "100000", "--max-seconds", "1", "--record", str(folder))
    # Sleeps go by the machine's own clock, and would see the forged one drift.
    options = (*SMALL, *SHORT["dp"], "--compute", "none", "--sync", sync, *stop)
    done = mpi.launch(3, [str(program), *options])
    assert (done.returncode, last_line(done.stdout)) == (0, "OK"), done.stderr
    return valid_record(folder)


def assert_bounds_hold(model: ClockModel) -> None:
    forged = [0.0, 1 / (1 + DRIFT) - 1, 0.0]
    for rank, (drift, uncertainty) in enumerate(zip(model.drift, model.drift_uncertainty, strict=True)):
        assert abs(drift - forged[rank]) <= uncertainty, f"rank {rank}: {model}"


@pytest.mark.parametrize("sync", ["barrier", "window"])
def test_the_clocks_are_compared_again_between_iterations(mpi: Mpi, tmp_path: Path, sync: str) -> None:
    record = run_on_several_hosts(mpi, tmp_path, sync)
    seconds = record.iterations[-1].start - record.iterations[0].start
    # Intervals of 0.2 s, and a few shorter ones where the set-up, the first baseline, was short.
    assert 2 <= len(record.clocks) <= seconds / 0.2 + 8
    models = [record.header.clock, *(line.model for line in record.clocks)]
    for model in models:
        assert_bounds_hold(model)
    assert max(models[-1].drift_uncertainty) < max(models[0].drift_uncertainty) / 2
    for line in record.iterations[1:]:  # 0.3 s are for what an overloaded machine adds between two iterations
        assert line.start - record.clock(line.index).reference < 0.2 + 0.3 + max(line.runtime)


@on_mpich
def test_without_synchronisation_the_first_model_stays_and_says_how_far_it_may_drift(mpi: Mpi, tmp_path: Path) -> None:
    record = run_on_several_hosts(mpi, tmp_path, "none")
    assert record.clocks == []
    assert record.end is not None
    assert record.end.clock is not None
    last = record.iterations[-1].start
    assert_bounds_hold(record.header.clock)
    assert_bounds_hold(record.end.clock)
    stated, known = max(record.header.clock.error(last)), max(record.end.clock.error(last))
    assert known < stated


@on_mpich
def test_ranks_of_one_host_compare_no_clocks(mpi: Mpi, tmp_path: Path) -> None:
    program = tmp_path / "one_host.py"
    program.write_text(ONE_HOST, encoding="utf-8")
    stop = ("--iterations", "100000", "--max-seconds", "0.5", "--record", str(tmp_path))
    done = mpi.launch(2, [str(program), *SMALL, *SHORT["dp"], *stop])
    assert last_line(done.stdout) == "OK", done.stderr
    record = valid_record(tmp_path)
    assert record.clocks == []
    assert record.end is not None
    for model in (record.header.clock, record.end.clock):
        assert model is not None
        assert model.uncertainty == model.drift_uncertainty == [0.0, 0.0]
