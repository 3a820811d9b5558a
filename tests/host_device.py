"""A driver of GPUs that are plain memory of the process, for tests of everything above the accelerator room.

In a test of one process:

    from host_device import HostDriver

    device = HostDriver().open(0)

NCCL comes from the stand-in `libnccl.so.2`, under CuPy's own NcclCommunicator. The test takes the fixture `stand_in`
(tests/conftest.py), which compiles it, or skips where cc or CuPy is missing, and gives its environment to the job:

    mpi.run_ranks(program, 4, env=stand_in.environment())

The rank program finds the library there:

    from host_device import HostDriver

    driver = HostDriver.with_stand_in()    # before anything imports cupy.cuda.nccl
    device, nccl = driver.open(0), driver.nccl()

What `StandIn.environment` takes injects faults: see tests/stand_in.py.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlbench.accelerator.protocol import Event, GpuFacts, Meter, NcclLibrary, Precision, Stream
from dlbench.errors import PreflightError

LIBRARY_VARIABLE = "STAND_IN_LIBRARY"
GIBIBYTE = 2**30


class StandInQueue:
    """The stand-in's queue of collectives, as streams and events see it. Without a library it is always empty."""

    def __init__(self, library: Path | None = None) -> None:
        # Global: CuPy's extension module resolves its NCCL symbols to these.
        self._library = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL) if library else None
        self._streams = 0
        if self._library:
            self._library.standInLast.argtypes = [ctypes.c_void_p]
            self._library.standInLast.restype = ctypes.c_uint64
            self._library.standInDone.argtypes = [ctypes.c_uint64]

    def new_stream(self) -> int:
        """Handle of a new stream."""
        self._streams += 1
        return self._streams

    def last(self, stream: int) -> int:
        """Ticket of the last work on a stream."""
        return int(self._library.standInLast(stream)) if self._library else 0

    def done(self, ticket: int) -> bool:
        """Whether the work with the ticket is done."""
        return self._library is None or bool(self._library.standInDone(ticket))

    def wait(self, ticket: int) -> None:
        """Return when the work with the ticket is done; never, where it is not."""
        while not self.done(ticket):
            time.sleep(1e-5)


class HostStream:
    """Its products and spins are done at once; collectives are done when the stand-in has carried them out."""

    def __init__(self, queue: StandInQueue) -> None:
        self._queue = queue
        self.ptr = queue.new_stream()

    def synchronize(self) -> None:
        """Return when all work of the stream is done."""
        self._queue.wait(self._queue.last(self.ptr))


class HostEvent:
    """A mark behind the collectives of a stream, and the time when it was set."""

    def __init__(self, queue: StandInQueue) -> None:
        self._queue = queue
        self._ticket = 0
        self.nanoseconds = 0

    @property
    def done(self) -> bool:
        """Whether the work before the mark is done."""
        return self._queue.done(self._ticket)

    def record(self, stream: Stream) -> None:
        """Set the mark behind all work that the stream has now."""
        self._ticket = self._queue.last(stream.ptr)
        self.nanoseconds = time.perf_counter_ns()

    def synchronize(self) -> None:
        """Return when the work before the mark is done."""
        self._queue.wait(self._ticket)


class HostMemory:
    """Memory of the process."""

    def __init__(self, nbytes: int) -> None:
        self._content = np.empty(nbytes, np.uint8)
        self.ptr = self._content.ctypes.data
        self.nbytes = nbytes


class HostMultiplier:
    """Products by NumPy, at once; sums in fp32, or fp64 for fp64."""

    _DTYPES = {"fp64": np.float64, "fp32": np.float32, "tf32": np.float32, "fp16": np.float16, "bf16": np.uint16}

    def __init__(self, precision: Precision) -> None:
        self._dtype = np.dtype(self._DTYPES[precision])
        self.closed = False

    def multiply(self, left: int, right: int, out: int, *, rows: int, columns: int, k: int) -> None:
        """C[rows, columns] = A[rows, k] B[k, columns] at the given addresses."""
        a, b, c = (self._matrix(*matrix) for matrix in ((left, rows, k), (right, k, columns), (out, rows, columns)))
        c[:] = self._narrow(self._widen(a) @ self._widen(b))

    def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True

    def _matrix(self, address: int, rows: int, columns: int) -> NDArray[Any]:
        return _bytes_at(address, rows * columns * self._dtype.itemsize).view(self._dtype).reshape(rows, columns)

    def _widen(self, operand: NDArray[Any]) -> NDArray[Any]:
        if self._dtype == np.uint16:
            return (operand.astype(np.uint32) << 16).view(np.float32)
        return operand.astype(np.promote_types(self._dtype, np.float32))

    def _narrow(self, product: NDArray[Any]) -> NDArray[Any]:
        """Product in the dtype of the operands; bf16 by cutting off the lower half of an fp32."""
        return product.view(np.uint32) >> 16 if self._dtype == np.uint16 else product


