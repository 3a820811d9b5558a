"""What a rank needs of its GPU, so that everything above can be run and tested with another device in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

Kind = Literal["cuda", "hip", "host"]
"""Whose memory a pointer of the device is. `host`: plain memory of the process, which every library can read."""

Precision = Literal["fp64", "fp32", "tf32", "fp16", "bf16"]
"""Of the operands of a matrix product; sums are kept in fp32, or fp64 for fp64."""


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU, as the record names it."""

    kind: Kind
    index: int
    """Ordinal among the GPUs that the process sees."""
    name: str
    uuid: str
    """Tells apart all GPUs of a host, whatever variables hide or renumber; empty where it is not known."""
    pci: str
    """Bus id, e.g. `0000:3B:00.0`; empty where it is not known."""
    driver: str
    """The CUDA version that the driver supports, or ROCm's."""
    runtime: str
    """Version of the CUDA or HIP runtime that CuPy runs on."""
    cupy: str
    memory_bytes: int
    numa_node: int | None = None
    """NUMA node of the host that the GPU hangs on; None where the system does not say."""

    @property
    def label(self) -> str:
        """Short name, e.g. `cuda:3`."""
        return f"{self.kind}:{self.index}"


class Stream(Protocol):
    """A queue of work on the device that does not wait for the default one."""

    @property
    def ptr(self) -> int:
        """Handle for libraries."""

    def synchronize(self) -> None:
        """Return when all work of the stream is done."""


class Event(Protocol):
    """A mark in a stream."""

    @property
    def done(self) -> bool:
        """Whether the work before the mark is done. Raises where the device has failed."""

    def record(self, stream: Stream) -> None:
        """Set the mark behind all work that the stream has now."""

    def synchronize(self) -> None:
        """Return when the work before the mark is done."""


class Memory(Protocol):
    """Device memory, freed with the object."""

    @property
    def ptr(self) -> int:
        """Address of the first byte."""

    @property
    def nbytes(self) -> int:
        """Size."""


class Multiplier(Protocol):
    """Matrix products of one precision on one stream, workspace included."""

    def multiply(self, left: int, right: int, out: int, *, rows: int, columns: int, k: int) -> None:  # noqa: PLR0913
        """Enqueue C[rows, columns] = A[rows, k] B[k, columns], row-major and dense at the given addresses.

        C has the element type of A and B; what it held before is not read.
        """

    def close(self) -> None:
        """Release the library's handle; after the last product is done."""


class Device(Protocol):
    """The GPU of this rank, current in its main thread."""

    @property
    def facts(self) -> GpuFacts:
        """Which one it is."""

    def free_bytes(self) -> int:
        """Memory that can still be allocated."""

    def allocate(self, nbytes: int) -> Memory:
        """Memory with undefined content. Raises `PreflightError` where there is not enough."""

    def upload(self, address: int, content: NDArray[Any]) -> None:
        """Copy a contiguous array to the device; returns when it is there."""

    def download(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Copy of device memory."""

    def copy(self, source: int, target: int, nbytes: int, stream: Stream) -> None:
        """Enqueue a copy within the device's memory, between addresses whose ranges do not overlap."""

    def stream(self) -> Stream:
        """A new non-blocking stream."""

    def event(self) -> Event:
        """A new event, already done."""

    def timed_event(self) -> Event:
        """A new event that knows when it was reached, for `elapsed`."""

    def elapsed(self, begin: Event, end: Event) -> float:
        """Seconds on the device between two timed events that are done."""

    def multiplier(self, stream: Stream, precision: Precision) -> Multiplier:
        """Matrix products on the stream. Raises `PreflightError` where the device or its libraries lack the precision.

        Call once a precision, before anything is timed: it loads cuBLAS and allocates its workspace.
        """

    def spin(self, stream: Stream, nanoseconds: int) -> None:
        """Enqueue a kernel that occupies the stream for so long by the device's own clock, without arithmetic."""


class NcclLibrary(Protocol):
    """The module `cupy.cuda.nccl`."""

    NcclCommunicator: Any
    NcclError: type[Exception]

    def get_version(self) -> int:
        """Version as a number, e.g. 22304 for 2.23.4."""

    def get_unique_id(self) -> bytes:
        """A new id that the ranks of a communicator share."""

    def groupStart(self) -> None:  # noqa: N802
        """Begin calls that make up one."""

    def groupEnd(self) -> None:  # noqa: N802
        """Issue them."""


class Reading(NamedTuple):
    """What a GPU says of itself at one moment; NaN for what it does not say."""

    joules: float
    """Energy since some fixed moment."""
    sm_mhz: float
    memory_mhz: float
    power_limit_watts: float
    throttle: float
    """Bit mask of NVML's clocks event reasons: why the clocks are not higher."""


class Meter(Protocol):
    """Energy, clocks and limits of one GPU. Never changes a setting of it, never fails a run."""

    @property
    def source(self) -> str:
        """Where energy comes from: `counter`, `sampled power`, or empty where there is none."""

    def read(self) -> Reading:
        """As of now."""

    def close(self) -> None:
        """Stop sampling."""


class Driver(Protocol):
    """The way to the GPUs of a host. Creating it loads the libraries; it raises `PreflightError` for one missing."""

    def count(self) -> int:
        """GPUs that this process sees; raises `PreflightError` where there is none, and says why."""

    def open(self, index: int) -> Device:
        """Make a GPU the current one of this thread, and prove that it is usable; raises `PreflightError`."""

    def nccl(self) -> NcclLibrary:
        """NCCL or RCCL; raises `PreflightError` where it is missing."""

    def meter(self, facts: GpuFacts) -> Meter | None:
        """Meter of a GPU; None where the library for it is absent or refuses."""


DriverLoader = Callable[[], Driver]
"""Loads the way to the GPUs; raises `PreflightError` where something for it is missing."""
