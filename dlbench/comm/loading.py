"""mpi4py's `MPI`, its library loaded but not initialised; the import raises `PreflightError` where there is none."""

from __future__ import annotations

import mpi4py

from dlbench.errors import PreflightError

mpi4py.rc.initialize = False
mpi4py.rc.finalize = True

try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:
    # mpi4py names every file that it has tried, one a line; the first line says enough.
    cause = str(error).splitlines()[0]
    raise PreflightError(
        f"install an MPI: pip install 'dlbench[mpich]', or load your site's MPI module; mpi4py finds none ({cause})"
    ) from None

__all__ = ["MPI"]
