"""The roofline's durations as a kernel that occupies the GPU's stream, by the GPU's own clock, without arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter_ns
from typing import TYPE_CHECKING

from dlbench.compute.none import no_time
from dlbench.compute.waiting import wait

if TYPE_CHECKING:
    from dlbench.accelerator.protocol import Device, Stream
    from dlbench.compute.protocol import Phase

_CALIBRATION_SPINS = 20
_CALIBRATION_NS = 100_000


class SpinCompute:
    """Spins on the GPU as long as the roofline says, on `stream` (default: a new one).

    To launch a kernel and to learn of its end takes microseconds, which would come on top of every phase. The shortest
    time that this took at the start is left out of the kernel's own, so that phases do not end early.
    """

    name = "spin"
    timed = True
    on_device = True

    def __init__(self, device: Device, stream: Stream | None = None) -> None:
        self._device = device
        self._stream = stream or device.stream()
        self._end = device.event()
        self.overhead_ns = self._measured_overhead()

    def describe(self) -> dict[str, str]:
        """Device, and the time of a launch, as it turned out on this rank."""
        return {"device": self._device.facts.name, "launch": f"{self.overhead_ns / 1000:.1f} us"}

    def remarks(self, phases: Iterable[Phase]) -> list[str]:
        """Says so where phases are shorter than a launch."""
        short = sum(0 < phase.seconds * 1e9 < self.overhead_ns for phase in phases)
        launch = f"{self.overhead_ns / 1000:.1f} us"
        return [f"spin takes too long for {short} phases shorter than a launch, {launch}"] if short else []

    def memory_bytes(self, phases: Iterable[Phase]) -> int:
        """Spinning needs no memory."""
        return 0

    def prepare(self, phases: Iterable[Phase]) -> None:
        """Nothing to allocate."""

    def bind(self, phase: Phase, progress: Callable[[], None] | None = None) -> Callable[[], None]:
        """Bind a phase; `progress` is called while it lasts."""
        duration = round(phase.seconds * 1e9)
        return self._spinning(max(0, duration - self.overhead_ns), progress) if duration > 0 else no_time

    def close(self) -> None:
        """Finish the stream."""
        self._stream.synchronize()

    def _spinning(self, nanoseconds: int, progress: Callable[[], None] | None) -> Callable[[], None]:
        launch, stream, end = self._device.spin, self._stream, self._end

        def spin() -> None:
            launch(stream, nanoseconds)
            end.record(stream)
            wait(end, progress)

        return spin

    def _measured_overhead(self) -> int:
        """Nanoseconds by which the shortest of some spins outlasts its kernel; the first loads it."""
        spin = self._spinning(_CALIBRATION_NS, None)
        durations = []
        for _ in range(1 + _CALIBRATION_SPINS):
            enter = perf_counter_ns()
            spin()
            durations.append(perf_counter_ns() - enter)
        return max(0, min(durations[1:]) - _CALIBRATION_NS)
