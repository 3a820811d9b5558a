"""CuPy on memory of the process, with a list of all that is called of it, for tests of what stands in front of it."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
from cupy_signatures import GEMM_EX
from numpy.typing import NDArray

GEMM_EX_NAMES = [argument.split()[-1] for argument in GEMM_EX.partition("(")[2].rstrip(")").split(", ")]
_DTYPES = {0: np.float32, 1: np.float64, 2: np.float16}
_SCALARS = {68: np.float32, 77: np.float32, 70: np.float64, 0: np.float32, 1: np.float64}


class CUDARuntimeError(RuntimeError):
    """As CuPy's: with its status, and a name of it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"cudaErrorNumber{status}: of the fake")
        self.status = status


class CUBLASError(RuntimeError):
    """As CuPy's."""


class FakeCupy:
    """Module `cupy`. `statuses` gives the error of a function, by its name; `calls` tells what was called."""

    __version__ = "14.2.0"

    def __init__(self, *, hip: bool = False, gpus: int = 2, statuses: dict[str, int] | None = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.statuses = statuses or {}
        self.gpus = gpus
        self.properties: dict[str, Any] = {
            "name": b"AMD Instinct MI250X" if hip else b"NVIDIA H100 80GB HBM3",
            "totalGlobalMem": 85_000_000_000,
            "major": 9,
            "uuid": b"0123456789abcdef",
        }
        self.runtime = FakeRuntime(self, hip)
        self.cuda = SimpleNamespace(
            runtime=self.runtime,
            Device=lambda index: SimpleNamespace(use=lambda: self.called("use", index)),
            Memory=self._memory,
            Stream=lambda **how: FakeStream(self, how),
            Event=lambda **how: FakeEvent(self, how),
            get_elapsed_time=lambda begin, end: float(end.ptr - begin.ptr),
            nvrtc=SimpleNamespace(getVersion=lambda: self.called("getVersion", answer=(12, 9))),
            cublas=FakeCublas(self),
        )
        self.nccl = SimpleNamespace(available=True, get_version=lambda: 22304)

    def find(self, name: str) -> Any:
        """What importing this name gives."""
        return {"cupy": self, "cupy.cuda.nccl": self.nccl}[name]

    def called(self, name: str, *arguments: Any, answer: Any = None) -> Any:
        """Note a call; raises where it has an error."""
        self.calls.append((name, *arguments))
        if name in self.statuses:
            raise CUDARuntimeError(self.statuses[name])
        return answer

    def names(self) -> list[str]:
        """What was called, without the arguments."""
        return [name for name, *_ in self.calls]

    def _memory(self, size: int) -> Any:
        self.called("Memory", size)
        content = ctypes.create_string_buffer(max(1, size))
        return SimpleNamespace(ptr=ctypes.addressof(content), size=size, content=content)

    def RawKernel(self, code: str, name: str) -> FakeKernel:  # noqa: N802
        """A kernel that is only counted."""
        return FakeKernel(self, code, name)


class FakeRuntime:
    """Module `cupy.cuda.runtime`."""

    CUDARuntimeError = CUDARuntimeError
    memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice = 1, 2, 3  # noqa: N815

    def __init__(self, cupy: FakeCupy, hip: bool) -> None:
        self._cupy = cupy
        self.is_hip = hip
        self.driver, self.version = (60342134, 60342134) if hip else (12080, 12090)
        self.event_status = 0
        self.wall_clock_kilohertz = 100_000

    def getDeviceCount(self) -> int:  # noqa: N802
        self._cupy.called("getDeviceCount")
        return self._cupy.gpus

    def getDeviceProperties(self, index: int) -> dict[str, Any]:  # noqa: N802
        self._cupy.called("getDeviceProperties", index)
        return self._cupy.properties

    def deviceGetPCIBusId(self, index: int) -> str:  # noqa: N802
        return f"0000:3b:0{index}.0"

    def deviceGetAttribute(self, attribute: int, index: int) -> int:  # noqa: N802
        self._cupy.called("deviceGetAttribute", attribute, index)
        return self.wall_clock_kilohertz

    def driverGetVersion(self) -> int:  # noqa: N802
        return self.driver

    def runtimeGetVersion(self) -> int:  # noqa: N802
        return self.version

    def memGetInfo(self) -> tuple[int, int]:  # noqa: N802
        return 30_000_000_000, 85_000_000_000

    def memcpy(self, target: int, source: int, size: int, kind: int) -> None:
        self._cupy.called("memcpy", kind)
        ctypes.memmove(target, source, size)

    def memcpyAsync(self, target: int, source: int, size: int, kind: int, stream: int) -> None:  # noqa: N802
        self._cupy.called("memcpyAsync", kind, stream)
        ctypes.memmove(target, source, size)

    def streamSynchronize(self, stream: int) -> None:  # noqa: N802
        self._cupy.called("streamSynchronize", stream)

    def eventQuery(self, event: int) -> int:  # noqa: N802
        return self.event_status


class FakeStream:
    """A `cupy.cuda.Stream`."""

    def __init__(self, cupy: FakeCupy, how: dict[str, bool]) -> None:
        self._cupy = cupy
        self.how = how
        self.ptr = id(self)

    def use(self) -> None:
        self._cupy.called("use stream", self.ptr)

    def synchronize(self) -> None:
        self._cupy.called("synchronize", self.ptr)


class FakeEvent:
    """A `cupy.cuda.Event`, whose number counts the events."""

    count = 0

    def __init__(self, cupy: FakeCupy, how: dict[str, bool]) -> None:
        FakeEvent.count += 1
        self._cupy = cupy
        self.how = how
        self.ptr = FakeEvent.count

    def record(self, stream: FakeStream) -> None:
        self._cupy.called("record", stream.ptr)

    def synchronize(self) -> None:
        self._cupy.called("synchronize event")


class FakeKernel:
    """A `cupy.RawKernel`."""

    def __init__(self, cupy: FakeCupy, code: str, name: str) -> None:
        self._cupy = cupy
        self.code, self.name = code, name

    def compile(self) -> None:
        self._cupy.called("compile", self.code, self.name)

    def __call__(self, grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...]) -> None:
        self._cupy.called("launch", grid, block, *arguments)


