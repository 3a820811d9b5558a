"""Energy of runs on metered GPUs, under a real mpiexec: the GPUs are memory of the process, and so are the meters."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch import Completed, Mpi
from live_runs import SHORT, SMALL, on_mpich, valid_record

from dlbench.records.reader import Record

ENERGY_RANKS = str(Path(__file__).with_name("energy_ranks.py"))
TESTS = str(Path(__file__).parents[1])


def run(mpi: Mpi, folder: Path, metered: str, *options: str) -> tuple[Completed, Record]:
    """Two warm-ups and three measured iterations on two ranks, of which those named have a meter."""
    spin = ("--compute", "spin", "--warmup", "2", "--iterations", "3", "--record", str(folder))
    arguments = [ENERGY_RANKS, "dp", *SMALL, *SHORT["dp"], *spin, *options]
    completed = mpi.launch(2, arguments, env={"METERED_RANKS": metered, "PYTHONPATH": TESTS})
    assert completed.returncode == 0, completed
    return completed, valid_record(folder)


@pytest.mark.parametrize("sync", ["barrier", "none"])
def test_every_iteration_has_the_energy_since_the_one_before(mpi: Mpi, tmp_path: Path, sync: str) -> None:
    completed, record = run(mpi, tmp_path, "0,1", "--sync", sync)
    assert record.header.energy_source == "counter"
    assert len(record.iterations) == 5
    for line in record.iterations:
        assert line.energy is not None
        assert line.energy.joules == [10.0, 10.0]
        assert line.energy.throttle == [0x20, 0]
        for seconds, runtime in zip(line.energy.seconds, line.runtime, strict=True):
            assert seconds is not None
            assert seconds > runtime, "the interval has the iteration in it"
    (energy,) = [text for text in completed.stdout.splitlines() if "energy [J]" in text]
    assert energy.split()[3] == "20.000"
    hosts = record.header.hosts
    assert f"# rank 0 ({hosts[0]}) was throttled: SW thermal slowdown in 3 of 3 iterations" in completed.stdout


@on_mpich
def test_the_readings_follow_each_other_from_the_first_iteration_to_the_last(mpi: Mpi, tmp_path: Path) -> None:
    completed, record = run(mpi, tmp_path, "0")
    # One before the first iteration, then one an iteration.
    assert "meter of rank 0 closed after 6 readings" in completed.stderr
    begin, end = record.iterations[0], record.iterations[-1]
    elapsed = sum(line.energy.seconds[0] or 0.0 for line in record.iterations if line.energy)
    assert elapsed >= end.start + end.skew[0] + end.runtime[0] - begin.start - begin.skew[0]


@on_mpich
def test_ranks_without_a_meter_have_null_beside_those_with_one(mpi: Mpi, tmp_path: Path) -> None:
    completed, record = run(mpi, tmp_path, "1")
    for line in record.iterations:
        assert line.energy is not None
        assert (line.energy.joules, line.energy.sm_mhz) == ([None, 10.0], [None, 1980.0])
    assert "energy [J]" not in completed.stdout, "there is no sum over all ranks"


@on_mpich
def test_where_no_rank_has_a_meter_there_is_no_energy(mpi: Mpi, tmp_path: Path) -> None:
    completed, record = run(mpi, tmp_path, "")
    assert record.header.energy_source == ""
    assert [line.energy for line in record.iterations] == [None] * 5
    assert "energy" not in completed.stdout
