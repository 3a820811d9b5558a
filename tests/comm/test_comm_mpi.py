"""Communication over a real MPI: what arrives is what was sent, and nothing else is touched."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch import Mpi

COLLECTIVE_RANKS = Path(__file__).parent / "collective_ranks.py"


@pytest.mark.parametrize("variant", ["plain", "persistent"])
def test_every_operation_delivers_its_payload_in_every_dtype_on_groups_of_1_to_4(mpi: Mpi, variant: str) -> None:
    stdout = mpi.run_ranks(COLLECTIVE_RANKS, 4, variant, timeout=120).stdout

    assert stdout.count("verified") == 4