class FakeCublas:
    """Module `cupy.cuda.cublas`: `gemmEx` takes CuPy's arguments in CuPy's order, and multiplies by columns."""

    CUBLASError = CUBLASError

    def __init__(self, cupy: FakeCupy) -> None:
        self._cupy = cupy
        self.error = ""
        self.last: dict[str, int] = {}

    def create(self) -> int:
        return int(self._cupy.called("create", answer=77))

    def destroy(self, handle: int) -> None:
        self._cupy.called("destroy", handle)

    def gemmEx(self, *arguments: int) -> None:  # noqa: N802
        given = self.last = dict(zip(GEMM_EX_NAMES, arguments, strict=True))
        self._cupy.called("gemmEx", given["handle"])
        if self.error:
            raise CUBLASError(self.error)
        if given["Atype"] not in _DTYPES:
            return
        left = by_columns(given["A"], given["Atype"], given["m"], given["k"], given["lda"])
        right = by_columns(given["B"], given["Btype"], given["k"], given["n"], given["ldb"])
        out = by_columns(given["C"], given["Ctype"], given["m"], given["n"], given["ldc"])
        alpha, beta = (self._scalar(given[name], given["computeType"]) for name in ("alpha", "beta"))
        # As the library: what C held is not read where beta is zero.
        out[:] = alpha * (left @ right) + (beta * out if beta else 0)

    def _scalar(self, address: int, sums: int) -> Any:
        return by_columns(address, {np.float32: 0, np.float64: 1}[_SCALARS[sums]], 1, 1, 1)[0, 0]


def by_columns(address: int, kind: int, rows: int, columns: int, leading: int) -> NDArray[Any]:
    """A matrix of the process's memory whose columns begin `leading` elements apart."""
    dtype = np.dtype(_DTYPES[kind])
    content: Any = (ctypes.c_uint8 * (leading * columns * dtype.itemsize)).from_address(address)
    matrix: NDArray[Any] = np.frombuffer(content, dtype).reshape(columns, leading)
    return matrix[:, :rows].T
