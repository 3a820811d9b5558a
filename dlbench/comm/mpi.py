"""Communication over MPI.

bf16 and fp16 travel as MPI_UINT16_T and fp8 as MPI_UINT8_T: MPI has no portable type for them. An unsigned integer
of the same width puts the same number of bytes on the wire, and its sums are exact, so a check can verify every bit
of them. What differs from a native type is the arithmetic of the reductions: additions of integers.

All operations are out of place: send and receive buffers are distinct memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from dlbench.comm.content import GUARD, noise
from dlbench.comm.library import MPI, version
from dlbench.errors import PreflightError

MPI_4 = (4, 0)
LARGEST_SMALL_COUNT = 2**31 - 1
"""Largest count of a library before MPI 4."""
_PAGE = 4096


Spec: TypeAlias = tuple[MPI.memory, MPI.Datatype]
"""Descriptor of a buffer for mpi4py."""


class Carrier(msgspec.Struct, frozen=True):
    """How elements of a dtype travel: as which MPI datatype, and how NumPy sees them."""

    numpy: np.dtype[Any]
    datatype: MPI.Datatype
    name: str

    @property
    def precision(self) -> int:
        """Significant bits of an element in a sum."""
        return np.finfo(self.numpy).nmant + 1 if self.numpy.kind == "f" else 8 * self.numpy.itemsize


_UINT16 = Carrier(np.dtype(np.uint16), MPI.UINT16_T, "MPI_UINT16_T")
CARRIERS = {
    "bf16": _UINT16,
    "fp16": _UINT16,
    "fp8": Carrier(np.dtype(np.uint8), MPI.UINT8_T, "MPI_UINT8_T"),
    "fp32": Carrier(np.dtype(np.float32), MPI.FLOAT, "MPI_FLOAT"),
    "fp64": Carrier(np.dtype(np.float64), MPI.DOUBLE, "MPI_DOUBLE"),
}


class MpiMessage(Protocol):
    """Memory that MPI can send from and receive into."""

    @property
    def elements(self) -> int:
        """Capacity in elements."""

    @property
    def carrier(self) -> Carrier:
        """How the elements travel."""

    @property
    def spec(self) -> Spec:
        """Descriptor for mpi4py."""


class MpiBuffer:
    """Page-aligned host memory of `elements` elements, filled with noise, and its descriptor for mpi4py."""

    __slots__ = ("_content", "_guard", "carrier", "elements", "spec")

    def __init__(self, elements: int, carrier: Carrier) -> None:
        size = elements * carrier.numpy.itemsize
        memory = np.empty(_PAGE + size + GUARD.size, np.uint8)
        memory = memory[-memory.ctypes.data % _PAGE :]
        self.elements = elements
        self.carrier = carrier
        self._content: NDArray[Any] = memory[:size].view(carrier.numpy)
        self._guard = memory[size : size + GUARD.size]
        self._guard[:] = GUARD
        # A memory object and no explicit count: the fastest to pass, and mpi4py divides it by the group where due.
        self.spec: Spec = (MPI.memory.frombuffer(memory[:size]), carrier.datatype)
        _fill_with_noise(self._content)

    def read(self, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """View of elements `start` to `stop`."""
        return self._content[start:stop]

    def write(self, values: NDArray[Any], start: int = 0) -> None:
        """Replace the content from element `start` on."""
        self._content[start : start + values.size] = values

    def guard_intact(self) -> bool:
        """Whether the bytes behind the last element are as they were written."""
        return bool(np.array_equal(self._guard, GUARD))


class MpiRequest(MPI.Request):
    """A non-blocking operation: mpi4py's request, so that a list of them can be awaited as it is."""

    __slots__ = ()

    def wait(self, status: MPI.Status | None = None) -> None:
        """Return when the communication is complete."""
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> bool:  # type: ignore[override]
        """Whether the communication is complete; drives it forward. mpi4py's own also returns a message."""
        return self.Test(status)


