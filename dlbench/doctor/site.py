"""The software around the ranks: Python, mpi4py, SLURM and how its srun connects ranks."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import dlbench
from dlbench.doctor.finding import Finding
from dlbench.doctor.isolation import Prober
from dlbench.doctor.text import dotted_version, shown
from dlbench.quantities import counted
from dlbench.runtime.preflight import launcher_claim
from dlbench.slurm.launchers import FAMILIES

GET_CONTROLLER = "log in to a node of the cluster, or set SLURM_CONF to its slurm.conf"
GET_SLURM = "log in where its commands are, or module load slurm; one machine alone does without: --system local"
_PMI_VARIABLES = ("PMI_RANK", "PMI_SIZE", "PMI_FD", "PMIX_NAMESPACE", "PMIX_RANK", "SLURM_MPI_TYPE")


def python() -> Finding:
    """The interpreter of commands and ranks. Facts: version, path."""
    number = sys.version.split()[0]
    return Finding(state="ok", found=f"{number}, {sys.executable}", facts={"version": number, "path": sys.executable})


def package() -> Finding:
    """The dlbench that is running. Facts: version, path."""
    path = str(Path(dlbench.__path__[0]))
    return Finding(
        state="ok", found=f"{dlbench.__version__}, {path}", facts={"version": dlbench.__version__, "path": path}
    )


def mpi4py() -> Finding:
    """Python's way to MPI, not loaded. Facts: version."""
    try:
        number = version("mpi4py")
    except PackageNotFoundError:
        return Finding(state="missing", found="not installed", remedy="pip install mpi4py")
    return Finding(state="ok", found=number, facts={"version": number})


async def slurm(prober: Prober) -> Finding:
    """The cluster's scheduler. Facts: version, controller, partitions (names), default."""
    release, ping, listed = await asyncio.gather(
        prober.command("sinfo", "--version"),
        prober.command("scontrol", "ping"),
        prober.command("sinfo", "-h", "-o", "%P"),
    )
    if release.absent:
        return Finding(state="missing", found="no sinfo on the PATH", remedy=GET_SLURM)
    number = dotted_version(release.out)
    controller = next((shown(line) for line in ping.out.splitlines() if line.rstrip().endswith("is UP")), "")
    partitions = _partitions(listed.out)
    facts = {"version": number, "controller": controller, "partitions": partitions}
    if not controller:
        found = f"{number or 'its commands'}, but no controller: scontrol {ping.complaint or 'names none that is up'}"
        return Finding(state="broken", found=found, remedy=GET_CONTROLLER, facts=facts)
    if not partitions:
        found = f"{number}, {controller}, but sinfo {listed.complaint or 'shows no partition'}"
        return Finding(state="broken", found=found, remedy=GET_CONTROLLER, facts=facts)
    return Finding(state="ok", found=f"{number}, {controller}, {counted(len(partitions), 'partition')}", facts=facts)


def _partitions(text: str) -> list[str]:
    """Names as `sinfo -o %P` prints them, each once, without the star of the default one."""
    return list(dict.fromkeys(shown(line).removesuffix("*") for line in text.splitlines() if line.strip()))


async def pmi(prober: Prober, mpi: Finding) -> Finding:
    """How srun would connect the ranks of this MPI. Facts: offered (types of srun), needed, started (by a launcher)."""
    family = next((family for family in FAMILIES if family.name == mpi.facts.get("family")), None)
    started = _started(prober.environment)
    listed = await prober.command("srun", "--mpi=list")
    offered = [] if listed.failure else mpi_types(listed.out + listed.err)
    needed = family.pmi if family else ""
    facts = {"offered": offered, "needed": needed, "started": started}
    if listed.absent:
        found = "no srun; mpiexec connects its ranks itself"
        return Finding(state="unknown", found=found, note=started, facts=facts)
    if not offered:
        silence = "says nothing that dlbench understands" if listed.out + listed.err else "lists nothing"
        found = f"srun --mpi=list {listed.complaint or silence}"
        remedy = f"start ranks with mpiexec; srun can do it once 'srun --mpi=list' lists {needed or 'a PMI'}"
        return Finding(state="broken", found=found, note=started, remedy=remedy, facts=facts)
    found = f"srun offers {', '.join(offered)}" + (f"; {family.name} needs {needed}" if family else "")
    if needed and not any(name == needed or name.startswith(f"{needed}_v") for name in offered):
        remedy = f"start ranks with mpiexec, or have SLURM's plugin mpi_{needed} installed"
        return Finding(state="broken", found=found, note=started, remedy=remedy, facts=facts)
    return Finding(state="ok", found=found, note=started, facts=facts)


def mpi_types(text: str) -> list[str]:
    """Types in what `srun --mpi=list` prints; none where it has no heading such as `MPI plugin types are...`.

    Below it, by version, each stands by itself, behind `srun:` or behind `mpi/`; numbered ones also after a colon.
    """
    heading, _, listed = text.partition("types are...\n")
    if not re.fullmatch(r"(?:srun: )?MPI (?:plugin )?", heading.rpartition("\n")[2]):
        return []
    words = (line.removeprefix("srun: ").rpartition("available:")[2] for line in listed.splitlines())
    names = (name.strip().removeprefix("mpi/") for line in words for name in line.split(","))
    return list(dict.fromkeys(name for name in names if re.fullmatch(r"[a-z][a-z0-9_]*", name)))


def _started(environment: Mapping[str, str]) -> str:
    """Which launcher this process was started by, and what it has set; empty where there is none."""
    claim = launcher_claim(environment)
    set_here = [f"{name}={environment[name]}" for name in _PMI_VARIABLES if name in environment]
    words = []
    if claim and claim.variable == "SLURM_NTASKS":
        words = [f"in a SLURM job of {counted(claim.size, 'task')}"]
    elif claim:
        words = [f"started by {claim.launcher} as rank {claim.rank} of {claim.size}"]
    return shown(", ".join([*words, *set_here]))
