"""The GPU of a rank whose MPI library is to read its memory: made current before MPI starts.

Transports find out in MPI_Init which GPU is near them by the context that is current there, and some look only then
(Open MPI, "Selecting an Accelerator Device before calling MPI_Init"; UCX, uct_cuda_base_query_devices_common). Options
are read after it, and CuPy takes its time, so the command line and NVIDIA's driver are asked by themselves here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from itertools import pairwise

from dlbench.accelerator import libraries

LOCAL_RANKS = (
    # The innermost launcher first: mpiexec inside a SLURM job inherits the variables of its surroundings.
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "PALS_LOCAL_RANKID",
    "PMI_LOCAL_RANK",
    "FLUX_TASK_LOCAL_ID",
    "SLURM_LOCALID",
)
"""Variables in which launchers tell a rank its number on its host: Open MPI, MVAPICH, Hydra, PALS, Flux, srun."""


def asks_for_gpu_buffers(arguments: Sequence[str]) -> bool:
    """Whether a command line says `--buffers gpu`; the last one counts. What a file of `--config` says is not seen."""
    said = ""
    for before, argument in pairwise(["", *arguments]):
        if before == "--buffers" or argument.startswith("--buffers="):
            said = argument.removeprefix("--buffers=")
    return said == "gpu"


def local_rank(environment: Mapping[str, str]) -> int | None:
    """Number of this rank on its host; None where no launcher tells it."""
    told = (environment.get(name, "") for name in LOCAL_RANKS)
    return next((int(number) for number in told if number.isdecimal()), None)


def own_gpu(rank: int | None, visible: int) -> int | None:
    """Which of the visible GPUs the rank of a host drives: the only one, or the one with its number; None for none."""
    if visible == 1:
        return 0
    return rank if rank is not None and rank < visible else None


def make_current(environment: Mapping[str, str], load: libraries.Load = libraries.load) -> int | None:
    """Make this rank's NVIDIA GPU current in this thread; returns its number, None where that cannot be.

    Never raises: what is wrong with the GPU is found, and said, when it is opened.
    """
    visible = ctypes.c_int()
    try:
        cuda = load(libraries.CUDA)
        if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(visible)):
            return None
        index = own_gpu(local_rank(environment), visible.value)
        context = None if index is None else libraries.retain_cuda(index, load)
        return None if context is None or cuda.cuCtxSetCurrent(context) else index
    except (OSError, AttributeError):  # no driver, or one without these functions
        return None
