"""The numbers of one iteration over all ranks, as every table shows them."""

from __future__ import annotations

from dlbench.records.schema import Iteration


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


def _largest_share(seconds: list[float], runtime: list[float]) -> float:
    return max(part / whole for part, whole in zip(seconds, runtime, strict=True))
