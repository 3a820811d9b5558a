"""The kernel's sources, compiled without a GPU. That it lasts as long as it should only a GPU can show."""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dlbench.accelerator.spin_kernel import CUDA_SOURCE, HIP_SOURCE, NAME

HIP_ON_THE_HOST = """
#define __global__
static unsigned long long reads = 0;
static long long wall_clock64() { return 1000 + reads++; }
extern "C" unsigned long long reads_of_the_clock() { return reads; }
"""


@pytest.fixture(scope="module")
def nvrtc() -> Any:
    """CuPy's NVRTC."""
    pytest.importorskip("cupy", reason="CuPy is not installed: it calls NVRTC")
    module = importlib.import_module("cupy.cuda").nvrtc
    try:
        module.getVersion()
    except Exception as error:  # depending on the version of CuPy
        pytest.skip(f"NVRTC is not installed: {error}")
    return module


def ptx(nvrtc: Any, source: str, architecture: str) -> str:
    program = nvrtc.createProgram(source, f"{NAME}.cu", (), ())
    try:
        nvrtc.compileProgram(program, (f"--gpu-architecture={architecture}",))
        compiled = nvrtc.getPTX(program)
    finally:
        nvrtc.destroyProgram(program)
    return compiled.decode() if isinstance(compiled, bytes) else str(compiled)


@pytest.mark.parametrize("architecture", ["compute_70", "compute_80", "compute_90"])
def test_the_kernel_for_cuda_compiles_for_volta_ampere_and_hopper(nvrtc: Any, architecture: str) -> None:
    assert re.search(rf"\.entry {NAME}\(\s*\.param \.u64 {NAME}_param_0", ptx(nvrtc, CUDA_SOURCE, architecture))


def test_the_compiler_leaves_the_reading_of_the_clock_in_the_loop(nvrtc: Any) -> None:
    """Once before the loop, and once in it, between its label and the jump back."""
    compiled = ptx(nvrtc, CUDA_SOURCE, "compute_80")
    assert compiled.count("%globaltimer") == 2
    loop = re.search(r"([$\w]+):(.*)bra(?:\.uni)?\s+\1", compiled, re.DOTALL)
    assert loop
    assert loop[2].count("%globaltimer") == 1


def test_the_kernel_for_rocm_ends_when_its_ticks_are_over(tmp_path: Path) -> None:
    """Without hipRTC: as C++ of the host, with a clock that advances by a tick each time that it is read."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    source, library = tmp_path / "spin.cpp", tmp_path / "spin.so"
    source.write_text(HIP_ON_THE_HOST + HIP_SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-o", library, source], check=True, timeout=60)
    kernel = ctypes.CDLL(str(library))
    kernel.spin(ctypes.c_ulonglong(50))
    assert kernel.reads_of_the_clock() == 51  # at the begin, and until 50 ticks have passed
