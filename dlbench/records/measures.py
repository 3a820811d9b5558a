"""The numbers of one iteration over all ranks, as every table shows them."""

from __future__ import annotations

from typing import NamedTuple

from dlbench.records.schema import Energy, Iteration


class Measures:
    """What an iteration amounts to; `samples` is local batch × replicas."""

    def __init__(self, iteration: Iteration, samples: int) -> None:
        self.seconds = max(iteration.runtime)
        """Time of the slowest rank."""
        self.throughput = samples / self.seconds
        """Samples per second: local batch × replicas / the slowest rank's time."""
        self.communication = _largest_share(iteration.sync_time, iteration.runtime)
        """Communication fraction: maximum over ranks of sync_time / runtime."""
        outside = [overrun + issue for overrun, issue in zip(iteration.overrun, iteration.issue, strict=True)]
        self.hidden = _largest_share(outside, iteration.runtime)
        """Maximum over ranks of (overrun + issue) / runtime: communication outside sync_time can cost this at most."""
        self.classes = {name: max(seconds) for name, seconds in iteration.communication.items()}
        """Seconds of each communication class on the rank that spent most in it."""
        self.skew = max(iteration.skew)
        """Begin of the last rank − begin of the first, in seconds."""
        self.energy = total_energy(iteration.energy)
        """Of all GPUs; None where not all tell."""


class TotalEnergy(NamedTuple):
    """Energy of all GPUs from one reading to the next: an iteration, and what lies between it and the one before."""

    joules: float
    gpu_seconds: float
    """Time added up over the GPUs: joules / gpu_seconds is the mean power of one."""


def total_energy(energy: Energy | None) -> TotalEnergy | None:
    """Sum over the ranks; None where one of them does not tell: the sum of the others would pass for that of all."""
    if energy is None:
        return None
    joules = [value for value in energy.joules if value is not None]
    seconds = [value for value in energy.seconds if value is not None]
    whole = len(joules) == len(seconds) == len(energy.joules)
    return TotalEnergy(sum(joules), sum(seconds)) if whole else None


def _largest_share(seconds: list[float], runtime: list[float]) -> float:
    return max(part / whole for part, whole in zip(seconds, runtime, strict=True))
