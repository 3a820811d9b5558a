"""What a rank knows of itself and its host: the facts that rank 0 compares."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING

import mpi4py
import msgspec
import numpy as np

import dlbench
from dlbench.runtime.machine.survey import DeviceFacts, RankFacts
from dlbench.runtime.preflight import available_memory, usable_cores

if TYPE_CHECKING:
    from mpi4py import MPI

DEVICE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "SLURM_STEP_GPUS")


def find_facts(comm: MPI.Comm, local: MPI.Comm, library: str) -> RankFacts:
    """The facts of this rank. Collective.

    `local` are the ranks on its host, with which it shares the work; `library` is the version of the MPI library.
    """
    source = os.path.realpath(dlbench.__path__[0])  # ranks do without pathlib: it loads five modules
    host = os.uname().nodename
    places: list[tuple[str, str]] = local.allgather((host, source))  # virtual nodes can share memory
    return RankFacts(
        rank=comm.rank,
        host=host,
        boot=boot_id(),
        versions=versions(library),
        source=source,
        source_hash=hash_folder(source) if places.index((host, source)) == local.rank else "",
        cores=tuple(sorted(usable_cores())),
        memory=available_memory() if [name for name, _ in places].index(host) == local.rank else None,
        devices=find_devices(os.environ),
    )


def boot_id() -> str:
    """Id of the running kernel, which all containers on it share; empty where there is none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:  # noqa: PTH123
            return boot.read().strip()
    except OSError:
        return ""


def versions(library: str) -> dict[str, str]:
    """Versions of what a rank process consists of. From the modules: package metadata are files to look for."""
    return {
        "dlbench": dlbench.__version__,
        "Python": sys.version.split()[0],
        "NumPy": np.__version__,
        "msgspec": msgspec.__version__,
        "mpi4py": mpi4py.__version__,
        "MPI": library,
    }


def hash_folder(folder: str) -> str:
    """SHA-256 of the names and contents of a folder's files, byte code and hidden ones aside."""
    digest = sha256()
    for path in sorted(_files(folder)):
        with open(path, "rb") as file:  # noqa: PTH123
            content = file.read()
        digest.update(f"{os.path.relpath(path, folder)}\0{len(content)}\0".encode(errors="surrogateescape"))
        digest.update(content)
    return digest.hexdigest()


def _files(folder: str) -> Iterator[str]:
    for entry in os.scandir(folder):
        if entry.name.startswith(".") or entry.name == "__pycache__":
            continue
        if entry.is_dir():
            yield from _files(entry.path)
        else:
            yield entry.path


def find_devices(environment: Mapping[str, str], dev: str = "/dev") -> DeviceFacts:
    """The GPUs that this process may open, and the variables that choose among them."""
    variables = {name: environment[name] for name in DEVICE_VARIABLES if name in environment}
    nvidia = _numbered(dev, "nvidia")
    if nvidia:
        return DeviceFacts("cuda", tuple(number for number in nvidia if _opens(f"{dev}/nvidia{number}")), variables)
    nodes = _numbered(f"{dev}/dri", "renderD") if os.access(f"{dev}/kfd", os.F_OK) else []
    if nodes:
        opened = (index for index, number in enumerate(nodes) if _opens(f"{dev}/dri/renderD{number}"))
        return DeviceFacts("hip", tuple(opened), variables)
    return DeviceFacts(variables=variables)


def _numbered(folder: str, stem: str) -> list[int]:
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except OSError:
        return []
    return sorted(int(found[1]) for name in names if (found := re.fullmatch(rf"{stem}(\d+)", name)))


def _opens(path: str) -> bool:
    """Whether the device can be opened. The permissions of its file do not say what the control group forbids."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return False
    return True