class PersistentRequest(MpiRequest, MPI.Prequest):
    """A persistent operation, started anew for every message."""

    __slots__ = ()


class MpiCommunicator:
    """A group of ranks over MPI; owns `comm` and frees it in `close`.

    An MPI error in any call is an `MPI.Exception`.
    """

    needs_progress = True

    def __init__(self, comm: MPI.Comm) -> None:
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._comm = comm
        self.rank = comm.rank
        self.size = comm.size

    def describe(self) -> dict[str, str]:
        """Backend, library, standard, and the MPI datatype that carries each dtype."""
        standard = ".".join(map(str, MPI.Get_version()))
        carriers = {dtype: carrier.name for dtype, carrier in CARRIERS.items()}
        return {"name": "mpi", "library": version(), "standard": f"MPI {standard}", **carriers}

    def remarks(self, largest_count: int) -> list[str]:
        """Nothing to remark: counts have 64 bits."""
        return []

    def split(self, color: int, key: int) -> Self:
        """Communicator of the ranks that gave the same colour, ordered by key. Collective."""
        return type(self)(self._comm.Split(color, key))

    def allocate(self, elements: int, dtype: str) -> MpiBuffer:
        """Host buffer of `elements` elements; raises `PreflightError` where there is no memory for it."""
        try:
            return MpiBuffer(elements, CARRIERS[dtype])
        except MemoryError as error:
            size = elements * CARRIERS[dtype].numpy.itemsize
            raise PreflightError(
                f"no memory for a buffer of {elements} {dtype} elements ({size / 2**30:.1f} GiB); "
                "--scale shrinks the messages"
            ) from error

    def carrier(self, dtype: str) -> np.dtype[Any]:
        """NumPy dtype in which buffers show elements of `dtype`."""
        return CARRIERS[dtype].numpy

    def precision(self, dtype: str) -> int:
        """Significant bits of an element of `dtype` in a sum."""
        return CARRIERS[dtype].precision

    def allreduce(self, send: MpiMessage, receive: MpiMessage) -> None:
        """Sum `send` over the group into `receive`."""
        self._comm.Allreduce(send.spec, receive.spec)

    def allgather(self, send: MpiMessage, receive: MpiMessage) -> None:
        """Concatenate every rank's `send` in rank order into `receive`."""
        self._comm.Allgather(send.spec, receive.spec)

    def reduce_scatter(self, send: MpiMessage, receive: MpiMessage) -> None:
        """Sum `send` over the group; this rank's block of the sum goes to `receive`."""
        self._comm.Reduce_scatter_block(send.spec, receive.spec)

    def alltoall(self, send: MpiMessage, receive: MpiMessage) -> None:
        """Exchange blocks: block i of `send` goes to rank i."""
        self._comm.Alltoall(send.spec, receive.spec)

    def send(self, send: MpiMessage, peer: int) -> None:
        """Send the buffer to `peer`."""
        self._comm.Send(send.spec, peer)

    def recv(self, receive: MpiMessage, peer: int) -> None:
        """Receive the buffer from `peer`."""
        self._comm.Recv(receive.spec, peer)

    def iallreduce(self, send: MpiMessage, receive: MpiMessage) -> MpiRequest:
        """Start `allreduce`."""
        return MpiRequest(self._comm.Iallreduce(send.spec, receive.spec))

    def iallgather(self, send: MpiMessage, receive: MpiMessage) -> MpiRequest:
        """Start `allgather`."""
        return MpiRequest(self._comm.Iallgather(send.spec, receive.spec))

    def ireduce_scatter(self, send: MpiMessage, receive: MpiMessage) -> MpiRequest:
        """Start `reduce_scatter`."""
        return MpiRequest(self._comm.Ireduce_scatter_block(send.spec, receive.spec))

    def ialltoall(self, send: MpiMessage, receive: MpiMessage) -> MpiRequest:
        """Start `alltoall`."""
        return MpiRequest(self._comm.Ialltoall(send.spec, receive.spec))

    def wait_all(self, requests: Sequence[MpiRequest]) -> None:
        """Return when every request is complete."""
        MPI.Request.Waitall(requests)

    def progress(self) -> None:
        """Let the library move outstanding requests forward: a probe is the cheapest call that does."""
        self._comm.Iprobe()

    def close(self) -> None:
        """Free the communicator. Collective; children before parents."""
        self._comm.Free()


