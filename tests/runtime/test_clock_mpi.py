"""The global clock over real messages."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch import Mpi

FORGED_CLOCKS = Path(__file__).parent / "clock_ranks.py"

ONE_DOMAIN = """
from mpi4py import MPI
from dlbench.runtime.clock import GlobalClock

comm = MPI.COMM_WORLD
clock = GlobalClock(comm)
assert clock.leaders == [0] * comm.size
assert len(set(comm.allgather(clock.origin_ns))) == 1
# Rank 0 does not synchronise here, so a message to it would never be answered.
assert not clock.due()
if comm.rank:
    clock.synchronise()
comm.Barrier()
assert clock.to_global(clock.origin_ns + 10**9) == 1.0
"""


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_clocks_hours_apart_agree_within_the_recorded_uncertainty(mpi: Mpi, size: int) -> None:
    assert "agreed" in mpi.run_ranks(FORGED_CLOCKS, size, "1", "0").stdout


@pytest.mark.parametrize("drift", ["1", "10"])
@pytest.mark.parametrize(("size", "domain_size"), [(3, 1), (4, 1), (5, 2), (8, 2)])
def test_drifting_clocks_agree_within_it_for_minutes(mpi: Mpi, size: int, domain_size: int, drift: str) -> None:
    assert "agreed" in mpi.run_ranks(FORGED_CLOCKS, size, str(domain_size), drift).stdout


def test_ranks_that_read_the_same_clock_exchange_no_messages(mpi: Mpi) -> None:
    mpi.run_ranks(ONE_DOMAIN, 4)
