"""A device whose products and copies take the time that a test wants, on a clock of its own, and no memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from host_device import GIBIBYTE, HostDevice, HostDriver, HostEvent, HostMultiplier, StandInQueue
from numpy.typing import NDArray

from dlbench.accelerator.protocol import GpuFacts, Meter, Precision, Reading
from dlbench.errors import PreflightError

TERA = 1e12


def even_rate(rows: int, columns: int, k: int) -> float:
    """100 TFLOP/s, whatever the product."""
    return 100 * TERA


class Nowhere(NamedTuple):
    """Memory that nobody may touch."""

    ptr: int
    nbytes: int


class TimedMultiplier(HostMultiplier):
    """Lets the clock of its device go on by the time of each product."""

    def __init__(self, device: TimedDevice, precision: Precision) -> None:
        super().__init__(precision)
        self.device = device

    def multiply(self, left: int, right: int, out: int, *, rows: int, columns: int, k: int) -> None:
        self.device.pass_time(2 * rows * columns * k / self.device.rate(rows, columns, k))


class TimedDevice(HostDevice):
    """Multiplies in `precisions`, at `rate(rows, columns, k)` FLOP/s, and reads and writes `bandwidth` B/s.

    `slower` is the share by which everything slows down with each measurement.
    """

    def __init__(
        self,
        *,
        memory_bytes: int = 64 * GIBIBYTE,
        rate: Callable[[int, int, int], float] = even_rate,
        bandwidth: float = 2 * TERA,
        precisions: tuple[str, ...] = ("bf16", "fp16", "tf32", "fp32", "fp64"),
        slower: float = 0.0,
        facts: GpuFacts | None = None,
    ) -> None:
        super().__init__(facts or HostDriver(memory_bytes=memory_bytes).open(0).facts, StandInQueue())
        self.rate = rate
        self.bandwidth = bandwidth
        self.precisions = precisions
        self.slower = slower
        self.measurements = 0
        self.now = 0.0
        self.multipliers: list[TimedMultiplier] = []
        self.copied: list[int] = []

    def pass_time(self, seconds: float) -> None:
        """Let the clock go on by work that takes so long on a device that has not slowed down."""
        self.now += seconds / (1 - self.slower * self.measurements)

    def allocate(self, nbytes: int) -> Any:
        return Nowhere(0, nbytes)

    def upload(self, address: int, content: NDArray[np.generic]) -> None:
        pass

    def timed_event(self) -> HostEvent:
        return TimedEvent(self)

    def elapsed(self, begin: HostEvent, end: HostEvent) -> float:
        self.measurements += 1
        return super().elapsed(begin, end)

    def multiplier(self, stream: Any, precision: Precision) -> TimedMultiplier:
        if precision not in self.precisions:
            raise PreflightError(f"no {precision} products on {self.facts.label}")
        self.multipliers.append(TimedMultiplier(self, precision))
        return self.multipliers[-1]

    def copy(self, source: int, target: int, nbytes: int, stream: Any) -> None:
        self.copied.append(nbytes)
        self.pass_time(2 * nbytes / self.bandwidth)


class TimedEvent(HostEvent):
    """Knows the time on its device's clock."""

    def __init__(self, device: TimedDevice) -> None:
        super().__init__(StandInQueue())
        self.device = device

    def record(self, stream: Any) -> None:
        self.nanoseconds = self.device.now * 1e9  # type: ignore[assignment]


class PowerMeter:
    """Knows a power limit and nothing else."""

    source = ""

    def __init__(self, watts: float) -> None:
        self.watts = watts
        self.closed = False

    def read(self) -> Reading:
        nan = float("nan")
        return Reading(nan, nan, nan, self.watts, nan)

    def close(self) -> None:
        self.closed = True


class TimedDriver(HostDriver):
    """A host whose GPUs are all one timed device."""

    def __init__(self, device: TimedDevice, gpus: int = 1, meter: Meter | None = None) -> None:
        super().__init__(gpus, meter=meter)
        self.device = device

    def open(self, index: int) -> TimedDevice:
        return self.device
