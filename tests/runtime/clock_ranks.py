"""Ranks of `test_clock_mpi.py`: forge one hardware clock per domain and find rank 0's time over four minutes.

Arguments: ranks per domain; drift in ppm. The clocks stand hours apart and drift by multiples of it. Nobody waits
for the minutes to pass: all clocks jump ahead together.
"""

from __future__ import annotations

import sys
import time

from mpi4py import MPI

from dlbench.records.schema import ClockModel
from dlbench.runtime.clock import RESYNC_SECONDS, GlobalClock

HOUR_NS = 3_600 * 10**9
SET_UP_SECONDS = 0.5
RUN_SECONDS = 240.0
SMALL_BOUND_SECONDS = 1e-3
"""Less than what 10 ppm make in that time (2.4 ms), more than the messages of an overloaded machine take."""

comm = MPI.COMM_WORLD
domain_size = int(sys.argv[1])
domain = comm.rank // domain_size
drift = domain * (-1) ** domain * float(sys.argv[2]) * 1e-6


class ForgedTime:
    """The time that has passed since the ranks began, in nanoseconds, with its jumps."""

    def __init__(self) -> None:
        self._begin: int = comm.bcast(time.perf_counter_ns())

    def now(self) -> int:
        return time.perf_counter_ns() - self._begin

    def pass_by(self, seconds: float) -> None:
        comm.Barrier()
        self._begin -= round(seconds * 1e9)
        comm.Barrier()


def reading_at(passed_ns: int) -> int:
    """Reading of this rank's forged clock; rank 0's neither stands off nor drifts."""
    return passed_ns + domain * HOUR_NS + round(passed_ns * drift)


def compare(clock: GlobalClock, passed_ns: int, model: ClockModel | None) -> float:
    """Compare all ranks' global times with the forgery, and the errors with the model's bounds; return the time."""
    passed_ns = comm.bcast(passed_ns)
    truth = (passed_ns - comm.bcast(clock.origin_ns)) * 1e-9
    errors = comm.gather(abs(clock.to_global(reading_at(passed_ns)) - truth))
    if errors is not None and model is not None:
        bounds = model.error(truth)
        for rank, (error, bound) in enumerate(zip(errors, bounds, strict=True)):
            assert error <= bound + 2e-9, f"rank {rank} is off by {error}, beyond {bound}: {model}"
            assert (bound == 0) == (rank < domain_size)
        assert truth < 60 or max(bounds) < SMALL_BOUND_SECONDS, f"{bounds} after {truth} s"
        print(f"after {truth:.0f} s off by {max(errors):.1e} s, at most {max(bounds):.1e} s", flush=True)
    return truth


def compare_drifts(model: ClockModel, drifts: list[float]) -> None:
    for rank, (found, forged) in enumerate(zip(model.drift, drifts, strict=True)):
        assert abs(found - forged) <= model.drift_uncertainty[rank] + 1e-12, f"rank {rank}, {forged}: {model}"


def main() -> None:
    """Synchronise as often as a run does, with iterations of one second, and compare before and after."""
    passed = ForgedTime()
    clock = GlobalClock(comm, lambda: reading_at(passed.now()), f"forged {domain}", exchanges=40)
    passed.pass_by(SET_UP_SECONDS)
    model = clock.synchronise()
    synchronisations = 1
    while compare(clock, passed.now(), model) < RUN_SECONDS:
        passed.pass_by(1.0)
        compare(clock, passed.now(), model)
        if comm.bcast(clock.due()):
            model = clock.synchronise()
            synchronisations += 1
    assert synchronisations <= RUN_SECONDS / RESYNC_SECONDS + 5
    drifts = comm.gather(1 / (1 + drift) - 1)
    if model is not None and drifts is not None:
        compare_drifts(model, drifts)
        print("agreed within", max(model.uncertainty), "s and", max(model.drift_uncertainty), "s/s")


main()
