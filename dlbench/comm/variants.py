"""The communicator that suits the options and the library."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from dlbench.accelerator.protocol import Device, NcclLibrary, Stream
from dlbench.comm.library import MPI
from dlbench.comm.mpi import MPI_4, MpiCommunicator, PersistentMpiCommunicator
from dlbench.comm.protocol import Communicator


def create(  # noqa: PLR0913 - what tells the variants apart, all by keyword
    comm: MPI.Comm,
    *,
    backend: str = "mpi",
    buffers: str = "host",
    persistent: bool = False,
    device: Device | None = None,
    nccl: NcclLibrary | None = None,
    stream: Stream | None = None,
    calls: Collection[str] = (),
    groups: bool = True,
) -> Communicator[Any, Any]:
    """Communicator of the ranks of `comm`, by `backend` "mpi" or "nccl", with `buffers` in "host" or "gpu" memory.

    NCCL needs `device` and `nccl`, whose buffers always lie on the GPU; MPI with buffers there needs `device`, and
    `stream`, on which the rank computes (default: one without work). `calls` are the names of the operations that it
    will be asked for, `groups` whether it will be split. Collective. Raises `PreflightError` where NCCL does not start,
    or MPI does not take buffers of a GPU in these calls.
    """
    if backend == "nccl":
        from dlbench.comm.nccl import nccl_communicator  # noqa: PLC0415 - for GPUs only

        if device is None or nccl is None:
            raise ValueError("NCCL needs a device and a library")
        return nccl_communicator(comm, device, nccl, groups=groups)
    if buffers == "host":
        return mpi_communicator(comm, persistent=persistent)
    from dlbench.comm.device_mpi import DeviceMpiCommunicator, check_gpu_support  # noqa: PLC0415 - for GPUs only

    if device is None:
        raise ValueError("buffers on a GPU need a device")
    check_gpu_support(device.facts.kind, calls, persistent=persistent)
    return DeviceMpiCommunicator(mpi_communicator(comm, persistent=persistent), device, stream or device.stream())


def mpi_communicator(comm: MPI.Comm, *, persistent: bool = False) -> MpiCommunicator:
    """Communicator over a duplicate of `comm`, with buffers in the memory of the host. Collective."""
    if persistent:
        return PersistentMpiCommunicator(comm.Dup())
    if MPI.Get_version() < MPI_4:
        from dlbench.comm.small_counts import SmallCountMpiCommunicator  # noqa: PLC0415 - old libraries only

        return SmallCountMpiCommunicator(comm.Dup())
    return MpiCommunicator(comm.Dup())
