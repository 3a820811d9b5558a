"""All probes at the same time, and what follows from their findings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping
from dataclasses import dataclass

import msgspec

from dlbench.doctor import site
from dlbench.doctor.finding import Finding
from dlbench.doctor.isolation import Prober
from dlbench.doctor.text import shown

_RUN = ("mpi4py", "mpi", "launcher")
_GPU = (*_RUN, "driver", "devices", "cupy")


@dataclass(frozen=True, slots=True)
class Use:
    """Something that dlbench can do, and the pieces that it takes."""

    name: str
    needs: tuple[str, ...]

    def lacks(self, findings: Mapping[str, Finding]) -> list[str]:
        """Pieces that keep it from working; those that could not be asked count where no other does."""
        absent = [piece for piece in self.needs if not findings[piece].serves]
        return [piece for piece in absent if findings[piece].state != "unknown"] or absent


CPU_RUNS = Use("runs on CPUs", _RUN)
_ON_GPUS = (
    Use("--backend nccl", (*_GPU, "nccl")),
    Use("--backend mpi --buffers gpu", (*_GPU, "gpu-mpi")),
    Use("--compute gemm on GPUs", (*_GPU, "cublas")),
    Use("--compute spin", (*_GPU, "nvrtc")),
)
USES = (
    CPU_RUNS,
    Use("--launcher srun", ("mpi4py", "mpi", "slurm", "pmi")),
    Use("dlbench submit to a cluster", (*_RUN, "slurm")),
    *_ON_GPUS,
    Use("energy of GPUs", ("driver", "nvml")),
)


def needed_for(piece: str) -> list[str]:
    """What cannot be done without a piece: names of uses, or what they have in common. None: it is always there."""
    if piece in _RUN:
        return ["every run"]
    if piece in _GPU:
        return ["every run on GPUs", *(use.name for use in USES if piece in use.needs and use not in _ON_GPUS)]
    return [use.name for use in USES if piece in use.needs]


async def examine(prober: Prober) -> dict[str, Finding]:
    """What is here, by piece; never raises for what a probe does."""
    async with asyncio.TaskGroup() as group:

        def ask(question: Coroutine[None, None, Finding]) -> asyncio.Task[Finding]:
            return group.create_task(_answered(question))

        mpi, slurm = ask(prober.probe("mpi")), ask(site.slurm(prober))
        pmi = ask(_pmi(prober, mpi))
        driver, cupy = ask(prober.probe("driver")), ask(prober.probe("cupy"))
        with_cupy = {name: ask(_beyond(prober, name, cupy=cupy)) for name in ("nccl", "cublas", "nvrtc")}
        tasks = {
            "mpi": mpi,
            "launcher": ask(_launcher(prober, mpi, slurm, pmi)),
            "pmi": pmi,
            "slurm": slurm,
            "driver": driver,
            "devices": ask(_beyond(prober, "devices", driver=driver, cupy=cupy)),
            "cupy": cupy,
            **with_cupy,
            "gpu-mpi": ask(_gpu_mpi(prober, mpi, driver)),
            "nvml": ask(prober.probe("nvml")),
        }
    own = {"python": site.python(), "dlbench": site.package(), "mpi4py": site.mpi4py()}
    return own | {piece: task.result() for piece, task in tasks.items()}


async def _answered(question: Awaitable[Finding]) -> Finding:
    try:
        finding = await question
        return msgspec.structs.replace(finding, found=shown(finding.found), note=shown(finding.note))
    except Exception as error:  # a machine that is broken in a new way is no reason to say nothing of the rest
        return Finding(state="broken", found=shown(f"its probe fails with {type(error).__name__}: {error}"))


async def _beyond(prober: Prober, name: str, **needed: asyncio.Task[Finding]) -> Finding:
    """A probe that only makes sense where other pieces are there."""
    for piece, finding in needed.items():
        if not (await finding).serves:
            return Finding(state="unknown", found=f"cannot be asked without {piece}")
    return await prober.probe(name)


async def _gpu_mpi(prober: Prober, mpi: asyncio.Task[Finding], driver: asyncio.Task[Finding]) -> Finding:
    """GPU-aware MPI for the driver that is here; on a login node, which has none, most likely for NVIDIA's."""
    if not (await mpi).serves:
        return Finding(state="unknown", found="cannot be asked without mpi")
    return await prober.probe("gpu_mpi", (await driver).facts.get("kind", "cuda"))


async def _pmi(prober: Prober, mpi: asyncio.Task[Finding]) -> Finding:
    return await site.pmi(prober, await mpi)


async def _launcher(prober: Prober, *others: asyncio.Task[Finding]) -> Finding:
    """The launcher of the MPI library; without one, srun can start the ranks where SLURM offers their PMI."""
    mpi, slurm, pmi = await asyncio.gather(*others)
    if not mpi.serves:
        return Finding(state="unknown", found="cannot be asked without mpi")
    found = await prober.probe("launcher", mpi.facts["family"], mpi.facts["path"])
    if not found.serves and slurm.serves and pmi.serves:
        return msgspec.structs.replace(found, state="warning", note="use --launcher srun")
    return found
