"""All five strategies under a real mpiexec: checked data, a valid record, times that add up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from launch import Mpi
from live_runs import SHORT, last_line, run, said, valid_record
from numpy.typing import NDArray

from dlbench.records.reader import read_ops
from dlbench.records.schema import Header, Iteration, OpTable

COMMUNICATIONS = ("allreduce", "allgather", "reduce_scatter", "alltoall", "send", "recv")

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


def checked_messages(header: Header) -> int:
    """Messages of one iteration that arrive somewhere, or leave, counted on every rank."""
    return sum(len(table.ranks) * sum(entry.op in COMMUNICATIONS for entry in table.ops) for table in header.op_tables)


def assert_ops_explain_times(header: Header, iteration: Iteration, ops: NDArray[np.float64]) -> None:
    """The recorded ops of every rank follow each other in its iteration, and add up to the line's times."""
    for table in header.op_tables:
        for rank in table.ranks:
            times = ops[rank, : len(table.ops)]
            begin = iteration.start + iteration.skew[rank]
            borders = np.concatenate([[begin], times.ravel(), [begin + iteration.runtime[rank]]])
            assert np.all(np.diff(borders) >= -1e-8)
            sums = seconds_by_kind(table, times[:, 1] - times[:, 0])
            assert sums["compute"] == pytest.approx(iteration.compute[rank] + iteration.overrun[rank], abs=1e-6)
            assert sums["issue"] == pytest.approx(iteration.issue[rank], abs=1e-6)
            assert sums["sync"] == pytest.approx(iteration.sync_time[rank], abs=1e-6)


def seconds_by_kind(table: OpTable, durations: NDArray[np.float64]) -> dict[str, float]:
    sums = {"compute": 0.0, "issue": 0.0, "sync": 0.0}
    for entry, seconds in zip(table.ops, durations, strict=True):
        kind = "compute" if entry.op == "compute" else "sync" if entry.blocking else "issue"
        sums[kind] += seconds
    return sums
