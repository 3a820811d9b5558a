"""Which ranks share a host, and what the host gives them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from dlbench.comm.library import MPI
from dlbench.quantities import counted
from dlbench.runtime.preflight import available_memory, check_memory, usable_cores


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

    def remark(self) -> str:
        """What to know of its times where ranks outnumber cores; else empty."""
        if self.ranks_per_core <= 1:
            return ""
        cores = counted(self.cores, "core")
        return f"{self.comm.size} ranks share {cores} of host {self.name}: times are also those of waiting for a core"

    def check_memory(self, needed: int, scale: float) -> None:
        """Raise `PreflightError` on every rank of a host that has less memory than its ranks' `needed` together."""
        total = self.comm.allreduce(needed)
        available = self.comm.bcast(available_memory() if self.comm.rank == 0 else None)
        check_memory(self.name, total, available, scale)


def find_host(comm: MPI.Intracomm) -> Host:
    """The host of this rank. Collective."""
    local = comm.Split_type(MPI.COMM_TYPE_SHARED)
    usable: set[int] = set().union(*local.allgather(usable_cores()))
    return Host(name=os.uname().nodename, comm=local, cores=len(usable))


def crowding(said: Sequence[str]) -> list[str]:
    """The remark of the first host that is crowded, and how many others are, of what the hosts of all ranks say."""
    first, *others = list(dict.fromkeys(filter(None, said))) or [""]
    return [first + (f"; {counted(len(others), 'more host')} likewise" if others else "")] if first else []


def share_file(local: MPI.Comm) -> int:
    """Descriptor of an empty file in memory that the ranks of a host can append to; -1 where they cannot. Collective.

    It loses its name as soon as all have it open: nothing is left behind, whatever ends the job.
    """
    path: str = local.bcast(f"/dev/shm/dlbench-{os.urandom(8).hex()}")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        descriptor = -1
    local.Ibarrier().Wait()
    with suppress(OSError):  # the first rank that comes removes it
        os.unlink(path)  # noqa: PTH108 - ranks do without pathlib: it loads five modules
    return descriptor
