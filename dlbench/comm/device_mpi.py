"""Communication over a GPU-aware MPI: buffers lie in the memory of the GPU, and MPI takes their addresses."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

import numpy as np

from dlbench.accelerator.protocol import Device, Kind, Stream
from dlbench.comm.device_buffer import DeviceBuffer, plain
from dlbench.comm.library import MPI, version
from dlbench.comm.mpi import CARRIERS, Carrier, MpiCommunicator, MpiRequest, Spec
from dlbench.errors import PreflightError

_CRAY = "CRAY MPICH"
_CRAY_SWITCH = "MPICH_GPU_SUPPORT_ENABLED"
_CRAY_LIBRARIES = {"cuda": "libmpi_gtl_cuda.so", "hip": "libmpi_gtl_hsa.so"}
_HCOLL_SWITCHES = ("HCOLL_GPU_ENABLE", "HCOLL_ENABLE_NBC")
_NON_BLOCKING = {"iallreduce": "MPI_Iallreduce", "ireduce_scatter": "MPI_Ireduce_scatter_block"}
_PERSISTENT = {"allreduce": "MPI_Allreduce_init", "reduce_scatter": "MPI_Reduce_scatter_block_init"}
"""Reductions for which Open MPI has a schedule of its own (libnbc), by the call of a communicator."""
_NAMES = {"cuda": "CUDA", "hip": "ROCm"}
_QUERIES = {
    "cuda": ("MPIX_Query_cuda_support",),
    "hip": ("MPIX_Query_rocm_support", "MPIX_Query_hip_support"),
}
"""Functions without argument that Open MPI, MPICH or both have, per kind of GPU."""
_GPU_TYPES = {"cuda": 0, "hip": 2}
"""MPICH's numbers for MPIX_GPU_query_support."""


class DeviceMpiBuffer(DeviceBuffer):
    """Device memory, and its descriptor for mpi4py."""

    __slots__ = ("carrier", "spec")

    def __init__(self, device: Device, elements: int, carrier: Carrier) -> None:
        super().__init__(device, elements, plain(carrier.numpy))
        self.carrier = carrier
        self.spec: Spec = (MPI.memory.fromaddress(self.ptr, self.nbytes), carrier.datatype)


class DeviceMpiCommunicator:
    """A group of ranks over MPI, with buffers on the GPU: any variant of MPI communication, its buffers replaced.

    MPI knows nothing of streams: `stream`, on which the rank computes, is synchronised before each call. The whole
    device would be too much: MPI's own copies for requests in flight are on streams too.
    """

    needs_progress = True

    def __init__(self, inner: MpiCommunicator, device: Device, stream: Stream) -> None:
        self.rank = inner.rank
        self.size = inner.size
        self._inner = inner
        self._device = device
        self._stream = stream
        self._ready = stream.synchronize

    def describe(self) -> dict[str, str]:
        """Backend, library, standard, and the MPI datatype that carries each dtype."""
        return self._inner.describe()

    def remarks(self, largest_count: int) -> list[str]:
        """What the variant remarks."""
        return self._inner.remarks(largest_count)

    def split(self, color: int, key: int) -> Self:
        """Communicator of the ranks that gave the same colour, ordered by key. Collective."""
        return type(self)(self._inner.split(color, key), self._device, self._stream)

    def allocate(self, elements: int, dtype: str) -> DeviceMpiBuffer:
        """Device buffer of `elements` elements; raises `PreflightError` where there is no memory for it."""
        return DeviceMpiBuffer(self._device, elements, CARRIERS[dtype])

    def carrier(self, dtype: str) -> np.dtype[Any]:
        """NumPy dtype in which buffers show elements of `dtype`."""
        return self._inner.carrier(dtype)

    def precision(self, dtype: str) -> int:
        """Significant bits of an element of `dtype` in a sum."""
        return self._inner.precision(dtype)

    def allreduce(self, send: DeviceMpiBuffer, receive: DeviceMpiBuffer) -> None:
        """Sum `send` over the group into `receive`."""
        self._ready()
        self._inner.allreduce(send, receive)

    def allgather(self, send: DeviceMpiBuffer, receive: DeviceMpiBuffer) -> None:
        """Concatenate every rank's `send` in rank order into `receive`."""
        self._ready()
        self._inner.allgather(send, receive)

    def reduce_scatter(self, send: DeviceMpiBuffer, receive: DeviceMpiBuffer) -> None:
        """Sum `send` over the group; this rank's block of the sum goes to `receive`."""
        self._ready()
        self._inner.reduce_scatter(send, receive)

    def alltoall(self, send: DeviceMpiBuffer, receive: DeviceMpiBuffer) -> None:
        """Exchange blocks: block i of `send` goes to rank i."""
        self._ready()
        self._inner.alltoall(send, receive)

    def send(self, send: DeviceMpiBuffer, peer: int) -> None:
        """Send the buffer to `peer`."""
        self._ready()
        self._inner.send(send, peer)

    def recv(self, receive: DeviceMpiBuffer, peer: int) -> None:
        """Receive the buffer from `peer`."""
        self._ready()
        self._inner.recv(receive, peer)

    def iallreduce(self, send: DeviceMpiBuffer, receive: DeviceMpiBuffer) -> MpiRequest:
        """Start `allreduce`."""
        self._ready()
        return self._inner.iallreduce(send, receive)

    def iallgather(self, send: DeviceMpiBuffer, receive: DeviceMpiBuffer) -> MpiRequest:
        """Start `allgather`."""
        self._ready()
        return self._inner.iallgather(send, receive)

    def ireduce_scatter(self, send: DeviceMpiBuffer, receive: DeviceMpiBuffer) -> MpiRequest:
        """Start `reduce_scatter`."""
        self._ready()
        return self._inner.ireduce_scatter(send, receive)

    def ialltoall(self, send: DeviceMpiBuffer, receive: DeviceMpiBuffer) -> MpiRequest:
        """Start `alltoall`."""
        self._ready()
        return self._inner.ialltoall(send, receive)

    def wait_all(self, requests: Sequence[MpiRequest]) -> None:
        """Return when every request is complete."""
        self._inner.wait_all(requests)

    def progress(self) -> None:
        """Let the library move outstanding requests forward."""
        self._inner.progress()

    def close(self) -> None:
        """Free the communicator. Collective; children before parents."""
        self._inner.close()


