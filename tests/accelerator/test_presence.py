"""What is said of a host on which a piece of a GPU run is missing."""

from __future__ import annotations

import importlib
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_cupy import CUDARuntimeError, FakeCupy

from dlbench.accelerator import presence
from dlbench.accelerator.presence import MissingError, Status
from dlbench.errors import PreflightError


def failing(error: Exception) -> Callable[[str], Any]:
    """An import that fails."""

    def find(name: str) -> Any:
        raise error

    return find


def refusal(ask: Callable[[], object]) -> str:
    with pytest.raises(MissingError) as refused:
        ask()
    return str(refused.value)


def without_driver(cupy: FakeCupy, supported: int = 0) -> FakeCupy:
    cupy.statuses["getDeviceCount"] = 35
    cupy.runtime.driver = supported
    return cupy


def driver(version: int, failed: int = 0) -> Callable[[str], Any]:
    """Loads a libcuda that supports this version of CUDA."""

    def ask(number: Any) -> int:
        number._obj.value = version
        return failed

    return lambda name: SimpleNamespace(cuDriverGetVersion=ask)


def no_library(name: str) -> Any:
    raise OSError(f"{name}: cannot open shared object file")


@pytest.mark.parametrize(("number", "text"), [(12080, "12.8"), (13000, "13.0"), (11040, "11.4")])
def test_cuda_versions_as_text(number: int, text: str) -> None:
    assert presence.cuda_version(number) == text


@pytest.mark.parametrize(("number", "text"), [(60342134, "6.3"), (50120531, "5.1"), (70051831, "7.0")])
def test_hip_versions_as_text(number: int, text: str) -> None:
    assert presence.hip_version(number) == text


@pytest.mark.parametrize(("number", "text"), [(22304, "2.23.4"), (21805, "2.18.5"), (2708, "2.7.8"), (20903, "2.9.3")])
def test_nccl_versions_as_text_in_the_old_numbering_and_the_new(number: int, text: str) -> None:
    assert presence.nccl_version(number) == text


def test_without_cupy_the_extra_that_brings_it_is_named() -> None:
    missing = failing(ModuleNotFoundError("No module named 'cupy'", name="cupy"))
    text = refusal(lambda: presence.load_cupy(missing))
    assert text.startswith("CuPy is not installed; pip install 'dlbench[")


def test_a_cupy_that_does_not_load_is_not_called_missing() -> None:
    error = ImportError("Failed to import CuPy.\n\nIf you installed CuPy via wheels …")
    error.__cause__ = ImportError("libhipblas.so.2: cannot open shared object file: No such file or directory")
    assert refusal(lambda: presence.load_cupy(failing(error))) == (
        "CuPy is installed, but does not load: libhipblas.so.2: cannot open shared object file: No such file or "
        "directory; load the module of the CUDA or ROCm that it was built for, or install the CuPy that fits"
    )


def test_a_package_that_cupy_lacks_is_named() -> None:
    error = ModuleNotFoundError("No module named 'fastrlock'", name="fastrlock")
    assert "does not load: No module named 'fastrlock'" in refusal(lambda: presence.load_cupy(failing(error)))


def noted_environment(given: dict[str, str]) -> dict[str, str]:
    """Variables as CuPy finds them when it is imported."""
    presence.load_cupy(lambda name: None, given)
    return given


def test_cupy_keeps_its_kernels_in_memory_and_is_given_a_folder_that_is_there_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert noted_environment({}) == {"CUPY_CACHE_DIR": str(tmp_path), "CUPY_CACHE_IN_MEMORY": "1"}


@pytest.mark.parametrize(
    "given",
    [{"CUPY_CACHE_DIR": "/scratch/kernels"}, {"CUPY_CACHE_IN_MEMORY": "0"}],
    ids=["a folder of the user's", "kernels on disk"],
)
def test_where_the_user_wants_kernels_to_be_they_are(given: dict[str, str]) -> None:
    assert noted_environment(dict(given)) == given


LOAD = """
from dlbench.accelerator import presence
try:
    presence.load_cupy()
except presence.MissingError as missing:
    print(missing)
"""


def in_a_process(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in an environment in which nobody has said anything of CuPy."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("CUPY_")}
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env={**inherited, **environment}
    )


