"""NVIDIA's and AMD's GPUs through CuPy."""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlbench.accelerator import libraries, presence
from dlbench.accelerator.blas import GemmExMultiplier, gemm_types
from dlbench.accelerator.nvml import open_meter
from dlbench.accelerator.protocol import Event, GpuFacts, Meter, NcclLibrary, Precision, Stream
from dlbench.accelerator.spin_kernel import SpinKernel
from dlbench.errors import PreflightError
from dlbench.quantities import si

_SUCCESS, _NO_MEMORY, _NOT_READY = 0, 2, 600
"""`cudaError_t`, which `hipError_t` shares."""
_UUID_BYTES = 16
_PROOF_BYTES = 256
_FIRST_EDGE = 16
"""Rows and columns of a product that is only there to load the library."""
_LARGEST_ELEMENT = 8


class CupyDriver:
    """The GPUs that CuPy sees. Raises `PreflightError` where driver or CuPy are missing, or CuPy does not load.

    `find` imports a module by its name, or gives one in its place; `driver` tells of the driver, and `load` loads its
    library.
    """

    def __init__(
        self,
        find: presence.Find = importlib.import_module,
        sysfs: Path = Path("/sys"),
        driver: Callable[[], presence.Status] = presence.driver_status,
        load: libraries.Load = libraries.load,
    ) -> None:
        self._find = find
        self._sysfs = sysfs
        self._load = load
        presence.require_driver(driver())
        libraries.start_driver(load)
        self._cupy = presence.load_cupy(find)

    def count(self) -> int:
        """GPUs that this process sees; raises `PreflightError` where there is none, and says why."""
        return presence.count(self._cupy)

    def open(self, index: int) -> CupyDevice:
        """Make a GPU the current one of this thread, and allocate a few bytes on it as proof that it is usable.

        Raises `PreflightError` where there is none with that number, or it is not usable.
        """
        libraries.retain_cuda(index, self._load)
        try:
            self._cupy.cuda.Device(index).use()  # before anything else of CuPy, whose default is GPU 0
            self._cupy.cuda.Memory(_PROOF_BYTES)
            return CupyDevice(self._cupy, gpu_facts(self._cupy, index, self._sysfs))
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            seen = self.count()
            raise PreflightError(f"GPU {index} of {seen}: {presence.explained(self._cupy, error)}") from None

    def nccl(self) -> NcclLibrary:
        """NCCL or RCCL; raises `PreflightError` where it is missing."""
        return presence.load_nccl(self._cupy, self._find)

    def meter(self, facts: GpuFacts) -> Meter | None:
        """Meter of a GPU through NVML; None where it is absent or refuses."""
        return open_meter(facts)


def gpu_facts(cupy: Any, index: int, sysfs: Path) -> GpuFacts:
    """What the runtime and the system tell of a GPU; it need not be the current one."""
    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(index)
    pci = runtime.deviceGetPCIBusId(index).upper()
    version = presence.hip_version if runtime.is_hip else presence.cuda_version
    return GpuFacts(
        kind="hip" if runtime.is_hip else "cuda",
        index=index,
        name=presence.gpu_name(properties),
        uuid=_unique_name(properties.get("uuid", b""), pci, hip=runtime.is_hip),
        pci=pci,
        driver=version(runtime.driverGetVersion()),
        runtime=version(runtime.runtimeGetVersion()),
        cupy=cupy.__version__,
        memory_bytes=properties["totalGlobalMem"],
        numa_node=_numa_node(sysfs, pci),
    )


def _unique_name(raw: bytes, pci: str, *, hip: bool) -> str:
    """The UUID as `nvidia-smi -L` and `rocminfo` print them, else the bus id, which tells apart whole GPUs as well.

    CuPy cuts UUIDs at their first zero byte, and has none with older versions of ROCm.
    """
    if len(raw) != _UUID_BYTES:
        return pci
    return f"GPU-{raw.decode('ascii', 'backslashreplace') if hip else uuid.UUID(bytes=raw)}"


