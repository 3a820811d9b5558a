"""Ranks of `test_clock_mpi.py`: forge one hardware clock per domain and find rank 0's time.

Arguments: ranks per domain; drift in ppm. The clocks stand hours apart and drift by multiples of it.
"""

from __future__ import annotations

import sys
import time

from mpi4py import MPI

from dlbench.records.schema import ClockModel
from dlbench.runtime.clock import GlobalClock

BASELINE_SECONDS = 0.3
HOUR_NS = 3_600 * 10**9

comm = MPI.COMM_WORLD
domain_size = int(sys.argv[1])
domain = comm.rank // domain_size
drift = domain * (-1) ** domain * float(sys.argv[2]) * 1e-6
begin: int = comm.bcast(time.perf_counter_ns())


def reading_at(true_ns: int) -> int:
    """Reading of this rank's forged clock; rank 0's neither stands off nor drifts."""
    return true_ns + domain * HOUR_NS + round((true_ns - begin) * drift)


def check(model: ClockModel, errors: list[float], drifts: list[float]) -> None:
    """Compare the model with the forgery, on rank 0."""
    for rank, uncertainty in enumerate(model.uncertainty):
        assert errors[rank] <= uncertainty + 2e-9, f"rank {rank} is off by {errors[rank]}: {model}"
        # The uncertainty may stand at either end of the baseline.
        assert abs(model.drift[rank] - drifts[rank]) <= 2 * uncertainty / BASELINE_SECONDS, f"{rank}: {model}"
        if rank < domain_size:
            assert (model.offset[rank], model.drift[rank], uncertainty) == (0.0, 0.0, 0.0)
        else:
            assert 0 < uncertainty < 0.1
            assert model.offset[rank] == model.offset[rank - rank % domain_size]


def main() -> None:
    """Measure twice, fit, and compare at a moment between the measurements."""
    clock = GlobalClock(comm, lambda: reading_at(time.perf_counter_ns()), f"forged {domain}")
    start = clock.measure(40)
    comm.Barrier()
    time.sleep(BASELINE_SECONDS)
    moment: int = comm.bcast(time.perf_counter_ns())
    comm.Barrier()
    model = clock.fit(start, clock.measure(40))

    truth = (moment - comm.bcast(clock.origin_ns)) * 1e-9
    errors = comm.gather(abs(clock.to_global(reading_at(moment)) - truth))
    drifts = comm.gather(1 / (1 + drift) - 1)
    if model is not None and errors is not None and drifts is not None:
        check(model, errors, drifts)
        print("agreed within", max(model.uncertainty), "s, off by", max(errors), "s")


main()
