"""Brings every rank's measurements to rank 0, and rank 0's decision back to every rank, between iterations."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlbench.comm.library import MPI

Rows = NDArray[np.float64]
Decide = Callable[[Rows], int]

CONTINUE = 0
STOP = 1
RESYNC = 2
"""Go on, and compare the clocks first."""


class _Gather(NamedTuple):
    row: Rows
    rows: Rows
    request: MPI.Request


class _Broadcast(NamedTuple):
    decision: NDArray[np.int64]
    request: MPI.Request


class Collector:
    """Exchange after each iteration: one row of `width` numbers from each rank, one decision to each rank.

    `decide(rows)`, rows of shape (ranks, width), runs on rank 0 only. With `lag` 0 an exchange is complete when
    `exchange` returns, so it synchronises the ranks. With `lag` 1 the collectives of iteration k are completed one
    iteration later and the decision about it takes effect after iteration k + 2: no rank waits for another that is
    less than a whole iteration behind, so the exchange leaves skew between iterations as it is.
    """

    def __init__(self, comm: MPI.Intracomm, width: int, decide: Decide, *, lag: int) -> None:
        self._comm = comm
        self._width = width
        self._decide = decide
        self._lag = lag
        self._gathers: deque[_Gather] = deque()
        self._broadcasts: deque[_Broadcast] = deque()

    def exchange(self, row: Rows) -> int:
        """Hand in this rank's row; return the newest decision that is due. Collective."""
        self._start_gather(row)
        if len(self._gathers) > self._lag:
            self._broadcast(self._finish_gather())
        if len(self._broadcasts) > self._lag:
            return self._finish_broadcast()
        return CONTINUE

    def drain(self) -> None:
        """Complete what is under way, so that rank 0 has seen every row. Collective."""
        while self._gathers:
            self._finish_gather()
        while self._broadcasts:
            self._finish_broadcast()

    def _start_gather(self, row: Rows) -> None:
        rows = np.empty((self._comm.size if self._comm.rank == 0 else 0, self._width))
        row = np.array(row, dtype=np.float64)
        request = self._comm.Igather(row, rows if self._comm.rank == 0 else None, root=0)
        self._gathers.append(_Gather(row, rows, request))

    def _finish_gather(self) -> int:
        gather = self._gathers.popleft()
        gather.request.Wait()
        return self._decide(gather.rows) if self._comm.rank == 0 else CONTINUE

    def _broadcast(self, decision: int) -> None:
        values = np.array([decision], dtype=np.int64)
        self._broadcasts.append(_Broadcast(values, self._comm.Ibcast(values, root=0)))

    def _finish_broadcast(self) -> int:
        broadcast = self._broadcasts.popleft()
        broadcast.request.Wait()
        return int(broadcast.decision[0])
