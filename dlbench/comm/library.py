"""The MPI library, initialised for a process in which only the main thread communicates.

Every module of the rank processes takes `MPI` from here: mpi4py reads its settings when `MPI` is first imported, and
asks for MPI_THREAD_MULTIPLE by default, whose locks cost about 15 % of the time of a small message.
"""

from __future__ import annotations

import mpi4py

mpi4py.rc.thread_level = "funneled"

from mpi4py import MPI  # noqa: E402

__all__ = ["MPI", "version"]


def version() -> str:
    """Name and version of the MPI library on one line, e.g. `MPICH Version: 5.0.2`."""
    return " ".join(MPI.Get_library_version().splitlines()[0].rstrip("\0").split())
