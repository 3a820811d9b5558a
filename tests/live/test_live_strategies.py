"""All five strategies under a real mpiexec: checked data, a valid record, times that add up."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch import Mpi
from live_runs import SHORT, assert_ops_explain_times, checked_messages, last_line, run, said, valid_record

from dlbench.records.reader import read_ops

pytestmark = pytest.mark.patient

DEGREES = {
    # pp: 2 up to 8 ranks; hybrids: the largest product of divisors of the paper's degrees that fits, evenly split.
    ("dp", 1): {},
    ("dp", 2): {},
    ("dp", 4): {},
    ("dp", 8): {},
    ("fsdp", 1): {"sharding": 1},
    ("fsdp", 2): {"sharding": 2},
    ("fsdp", 4): {"sharding": 4},
    ("fsdp", 8): {"sharding": 8},
    ("dp_pp", 1): {"pp": 1},
    ("dp_pp", 2): {"pp": 2},
    ("dp_pp", 4): {"pp": 2},
    ("dp_pp", 8): {"pp": 2},
    ("dp_pp_tp", 1): {"pp": 1, "tp": 1},
    ("dp_pp_tp", 2): {"pp": 1, "tp": 2},
    ("dp_pp_tp", 4): {"pp": 2, "tp": 2},
    ("dp_pp_tp", 8): {"pp": 2, "tp": 4},
    ("dp_pp_ep", 1): {"pp": 1, "ep": 1},
    ("dp_pp_ep", 2): {"pp": 1, "ep": 2},
    ("dp_pp_ep", 4): {"pp": 2, "ep": 2},
    ("dp_pp_ep", 8): {"pp": 2, "ep": 4},
}


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
@pytest.mark.parametrize("strategy", list(SHORT))
def test_a_strategy_delivers_right_data_and_leaves_a_valid_record(
    mpi: Mpi, strategy: str, ranks: int, tmp_path: Path
) -> None:
    options = ("--iterations", "2", "--warmup", "1", "--check", "--record-ops", "--record", str(tmp_path))

    completed = run(mpi, strategy, ranks, *options)

    assert (completed.returncode, said(completed.stderr)) == (0, []), completed
    assert last_line(completed.stdout) == "OK"
    record = valid_record(tmp_path)
    header = record.header
    assert f"check      OK: {checked_messages(header)} messages verified on {ranks} ranks" in completed.stdout
    assert (header.strategy, header.world_size, header.degrees) == (strategy, ranks, DEGREES[strategy, ranks])
    assert [iteration.warmup for iteration in record.iterations] == [True, False, False]
    assert record.end is not None
    assert (record.end.status, record.end.iterations, record.end.reason) == (
        "completed",
        3,
        "2 iterations measured",
    )
    for iteration, ops in zip(record.iterations, read_ops(record.path), strict=True):
        assert_ops_explain_times(header, iteration, ops)
