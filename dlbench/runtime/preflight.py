"""What must be true before a run is worth starting: the launcher's ranks, and the memory of every host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from dlbench.errors import PreflightError
from dlbench.quantities import si

if TYPE_CHECKING:
    from pathlib import Path

START_VARIABLE = "DLBENCH_START_TIMEOUT"
"""Environment variable with the seconds that a step of the start-up may take, before options can be read."""


class LauncherClaim(NamedTuple):
    """What the launcher says of this process: the number of ranks, its own rank, and the variable that says so."""

    size: int
    rank: int
    variable: str

    @property
    def launcher(self) -> str:
        """Kind of launcher, for the record."""
        return _LAUNCHER_NAMES[self.variable]


_LAUNCHERS = (
    # The innermost launcher first: mpiexec inside a SLURM job inherits the SLURM variables of its surroundings.
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    ("SLURM_NTASKS", "SLURM_PROCID"),
)

_LAUNCHER_NAMES = {
    "OMPI_COMM_WORLD_SIZE": "Open MPI mpiexec",
    "PMI_SIZE": "PMI",
    "SLURM_STEP_NUM_TASKS": "srun",
    "SLURM_NTASKS": "srun",
}

_REMEDY = {
    "OMPI_COMM_WORLD_SIZE": "use the mpiexec that belongs to this MPI (`dlbench run` finds it)",
    "PMI_SIZE": "use the mpiexec that belongs to this MPI (`dlbench run` finds it), or another `srun --mpi=` type",
    "SLURM_STEP_NUM_TASKS": "choose the PMI that this MPI was built for: `srun --mpi=list` shows them "
    "(MPICH: --mpi=pmi2; Open MPI: --mpi=pmix)",
    "SLURM_NTASKS": "start the ranks with `srun --mpi=pmi2` (MPICH), `srun --mpi=pmix` (Open MPI), or mpiexec",
}


def launcher_claim(environment: Mapping[str, str], world_size: int = 1) -> LauncherClaim | None:
    """What the environment says about the launch; None where no launcher is known.

    The innermost launcher counts, unless only another one agrees with a world of several ranks: then the variables of
    the former are inherited. A world of one confirms nothing: n of them are what a wrong launcher makes.
    """
    claims = [
        LauncherClaim(size=int(environment[size]), rank=_decimal(environment.get(rank, "")), variable=size)
        for size, rank in _LAUNCHERS
        if environment.get(size, "").isdecimal()
    ]
    confirmed = [claim for claim in claims if claim.size == world_size > 1]
    return next(iter(confirmed + claims), None)


def _decimal(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def start_limit(environment: Mapping[str, str]) -> float:
    """Seconds that a step of the start-up may take; raises `PreflightError` where the variable is no such number."""
    text = environment.get(START_VARIABLE, "300")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise PreflightError(f"{START_VARIABLE}={text}: expected seconds above 0, such as 300")
    return seconds


def check_world_size(world_size: int, library: str, claim: LauncherClaim | None) -> None:
    """Raise `PreflightError` where MPI sees another number of ranks than the launcher started.

    A launcher and an MPI library that do not belong together start n jobs of one rank each, in silence.
    """
    if claim is None or claim.size == world_size:
        return
    raise PreflightError(
        f"MPI sees a world of {world_size} rank{'s' if world_size != 1 else ''}, but {claim.variable}={claim.size}: "
        f"the launcher does not belong to {library}; {_REMEDY[claim.variable]}"
    )


def usable_cores() -> set[int]:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def available_memory(proc: str = "/proc", cgroup: str = "/sys/fs/cgroup") -> int | None:
    """Bytes that this host can still give: MemAvailable, or what the control group has left if less. None: unknown."""
    from pathlib import Path  # noqa: PLC0415 - it loads five modules, and one rank of a host looks

    limits = [_mem_available(Path(proc) / "meminfo"), _cgroup_left(Path(proc) / "self" / "cgroup", Path(cgroup))]
    known = [limit for limit in limits if limit is not None]
    return min(known) if known else None


def _mem_available(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _cgroup_left(self_cgroup: Path, root: Path) -> int | None:
    """Memory left below the tightest limit on the way up from this process's (version 2) control group.

    What the group uses includes cached files; the kernel gives up those that are not in use rather than run out.
    """
    try:
        entries = self_cgroup.read_text().splitlines()
    except OSError:
        return None
    own = next((entry[3:].strip("/") for entry in entries if entry.startswith("0::")), None)
    if own is None:
        return None
    left: list[int] = []
    for folder in (root / own, *(root / own).parents):
        try:
            limit = (folder / "memory.max").read_text().strip()
            used = int((folder / "memory.current").read_text())
            usage = (folder / "memory.stat").read_text().split()
        except OSError:
            continue
        if limit != "max":
            cached = int(usage[usage.index("inactive_file") + 1])
            left.append(max(0, int(limit) - used + cached))
    return min(left, default=None)


def check_memory(host: str, needed: int, available: int | None, scale: float) -> None:
    """Raise `PreflightError` where the ranks of a host need more bytes than it has, naming the scale that would fit."""
    if available is None or needed <= available:
        return
    fitting = _fitting_scale(scale, needed, available)
    remedy = f"--scale {fitting} would fit" if fitting else "free some, or run fewer ranks on it"
    raise PreflightError(
        f"host {host} has {si(available, 'B')} of memory available, but the message buffers of its ranks need "
        f"{si(needed, 'B')}; {remedy}"
    )


GPU_RESERVE = 512 * 2**20
"""Bytes of a GPU that stay free for what is allocated behind the check: the workspace of cuBLAS, modules and local
memory of kernels that the runtime loads when they are first launched, connections that NCCL makes for messages of
another size, and what is lost where the allocator rounds up."""


def check_gpu_memory(name: str, messages: int, operands: int, free: int, scale: float, *, least: int) -> None:
    """Raise `PreflightError` where a GPU has fewer bytes free than its rank needs, naming the scale that would fit.

    The rank needs buffers for its messages and the operands of its matrix products; a scale shrinks the former, down to
    `least`, that of buffers with one element each. `GPU_RESERVE` must stay free where it keeps anything there.
    """
    if not messages + operands:
        return
    left = free - GPU_RESERVE - operands
    if messages <= left:
        return
    # Rounding costs each buffer one element at most.
    fitting = _fitting_scale(scale, messages, left - least) if messages else ""
    remedy = f"--scale {fitting} would fit" if fitting else "free some"
    products = f" and {si(operands, 'B')} for matrix products" if operands else ""
    raise PreflightError(
        f"{name} has {si(free, 'B')} of memory free, {si(GPU_RESERVE, 'B')} must stay so, and its rank needs "
        f"{si(messages, 'B')} for messages{products}; {remedy}"
    )


def _fitting_scale(scale: float, needed: int, available: int) -> str:
    """The largest scale of two digits that fits; empty where none does that can be asked for.

    One percent stays free: the elements of scaled messages are rounded, and the ranks themselves take memory too.
    """
    from decimal import ROUND_DOWN, Context  # noqa: PLC0415 - only for this message

    from dlbench.strategies.configuration import FACTOR_RANGE  # noqa: PLC0415 - likewise

    fitting = Context(prec=2, rounding=ROUND_DOWN).create_decimal_from_float(0.99 * scale * available / needed)
    return f"{float(fitting):g}" if float(fitting) >= FACTOR_RANGE[0] else ""
