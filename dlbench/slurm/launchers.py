"""Launchers: how each MPI starts its ranks. A launcher and a library that do not belong together start singletons."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which
from typing import TypeAlias

from dlbench.errors import PreflightError
from dlbench.runtime.preflight import usable_cores


@dataclass(frozen=True, slots=True)
class Library:
    """The MPI library that mpi4py loads: its version string and the file that it came from."""

    version: str
    path: Path | None


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a launcher must know."""

    ranks: int
    executable: str
    crowded: bool
    """Ranks outnumber cores."""
    loopback: bool
    """All ranks are on this host, and can talk over its interface lo."""
    shared: bool = False
    """Other jobs run beside it on this host: a launcher that knows nothing of them must not give out cores."""
    nodes: tuple[str, ...] = ()
    """Where the ranks run, in their order; none: where the launcher likes."""
    per_node: int = 1
    """Ranks of a node, where nodes are named."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Command line before the program, and environment variables to add."""

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    """What the user has set of them is kept."""
    own: dict[str, str] = field(default_factory=dict)
    """Those of this launch alone: they replace what is set."""


_MPICH_CROWDED = {
    f"MPIR_CVAR_{collective}_POSIX_INTRA_ALGORITHM": "mpir"
    for collective in ("ALLREDUCE", "BARRIER", "BCAST", "REDUCE")
}
"""With more ranks than cores MPICH's own shared-memory collectives stall for seconds; its general ones do not."""


def _hydra(allocation: Allocation) -> Launch:
    environment = dict(_MPICH_CROWDED) if allocation.crowded else {}
    if allocation.loopback:
        environment["HYDRA_IFACE"] = "lo"
    return Launch(_plain(allocation).command, environment)


def _open_mpi(allocation: Allocation) -> Launch:
    environment = {}
    flags: list[str] = []
    if allocation.crowded:
        flags = ["--map-by", ":OVERSUBSCRIBE"]
        environment["OMPI_MCA_mpi_yield_when_idle"] = "1"
    if allocation.crowded or allocation.shared:
        flags += ["--bind-to", "none"]
    if allocation.nodes:
        flags += ["--host", ",".join(f"{node}:{allocation.per_node}" for node in allocation.nodes)]
    if os.geteuid() == 0:
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return Launch([allocation.executable, *flags, "-n", str(allocation.ranks)], environment)


def _plain(allocation: Allocation) -> Launch:
    hosts = ["-hosts", ",".join(allocation.nodes), "-ppn", str(allocation.per_node)] if allocation.nodes else []
    return Launch([allocation.executable, *hosts, "-n", str(allocation.ranks)])


@dataclass(frozen=True, slots=True)
class Family:
    """One MPI, and how it is told from the others and launched."""

    name: str
    library_mark: str
    """Part of the library's version string."""
    launcher_mark: str
    """Part of what its mpiexec says of itself; empty where it has none."""
    pmi: str
    """How its ranks find each other under srun."""
    launch: Callable[[Allocation], Launch]


FAMILIES = (
    # Before MPICH: its version string holds that of MPICH too.
    Family("Cray MPICH", "CRAY MPICH", "", "cray_shasta", _plain),
    Family("MPICH", "MPICH Version", "HYDRA", "pmi2", _hydra),
    Family("MVAPICH", "MVAPICH", "HYDRA", "pmi2", _hydra),
    Family("Open MPI", "Open MPI", "Open MPI", "pmix", _open_mpi),
    Family("Intel MPI", "Intel(R) MPI Library", "Intel(R) MPI Library", "pmi2", _plain),
)

_LOOPBACK = Path("/sys/class/net/lo")
_HOST_LISTS = ("PBS_NODEFILE", "LSB_HOSTS", "LSB_DJOB_HOSTFILE", "HYDRA_HOST_FILE")

Version: TypeAlias = Callable[[str], str]


