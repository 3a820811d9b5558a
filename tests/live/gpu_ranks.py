"""A rank of a strategy on GPUs that are memory of the process: `gpu_ranks.py STRATEGY OPTIONS`.

Environment: HOST_GPUS    GPUs that each rank sees (default 4)
             HOST_MEMORY  bytes of each
             ODD_VERSION  what NCCL's version is on rank 1
NCCL is the stand-in where the environment names its library.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from host_device import LIBRARY_VARIABLE, HostDriver

from dlbench.runtime.entry import main

RANK = os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"]


def driver() -> HostDriver:
    """The host's GPUs as the environment describes them."""
    gpus = int(os.environ.get("HOST_GPUS", "4"))
    options: dict[str, Any] = {}
    if "HOST_MEMORY" in os.environ:
        options["memory_bytes"] = int(os.environ["HOST_MEMORY"])
    if LIBRARY_VARIABLE not in os.environ:
        return HostDriver(gpus, **options)
    if "ODD_VERSION" in os.environ and RANK == "1":
        os.environ["STAND_IN_VERSION"] = os.environ["ODD_VERSION"]
    return HostDriver.with_stand_in(gpus, **options)


main(sys.argv.pop(1), driver)
