"""What a GPU run needs of a host: driver, GPUs, CuPy, the toolkit's libraries, NCCL; and for each how to get it.

`load_*` and `count` raise `MissingError`; the functions named `*_status` never raise.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dlbench.accelerator import libraries
from dlbench.errors import PreflightError, one_line

if TYPE_CHECKING:
    from dlbench.accelerator.protocol import NcclLibrary

Find = Callable[[str], Any]
"""Imports a module by name; `importlib.import_module`, or a stand-in."""

_CHOOSING = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_NO_MEMORY = 2
_NO_DRIVER = 35
_NO_DEVICE = 100
_CUDA_12, _CUDA_13 = 12000, 13000
_TROUBLES = {
    _NO_MEMORY: ("the GPU has no memory left", "end the processes that hold it, or ask for a GPU of your own"),
    46: (
        "the GPU is held by another process, or is not available to this one",
        "ask for a GPU of your own; `nvidia-smi -q -d COMPUTE` shows whether its compute mode is exclusive",
    ),
    101: (
        "this process sees no GPU with that number",
        "correct CUDA_VISIBLE_DEVICES or what the launcher was asked for",
    ),
    802: ("the GPUs of this host are not ready yet", "have the administrator start the fabric manager"),
    803: ("the GPU driver and its library have different versions", "have the administrator reboot the node"),
    804: ("the CUDA compatibility package does not support this GPU", "leave it out of LD_LIBRARY_PATH"),
}
"""What is wrong and what helps, by the status of `cudaError_t`, which `hipError_t` shares."""


class MissingError(PreflightError):
    """A piece that a GPU run needs is missing or unusable; the message says what, and what brings it."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}; {remedy}")
        self.what = what
        self.remedy = remedy

    def __reduce__(self) -> tuple[type[MissingError], tuple[str, str]]:
        return type(self), (self.what, self.remedy)


class Status(NamedTuple):
    """One piece as it is on this host."""

    version: str
    """What is there; empty where it is missing."""
    what: str = ""
    """What is wrong; empty where nothing is."""
    remedy: str = ""
    """What brings it; empty where that is not known."""


def cuda_version(number: int) -> str:
    """CUDA's version numbers as text: 12080 is 12.8."""
    return f"{number // 1000}.{number % 1000 // 10}"


def hip_version(number: int) -> str:
    """HIP's version numbers as text: 60342134 is 6.3."""
    return f"{number // 10_000_000}.{number // 100_000 % 100}"


def nccl_version(number: int) -> str:
    """NCCL's version numbers as text: 22304 is 2.23.4, and 2708, of the numbering before 2.9, is 2.7.8."""
    thousand = 10_000 if number >= 10_000 else 1000  # noqa: PLR2004
    return f"{number // thousand}.{number % thousand // 100}.{number % 100}"


def load_cupy(find: Find = importlib.import_module, environment: MutableMapping[str, str] = os.environ) -> Any:
    """The module `cupy`. Raises `MissingError` where it is not installed or does not load."""
    try:
        _keep_kernels_in_memory(environment)
        return find("cupy")
    except ModuleNotFoundError as error:
        if error.name != "cupy":
            raise _broken_cupy(error) from None
        raise MissingError("CuPy is not installed", f"pip install 'dlbench[{_fitting_extra()}]'") from None
    except Exception as error:  # of its C extensions: whatever
        raise _broken_cupy(error) from None


def _keep_kernels_in_memory(environment: MutableMapping[str, str]) -> None:
    """Have CuPy keep what it compiles to itself, unless the user has said where it belongs.

    Importing CuPy makes a folder below $HOME otherwise, which compute nodes may not write to and all ranks share. The
    folder that is named in its place exists already, and nothing is written to it.
    """
    if "CUPY_CACHE_DIR" not in environment and environment.setdefault("CUPY_CACHE_IN_MEMORY", "1") == "1":
        environment["CUPY_CACHE_DIR"] = tempfile.gettempdir()


def _broken_cupy(error: Exception) -> MissingError:
    if isinstance(error, OSError) and (error.filename or isinstance(error, FileNotFoundError)):
        return MissingError(
            f"CuPy does not get its folder for compiled kernels: {error}",
            "set CUPY_CACHE_DIR to a folder of this host that can be written to",
        )
    why = next(iter(str(error.__cause__ or error).splitlines()), type(error).__name__)
    remedy = "load the module of the CUDA or ROCm that it was built for, or install the CuPy that fits"
    return MissingError(f"CuPy is installed, but does not load: {why}", remedy)