class NoLauncherError(PreflightError):
    """Nothing here starts the ranks of the MPI library; the message says what is missing, and what brings it."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}; {remedy}")
        self.what = what
        self.remedy = remedy


def loaded_library() -> Library:
    """The library that mpi4py loads here, without initialising MPI.

    Raises `PreflightError` where there is none.
    """
    from dlbench.comm.loading import MPI  # noqa: PLC0415 - only `dlbench run` asks, and not while it prints help

    return Library(" ".join(MPI.Get_library_version().split()), _mapped_library(Path("/proc/self/maps")))


def _mapped_library(maps: Path) -> Path | None:
    try:
        files = [line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines() if "/libmpi" in line]
    except OSError:
        return None
    return Path(files[0]) if files else None


def family_of(library: Library) -> Family:
    """Which MPI a library is; raises `PreflightError` for one that is not known."""
    for family in FAMILIES:
        if family.library_mark.lower() in library.version.lower():
            return family
    known = ", ".join(family.name for family in FAMILIES)
    raise PreflightError(
        f"unknown MPI library {library.version[:60]!r}; known are {known}; start the ranks with its own launcher: "
        "mpiexec -n N python -m dlbench.STRATEGY"
    )


def find_launcher(library: Library, family: Family, version: Version | None = None) -> str:
    """The mpiexec that belongs to the library: beside it, in this environment, or on the PATH.

    Each is asked for its version. Raises `NoLauncherError` where none of them belongs.
    """
    asked = version or launcher_version
    folders = [library.path.parent.parent / "bin", library.path.parent.parent.parent / "bin"] if library.path else []
    candidates = [*folders, Path(sys.prefix) / "bin"]
    paths = [str(folder / "mpiexec") for folder in candidates if (folder / "mpiexec").is_file()]
    on_path = which("mpiexec")
    paths += [on_path] if on_path else []
    found = []
    for path in dict.fromkeys(paths):
        answer = asked(path)
        if family.launcher_mark.lower() in answer.lower():
            return path
        found.append(f"{path}: {_first_line(answer)}")
    what = f"no mpiexec of {family.name} for {library.path or 'the MPI library'} (found: {', '.join(found) or 'none'})"
    raise NoLauncherError(what, "put it on the PATH, or use --launcher srun")


def launcher_version(path: str) -> str:
    """What `mpiexec --version` prints, or why it prints nothing."""
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, errors="replace", timeout=30, check=False
        )
    except OSError as error:
        return f"cannot be started: {error.strerror}"
    except subprocess.TimeoutExpired:
        return "does not answer"
    return done.stdout + done.stderr


def _first_line(text: str) -> str:
    return next(iter(text.splitlines()), "no version")[:60]


def srun(ranks: int, family: Family) -> Launch:
    """SLURM's launcher, with the PMI that the MPI was built for; one dead rank ends the step."""
    return Launch(["srun", f"--mpi={family.pmi}", "-K1", "-n", str(ranks)])


def plan_launch(launcher: str, ranks: int, environment: Mapping[str, str], arguments: Sequence[str] = ()) -> Launch:
    """How to start `ranks` ranks here; `launcher` is auto, srun, or the path of an mpiexec.

    The user's own `arguments` for the launcher may name other hosts, and nothing is assumed about these. Raises
    `PreflightError` where the launcher is missing or does not belong to the MPI library.
    """
    library = loaded_library()
    family = family_of(library)
    if launcher == "srun" or (launcher == "auto" and not family.launcher_mark):
        return srun(ranks, family)
    executable = find_mpiexec(launcher, library, family)
    hosts = None if arguments else _hosts(environment)
    crowded = hosts is not None and ranks > len(usable_cores()) * hosts
    loopback = hosts == 1 and has_loopback()
    return family.launch(Allocation(ranks=ranks, executable=executable, crowded=crowded, loopback=loopback))


def has_loopback() -> bool:
    """Whether this machine has an interface lo."""
    return _LOOPBACK.exists()


def blas_threads(ranks: int) -> dict[str, str]:
    """The cores of this machine, shared out to the ranks: each BLAS takes all of them otherwise."""
    return {"OMP_NUM_THREADS": str(max(1, len(usable_cores()) // ranks))}


def _hosts(environment: Mapping[str, str]) -> int | None:
    """Hosts of the allocation; None where the launcher gets them from a list that only it reads."""
    nodes = environment.get("SLURM_JOB_NUM_NODES", "")
    if nodes.isdecimal():
        return int(nodes)
    return None if any(name in environment for name in _HOST_LISTS) else 1


def find_mpiexec(launcher: str, library: Library, family: Family) -> str:
    """The mpiexec of that path, or with auto the one that belongs to the library; raises `PreflightError`."""
    return find_launcher(library, family) if launcher == "auto" else _named(launcher, family)


def _named(launcher: str, family: Family) -> str:
    path = which(launcher)
    if path is None:
        raise PreflightError(f"--launcher {launcher}: no such program; use auto, srun, or the path of an mpiexec")
    answer = launcher_version(path)
    if family.launcher_mark.lower() not in answer.lower():
        raise PreflightError(
            f"--launcher {launcher} ({_first_line(answer)}) does not belong to {family.name}, which mpi4py loads: "
            "every rank would be alone"
        )
    return path
