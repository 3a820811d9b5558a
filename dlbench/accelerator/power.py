"""Energy of a GPU that counts none: the integral of its power, which a thread samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from threading import Event, Lock, Thread
from time import perf_counter

PERIOD = 0.05
"""Seconds between two samples: 20 a second, which costs a core next to nothing."""

_PATIENCE = 1.0
"""Seconds that closing waits for a sample under way; the thread does not keep the process from its end."""


class PowerIntegral:
    """Joules since it was made, by the trapezoid rule over samples of `watts`; `now` is in seconds.

    `watts` returns NaN for a moment at which the power is not told. The line from the sample before it to the one
    behind it takes its place.
    """

    def __init__(self, watts: Callable[[], float], now: Callable[[], float] = perf_counter) -> None:
        self._read = watts
        self._now = now
        self._lock = Lock()
        self._joules = 0.0
        self._time, self._watts = now(), watts()

    def sample(self) -> float:
        """Joules up to now, with a sample of now; NaN where the power is not told. Any thread may call it."""
        with self._lock:
            time, watts = self._now(), self._read()
            if math.isnan(watts):
                return math.nan
            self._joules += (self._watts + watts) / 2 * (time - self._time)
            self._time, self._watts = time, watts
            return self._joules


class PowerSampler:
    """Keeps sampling an integral, every `period` seconds, until it is closed."""

    def __init__(self, integral: PowerIntegral, period: float = PERIOD) -> None:
        self._integral = integral
        self._period = period
        self._closed = Event()
        # A daemon: a rank that breaks off must not wait for it.
        self._thread = Thread(target=self._run, name="power sampling", daemon=True)
        self._thread.start()

    def joules(self) -> float:
        """Joules up to now; NaN where the power is not told."""
        return self._integral.sample()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join(_PATIENCE)

    def _run(self) -> None:
        while not self._closed.wait(self._period):
            self._integral.sample()
