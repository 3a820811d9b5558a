"""Energy of the iterations: the GPU of a rank is read once between two of them, outside the timed region."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dlbench.accelerator.protocol import Meter, Reading
    from dlbench.comm.library import MPI


class EnergyRow(NamedTuple):
    """Columns of a rank's row: the fields of the record's `Energy`, NaN for what the GPU does not tell."""

    joules: float
    seconds: float
    sm_mhz: float
    memory_mhz: float
    power_limit_watts: float
    throttle: float


UNTOLD = EnergyRow(*[math.nan] * len(EnergyRow._fields))
"""Of a rank without a meter."""


class EnergyReader:
    """What a rank's GPU says of itself, reading by reading; `now` is in seconds.

    Every reading ends one interval and begins the next, so that nothing is lost between iterations.
    """

    def __init__(self, meter: Meter | None, now: Callable[[], float] = perf_counter) -> None:
        self._meter = meter
        self._now = now
        self._time = math.nan
        self._reading: Reading | None = None

    @property
    def source(self) -> str | None:
        """Where joules come from, as `Meter.source`; None without a meter."""
        return self._meter.source if self._meter else None

    def begin(self) -> None:
        """The reading before the first iteration."""
        self.row()

    def row(self) -> EnergyRow:
        """Read the GPU: energy and time since the reading before, and what else it says now."""
        if self._meter is None:
            return UNTOLD
        time, reading = self._now(), self._meter.read()
        last_time, last = self._time, self._reading or reading
        self._time, self._reading = time, reading
        joules = reading.joules - last.joules
        known = joules >= 0  # neither NaN, nor of a counter that began anew
        return EnergyRow(
            joules=joules if known else math.nan,
            seconds=time - last_time if known else math.nan,
            sm_mhz=reading.sm_mhz,
            memory_mhz=reading.memory_mhz,
            power_limit_watts=reading.power_limit_watts,
            throttle=_either(last.throttle, reading.throttle),
        )

    def close(self) -> None:
        """Stop the meter."""
        if self._meter:
            self._meter.close()


def _either(before: float, after: float) -> float:
    """Bits of both masks, as far as they are known."""
    known = [int(mask) for mask in (before, after) if not math.isnan(mask)]
    return float(known[0] | known[-1]) if known else math.nan


def agreed_source(comm: MPI.Intracomm, source: str | None) -> str | None:
    """Where the joules of the run come from, on every rank; None where no rank has a meter. Collective."""
    sources = comm.gather(source)
    agreed: str | None = comm.bcast(None if sources is None else joined_sources(sources))
    return agreed


def joined_sources(sources: Sequence[str | None]) -> str | None:
    """The distinct sources of all ranks, e.g. `counter and sampled power`; None where none has a meter."""
    told = {source for source in sources if source is not None}
    return " and ".join(sorted(told - {""})) if told else None
