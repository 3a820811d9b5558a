"""Probes that load libraries: MPI, its launcher, and what GPUs take."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import msgspec
import pytest

from dlbench.accelerator import presence
from dlbench.accelerator.presence import MissingError, Status
from dlbench.doctor import probes
from dlbench.doctor.finding import Finding
from dlbench.errors import PreflightError
from dlbench.slurm.launchers import Library

HYDRA = "HYDRA build details:\n    Version:                                 4.3.0\n"
OPEN_MPI = "mpiexec (Open MPI) 4.1.4\n"


def fails(error: Exception) -> Callable[..., NoReturn]:
    def call(*_: object) -> NoReturn:
        raise error

    return call


@pytest.mark.parametrize(
    ("version", "family", "number"),
    [
        ("MPICH Version: 4.3.0 MPICH Release date: Mon", "MPICH", "4.3.0"),
        ("Open MPI v5.0.11, package: Open MPI root@x\0", "Open MPI", "5.0.11"),
        ("MPI VERSION : CRAY MPICH version 8.1.29.8 (ANL base 3.4a2)", "Cray MPICH", "8.1.29.8"),
    ],
)
def test_the_library_has_a_family_a_version_and_a_place(
    version: str, family: str, number: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "loaded_library", lambda: Library(version, Path("/opt/lib/libmpi.so")))
    found = probes.mpi()
    assert (found.state, found.found) == ("ok", f"{family} {number}, /opt/lib/libmpi.so")
    assert found.facts == {"family": family, "version": number, "path": "/opt/lib/libmpi.so"}


def test_a_library_of_another_family_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "loaded_library", lambda: Library("Fujitsu MPI 4.0.1", None))
    found = probes.mpi()
    assert (found.state, found.found) == ("warning", "Fujitsu MPI 4.0.1")
    assert found.note.startswith("unknown MPI library 'Fujitsu MPI 4.0.1'; known are ")
    assert found.facts == {"family": "", "version": "4.0.1", "path": ""}


def test_without_a_library_the_loaders_first_words_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    error = PreflightError("install an MPI")
    error.__context__ = RuntimeError("cannot load MPI library\nlibmpi.so.12: no such file\nlibmpi.so.40: no such file")
    monkeypatch.setattr(probes, "loaded_library", fails(error))
    found = probes.mpi()
    assert (found.state, found.found) == ("missing", "mpi4py finds none: cannot load MPI library")
    assert found.remedy.startswith("pip install 'dlbench[mpich]'")


def test_without_mpi4py_nobody_can_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "loaded_library", fails(ModuleNotFoundError("mpi4py")))
    assert probes.mpi() == Finding(state="unknown", found="cannot be asked without mpi4py")


def mpiexec(folder: Path, says: str) -> Path:
    """A launcher of that name in the folder `bin` of another."""
    path = folder / "bin" / "mpiexec"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nprintf %s {shlex.quote(says)}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an MPICH and its launcher, on a machine with 4 cores and no other launcher."""
    mpiexec(tmp_path / "mpich", HYDRA)
    monkeypatch.setenv("PATH", f"{tmp_path}/other/bin")
    monkeypatch.setattr("sys.prefix", str(tmp_path / "environment"))
    monkeypatch.setattr(probes, "usable_cores", lambda: set(range(4)))
    for name in [name for name in os.environ if name.startswith(("MPIR_CVAR", "OMPI_"))]:
        monkeypatch.delenv(name)
    return tmp_path


def launcher(site: Path, family: str = "MPICH") -> Finding:
    return probes.launcher(family, str(site / "mpich" / "lib" / "libmpi.so.12"))


def test_the_launcher_is_the_one_beside_the_library(site: Path) -> None:
    found = launcher(site)
    assert (found.state, found.found) == ("ok", f"{site}/mpich/bin/mpiexec 4.3.0")
    assert found.facts == {"path": f"{site}/mpich/bin/mpiexec", "version": "4.3.0"}


