"""What the ranks do together between iterations: agree, collect, start. On real ranks."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from launch import Mpi

from dlbench.errors import PreflightError
from dlbench.runtime.agreement import agree

RANKS = Path(__file__).parent / "together_ranks.py"


@pytest.mark.parametrize(
    "program",
    [
        "agree_on_the_lowest_error",
        "leave_unexpected_errors_to_the_rank_that_has_them",
        "wait_for_late_ranks_within_the_patience",
        "take_what_the_first_rank_makes",
        "collect_without_lag",
        "collect_with_lag",
        "do_not_wait_for_a_rank_in_its_iteration",
        "start_in_a_window",
        "announce_earlier_where_ranks_hear_too_late",
        "start_behind_a_barrier",
        "share_a_file_that_has_no_name",
        "refuse_memory_on_every_rank_of_the_host",
    ],
)
def test_three_ranks(mpi: Mpi, program: str) -> None:
    mpi.run_ranks(RANKS, 3, program)


class Kept:
    """Rank 1 of three, as a communicator and as its request: the other two do not come."""

    rank, size = 1, 3

    def __init__(self) -> None:
        self.tests = 0

    def Iallreduce(self, *_: object) -> Kept:  # noqa: N802
        return self

    def Test(self) -> bool:  # noqa: N802
        self.tests += 1
        return False


def test_an_error_for_which_the_others_do_not_come_leaves_the_rank_alone() -> None:
    def fail() -> None:
        raise PreflightError("NCCL does not start")

    kept = Kept()
    enter = time.monotonic()
    with pytest.raises(PreflightError, match="NCCL does not start"):
        agree(kept, fail, patience=0.1)  # type: ignore[arg-type]
    assert 0.1 <= time.monotonic() - enter < 2
    assert kept.tests > 1


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("iterations", [0, 1, 2, 7])
def test_draining_delivers_every_row_exactly_once(mpi: Mpi, lag: int, iterations: int) -> None:
    mpi.run_ranks(RANKS, 3, "drain_what_is_under_way", str(lag), str(iterations))


def test_a_single_rank_collects_like_many(mpi: Mpi) -> None:
    mpi.run_ranks(RANKS, 1, "collect_with_lag")
