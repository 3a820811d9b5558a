"""CuPy's own signatures against those that dlbench calls, without a GPU."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cupy_signatures import CONSTANTS, DOCUMENTED, GEMM_EX, INSPECTED
from stand_in import StandIn

pytest.importorskip("cupy", reason="CuPy is not installed: its signatures cannot be compared")

CUBLAS_OF_ITS_OWN = """
import ctypes, os, sys
for library in sys.argv[1:]:
    ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
sys.setdlopenflags(os.RTLD_LAZY)  # of its 104 functions the stand-in has those that are called
from cupy.cuda import cublas
for name in ("create", "destroy", "gemmEx"):
    print(getattr(cublas, name).__doc__.splitlines()[0])
handle = cublas.create()
cublas.destroy(handle)
print(hex(handle))
"""
STAND_IN = """
int cublasCreate_v2(void **handle) { *handle = (void *)0xb1a5; return 0; }
int cublasDestroy_v2(void *handle) { return handle != (void *)0xb1a5; }
"""


def found(path: str) -> Any:
    """The object with this path: of the innermost module that there is, an attribute of an attribute."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            place: Any = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for name in parts[length:]:
            place = getattr(place, name)
        return place
    raise AssertionError(path)


def first_line(path: str) -> str:
    """Of the docstring, without the `->` that some versions add for functions that return an object."""
    return str(found(path).__doc__).strip().splitlines()[0].removesuffix(" -> object")


NCCL = "cupy.cuda.nccl."
DESCRIBED = """
import json, sys
from test_cupy_signatures import first_line, found
documented, constants = json.loads(sys.argv[1])
print(json.dumps([{path: first_line(path) for path in documented}, {path: int(found(path)) for path in constants}]))
"""


@pytest.fixture(scope="session")
def of_nccl(stand_in: StandIn) -> tuple[dict[str, str], dict[str, int]]:
    """Signatures and constants of CuPy's module for NCCL, which is empty unless a library of that name is loaded."""
    asked = [[path for path in table if path.startswith(NCCL)] for table in (DOCUMENTED, CONSTANTS)]
    printed = stand_in.run(DESCRIBED, json.dumps(asked), path=Path(__file__).parent)
    documented, constants = json.loads(printed)
    return documented, constants


def parts(table: dict[str, Any], *, nccl: bool) -> list[Any]:
    """Entries of a table as parameters: those of CuPy's module for NCCL, or all others."""
    return [pytest.param(*entry, id=entry[0]) for entry in table.items() if entry[0].startswith(NCCL) == nccl]


@pytest.mark.parametrize(("path", "signature"), parts(DOCUMENTED, nccl=False))
def test_a_compiled_call_has_the_arguments_that_are_given_to_it(path: str, signature: str) -> None:
    assert first_line(path) == signature


@pytest.mark.parametrize(("path", "signature"), parts(DOCUMENTED, nccl=True))
def test_a_call_of_nccl_has_the_arguments_that_are_given_to_it(
    of_nccl: tuple[dict[str, str], dict[str, int]], path: str, signature: str
) -> None:
    assert of_nccl[0][path] == signature


@pytest.mark.parametrize(("path", "signature"), INSPECTED.items(), ids=list(INSPECTED))
def test_a_call_in_python_has_the_arguments_that_are_given_to_it(path: str, signature: str) -> None:
    assert str(inspect.signature(found(path))) == signature


@pytest.mark.parametrize(("path", "value"), parts(CONSTANTS, nccl=False))
def test_a_constant_has_the_value_that_is_counted_on(path: str, value: int) -> None:
    assert int(found(path)) == value


@pytest.mark.parametrize(("path", "value"), parts(CONSTANTS, nccl=True))
def test_a_constant_of_nccl_has_the_value_that_is_counted_on(
    of_nccl: tuple[dict[str, str], dict[str, int]], path: str, value: int
) -> None:
    assert of_nccl[1][path] == value


def test_a_unique_id_needs_no_gpu_and_has_128_bytes() -> None:
    nccl = importlib.import_module("cupy.cuda.nccl")
    if not nccl.available:
        pytest.skip("NCCL is not installed")
    assert len(nccl.get_unique_id()) == 128


def test_gemm_ex_has_the_arguments_that_are_given_to_it(tmp_path: Path) -> None:
    """The module needs libcublas, hundreds of megabytes. It loads on two libraries with its names as well."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("no C compiler: the stand-in for cuBLAS needs cc")
    libraries = [cuda_library(compiler, tmp_path, name) for name in ("cublasLt", "cublas")]
    command = [sys.executable, "-c", CUBLAS_OF_ITS_OWN, *map(str, libraries)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    *signatures, handle = done.stdout.splitlines()
    assert signatures == ["create() -> intptr_t", "destroy(intptr_t handle)", GEMM_EX]
    assert handle == "0xb1a5"


def cuda_library(compiler: str, folder: Path, name: str) -> Path:
    """A library with the name of CUDA's, for the CUDA of the installed CuPy, on the stand-in's functions."""
    runtime = importlib.import_module("cupy.cuda.runtime")
    library = folder / f"lib{name}.so.{runtime.runtimeGetVersion() // 1000}"
    versions = folder / f"{name}.map"
    versions.write_text(f"{library.name} {{ global: cublas*; }};\n")
    source = folder / f"{name}.c"
    source.write_text(STAND_IN)
    linking = [f"-Wl,-soname,{library.name}", f"-Wl,--version-script,{versions}"]
    subprocess.run([compiler, "-shared", "-fPIC", *linking, "-o", library, source], check=True, timeout=60)
    return library
