"""What the ranks do together between iterations: agree, collect, start. On real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch import Mpi

RANKS = Path(__file__).parent / "together_ranks.py"


@pytest.mark.parametrize(
    "program",
    [
        "agree_on_the_lowest_error",
        "leave_unexpected_errors_to_the_rank_that_has_them",
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


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("iterations", [0, 1, 2, 7])
def test_draining_delivers_every_row_exactly_once(mpi: Mpi, lag: int, iterations: int) -> None:
    mpi.run_ranks(RANKS, 3, "drain_what_is_under_way", str(lag), str(iterations))


def test_a_single_rank_collects_like_many(mpi: Mpi) -> None:
    mpi.run_ranks(RANKS, 1, "collect_with_lag")
