"""Spins on the GPU: as long as the roofline says, launch included."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pytest
from host_device import HostDevice, HostDriver, StandInQueue

from dlbench.compute.spin import SpinCompute


@dataclass(frozen=True)
class Lasting:
    seconds: float
    gemms: tuple[tuple[int, int, int, float], ...] = ()


class SlowLaunch(HostDevice):
    """Takes `launch_ns` on top of every spin, and keeps what was asked for."""

    def __init__(self, launch_ns: int) -> None:
        super().__init__(HostDriver().open(0).facts, StandInQueue())
        self.launch_ns = launch_ns
        self.asked: list[int] = []

    def spin(self, stream: Any, nanoseconds: int) -> None:
        self.asked.append(nanoseconds)
        deadline = time.perf_counter_ns() + self.launch_ns + nanoseconds
        while time.perf_counter_ns() < deadline:
            pass


def test_a_phase_lasts_as_long_as_the_roofline_says() -> None:
    compute = SpinCompute(HostDriver().open(0))
    run = compute.bind(Lasting(0.005))
    enter = time.perf_counter()
    run()
    assert time.perf_counter() - enter >= 0.00499
    assert compute.timed
    assert compute.on_device


def test_the_time_of_a_launch_is_left_out_of_the_kernels_own() -> None:
    device = SlowLaunch(50_000)
    compute = SpinCompute(device)
    assert 50_000 <= compute.overhead_ns < 1_000_000
    compute.bind(Lasting(0.002))()
    assert device.asked[-1] == 2_000_000 - compute.overhead_ns


def test_a_phase_shorter_than_a_launch_is_a_kernel_of_no_duration_and_remarked() -> None:
    device = SlowLaunch(50_000)
    compute = SpinCompute(device)
    compute.bind(Lasting(1e-6))()
    assert device.asked[-1] == 0
    launch = f"{compute.overhead_ns / 1000:.1f} us"
    assert compute.remarks([Lasting(1e-6), Lasting(0.0), Lasting(1.0)]) == [
        f"spin takes too long for 1 phases shorter than a launch, {launch}"
    ]
    assert compute.remarks([Lasting(1.0)]) == []


def test_a_phase_without_duration_launches_nothing() -> None:
    device = SlowLaunch(0)
    compute = SpinCompute(device)
    device.asked.clear()
    compute.bind(Lasting(0.0))()
    assert device.asked == []


def test_requests_in_flight_are_driven_until_the_event_is_done() -> None:
    device = SlowLaunch(0)
    compute = SpinCompute(device)

    class ThirdTime:
        asked = 0

        def record(self, stream: Any) -> None:
            self.asked = 0

        @property
        def done(self) -> bool:
            self.asked += 1
            return self.asked == 3

    compute._end = ThirdTime()  # type: ignore[assignment]
    calls: list[int] = []
    compute.bind(Lasting(1e-5), lambda: calls.append(1))()
    assert len(calls) == 2


def test_spinning_needs_no_memory_and_tells_device_and_launch() -> None:
    compute = SpinCompute(HostDriver().open(0))
    compute.prepare([Lasting(1.0)])
    assert compute.memory_bytes([Lasting(1.0)]) == 0
    assert compute.describe() == {"device": "host memory", "launch": f"{compute.overhead_ns / 1000:.1f} us"}
    compute.close()


@pytest.mark.parametrize("launch", [0, 20_000])
def test_a_phase_does_not_end_early_whatever_a_launch_takes(launch: int) -> None:
    run = SpinCompute(SlowLaunch(launch)).bind(Lasting(0.001))
    for _ in range(5):
        enter = time.perf_counter_ns()
        run()
        assert time.perf_counter_ns() - enter >= 990_000