def test_who_starts_more_ranks_than_cores_by_hand_is_told_what_that_takes(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert launcher(site).note == (
        "started by hand, more ranks than cores (4) need what 'dlbench run dp -n 5 --dry-run' prints before the command"
    )
    for collective in ("ALLREDUCE", "BARRIER", "BCAST", "REDUCE"):
        monkeypatch.setenv(f"MPIR_CVAR_{collective}_POSIX_INTRA_ALGORITHM", "mpir")
    assert launcher(site).note == ""


def test_a_launcher_of_another_mpi_that_comes_first_on_the_path_is_a_warning(site: Path) -> None:
    stranger = mpiexec(site / "other", OPEN_MPI)
    found = launcher(site)
    assert (found.state, found.facts["path"]) == ("warning", f"{site}/mpich/bin/mpiexec")
    assert found.note == (
        f"{stranger}, the first mpiexec on the PATH, does not belong to MPICH: it would start every rank alone"
    )


def test_a_launcher_of_another_mpi_is_none(site: Path) -> None:
    stranger = mpiexec(site / "other", OPEN_MPI)
    (site / "mpich" / "bin" / "mpiexec").unlink()
    found = launcher(site)
    assert found.state == "missing"
    assert found.found == (
        f"no mpiexec of MPICH for {site}/mpich/lib/libmpi.so.12 (found: {stranger}: mpiexec (Open MPI) 4.1.4)"
    )
    assert found.remedy == "put it on the PATH, or use --launcher srun"


def test_the_launcher_of_cray_mpich_is_srun(site: Path) -> None:
    without = launcher(site, "Cray MPICH")
    assert without.found == "no srun, which starts the ranks of Cray MPICH"
    assert without.remedy == "load the site's module of SLURM"
    srun = mpiexec(site / "other", "slurm 23.11.4\n").rename(site / "other" / "bin" / "srun")
    found = launcher(site, "Cray MPICH")
    assert (found.state, found.found, found.note) == ("ok", f"{srun} 23.11.4", "")


def test_ranks_of_a_library_that_nobody_knows_are_started_by_hand(site: Path) -> None:
    assert launcher(site, "").found == "no mpiexec on the PATH"
    stranger = mpiexec(site / "other", "Fujitsu\n")
    found = launcher(site, "")
    assert (found.state, found.found) == ("warning", str(stranger))
    assert found.note.endswith("start the ranks yourself: mpiexec -n 2 python -m dlbench.dp")


def gpus(*names: str, hip: bool = False) -> Any:
    """CuPy, as far as probes call it, with a GPU of 80 GB of each name."""

    def properties(index: int) -> dict[str, Any]:
        return {"name": names[index].encode(), "totalGlobalMem": 80_000_000_000}

    runtime = SimpleNamespace(getDeviceCount=lambda: len(names), getDeviceProperties=properties, is_hip=hip)
    return SimpleNamespace(cuda=SimpleNamespace(runtime=runtime))


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    return lambda module: monkeypatch.setattr(presence, "load_cupy", lambda: module)


def test_gpus_are_counted_by_name_and_memory(cupy: Callable[[Any], None]) -> None:
    cupy(gpus("H100", "H100", "A100"))
    found = probes.devices()
    assert (found.state, found.found) == ("ok", "2 × H100, 80.00 GB; 1 × A100, 80.00 GB")
    assert found.facts["devices"][2] == {"name": "A100", "memory_bytes": 80_000_000_000}


@pytest.mark.parametrize(
    ("hip", "names"), [(False, ("NCCL", "cuBLAS", "NVRTC")), (True, ("RCCL", "hipBLAS", "hipRTC"))]
)
def test_libraries_have_the_names_of_their_vendor(
    hip: bool, names: tuple[str, ...], cupy: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    cupy(gpus(hip=hip))
    monkeypatch.setattr(presence, "load_nccl", lambda _: SimpleNamespace(get_version=lambda: 22304))
    monkeypatch.setattr(presence, "load_cublas", lambda _: None)
    monkeypatch.setattr(presence, "load_compiler", lambda _: (12, 9))
    nccl, cublas, nvrtc = names
    assert probes.nccl() == Finding(state="ok", found=f"{nccl} 2.23.4", facts={"version": "2.23.4"})
    assert probes.cublas() == Finding(state="ok", found=f"{cublas} loads")
    assert probes.nvrtc() == Finding(state="ok", found=f"{nvrtc} 12.9", facts={"version": "12.9"})


@pytest.mark.parametrize(
    ("status", "number", "expected"),
    [
        (
            Status("NVIDIA 570.86.10, CUDA 12.8"),
            12080,
            Finding(
                state="ok",
                found="NVIDIA 570.86.10, CUDA 12.8",
                facts={"version": "NVIDIA 570.86.10, CUDA 12.8", "kind": "cuda"},
            ),
        ),
        (
            Status("amdgpu 6.10.5"),
            0,
            Finding(state="ok", found="amdgpu 6.10.5", facts={"version": "amdgpu 6.10.5", "kind": "hip"}),
        ),
        (
            Status("", "no GPU driver", "run elsewhere"),
            0,
            Finding(state="missing", found="no GPU driver", remedy="run elsewhere"),
        ),
    ],
)
def test_the_driver_tells_whose_gpus_they_are(
    status: Status, number: int, expected: Finding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "driver_status", lambda: status)
    monkeypatch.setattr(presence, "cuda_driver_number", lambda: number)
    assert probes.driver() == expected


class NvmlError(Exception):
    """As pynvml raises it."""


def nvml(**functions: Callable[[], Any]) -> Any:
    answers = {"nvmlSystemGetDriverVersion": lambda: "570.86.10", "nvmlDeviceGetCount": lambda: 4}
    return SimpleNamespace(NVMLError=NvmlError, **{"nvmlInit": lambda: None, **answers, **functions})


def test_nvml_tells_driver_and_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: "13.590")
    monkeypatch.setattr("dlbench.accelerator.nvml.pynvml", nvml)
    assert probes.nvml().found == "nvidia-ml-py 13.590, driver 570.86.10, 4 GPUs"
    monkeypatch.setattr("dlbench.accelerator.nvml.pynvml", lambda: nvml(nvmlInit=fails(NvmlError("Driver Not Loaded"))))
    broken = probes.nvml()
    assert (broken.state, broken.found) == ("missing", "nvidia-ml-py 13.590, but no NVML: Driver Not Loaded")
    monkeypatch.setattr("dlbench.accelerator.nvml.pynvml", lambda: None)
    assert probes.nvml() == Finding(
        state="missing", found="nvidia-ml-py is not installed", remedy="pip install 'dlbench[gpu]'"
    )


@pytest.mark.parametrize(
    ("installed", "named"), [({"pynvml": "11.5.3"}, "pynvml 11.5.3"), ({}, "pynvml of unknown origin")]
)
def test_an_nvml_module_of_another_package_is_named(
    installed: dict[str, str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(package: str) -> str:
        if package not in installed:
            raise importlib.metadata.PackageNotFoundError(package)
        return installed[package]

    monkeypatch.setattr("importlib.metadata.version", version)
    monkeypatch.setattr("dlbench.accelerator.nvml.pynvml", nvml)
    assert (probes.nvml().state, probes.nvml().found) == ("ok", f"{named}, driver 570.86.10, 4 GPUs")


def answer(folder: Path, probe: Callable[..., Finding], monkeypatch: pytest.MonkeyPatch) -> Finding:
    """What a process with this probe writes."""
    monkeypatch.setitem(probes.PROBES, "probe", probe)
    with (folder / "answer").open("w+b") as file:
        probes.main([str(file.fileno()), "probe"])
        file.seek(0)
        return msgspec.json.decode(file.read(), type=Finding)


def test_a_piece_that_is_missing_comes_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = answer(tmp_path, fails(MissingError("CuPy finds no NCCL", "module load nccl")), monkeypatch)
    assert found == Finding(state="missing", found="CuPy finds no NCCL", remedy="module load nccl")


def test_what_a_library_raises_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = answer(tmp_path, fails(MemoryError("out of\nhandles")), monkeypatch)
    assert found == Finding(state="broken", found="MemoryError: out of handles")


def test_what_pip_brings_is_named_in_the_form_that_works_in_every_folder() -> None:
    sources = [file.read_text(encoding="utf-8") for file in Path(probes.__file__).parents[1].rglob("*.py")]
    commands = [found for text in sources for found in re.findall(r"pip install [^;,)]*", text)]
    assert commands
    assert [command for command in commands if "'.[" in command or " -e " in command] == []