def _fitting_extra() -> str:
    """The extra of this package that brings the CuPy of the host's driver; CUDA 12 where there is none."""
    if amd_driver_version():
        return "rocm"
    return "cuda13" if cuda_driver_number() >= _CUDA_13 else "cuda12"


def require_driver(status: Status) -> None:
    """Raise `MissingError` where the host has no driver, before CuPy is loaded, which takes its time."""
    if status.what:
        raise MissingError(status.what, status.remedy)


def count(cupy: Any, environment: Mapping[str, str] = os.environ) -> int:
    """GPUs that this process sees, at least one. Raises `MissingError` where there is none."""
    runtime = cupy.cuda.runtime
    try:
        found: int = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise explained(cupy, error, environment) from None
    if not found:
        raise _no_device(environment)
    return found


def gpu_name(properties: Mapping[str, Any]) -> str:
    """Name of a GPU as its driver gives it, on one line, whatever bytes it consists of."""
    raw: bytes = properties["name"]
    return one_line(raw.decode(errors="replace"))


def explained(cupy: Any, error: Any, environment: Mapping[str, str] = os.environ) -> MissingError:
    """A `CUDARuntimeError` of a GPU's first uses in terms of what is wrong with the host."""
    if error.status == _NO_DRIVER:
        return _no_driver(cupy.cuda.runtime)
    if error.status == _NO_DEVICE:
        return _no_device(environment)
    vendor_tool = "rocm-smi" if cupy.cuda.runtime.is_hip else "nvidia-smi"
    unknown = (f"the GPU driver fails with {error}", f"see what `{vendor_tool}` says on this host")
    return MissingError(*_TROUBLES.get(error.status, unknown))


def _no_driver(runtime: Any) -> MissingError:
    supported = runtime.driverGetVersion()
    if not supported:
        return MissingError("no GPU driver on this host", "run on a node with GPUs, or have the driver installed")
    needed = runtime.runtimeGetVersion()
    older = ", or install the CuPy of CUDA 12" if _CUDA_12 <= supported < _CUDA_13 <= needed else ""
    return MissingError(
        f"the GPU driver supports CUDA {cuda_version(supported)}, CuPy needs {cuda_version(needed)}",
        f"have the driver updated{older}",
    )


def _no_device(environment: Mapping[str, str]) -> MissingError:
    chosen = ", ".join(f"{name}={environment[name]}" for name in _CHOOSING if name in environment)
    return MissingError(
        "the driver shows no GPU to this process" + (f" ({chosen})" if chosen else ""),
        "ask the launcher for GPUs, e.g. --gpus-per-node=4 --gpu-bind=none",
    )


def load_nccl(cupy: Any, find: Find = importlib.import_module) -> NcclLibrary:
    """The module `cupy.cuda.nccl`. Raises `MissingError` where CuPy finds no NCCL, or was built without."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy says in ten lines what we say in one
        try:
            nccl = find("cupy.cuda.nccl")
        except ImportError:
            nccl = None
    if nccl is None or not nccl.available:
        if cupy.cuda.runtime.is_hip:
            raise MissingError("CuPy finds no RCCL", "load the module of ROCm")
        wheel = f"nvidia-nccl-cu{cupy.cuda.runtime.runtimeGetVersion() // 1000}"
        raise MissingError(
            "CuPy finds no NCCL (libnccl.so.2)", f"load the site's module of NCCL, or pip install {wheel}"
        )
    library: NcclLibrary = nccl
    return library


def load_cublas(cupy: Any) -> Any:
    """The module `cupy.cuda.cublas`, of hipBLAS with ROCm. Raises `MissingError` where its library is missing."""
    try:
        return cupy.cuda.cublas
    except (ImportError, AttributeError) as error:
        raise _no_toolkit(cupy, "hipBLAS" if cupy.cuda.runtime.is_hip else "cuBLAS", error) from None


def load_compiler(cupy: Any) -> tuple[int, int]:
    """Version of NVRTC or hipRTC, which compile kernels. Raises `MissingError` where the library is missing."""
    try:
        major, minor = cupy.cuda.nvrtc.getVersion()
    except Exception as error:  # depending on the version of CuPy
        raise _no_toolkit(cupy, "hipRTC" if cupy.cuda.runtime.is_hip else "NVRTC", error) from None
    return major, minor


def _no_toolkit(cupy: Any, library: str, error: Exception) -> MissingError:
    why = str(error).partition(": ")[0] or type(error).__name__
    runtime = cupy.cuda.runtime
    if runtime.is_hip:
        remedy = "load the module of ROCm"
    else:
        wheel = f"cupy-cuda{runtime.runtimeGetVersion() // 1000}x[ctk]"
        remedy = f"load the module of the CUDA toolkit, or pip install '{wheel}'"
    return MissingError(f"CuPy finds no {library} ({why})", remedy)


def cuda_driver_number(load: libraries.Load = libraries.load) -> int:
    """The CUDA version that NVIDIA's driver supports, e.g. 12080; 0 where there is no driver."""
    number = ctypes.c_int(0)
    try:
        failed = load(libraries.CUDA).cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return 0
    return 0 if failed else number.value


