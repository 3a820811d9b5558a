"""How the ranks begin an iteration together: `--sync barrier`, `window` or `none`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dlbench.comm.library import MPI
from dlbench.compute.sleep import Sleeper, spin
from dlbench.runtime.clock import GlobalClock

LATE_SECONDS = 20e-6
"""A rank that begins so much after the agreed time is late."""
_FIRST_MARGIN_SECONDS = 2e-3
_LARGEST_MARGIN_SECONDS = 1.0

StartLine = Callable[[], bool]
"""Returns when this rank may begin; whether it came late. Collective unless the mode is `none`."""


def start_line(mode: str, comm: MPI.Intracomm, clock: GlobalClock, ranks_per_core: float) -> StartLine:
    """Start line of a `--sync` mode."""
    match mode:
        case "barrier":
            return lambda: _barrier(comm)
        case "window":
            # A rank with a core of its own spins: the kernel wakes a sleeper too late to begin together.
            return Window(comm, clock, Sleeper(ranks_per_core).until if ranks_per_core > 1 else spin)
        case _:
            return lambda: False


def _barrier(comm: MPI.Intracomm) -> bool:
    # The non-blocking form: MPICH's blocking barrier stalls for seconds where ranks outnumber cores.
    comm.Ibarrier().Wait()
    return False


class Window:
    """All ranks begin at a global time that rank 0 announces a margin ahead.

    The margin doubles whenever a rank heard of the time too late, up to one second. `wait` returns at a clock reading.
    """

    def __init__(self, comm: MPI.Intracomm, clock: GlobalClock, wait: Callable[[int], None]) -> None:
        self._comm = comm
        self._clock = clock
        self._wait = wait
        self._margin = _FIRST_MARGIN_SECONDS
        self._missed = False

    def __call__(self) -> bool:
        """Wait for the start; whether this rank begins late, because it heard of it or woke too late."""
        missed = np.array([self._missed])
        self._comm.Iallreduce(MPI.IN_PLACE, missed, op=MPI.LOR).Wait()
        if missed[0]:
            self._margin = min(2 * self._margin, _LARGEST_MARGIN_SECONDS)
        start = np.array([self._clock.now() + self._margin])
        self._comm.Ibcast(start, root=0).Wait()
        self._missed = self._clock.wait_until(start[0], self._wait) > 0
        return bool(self._clock.now() - start[0] > LATE_SECONDS)
