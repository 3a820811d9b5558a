"""Energy as the integral of sampled power."""

from __future__ import annotations

import math
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbench.accelerator.power import PERIOD, PowerIntegral, PowerSampler


def integral(*samples: tuple[float, float]) -> PowerIntegral:
    """An integral over (seconds, watts), of which it has taken the first."""
    times, watts = (iter(column) for column in zip(*samples, strict=True))
    return PowerIntegral(lambda: next(watts), lambda: next(times))


def joules(*samples: tuple[float, float]) -> list[float]:
    made = integral(*samples)
    return [made.sample() for _ in samples[1:]]


def test_constant_power_times_time() -> None:
    assert joules((10.0, 300.0), (10.5, 300.0), (12.0, 300.0)) == [150.0, 600.0]


def test_between_two_samples_power_is_a_straight_line() -> None:
    # (100 + 300) / 2 × 0.5 = 100; then (300 + 200) / 2 × 0.1 = 25
    assert joules((0.0, 100.0), (0.5, 300.0), (0.6, 200.0)) == pytest.approx([100.0, 125.0])


def test_a_sample_that_is_missing_is_bridged_by_its_neighbours() -> None:
    missing, bridged = joules((0.0, 100.0), (1.0, math.nan), (2.0, 200.0))
    assert math.isnan(missing)
    assert bridged == 300.0  # (100 + 200) / 2 × 2


def test_a_gpu_whose_first_power_is_unknown_has_no_energy() -> None:
    assert all(map(math.isnan, joules((0.0, math.nan), (1.0, 100.0), (2.0, 100.0))))


@given(st.lists(st.tuples(st.floats(1e-3, 10), st.floats(0, 1000)), min_size=1, max_size=20), st.floats(0, 1000))
def test_energy_lies_between_the_lowest_and_the_highest_power(steps: list[tuple[float, float]], first: float) -> None:
    moments = [0.0]
    for seconds, _ in steps:
        moments.append(moments[-1] + seconds)
    powers = [first, *(watts for _, watts in steps)]
    found = joules(*zip(moments, powers, strict=True))
    assert found == sorted(found), "energy never shrinks"
    slack = 1 + 1e-9
    assert min(powers) * moments[-1] <= found[-1] * slack
    assert found[-1] <= max(powers) * moments[-1] * slack


def test_a_thread_samples_until_it_is_closed() -> None:
    reads: list[float] = []
    thrice = threading.Event()

    def watts() -> float:
        reads.append(100.0)
        if len(reads) == 4:  # the first is that of the beginning
            thrice.set()
        return 100.0

    sampler = PowerSampler(PowerIntegral(watts), period=0.001)
    assert thrice.wait(10)
    sampler.close()
    count = len(reads)
    time.sleep(0.01)
    assert len(reads) == count
    sampler.close()


def test_a_reading_is_up_to_date_without_waiting_for_the_thread() -> None:
    moments = iter([0.0, 2.0])
    sampler = PowerSampler(PowerIntegral(lambda: 50.0, lambda: next(moments)), period=3600)
    assert sampler.joules() == 100.0
    sampler.close()


def test_the_thread_does_not_keep_the_process_from_its_end() -> None:
    sampler = PowerSampler(PowerIntegral(lambda: 1.0), period=3600)
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "power sampling"]
    assert thread.daemon
    sampler.close()
    assert not thread.is_alive()


def test_sampling_is_between_10_and_20_times_a_second() -> None:
    assert 1 / 20 <= PERIOD <= 1 / 10
