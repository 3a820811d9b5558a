"""The stand-in libnccl.so.2 (tests/comm/stand_in/nccl.c): compiled here, used in rank programs by host_device.py."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from host_device import LIBRARY_VARIABLE
from launch import Mpi

TESTS = Path(__file__).parent
SOURCE = TESTS / "comm" / "stand_in" / "nccl.c"
IMPORTS = {"PYTHONPATH": os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))}
"""Environment in which a rank program can import what lies beside this module."""
_FLAGS = ("-std=gnu11", "-O1", "-Wall", "-Wextra", "-Wno-unused-parameter", "-shared", "-fPIC", "-pthread")
_STRICT = ("-Werror",) if os.environ.get("CI") else ()
"""Another compiler has other warnings."""


@dataclass(frozen=True)
class StandIn:
    """The compiled library."""

    library: Path

    def environment(
        self, *, fault: str = "", log: Path | None = None, delay: float = 0, version: int = 22304
    ) -> dict[str, str]:
        """Variables with which a rank program finds `host_device` and the library.

        `fault` is `id`, `split`, `dry`, or one of `async`, `lost` and `wrong` with a rank and a call, for example
        `async:1:20`: what each means stands in nccl.c. `delay` in seconds goes before every collective. Every call is
        appended to `log`.
        """
        return {
            **IMPORTS,
            LIBRARY_VARIABLE: str(self.library),
            "STAND_IN_DELAY": str(round(delay * 1e6)),
            "STAND_IN_VERSION": str(version),
            **({"STAND_IN_FAULT": fault} if fault else {}),
            **({"STAND_IN_LOG": str(log)} if log else {}),
        }

    def run(self, program: str, *arguments: str, path: Path = TESTS) -> str:
        """What a program prints in a process of its own, where CuPy finds the library; `path` is on its module path."""
        load = f"import ctypes, sys; ctypes.CDLL({str(self.library)!r}, mode=ctypes.RTLD_GLOBAL)\n"
        folders = os.pathsep.join([str(path), IMPORTS["PYTHONPATH"]])
        command = [sys.executable, "-c", load + program, *arguments]
        env = {**os.environ, **self.environment(), "PYTHONPATH": folders}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60).stdout


def compile_stand_in(folder: Path) -> StandIn | str:
    """The library, compiled into `folder`; or the reason why that cannot be."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return "no C compiler: the stand-in for NCCL needs cc"
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed: its NCCL bindings drive the stand-in"
    library = folder / "libnccl.so.2"
    name = f"-Wl,-soname,{library.name}"  # CuPy's module asks the loader for this name
    subprocess.run([compiler, *_FLAGS, *_STRICT, name, "-o", library, SOURCE, "-lm"], check=True, timeout=60)
    return StandIn(library)


@cache
def without_cupy(mpi: Mpi) -> str:
    """Why the ranks of an MPI cannot use NCCL; empty where they can."""
    check = "import importlib.util; raise SystemExit(importlib.util.find_spec('cupy') is None)"
    if subprocess.run([mpi.python, "-c", check], check=False, timeout=30).returncode:
        return f"CuPy is not installed for {mpi.name} ({mpi.python}): its ranks have no NCCL bindings"
    return ""


def calls(log: Path) -> list[dict[str, Any]]:
    """What the ranks have called, in order of each rank."""
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