def amd_driver_version(root: Path = Path("/")) -> str:
    """Version of AMD's kernel driver; `in kernel` for the one of the kernel itself; empty where there is none."""
    if not (root / "dev/kfd").exists():
        return ""
    try:
        return (root / "sys/module/amdgpu/version").read_text().strip()
    except OSError:
        return "in kernel"


def driver_status(root: Path = Path("/"), load: libraries.Load = libraries.load) -> Status:
    """The GPU driver, asked without CuPy: e.g. `NVIDIA 570.86.10, CUDA 12.8`."""
    cuda = cuda_driver_number(load)
    if cuda:
        return Status(f"NVIDIA{_nvidia_release(root)}, CUDA {cuda_version(cuda)}")
    amd = amd_driver_version(root)
    if amd:
        return Status(f"amdgpu {amd}")
    return Status("", "no GPU driver on this host", "run on a node with GPUs, or have the driver installed")


def _nvidia_release(root: Path) -> str:
    try:
        found = re.search(r"  (\d+\.[\d.]+)  ", (root / "proc/driver/nvidia/version").read_text())
    except OSError:
        return ""
    return f" {found[1]}" if found else ""


def cupy_status(find: Find = importlib.import_module) -> Status:
    """CuPy: e.g. `14.2.0, CUDA 12.9`."""

    def version() -> str:
        cupy = load_cupy(find)
        runtime = cupy.cuda.runtime
        number = runtime.runtimeGetVersion()
        return f"{cupy.__version__}, " + (
            f"ROCm {hip_version(number)}" if runtime.is_hip else f"CUDA {cuda_version(number)}"
        )

    return _status(version)


def device_status(find: Find = importlib.import_module) -> Status:
    """The GPUs that this process sees: e.g. `4 × NVIDIA H100 80GB HBM3`."""

    def version() -> str:
        cupy = load_cupy(find)
        properties = cupy.cuda.runtime.getDeviceProperties
        names = [gpu_name(properties(index)) for index in range(count(cupy))]
        return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))

    return _status(version)


def toolkit_status(find: Find = importlib.import_module) -> Status:
    """The toolkit's libraries that `--compute gemm` and `spin` call: e.g. `cuBLAS, NVRTC 12.9`."""

    def version() -> str:
        cupy = load_cupy(find)
        load_cublas(cupy)
        major, minor = load_compiler(cupy)
        return f"hipBLAS, hipRTC {major}.{minor}" if cupy.cuda.runtime.is_hip else f"cuBLAS, NVRTC {major}.{minor}"

    return _status(version)


def nccl_status(find: Find = importlib.import_module) -> Status:
    """NCCL, or RCCL: e.g. `2.23.4`."""
    return _status(lambda: nccl_version(load_nccl(load_cupy(find), find).get_version()))


def _status(version: Callable[[], str]) -> Status:
    try:
        return Status(version())
    except MissingError as missing:
        return Status("", missing.what, missing.remedy)
    except Exception as error:  # a library that breaks in its own way must not break the table
        return Status("", f"it fails with {type(error).__name__}: {error}")
