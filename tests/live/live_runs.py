"""What the live tests share: small runs of the five strategies, their records, and programs with a sabotaged rank."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
import pytest
from launch import Completed, Mpi
from numpy.typing import NDArray

from dlbench.records.reader import Record, read
from dlbench.records.schema import Header, Iteration, OpTable
from dlbench.records.validator import validate

SMALL = ("--scale", "0.0001", "--time-scale", "0.0001")
"""Messages of some kB and phases of some µs."""

SHORT = {
    "dp": ("--buckets", "8"),
    "fsdp": ("--units", "4"),
    "dp_pp": ("--microbatches", "4"),
    "dp_pp_tp": ("--model", "gpt2-l", "--microbatches", "2"),
    "dp_pp_ep": ("--microbatches", "2"),
}
"""Per strategy, what keeps an iteration below some 100 ms on two cores."""

_COMMUNICATIONS = ("allreduce", "allgather", "reduce_scatter", "alltoall", "send", "recv")

on_mpich = pytest.mark.parametrize("mpi", ["mpich"], indirect=True)
"""For behaviour that no MPI library has a part in: one of them is enough."""

_SABOTAGE = """
import sys

import numpy as np

from dlbench.comm.library import MPI
from dlbench.runtime.entry import main
from dlbench.runtime.equipment import Equipment

RANK = MPI.COMM_WORLD.rank


class Faithful:
    def __init__(self, communicator):
        self.inner = communicator

    def __getattr__(self, name):
        return getattr(self.inner, name)


{sabotage}

split = Equipment._split
Equipment._split = lambda equipment, scope: Sabotaged(split(equipment, scope))
main({strategy!r})
"""


def run(mpi: Mpi, strategy: str, ranks: int, *options: str, timeout: float = 60) -> Completed:
    """Run a strategy with small messages; later options win."""
    return mpi.launch(ranks, [*command(strategy), *options], timeout=timeout)


def command(strategy: str) -> list[str]:
    """Arguments of Python for a small run of a strategy."""
    return ["-m", f"dlbench.{strategy}", *SMALL, *SHORT[strategy]]


def sabotaged(folder: Path, strategy: str, sabotage: str) -> list[str]:
    """Arguments of Python for a small run whose communicators are `Sabotaged`, a class that `sabotage` defines.

    It derives from `Faithful`, which passes every call on to the real communicator.
    """
    program = folder / "sabotaged.py"
    program.write_text(_SABOTAGE.format(sabotage=textwrap.dedent(sabotage), strategy=strategy), encoding="utf-8")
    return [str(program), *SMALL, *SHORT[strategy]]


def record_path(folder: Path) -> Path:
    """The one record in a folder."""
    (path,) = folder.glob("*.jsonl")
    return path


def valid_record(folder: Path) -> Record:
    """The one record in a folder; the test fails where the validator finds an error in it."""
    path = record_path(folder)
    assert [problem.text for problem in validate(path) if problem.severity == "error"] == []
    return read(path)


def said(stderr: str) -> list[str]:
    """What dlbench has said on standard error; launchers and MPI libraries speak there too."""
    return [line.removeprefix("dlbench: ") for line in stderr.splitlines() if line.startswith("dlbench: ")]


def last_line(stdout: str) -> str:
    """The verdict."""
    return stdout.splitlines()[-1]


def checked_messages(header: Header) -> int:
    """Messages of one iteration that arrive somewhere, or leave, counted on every rank."""
    return sum(len(table.ranks) * sum(entry.op in _COMMUNICATIONS for entry in table.ops) for table in header.op_tables)


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