class PersistentMpiCommunicator(MpiCommunicator):
    """Collectives as MPI-4 persistent requests, initialised on the first call with a pair of buffers.

    The library may choose another algorithm for them, so their times do not compare with those of other runs.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        super().__init__(comm)
        self._requests: dict[tuple[str, MpiMessage, MpiMessage], PersistentRequest] = {}

    def remarks(self, largest_count: int) -> list[str]:
        """Nothing to remark; raises `PreflightError` for counts that the library does not have."""
        if largest_count > LARGEST_SMALL_COUNT and MPI.Get_version() < MPI_4:
            raise PreflightError(
                f"{version()} has no persistent collectives of {largest_count} elements: its counts end at "
                f"{LARGEST_SMALL_COUNT}; leave --persistent out, or shrink the messages with --scale"
            )
        return []

    def iallreduce(self, send: MpiMessage, receive: MpiMessage) -> PersistentRequest:
        """Start `allreduce`."""
        return self._start("Allreduce_init", send, receive)

    def iallgather(self, send: MpiMessage, receive: MpiMessage) -> PersistentRequest:
        """Start `allgather`."""
        return self._start("Allgather_init", send, receive)

    def ireduce_scatter(self, send: MpiMessage, receive: MpiMessage) -> PersistentRequest:
        """Start `reduce_scatter`."""
        return self._start("Reduce_scatter_block_init", send, receive)

    def ialltoall(self, send: MpiMessage, receive: MpiMessage) -> PersistentRequest:
        """Start `alltoall`."""
        return self._start("Alltoall_init", send, receive)

    def allreduce(self, send: MpiMessage, receive: MpiMessage) -> None:
        """Sum `send` over the group into `receive`."""
        self._start("Allreduce_init", send, receive).Wait()

    def allgather(self, send: MpiMessage, receive: MpiMessage) -> None:
        """Concatenate every rank's `send` in rank order into `receive`."""
        self._start("Allgather_init", send, receive).Wait()

    def reduce_scatter(self, send: MpiMessage, receive: MpiMessage) -> None:
        """Sum `send` over the group; this rank's block of the sum goes to `receive`."""
        self._start("Reduce_scatter_block_init", send, receive).Wait()

    def alltoall(self, send: MpiMessage, receive: MpiMessage) -> None:
        """Exchange blocks: block i of `send` goes to rank i."""
        self._start("Alltoall_init", send, receive).Wait()

    def close(self) -> None:
        """Free the persistent requests, then the communicator."""
        for request in self._requests.values():
            request.Free()
        self._requests.clear()
        super().close()

    def _start(self, operation: str, send: MpiMessage, receive: MpiMessage) -> PersistentRequest:
        key = operation, send, receive
        request = self._requests.get(key) or self._initialise(*key)
        request.Start()
        return request

    def _initialise(self, operation: str, send: MpiMessage, receive: MpiMessage) -> PersistentRequest:
        try:
            handle = getattr(self._comm, operation)(send.spec, receive.spec)
        except (MPI.Exception, NotImplementedError) as error:
            raise PreflightError(
                f"{version()} refuses the persistent collective MPI_{operation} ({error}); leave --persistent out"
            ) from error
        return self._requests.setdefault((operation, send, receive), PersistentRequest(handle))


def _fill_with_noise(content: NDArray[Any]) -> None:
    block = noise(content.dtype)
    for start in range(0, content.size, block.size):
        part = content[start : start + block.size]
        part[:] = block[: part.size]