def _numa_node(sysfs: Path, pci: str) -> int | None:
    try:
        node = int((sysfs / "bus/pci/devices" / pci.lower() / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


class CupyMemory(NamedTuple):
    """Device memory, freed with its owner."""

    ptr: int
    nbytes: int
    owner: Any
    """A `cupy.cuda.Memory`: of the runtime's allocator, and not a piece of CuPy's pool, which rounds and hoards."""


class CupyEvent:
    """An event that, unlike CuPy's, tells a GPU that failed from one that is not done yet."""

    __slots__ = ("_event", "_runtime", "ptr", "record", "synchronize")

    def __init__(self, cupy: Any, *, timed: bool) -> None:
        self._event = cupy.cuda.Event(disable_timing=not timed)
        self._runtime = cupy.cuda.runtime
        self.ptr: int = self._event.ptr
        self.record = self._event.record
        self.synchronize = self._event.synchronize

    @property
    def done(self) -> bool:
        """Whether the work before the mark is done. Raises CuPy's `CUDARuntimeError` where the device has failed."""
        status = self._runtime.eventQuery(self.ptr)
        if status not in (_SUCCESS, _NOT_READY):
            raise self._runtime.CUDARuntimeError(status)
        return bool(status == _SUCCESS)


class CurrentStream:
    """The stream that CuPy's products and kernels of this thread go to; changing it costs more than asking."""

    def __init__(self) -> None:
        self._stream: Any = None

    def use(self, stream: Any) -> None:
        """Make a `cupy.cuda.Stream` the current one."""
        if stream is not self._stream:
            stream.use()
            self._stream = stream


class CupyDevice:
    """A GPU, current in this thread."""

    def __init__(self, cupy: Any, facts: GpuFacts) -> None:
        self.facts = facts
        self._cupy = cupy
        self._runtime = cupy.cuda.runtime
        self._current = CurrentStream()

    def free_bytes(self) -> int:
        """Memory that can still be allocated, by this process or another one."""
        free, _ = self._runtime.memGetInfo()
        return int(free)

    def allocate(self, nbytes: int) -> CupyMemory:
        """Memory with undefined content. Raises `PreflightError` where there is not enough."""
        try:
            owner = self._cupy.cuda.Memory(nbytes)
        except self._runtime.CUDARuntimeError as error:
            if error.status != _NO_MEMORY:
                raise
            raise PreflightError(
                f"{self.facts.label} has {si(self.free_bytes(), 'B')} of memory free, but a buffer needs "
                f"{si(nbytes, 'B')}; --scale shrinks the messages"
            ) from None
        return CupyMemory(owner.ptr, nbytes, owner)

    def upload(self, address: int, content: NDArray[Any]) -> None:
        """Copy a contiguous array to the device; returns when it is there."""
        runtime = self._runtime
        runtime.memcpy(address, content.ctypes.data, content.nbytes, runtime.memcpyHostToDevice)
        # From pageable memory the call returns when the content is staged, and non-blocking streams do not wait for it.
        runtime.streamSynchronize(0)

    def download(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Copy of device memory."""
        content = np.empty(nbytes, np.uint8)
        self._runtime.memcpy(content.ctypes.data, address, nbytes, self._runtime.memcpyDeviceToHost)
        return content

    def copy(self, source: int, target: int, nbytes: int, stream: Stream) -> None:
        """Enqueue a copy within the device's memory."""
        self._runtime.memcpyAsync(target, source, nbytes, self._runtime.memcpyDeviceToDevice, stream.ptr)

    def stream(self) -> Stream:
        """A new stream, which does not wait for the default one nor make it wait."""
        stream: Stream = self._cupy.cuda.Stream(non_blocking=True)
        return stream

    def event(self) -> CupyEvent:
        """A new event without a time, which is the cheaper kind."""
        return CupyEvent(self._cupy, timed=False)

    def timed_event(self) -> CupyEvent:
        """A new event with a time."""
        return CupyEvent(self._cupy, timed=True)

    def elapsed(self, begin: Event, end: Event) -> float:
        """Seconds on the device between two timed events that are done."""
        milliseconds: float = self._cupy.cuda.get_elapsed_time(begin, end)
        return milliseconds * 1e-3

    def multiplier(self, stream: Stream, precision: Precision) -> GemmExMultiplier:
        """Matrix products on the stream; the first one, of a few elements, is done here.

        Raises `PreflightError` where the device or its libraries lack the precision, or do not start.
        """
        types = gemm_types(
            precision,
            hip=self._runtime.is_hip,
            capability=self._runtime.getDeviceProperties(self.facts.index)["major"],
            gpu=f"{self.facts.label} ({self.facts.name})",
        )
        cublas = presence.load_cublas(self._cupy)
        operands = self.allocate(3 * _FIRST_EDGE**2 * _LARGEST_ELEMENT)
        left, right, out = range(operands.ptr, operands.ptr + operands.nbytes, operands.nbytes // 3)
        try:
            multiplier = GemmExMultiplier(cublas, types, stream, self._current.use)
            multiplier.multiply(left, right, out, rows=_FIRST_EDGE, columns=_FIRST_EDGE, k=_FIRST_EDGE)
            stream.synchronize()
        except cublas.CUBLASError as error:
            raise PreflightError(f"no {precision} products on {self.facts.label}: cuBLAS answers {error}") from None
        return multiplier

    def spin(self, stream: Stream, nanoseconds: int) -> None:
        """Enqueue a kernel that occupies the stream for so long; the first call compiles it.

        Raises `PreflightError` where its compiler is missing.
        """
        self._spin.launch(stream, nanoseconds)

    @cached_property
    def _spin(self) -> SpinKernel:
        presence.load_compiler(self._cupy)
        return SpinKernel(self._cupy, self.facts.index, self._current.use)
