"""Sleeps to absolute deadlines: the roofline's durations as time that passes and leaves the cores alone.

Every phase has its own deadline, its enter + its duration. A phase that ended late does not shorten the next one:
the lateness is real time of that phase, and borrowing it would hide it from the record.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from dlbench.compute.none import no_time

if TYPE_CHECKING:
    from dlbench.compute.protocol import Phase

_PR_SET_TIMERSLACK = 29
_CALIBRATION_SLEEPS = 20
_CALIBRATION_SECONDS = 1e-3
SPIN_LIMIT_NS = 100_000
"""Longest spin where every rank has a core of its own."""
CROWDED_SPIN_LIMIT_NS = 30_000
"""Longest spin where ranks outnumber cores; it yields the core meanwhile."""
POLL_SECONDS = 100e-6
"""Sleep between two calls of `progress`."""


def set_timer_slack(nanoseconds: int) -> bool:
    """Set how late the kernel may wake this thread to save power; 0 means its default, 50 µs.

    False where the kernel has no such setting.
    """
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, nanoseconds, 0, 0, 0) == 0)


def wake_latency_ns() -> int:
    """90th percentile of how late the kernel wakes this thread from a sleep long enough for the core to idle."""
    late = []
    for _ in range(_CALIBRATION_SLEEPS):
        enter = time.perf_counter_ns()
        time.sleep(_CALIBRATION_SECONDS)
        late.append(time.perf_counter_ns() - enter - round(_CALIBRATION_SECONDS * 1e9))
    return sorted(late)[_CALIBRATION_SLEEPS * 9 // 10]


def spin(deadline_ns: int) -> None:
    """Burn the core until a deadline on `time.perf_counter_ns`."""
    clock = time.perf_counter_ns
    while clock() < deadline_ns:
        pass


def _spin_yielding(deadline_ns: int) -> None:
    clock, give_way = time.perf_counter_ns, os.sched_yield
    while clock() < deadline_ns:
        give_way()


class Sleeper:
    """Sleeps of the calling thread to deadlines on `time.perf_counter_ns`.

    The kernel wakes a thread late by its wake-up latency. A sleep therefore ends that much early, and a spin covers
    the rest. Where ranks outnumber cores (`ranks_per_core` > 1) a spin takes the core from a rank that has work to
    do, so it is shorter, and yields.
    """

    def __init__(self, ranks_per_core: float = 1.0) -> None:
        self.sharp = set_timer_slack(1)
        self.crowded = ranks_per_core > 1
        limit = CROWDED_SPIN_LIMIT_NS if self.crowded else SPIN_LIMIT_NS
        self.spin_ns = min(limit, wake_latency_ns())
        self._spin = _spin_yielding if self.crowded else spin

    def until(self, deadline_ns: int) -> None:
        """Return at the deadline; at once where it has passed."""
        left = deadline_ns - time.perf_counter_ns() - self.spin_ns
        if left > 0:
            time.sleep(left * 1e-9)
        self._spin(deadline_ns)

    def lasting(self, nanoseconds: int, progress: Callable[[], None] | None = None) -> Callable[[], None]:
        """Bind a sleep of that length; `progress` is called first, and every `POLL_SECONDS` while the end is far."""
        clock, sleep, until = time.perf_counter_ns, time.sleep, self.until
        if progress is None:
            return lambda: until(clock() + nanoseconds)

        reach = round(POLL_SECONDS * 1e9) + self.spin_ns

        def sleep_and_poll() -> None:
            deadline = clock() + nanoseconds
            progress()
            while deadline - clock() > reach:
                sleep(POLL_SECONDS)
                progress()
            until(deadline)

        return sleep_and_poll


class SleepCompute:
    """Sleeps as long as the roofline says."""

    name = "sleep"
    timed = True
    on_device = False

    def __init__(self, ranks_per_core: float = 1.0) -> None:
        self.sleeper = Sleeper(ranks_per_core)

    def describe(self) -> dict[str, str]:
        """Timer slack and spin, as they turned out on this rank."""
        return {
            "timer_slack": "1 ns" if self.sleeper.sharp else "default",
            "spin": f"{self.sleeper.spin_ns / 1000:.1f} us" + (", yielding" if self.sleeper.crowded else ""),
        }

    def remarks(self, phases: Iterable[Phase]) -> list[str]:
        """Nothing to remark."""
        return []

    def memory_bytes(self, phases: Iterable[Phase]) -> int:
        """Sleeping needs no memory."""
        return 0

    def prepare(self, phases: Iterable[Phase]) -> None:
        """Nothing to allocate."""

    def bind(self, phase: Phase, progress: Callable[[], None] | None = None) -> Callable[[], None]:
        """Bind a phase; `progress` is called first, and again every `POLL_SECONDS` while the deadline is far."""
        duration = round(phase.seconds * 1e9)
        return self.sleeper.lasting(duration, progress) if duration > 0 else no_time

    def close(self) -> None:
        """Nothing to give back."""
