"""The variant of MPI communication that suits the library and the options."""

from __future__ import annotations

from dlbench.comm.library import MPI
from dlbench.comm.mpi import MpiCommunicator, PersistentMpiCommunicator
from dlbench.comm.small_counts import SmallCountMpiCommunicator

_MPI_4 = (4, 0)


def mpi_communicator(comm: MPI.Comm, *, persistent: bool = False) -> MpiCommunicator:
    """Communicator over a duplicate of `comm`. Collective."""
    if persistent:
        return PersistentMpiCommunicator(comm.Dup())
    if MPI.Get_version() < _MPI_4:
        return SmallCountMpiCommunicator(comm.Dup())
    return MpiCommunicator(comm.Dup())
