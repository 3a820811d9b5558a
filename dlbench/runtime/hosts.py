"""Which ranks share a host, and what the host gives them."""

from __future__ import annotations

import os
from typing import NamedTuple

from dlbench.comm.library import MPI
from dlbench.runtime.preflight import available_memory, check_memory


class Host(NamedTuple):
    """The host of this rank, seen from all of its ranks."""

    name: str
    comm: MPI.Comm
    """The ranks on this host."""
    cores: int
    """Cores that any of these ranks may use."""

    @property
    def ranks_per_core(self) -> float:
        """Above 1, ranks take turns."""
        return self.comm.size / self.cores

    def check_memory(self, needed: int, scale: float) -> None:
        """Raise `PreflightError` on every rank of a host that has less memory than its ranks' `needed` together."""
        total = self.comm.allreduce(needed)
        available = self.comm.bcast(available_memory(), root=0)
        check_memory(self.name, total, available, scale)


def find_host(comm: MPI.Intracomm) -> Host:
    """The host of this rank. Collective."""
    local = comm.Split_type(MPI.COMM_TYPE_SHARED)
    usable: set[int] = set().union(*local.allgather(_usable_cores()))
    return Host(name=os.uname().nodename, comm=local, cores=len(usable))


def _usable_cores() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))
