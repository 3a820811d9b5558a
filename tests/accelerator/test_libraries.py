"""Libraries that are loaded, and drivers that are started, while Python's other threads go on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_cuda import FakeCuda

from dlbench.accelerator import libraries

SLOW = """
#include <unistd.h>
__attribute__((constructor)) static void wait(void) { usleep(500000); }
int answer(void) { return 42; }
"""


@pytest.fixture(scope="module")
def slow_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library whose constructor takes half a second."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("slow") / "libslow.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-x", "c", "-o", library, "-"], input=SLOW.encode(), check=True, timeout=60
    )
    return library


def test_other_threads_go_on_while_a_library_is_loaded(slow_library: Path) -> None:
    turns, loaded = 0, threading.Event()

    def count() -> None:
        nonlocal turns
        while not loaded.wait(0.01):
            turns += 1

    thread = threading.Thread(target=count)
    thread.start()
    library = libraries.load(str(slow_library))
    loaded.set()
    thread.join()

    assert library.answer() == 42
    assert turns >= 10, "of some 50 in half a second; with ctypes.CDLL it is 1"


def test_a_library_that_is_not_there_is_named_in_the_error() -> None:
    with pytest.raises(OSError, match=r"libnowhere\.so\.9: cannot open shared object file"):
        libraries.load("libnowhere.so.9")


def test_the_driver_of_nvidia_is_started_and_a_context_of_the_gpu_retained() -> None:
    cuda = FakeCuda(4)
    libraries.start_driver(cuda.load)
    context = libraries.retain_cuda(3, cuda.load)
    assert context is not None
    assert context.value == cuda.context_of(3)
    assert cuda.calls == ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"]


@pytest.mark.parametrize("failing", ["cuDeviceGet", "cuDevicePrimaryCtxRetain"])
def test_a_gpu_that_the_driver_refuses_has_no_context(failing: str) -> None:
    assert libraries.retain_cuda(0, FakeCuda(1, failing).load) is None


def test_the_driver_of_amd_is_started_by_the_runtime_that_cupys_extension_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[int] = []

    def load(name: str) -> Any:
        if name == libraries.CUDA:
            raise OSError("libcuda.so.1: cannot open shared object file")
        assert name == "/cupy/runtime.so"
        return SimpleNamespace(hipInit=started.append)

    def find(name: str) -> Any:
        assert name == "cupy_backends.cuda.api.runtime"
        return SimpleNamespace(origin="/cupy/runtime.so")

    monkeypatch.setattr(libraries, "find_spec", find)
    libraries.start_driver(load)
    assert started == [0]


def missing(name: str) -> Any:
    raise OSError(f"{name}: cannot open shared object file: No such file or directory")


@pytest.mark.parametrize("load", [missing, lambda name: object()], ids=["no library", "a stub of it"])
def test_a_host_without_a_driver_is_left_to_cupy(load: libraries.Load) -> None:
    libraries.start_driver(load)
    assert libraries.retain_cuda(0, load) is None


def test_where_cupy_is_not_installed_nothing_of_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(libraries, "find_spec", find)
    libraries.start_driver(missing)


def test_cupy_imports_after_its_extension_was_loaded_by_itself() -> None:
    if find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    program = (
        "from dlbench.accelerator import libraries, presence\n"
        "from importlib.util import find_spec\n"
        "libraries.load(find_spec('cupy_backends.cuda.api.runtime').origin)\n"
        "print(presence.load_cupy().cuda.runtime.runtimeGetVersion() > 0)\n"
    )
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (completed.stdout, completed.returncode) == ("True\n", 0), completed.stderr
