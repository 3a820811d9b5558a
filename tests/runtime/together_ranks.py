"""Ranks of `test_runtime_together.py`. Arguments: the function to run, and its own."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from dlbench.errors import OptionError, PreflightError
from dlbench.runtime import hosts
from dlbench.runtime.agreement import AgreedExit, agree, from_root
from dlbench.runtime.clock import GlobalClock
from dlbench.runtime.collector import CONTINUE, Collector
from dlbench.runtime.start import Window, start_line

comm = MPI.COMM_WORLD


def outcome(action: Callable[[], object]) -> tuple[str, int] | None:
    """Message and exit code with which this rank leaves; None where it may go on."""
    try:
        action()
    except AgreedExit as leave:
        return leave.message, leave.exit_code
    return None


def raises(error: BaseException) -> bytes:
    """Raise it, where a function is wanted that makes bytes."""
    raise error


def agree_on_the_lowest_error() -> None:
    def fail_on(*ranks: int) -> None:
        if comm.rank in ranks:
            raise PreflightError(f"rank {comm.rank} has no memory")

    assert agree(comm, lambda: comm.rank * 10) == comm.rank * 10
    assert outcome(lambda: agree(comm, lambda: fail_on(2))) == ("rank 2 has no memory", 2)
    assert outcome(lambda: agree(comm, lambda: fail_on(1, 2))) == ("rank 1 has no memory", 2)
    assert outcome(lambda: agree(comm, lambda: fail_on(0, 1, 2))) == ("rank 0 has no memory", 2)
    assert outcome(lambda: agree(comm, fail_on)) is None


def leave_unexpected_errors_to_the_rank_that_has_them() -> None:
    alone = comm.Split(comm.rank)
    try:
        agree(alone, lambda: 1 // 0)
    except ZeroDivisionError:
        return
    raise AssertionError("the error was swallowed")


def wait_for_late_ranks_within_the_patience() -> None:
    def fail_or_be_late() -> None:
        if comm.rank == 1:
            raise PreflightError("NCCL does not start")
        time.sleep(0.2)

    assert outcome(lambda: agree(comm, fail_or_be_late, patience=30)) == ("NCCL does not start", 2)


def take_what_the_first_rank_makes() -> None:
    asked = []

    def answer() -> bytes:
        asked.append(comm.rank)
        return b"made by 0"

    assert from_root(comm, answer) == b"made by 0"
    assert asked == ([0] if comm.rank == 0 else [])
    assert outcome(lambda: from_root(comm, lambda: raises(OptionError("no such option")))) == ("no such option", 2)
    assert outcome(lambda: from_root(comm, lambda: raises(SystemExit(0)))) == ("", 0)  # --help


def collect_without_lag() -> None:
    seen = []

    def decide(rows: NDArray[Any]) -> int:
        assert rows.shape == (comm.size, 2)
        seen.append(rows.tolist())
        return CONTINUE if len(seen) < 4 else 100 + len(seen)

    collector = Collector(comm, 2, decide, lag=0)
    row = np.zeros(2)
    decisions = []
    for iteration in range(4):
        row[:] = (comm.rank, iteration)  # the same array each time, as the runner has it
        decisions.append(collector.exchange(row))
    collector.drain()
    assert decisions == [CONTINUE, CONTINUE, CONTINUE, 104]
    expected = [[[rank, iteration] for rank in range(comm.size)] for iteration in range(4)]
    assert seen == (expected if comm.rank == 0 else [])


def collect_with_lag() -> None:
    seen = []

    def decide(rows: NDArray[Any]) -> int:
        seen.append(rows[:, 0].tolist())
        return CONTINUE if len(seen) < 3 else 100 + len(seen)

    collector = Collector(comm, 1, decide, lag=1)
    decisions = []
    row = np.zeros(1)
    for iteration in range(5):
        row[0] = 10 * iteration + comm.rank
        decisions.append(collector.exchange(row))
        row[0] = -1  # what is under way has its own copy
    # The decision about iteration 2 comes back two iterations later, on every rank at the same one.
    assert decisions == [CONTINUE] * 4 + [103], decisions
    collector.drain()
    everything = [[10 * iteration + rank for rank in range(comm.size)] for iteration in range(5)]
    assert seen == (everything if comm.rank == 0 else []), seen


def do_not_wait_for_a_rank_in_its_iteration() -> None:
    for lag in (0, 1):
        collector = Collector(comm, 1, lambda rows: 0, lag=lag)
        for _ in range(3):
            collector.exchange(np.zeros(1))
        waits = []
        for _ in range(3):
            comm.Barrier()
            begin = time.monotonic()
            if comm.rank == comm.size - 1:
                time.sleep(0.6)
            collector.exchange(np.zeros(1))
            waits.append(time.monotonic() - begin)
            collector.exchange(np.zeros(1))
        # Others may use the cores: the best of several tries is what the code can do.
        if comm.rank < comm.size - 1:
            assert (min(waits) < 0.3) == (lag == 1), (comm.rank, lag, waits)
        collector.drain()


def drain_what_is_under_way(lag: str, iterations: str) -> None:
    seen = []

    def decide(rows: NDArray[Any]) -> int:
        seen.append(rows[:, 0].tolist())
        return CONTINUE

    collector = Collector(comm, 1, decide, lag=int(lag))
    for iteration in range(int(iterations)):
        collector.exchange(np.full(1, float(iteration)))
    collector.drain()
    collector.drain()
    everything = [[float(iteration)] * comm.size for iteration in range(int(iterations))]
    assert seen == (everything if comm.rank == 0 else []), seen


def start_in_a_window() -> None:
    clock = GlobalClock(comm)
    clock.synchronise()
    start = start_line("window", comm, clock, ranks_per_core=4.0)
    spreads = []
    while len(spreads) < 5 or (min(spreads) > 0.005 and len(spreads) < 200):
        time.sleep(0.02 * comm.rank)  # they come one after the other
        start()
        begins = comm.allgather(clock.now())
        spreads.append(max(begins) - min(begins))
    assert min(spreads) < 0.005, spreads

    def oversleep(deadline: int) -> None:
        while time.perf_counter_ns() < deadline + (10_000_000 if comm.rank == 1 else 0):
            time.sleep(1e-5)

    # Who wakes too late is marked; an earlier announcement would not help.
    window = Window(comm, clock, oversleep)
    window._margin = 0.2
    assert comm.allgather(window())[1] is True
    window()
    assert window._margin == 0.2


def announce_earlier_where_ranks_hear_too_late() -> None:
    clock = GlobalClock(comm)
    clock.synchronise()
    window = Window(comm, clock, lambda deadline: None)
    window._margin = 0.3
    now = clock.now
    for margin in (0.3, 0.6, 1.0, 1.0):
        # Rank 0 announces a time that has long passed.
        clock.now = lambda: now() - (10.0 if comm.rank == 0 else 0.0)
        window()
        assert window._missed
        assert window._margin == margin
    clock.now = now
    window()
    assert not window._missed


def start_behind_a_barrier() -> None:
    clock = GlobalClock(comm)
    barrier = start_line("barrier", comm, clock, ranks_per_core=1.0)
    free = start_line("none", comm, clock, ranks_per_core=1.0)
    for line, waits in ((barrier, True), (free, False)):
        comm.Barrier()
        begin = time.monotonic()
        if comm.rank == comm.size - 1:
            time.sleep(0.6)
        assert line() is False
        if comm.rank < comm.size - 1:
            assert (time.monotonic() - begin > 0.3) == waits, (comm.rank, waits)


def share_a_file_that_has_no_name() -> None:
    descriptors = [hosts.share_file(comm) for _ in range(2)]
    comm.Barrier()
    for descriptor in descriptors:
        assert os.fstat(descriptor).st_nlink == 0
        os.write(descriptor, b"\0")
        positions = comm.allgather(os.lseek(descriptor, 0, os.SEEK_CUR))
        assert sorted(positions) == list(range(1, comm.size + 1))


def refuse_memory_on_every_rank_of_the_host() -> None:
    host = hosts.find_host(comm)
    assert host.comm.size == comm.size  # one machine
    assert 1 <= host.cores <= 4096
    hosts.available_memory = lambda: 3_000_000_000 if host.comm.rank == 0 else 0  # the first rank's word counts
    host.check_memory(1_000_000_000, 1.0)
    try:
        host.check_memory(1_000_000_000 + comm.rank * 500_000_000, 1.0)
    except PreflightError as error:
        # 1 + 1.5 + 2 = 4.5 GB; 0.99 × 3 / 4.5 = 0.66
        assert "3.000 GB" in str(error)
        assert "4.500 GB" in str(error)
        assert "--scale 0.66 would fit" in str(error)
    else:
        raise AssertionError("4.5 GB do not fit into 3 GB")


globals()[sys.argv[1]](*sys.argv[2:])