def test_cupy_loads_and_leaves_nothing_behind_where_home_cannot_be_written_to(tmp_path: Path) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    done = in_a_process(LOAD, HOME="/proc/nohome", TMPDIR=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cupy_cannot_make_is_refused_with_the_variable_that_names_another() -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    done = in_a_process(LOAD, CUPY_CACHE_DIR="/proc/nofolder")
    assert done.stdout == (
        "CuPy does not get its folder for compiled kernels: [Errno 2] No such file or directory: '/proc/nofolder'; "
        "set CUPY_CACHE_DIR to a folder of this host that can be written to\n"
    )


def test_a_library_that_does_not_load_is_not_taken_for_a_folder() -> None:
    error = OSError("libcudart.so.12: cannot open shared object file")
    assert "does not load: libcudart.so.12" in refusal(lambda: presence.load_cupy(failing(error), {}))


def test_every_refusal_ends_a_run_as_a_mistake_in_what_was_asked() -> None:
    assert issubclass(MissingError, PreflightError)
    assert MissingError("a", "b").exit_code == 2


def test_a_refusal_can_travel_between_processes() -> None:
    copy = pickle.loads(pickle.dumps(MissingError("no GPU", "buy one")))
    assert (str(copy), copy.what, copy.remedy) == ("no GPU; buy one", "no GPU", "buy one")


def test_a_host_without_a_driver() -> None:
    cupy = without_driver(FakeCupy())
    assert refusal(lambda: presence.count(cupy)) == (
        "no GPU driver on this host; run on a node with GPUs, or have the driver installed"
    )


def test_a_driver_that_is_too_old_is_told_from_one_that_is_not_there() -> None:
    cupy = without_driver(FakeCupy(), 11040)
    assert refusal(lambda: presence.count(cupy)) == (
        "the GPU driver supports CUDA 11.4, CuPy needs 12.9; have the driver updated"
    )


def test_a_driver_of_cuda_12_can_be_served_by_an_older_cupy() -> None:
    cupy = without_driver(FakeCupy(), 12080)
    cupy.runtime.version = 13000
    assert refusal(lambda: presence.count(cupy)) == (
        "the GPU driver supports CUDA 12.8, CuPy needs 13.0; have the driver updated, or install the CuPy of CUDA 12"
    )


@pytest.mark.parametrize("cupy", [FakeCupy(statuses={"getDeviceCount": 100}), FakeCupy(gpus=0)])
def test_where_no_gpu_is_shown_the_variables_that_may_hide_them_are(cupy: FakeCupy) -> None:
    assert refusal(lambda: presence.count(cupy, {"CUDA_VISIBLE_DEVICES": "", "PATH": "/bin"})) == (
        "the driver shows no GPU to this process (CUDA_VISIBLE_DEVICES=); "
        "ask the launcher for GPUs, e.g. --gpus-per-node=4 --gpu-bind=none"
    )
    assert "process;" in refusal(lambda: presence.count(cupy, {}))


@pytest.mark.parametrize(
    ("status", "part"),
    [
        (2, "no memory left; end the processes"),
        (46, "held by another process"),
        (101, "no GPU with that number"),
        (802, "fabric manager"),
        (803, "have different versions"),
        (804, "compatibility package"),
    ],
)
def test_what_the_driver_fails_with_is_said_in_terms_of_the_host(status: int, part: str) -> None:
    assert part in str(presence.explained(FakeCupy(), CUDARuntimeError(status), {}))


@pytest.mark.parametrize(("hip", "tool"), [(False, "nvidia-smi"), (True, "rocm-smi")])
def test_any_other_failure_is_quoted_with_the_tool_that_tells_more(hip: bool, tool: str) -> None:
    assert str(presence.explained(FakeCupy(hip=hip), CUDARuntimeError(999), {})) == (
        f"the GPU driver fails with cudaErrorNumber999: of the fake; see what `{tool}` says on this host"
    )


def test_without_nccl_the_module_and_the_wheel_that_bring_it_are_named() -> None:
    cupy = FakeCupy()
    cupy.nccl.available = False
    assert refusal(lambda: presence.load_nccl(cupy, cupy.find)) == (
        "CuPy finds no NCCL (libnccl.so.2); load the site's module of NCCL, or pip install nvidia-nccl-cu12"
    )


def test_a_cupy_without_its_nccl_module_and_rocm_without_rccl() -> None:
    assert refusal(lambda: presence.load_nccl(FakeCupy(hip=True), failing(ImportError("nccl")))) == (
        "CuPy finds no RCCL; load the module of ROCm"
    )


def test_what_cupy_warns_of_at_length_is_not_printed() -> None:
    cupy = FakeCupy()

    def find(name: str) -> Any:
        warnings.warn("nccl library could not be loaded.\n\nReason: …", stacklevel=2)
        return cupy.nccl

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert presence.load_nccl(cupy, find) is cupy.nccl


class WithoutCublas:
    """Where importing cuBLAS fails as CuPy 14's loader fails."""

    def __init__(self, cupy: FakeCupy) -> None:
        self.runtime = cupy.runtime
        self.nvrtc = cupy.cuda.nvrtc

    @property
    def cublas(self) -> Any:
        raise ImportError('Failure finding "libcublasLt.so.12": No such file: libcublasLt.so.12, No such file')


@pytest.mark.parametrize(
    ("hip", "text"),
    [
        (
            False,
            'CuPy finds no cuBLAS (Failure finding "libcublasLt.so.12"); '
            "load the module of the CUDA toolkit, or pip install 'cupy-cuda12x[ctk]'",
        ),
        (True, 'CuPy finds no hipBLAS (Failure finding "libcublasLt.so.12"); load the module of ROCm'),
    ],
)
def test_without_the_toolkits_libraries_what_brings_them_is_named(hip: bool, text: str) -> None:
    cupy: Any = FakeCupy(hip=hip)
    cupy.cuda = WithoutCublas(cupy)
    assert refusal(lambda: presence.load_cublas(cupy)) == text


def test_the_statuses_of_a_host_with_all_of_it() -> None:
    cupy = FakeCupy(gpus=4)
    assert presence.cupy_status(cupy.find) == Status("14.2.0, CUDA 12.9")
    assert presence.device_status(cupy.find) == Status("4 × NVIDIA H100 80GB HBM3")
    assert presence.toolkit_status(cupy.find) == Status("cuBLAS, NVRTC 12.9")
    assert presence.nccl_status(cupy.find) == Status("2.23.4")


def test_the_statuses_of_a_host_with_rocm() -> None:
    cupy = FakeCupy(hip=True, gpus=1)
    assert presence.cupy_status(cupy.find) == Status("14.2.0, ROCm 6.3")
    assert presence.device_status(cupy.find) == Status("1 × AMD Instinct MI250X")
    assert presence.toolkit_status(cupy.find) == Status("hipBLAS, hipRTC 12.9")


def test_a_status_tells_apart_what_is_missing_and_what_brings_it() -> None:
    missing = failing(ModuleNotFoundError("No module named 'cupy'", name="cupy"))
    for status in (presence.cupy_status, presence.device_status, presence.toolkit_status, presence.nccl_status):
        found = status(missing)
        assert (found.version, found.what) == ("", "CuPy is not installed")
        assert found.remedy.startswith("pip install")


def test_a_library_that_breaks_in_its_own_way_does_not_break_the_table() -> None:
    cupy = FakeCupy()

    def broken() -> int:
        raise RuntimeError("unhandled")

    cupy.nccl.get_version = broken
    assert presence.nccl_status(cupy.find) == Status("", "it fails with RuntimeError: unhandled")


def test_the_driver_of_nvidia_with_its_release(tmp_path: Path) -> None:
    release = tmp_path / "proc/driver/nvidia/version"
    release.parent.mkdir(parents=True)
    release.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.10  Fri Jan 24 09:19:51 UTC 2025\n")
    assert presence.driver_status(tmp_path, driver(12080)) == Status("NVIDIA 570.86.10, CUDA 12.8")


def test_the_open_kernel_module_of_nvidia_puts_its_release_elsewhere_on_the_line(tmp_path: Path) -> None:
    release = tmp_path / "proc/driver/nvidia/version"
    release.parent.mkdir(parents=True)
    release.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build  (dvs)\n")
    assert presence.driver_status(tmp_path, driver(12040)) == Status("NVIDIA 550.54.15, CUDA 12.4")


def test_a_driver_whose_release_is_not_to_be_read_still_has_its_cuda_version(tmp_path: Path) -> None:
    assert presence.driver_status(tmp_path, driver(12080)) == Status("NVIDIA, CUDA 12.8")


def test_the_driver_of_amd_in_the_kernel_or_with_a_version(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    assert presence.driver_status(tmp_path, no_library) == Status("amdgpu in kernel")
    version = tmp_path / "sys/module/amdgpu/version"
    version.parent.mkdir(parents=True)
    version.write_text("6.8.5\n")
    assert presence.driver_status(tmp_path, no_library) == Status("amdgpu 6.8.5")


@pytest.mark.parametrize("load", [no_library, driver(0), driver(12080, failed=999)])
def test_a_host_without_any_driver(load: Callable[[str], Any], tmp_path: Path) -> None:
    assert presence.driver_status(tmp_path, load).what == "no GPU driver on this host"


def test_a_host_without_a_driver_answers_within_a_second() -> None:
    """In a process of its own, which has imported nothing yet; the import of CuPy is most of it.

    Its own time counts: other tests may take the cores meanwhile.
    """
    if presence.driver_status().version:
        pytest.skip("this host has a GPU driver, which takes its time to start")
    program = (
        "from dlbench.accelerator import presence as p\n"
        "for ask in (p.driver_status, p.cupy_status, p.device_status, p.toolkit_status, p.nccl_status):\n"
        "    found = ask(); assert bool(found.version) != bool(found.what), found\n"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime < 1


def test_the_driver_itself_is_the_one_that_cupy_finds() -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    runtime = importlib.import_module("cupy.cuda.runtime")
    if runtime.is_hip:
        pytest.skip("CuPy is the one of ROCm")
    assert presence.load_cupy() is cupy
    assert presence.cuda_driver_number() == runtime.driverGetVersion()