def check_gpu_support(kind: Kind, calls: Collection[str] = (), *, persistent: bool = False) -> None:
    """Raise `PreflightError` where the MPI library cannot take addresses of a GPU's memory, or not in these calls.

    `calls` are names of the communicator's operations, `persistent` says whether they become persistent requests.
    """
    scopes = (ctypes.CDLL(None), ctypes.CDLL(MPI.__file__))
    library_version = MPI.Get_library_version()
    if kind == "host":
        return
    if not takes_gpu_buffers(kind, library_version, os.environ, scopes):
        raise PreflightError(
            f"{version()} does not take buffers in GPU memory ({_NAMES[kind]}): {remedy(kind, library_version)}, or "
            "use --buffers host, or --backend nccl"
        )
    if kind == "cuda":
        check_reductions(version(), os.environ, calls, persistent=persistent)


def remedy(kind: Kind, library_version: str) -> str:
    """What makes a library take buffers in GPU memory, or brings one that does."""
    if _CRAY not in library_version:
        return f"load an MPI that was built with {_NAMES[kind]}"
    library = _CRAY_LIBRARIES[kind]
    return f"set {_CRAY_SWITCH}=1, with an mpi4py that is linked with {library}, or LD_PRELOAD={library}"


def check_reductions(
    library: str, environment: Mapping[str, str], calls: Collection[str], *, persistent: bool = False
) -> None:
    """Raise `PreflightError` where `library`, a name and version, would crash in the sums of calls on CUDA's memory.

    Open MPI adds up on the host for all reductions but blocking ones, and takes addresses of the GPU for its own
    (its page on CUDA, and its bugs 9845 and 12045); only the all-reduce of HCOLL is another one, where it is switched
    on.
    """
    if not library.startswith("Open MPI"):
        return
    refused = [name for call, name in _NON_BLOCKING.items() if call in calls]
    if persistent:
        refused = [name for call, name in _PERSISTENT.items() if {call, f"i{call}"} & set(calls)]
    hcoll = refused == ["MPI_Iallreduce"]
    if not refused or (hcoll and all(environment.get(switch) == "1" for switch in _HCOLL_SWITCHES)):
        return
    switches = f", or HCOLL with {'=1 '.join(_HCOLL_SWITCHES)}=1 in the environment" if hcoll else ""
    raise PreflightError(
        f"{library} crashes in {' and '.join(refused)} of buffers in GPU memory (CUDA), which it adds up on the host; "
        f"use --backend nccl{switches}"
    )


def takes_gpu_buffers(
    kind: Kind, library_version: str, environment: Mapping[str, str], scopes: Sequence[ctypes.CDLL]
) -> bool:
    """Whether a library says that it takes addresses of the memory of this kind of GPU.

    `scopes` is where its extensions are looked for. Cray MPICH follows a switch: with it, MPI_Init has already refused
    a program that lacks the library for GPUs.
    """
    if _CRAY in library_version:
        return environment.get(_CRAY_SWITCH) == "1"
    for scope in scopes:
        for name in _QUERIES[kind]:
            if hasattr(scope, name) and getattr(scope, name)() == 1:
                return True
        if hasattr(scope, "MPIX_GPU_query_support"):
            supported = ctypes.c_int(0)
            scope.MPIX_GPU_query_support(_GPU_TYPES[kind], ctypes.byref(supported))
            return bool(supported.value)
    return False