class HostDevice:
    """Memory of the process as a GPU."""

    def __init__(self, facts: GpuFacts, queue: StandInQueue) -> None:
        self.facts = facts
        self._queue = queue

    def free_bytes(self) -> int:
        """As much as the facts say, whatever was allocated."""
        return self.facts.memory_bytes

    def allocate(self, nbytes: int) -> HostMemory:
        """Memory with undefined content; raises `PreflightError` beyond the size that the facts give."""
        if nbytes > self.facts.memory_bytes:
            raise PreflightError(f"{self.facts.label} has {self.facts.memory_bytes} bytes, {nbytes} are asked for")
        return HostMemory(nbytes)

    def upload(self, address: int, content: NDArray[Any]) -> None:
        """Copy a contiguous array there."""
        assert content.flags.c_contiguous
        ctypes.memmove(address, content.ctypes.data, content.nbytes)

    def download(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Copy of memory."""
        return _bytes_at(address, nbytes).copy()

    def copy(self, source: int, target: int, nbytes: int, stream: Stream) -> None:
        """Copy memory, at once."""
        ctypes.memmove(target, source, nbytes)

    def stream(self) -> HostStream:
        """A new stream."""
        return HostStream(self._queue)

    def event(self) -> HostEvent:
        """A new event, already done."""
        return HostEvent(self._queue)

    def timed_event(self) -> HostEvent:
        """A new event: all know their time."""
        return HostEvent(self._queue)

    def elapsed(self, begin: Event, end: Event) -> float:
        """Seconds between the moments at which two events were recorded."""
        assert isinstance(begin, HostEvent) and isinstance(end, HostEvent)
        return (end.nanoseconds - begin.nanoseconds) * 1e-9

    def multiplier(self, stream: Stream, precision: Precision) -> HostMultiplier:
        """Products by NumPy."""
        return HostMultiplier(precision)

    def spin(self, stream: Stream, nanoseconds: int) -> None:
        """Wait here for so long."""
        deadline = time.perf_counter_ns() + nanoseconds
        while time.perf_counter_ns() < deadline:
            time.sleep(0)


class HostDriver:
    """A host with `gpus` GPUs of `memory_bytes` each, all of them memory of the process."""

    def __init__(
        self,
        gpus: int = 1,
        *,
        memory_bytes: int = 64 * GIBIBYTE,
        library: Path | None = None,
        nccl: NcclLibrary | None = None,
        meter: Meter | None = None,
    ) -> None:
        self._gpus = gpus
        self._memory_bytes = memory_bytes
        self._queue = StandInQueue(library)
        self._library = library
        self._nccl = nccl
        self._meter = meter

    @classmethod
    def with_stand_in(cls, gpus: int = 1, **options: Any) -> HostDriver:
        """Driver whose NCCL is CuPy's module on the stand-in library that the environment names."""
        return cls(gpus, library=Path(os.environ[LIBRARY_VARIABLE]), **options)

    def count(self) -> int:
        """GPUs of the host."""
        if not self._gpus:
            raise PreflightError("the host device has no GPU")
        return self._gpus

    def open(self, index: int) -> HostDevice:
        """One of the GPUs; raises `PreflightError` for one that is not there."""
        if not 0 <= index < self._gpus:
            raise PreflightError(f"no GPU {index}: the host device has {self._gpus}")
        return HostDevice(self._facts(index), self._queue)

    def nccl(self) -> NcclLibrary:
        """The injected library, or CuPy's module on the stand-in; raises `PreflightError` without either."""
        if self._nccl is not None:
            return self._nccl
        if self._library is None:
            raise PreflightError("the host device has no NCCL")
        library: NcclLibrary = importlib.import_module("cupy.cuda.nccl")  # after the stand-in
        return library

    def meter(self, facts: GpuFacts) -> Meter | None:
        """The injected meter."""
        return self._meter

    def _facts(self, index: int) -> GpuFacts:
        return GpuFacts(
            kind="host",
            index=index,
            name="host memory",
            uuid=f"HOST-{index}",
            pci=f"0000:{index:02X}:00.0",
            driver="12.4",
            runtime="12.4",
            cupy="14.2.0",
            memory_bytes=self._memory_bytes,
            numa_node=0,
        )


def _bytes_at(address: int, nbytes: int) -> NDArray[np.uint8]:
    """View of memory of the process."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
