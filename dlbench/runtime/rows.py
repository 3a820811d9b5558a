"""The row of numbers in which a rank hands in an iteration, and what rank 0 makes of all ranks' rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dlbench.strategies.accounting import LOCAL

if TYPE_CHECKING:
    from dlbench.records.schema import Iteration

Rows = NDArray[np.float64]

BEGIN, RUNTIME, LATE, SIGNAL = range(4)
"""First columns: global begin in seconds, runtime in seconds, late for the window, stop signal."""
_FIXED = 4


class RowFormat:
    """Columns of a row: the fixed ones, seconds by category, and with `ops` enter and leave of every op.

    `classes` are the communication classes of the run and `ops` the ops of the longest program, 0 where ops are not
    recorded; both are the same on all ranks.
    """

    def __init__(self, classes: Sequence[str], ops: int = 0) -> None:
        self.classes = tuple(classes)
        self.ops = ops
        self._seconds = slice(_FIXED, _FIXED + len(LOCAL) + len(classes))
        self.width = self._seconds.stop + 2 * ops

    def pack(self, fixed: Sequence[float], seconds: Rows, borders: Rows | None = None) -> Rows:
        """One rank's row: the fixed columns, `Accounting.seconds`, and the ops' borders, shape (own ops, 2)."""
        row = np.full(self.width, np.nan)
        row[:_FIXED] = fixed
        row[self._seconds] = seconds
        if borders is not None:
            row[self._seconds.stop : self._seconds.stop + borders.size] = borders.ravel()
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
        )

    def borders(self, rows: Rows) -> Rows | None:
        """Ops array of an iteration, shape (ranks, ops, 2); None where ops are not recorded."""
        return rows[:, self._seconds.stop :].reshape(len(rows), self.ops, 2) if self.ops else None
