"""A rank of a strategy on GPUs of which some have a meter: `energy_ranks.py STRATEGY OPTIONS`.

Environment: METERED_RANKS  ranks whose GPU has one, e.g. `0,2`. It gains 10 J from one reading to the next, and is too
                            warm on rank 0.
"""

from __future__ import annotations

import os
import sys

from host_device import HostDriver

from dlbench.accelerator.protocol import Reading
from dlbench.runtime.entry import main

RANK = os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"]
SW_THERMAL_SLOWDOWN = 0x20


class SteadyMeter:
    """A counter that gains as much energy between any two readings."""

    source = "counter"

    def __init__(self) -> None:
        self._readings = 0

    def read(self) -> Reading:
        """The next reading."""
        self._readings += 1
        return Reading(10.0 * self._readings, 1980, 2619, 700, SW_THERMAL_SLOWDOWN if RANK == "0" else 0)

    def close(self) -> None:
        """Say that it was closed."""
        sys.stderr.write(f"meter of rank {RANK} closed after {self._readings} readings\n")


def driver() -> HostDriver:
    """Four GPUs on this host."""
    metered = RANK in os.environ["METERED_RANKS"].split(",")
    return HostDriver(4, meter=SteadyMeter() if metered else None)


main(sys.argv.pop(1), driver)
