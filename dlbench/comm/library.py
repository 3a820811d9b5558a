"""The MPI library, initialised for a process in which only the main thread communicates.

Every module of the rank processes takes `MPI` from here: mpi4py reads its settings when `MPI` is first imported, and
asks for MPI_THREAD_MULTIPLE by default, whose locks cost about 15 % of the time of a small message. Importing it raises
`PreflightError` where there is no library, or one that cannot talk to the launcher.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Mapping

# Each rank would warn of a launcher that does not belong to the library; the preflight refuses it, once.
warnings.filterwarnings("ignore", "suspicious MPI execution environment")

from dlbench.comm.loading import MPI  # noqa: E402
from dlbench.errors import PreflightError  # noqa: E402

__all__ = ["MPI", "version"]


def version() -> str:
    """Name and version of the MPI library on one line, e.g. `MPICH Version: 5.0.2`."""
    first_line = MPI.Get_library_version().splitlines()[0].rstrip("\0")
    return " ".join(first_line.split(",")[0].split())


def speaks_no_pmix(library_version: str) -> bool:
    """Whether a library is an MPICH that was built without PMIx, from its version text."""
    configured = [line for line in library_version.splitlines() if line.startswith("MPICH configure:")]
    return bool(configured) and "pmix" not in configured[0]


def _refuse_pmix(environment: Mapping[str, str]) -> None:
    """Raise `PreflightError` where a PMIx launcher started a library that would abort in MPI_Init for it."""
    if "PMIX_NAMESPACE" not in environment or "PMI_SIZE" in environment:
        return
    if speaks_no_pmix(MPI.Get_library_version()):
        raise PreflightError(
            f"the launcher does not belong to {version()}, which cannot talk PMIx; use the mpiexec that belongs to "
            "this MPI (`dlbench run` finds it), or srun --mpi=pmi2"
        )


def _initialise() -> None:
    """Call MPI_Init_thread with the GIL released.

    mpi4py keeps the GIL there, so the watchdog could neither end a rank that waits for a dead one, nor hear of signals.

    The watchdog breaks the level FUNNELED once, with MPI_Abort from its own thread while the main thread is in MPI. No
    level below MULTIPLE would allow that, and MPICH and Open MPI both end the job. Leaving the process instead would
    not: launchers that hear of no abort can wait for the other ranks.
    """
    # The process comes first: there a profiler that was preloaded has its own MPI_Init_thread.
    scopes = (ctypes.CDLL(None), ctypes.CDLL(MPI.__file__))
    library = next((scope for scope in scopes if hasattr(scope, "MPI_Init_thread")), None)
    if library is None:  # a build that hides the library's symbols: then without the watchdog
        MPI.Init_thread(MPI.THREAD_FUNNELED)
    else:
        library.MPI_Init_thread(None, None, MPI.THREAD_FUNNELED, ctypes.byref(ctypes.c_int()))
    for comm in (MPI.COMM_WORLD, MPI.COMM_SELF):
        comm.Set_errhandler(MPI.ERRORS_RETURN)  # which mpi4py raises as exceptions


if not MPI.Is_initialized():
    _refuse_pmix(os.environ)
    _initialise()
