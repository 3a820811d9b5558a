"""The variant of MPI communication that suits the library and the options."""

from __future__ import annotations

from dlbench.comm.library import MPI
from dlbench.comm.mpi import MPI_4, MpiCommunicator, PersistentMpiCommunicator


def mpi_communicator(comm: MPI.Comm, *, persistent: bool = False) -> MpiCommunicator:
    """Communicator over a duplicate of `comm`. Collective."""
    if persistent:
        return PersistentMpiCommunicator(comm.Dup())
    if MPI.Get_version() < MPI_4:
        from dlbench.comm.small_counts import SmallCountMpiCommunicator  # noqa: PLC0415 - old libraries only

        return SmallCountMpiCommunicator(comm.Dup())
    return MpiCommunicator(comm.Dup())
