"""GPUs whose clocks were held down, and by what: in words that need no table of NVML's bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dlbench.records.schema import Energy

REASONS = {
    0x008: "HW slowdown",
    0x040: "HW thermal slowdown",
    0x080: "HW power brake slowdown",
    0x020: "SW thermal slowdown",
    0x004: "SW power cap",
    0x010: "sync boost",
    0x200: "board limit",
    0x400: "reliability limit",
}
"""Names of NVML's clocks event reasons (nvml.h). Idle GPUs (0x1) and clocks that were set (0x2, 0x100) are no fault."""

_ALL = sum(REASONS)


class Throttling:
    """Counts the iterations of a run in which each reason held on each rank; `hosts` are those of the ranks."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = hosts
        self._iterations = 0
        self._counts = np.zeros((len(REASONS), len(hosts)), dtype=np.int64)

    def add(self, energy: Energy) -> None:
        """Take in an iteration."""
        self._iterations += 1
        masks = np.array([(mask or 0) & _ALL for mask in energy.throttle])
        if masks.any():
            self._counts += (masks & np.array(list(REASONS))[:, np.newaxis]) > 0

    def lines(self) -> Iterator[str]:
        """A line for every reason that held anywhere."""
        for reason, counts in zip(REASONS.values(), self._counts, strict=True):
            most = int(counts.argmax())
            times = f"{counts[most]} of {self._iterations} iterations"
            name = f"rank {most} ({self._hosts[most]})"
            throttled = np.count_nonzero(counts)
            if throttled == 1:
                yield f"{name} was throttled: {reason} in {times}"
            elif throttled:
                yield f"{throttled} of {len(counts)} ranks were throttled: {reason} in up to {times}, as on {name}"
