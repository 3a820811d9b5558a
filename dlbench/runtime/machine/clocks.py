"""How far the wall clocks of the hosts are from that of rank 0."""

from __future__ import annotations

import os
import time

from dlbench.comm.library import MPI
from dlbench.runtime.clock import GlobalClock
from dlbench.runtime.machine.facts import boot_id
from dlbench.runtime.machine.survey import ClockOffset


def wall_offsets(comm: MPI.Intracomm) -> tuple[ClockOffset, ...]:
    """Offset of every rank's wall clock; on rank 0 only, empty on the others. Collective.

    Machines are compared by ping-pong, along a tree. Both readings of a rank that the tree compares are counted from
    its origin, so the offset of the clocks is that of the origins less what the tree has found.
    """
    clock = GlobalClock(comm, clock=time.time_ns, domain=f"{os.uname().nodename} {boot_id()}")
    origins = comm.gather(clock.origin_ns)
    model = clock.synchronise()
    if origins is None or model is None:
        return ()
    ahead = [(origin - origins[0]) * 1e-9 - offset for origin, offset in zip(origins, model.offset, strict=True)]
    return tuple(ClockOffset(*pair) for pair in zip(ahead, model.uncertainty, strict=True))
