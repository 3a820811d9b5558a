"""The row of numbers in which a rank hands in an iteration, and what rank 0 makes of all ranks' rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dlbench.runtime.energy import UNTOLD, EnergyRow
from dlbench.strategies.accounting import LOCAL

if TYPE_CHECKING:
    from dlbench.records.schema import Energy, Iteration

Rows = NDArray[np.float64]

BEGIN, RUNTIME, LATE, SIGNAL = range(4)
"""First columns: global begin in seconds, runtime in seconds, late for the window, stop signal."""
_FIXED = 4


class RowFormat:
    """Columns of a row: the fixed ones, seconds by category, with `energy` an `EnergyRow`, with `ops` their borders.

    `classes` are the communication classes of the run and `ops` the ops of the longest program, 0 where ops are not
    recorded. All of it is the same on all ranks.
    """

    def __init__(self, classes: Sequence[str], ops: int = 0, *, energy: bool = False) -> None:
        self.classes = tuple(classes)
        self.ops = ops
        self.energy = energy
        self._seconds = slice(_FIXED, _FIXED + len(LOCAL) + len(classes))
        self._energy = slice(self._seconds.stop, self._seconds.stop + len(EnergyRow._fields) * energy)
        self.width = self._energy.stop + 2 * ops

    def with_energy(self) -> RowFormat:
        """The same columns and those of the energy."""
        return RowFormat(self.classes, self.ops, energy=True)

    def pack(
        self, fixed: Sequence[float], seconds: Rows, borders: Rows | None = None, energy: EnergyRow = UNTOLD
    ) -> Rows:
        """One rank's row: the fixed columns, `Accounting.seconds`, the ops' borders, shape (own ops, 2), and energy."""
        row = np.full(self.width, np.nan)
        row[:_FIXED] = fixed
        row[self._seconds] = seconds
        if self.energy:
            row[self._energy] = energy
        if borders is not None:
            row[self._energy.stop : self._energy.stop + borders.size] = borders.ravel()
        return row

    def iteration(self, rows: Rows, *, index: int, warmup: bool) -> Iteration:
        """Record line of an iteration from all ranks' rows, shape (ranks, width)."""
        from dlbench.records.schema import Iteration  # noqa: PLC0415 - rank 0 only

        start = float(rows[:, BEGIN].min())
        compute, overrun, issue, *communication = rows[:, self._seconds].T
        return Iteration(
            index=index,
            warmup=warmup,
            start=start,
            skew=(rows[:, BEGIN] - start).tolist(),
            runtime=rows[:, RUNTIME].tolist(),
            sync_time=sum(communication, np.zeros(len(rows))).tolist(),
            compute=compute.tolist(),
            overrun=overrun.tolist(),
            issue=issue.tolist(),
            communication={name: times.tolist() for name, times in zip(self.classes, communication, strict=True)},
            late=np.flatnonzero(rows[:, LATE]).tolist(),
            energy=_energy(rows[:, self._energy]) if self.energy else None,
        )

    def borders(self, rows: Rows) -> Rows | None:
        """Ops array of an iteration, shape (ranks, ops, 2); None where ops are not recorded."""
        return rows[:, self._energy.stop :].reshape(len(rows), self.ops, 2) if self.ops else None


def _energy(rows: Rows) -> Energy:
    """Energy of an iteration from the ranks' `EnergyRow`s."""
    from dlbench.records.schema import Energy  # noqa: PLC0415 - rank 0 only

    told = {
        name: [None if np.isnan(value) else value for value in column.tolist()]
        for name, column in zip(EnergyRow._fields, rows.T, strict=True)
    }
    masks = [None if mask is None else int(mask) for mask in told.pop("throttle")]
    return Energy(**told, throttle=masks)
