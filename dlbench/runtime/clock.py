"""One clock for all ranks.

Ranks that read the same hardware clock form a clock domain; inside it there is nothing to synchronise. The lowest
rank of each domain leads it. Leaders synchronise by ping-pong along a binomial tree, in ⌈log₂ domains⌉ rounds, and
every leader's clock becomes a linear model of its parent's. Models compose along the tree into models of rank 0's
clock, the global clock (the scheme of Hunold and Carpen-Amarie, "Hierarchical Clock Synchronization in MPI",
CLUSTER 2018).

A drift is as well known as its baseline is long: the time from the first comparison of the clocks to the latest. So
they are compared again and again, and every model says how fast its error can grow.

Local time is seconds since the domain's origin, a reading that all domains take at about the same moment. So times
are small numbers and float64 keeps their nanoseconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mpi4py import MPI

    from dlbench.records.schema import ClockModel

EXCHANGES = 100
RESYNC_SECONDS = 10.0
"""The clocks are compared again after as much time as the baseline is long, and this at most."""
LARGEST_DRIFT = 500e-6
"""What two clocks are assumed to drift apart at most: ten times a quartz's tolerance of 50 ppm, and the largest
correction of frequency that Linux lets NTP make (`MAXFREQ` of its timex.h)."""
_TAG = 7337


def clock_domain() -> str:
    """Name of the hardware clock behind `time.perf_counter_ns`: equal on ranks that read the same one.

    On Linux a running kernel has one monotonic clock, which time namespaces can shift. The host name tells machines
    apart that were restored from one snapshot and so share a boot id; elsewhere it is all there is.
    """
    host = os.uname().nodename
    try:
        # Without pathlib: it loads five modules, which ranks have no other use for.
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:  # noqa: PTH123
            return f"{host} {boot.read().strip()} {os.readlink('/proc/self/ns/time')}"  # noqa: PTH115
    except OSError:
        return host


class Measurement(msgspec.Struct, frozen=True):
    """Where the parent's clock stood: parent = local + offset ± uncertainty at the local time. Seconds."""

    local: float
    offset: float
    uncertainty: float


class Line(msgspec.Struct, frozen=True):
    """Linear model of another clock: local + offset + drift × (local − reference).

    Its error is at most uncertainty + drift_uncertainty × |local − reference|.
    """

    offset: float = 0.0
    drift: float = 0.0
    uncertainty: float = 0.0
    drift_uncertainty: float = 0.0

    def at(self, seconds: float) -> Line:
        """The same model with its reference `seconds` later."""
        return Line(
            offset=self.offset + self.drift * seconds,
            drift=self.drift,
            uncertainty=self.uncertainty + self.drift_uncertainty * abs(seconds),
            drift_uncertainty=self.drift_uncertainty,
        )

    def after(self, inner: Line) -> Line:
        """Model of this line's target for a clock that `inner`, of the same reference, leads to this line's source."""
        outer = self.at(inner.offset)
        stretch, inner_stretch = 1.0 + abs(self.drift), 1.0 + abs(inner.drift)
        return Line(
            offset=inner.offset + outer.offset,
            drift=inner.drift + self.drift + inner.drift * self.drift,
            uncertainty=inner.uncertainty * stretch + outer.uncertainty,
            drift_uncertainty=inner.drift_uncertainty * stretch + self.drift_uncertainty * inner_stretch,
        )


def fit_line(first: Measurement, latest: Measurement) -> Line:
    """Line through two measurements, with the reference at the latest.

    Two uncertainties over a short baseline leave more room for the drift than the largest drift does: the drift is
    in the middle of what both allow. One measurement, given twice, leaves the assumption alone.
    """
    baseline = latest.local - first.local
    low, high = -LARGEST_DRIFT, LARGEST_DRIFT
    if baseline > 0:
        change, error = latest.offset - first.offset, first.uncertainty + latest.uncertainty
        measured = (change - error) / baseline, (change + error) / baseline
        low, high = max(low, measured[0]), min(high, measured[1])
        if low > high:  # measured beyond doubt, whatever is assumed
            low, high = measured
    return Line(latest.offset, (low + high) / 2, latest.uncertainty, (high - low) / 2)


def tree_edges(size: int) -> Iterator[tuple[int, int]]:
    """Edges (parent, child) of the binomial tree over 0 … size − 1, in the order of their rounds.

    In one round nobody takes part twice, and a parent's own edge lies in an earlier round than its children's.
    """
    stride = 1 << (size - 1).bit_length()
    while stride := stride >> 1:
        yield from ((child - stride, child) for child in range(stride, size, 2 * stride))


def compose(leaders: Sequence[int], edges: Sequence[Line]) -> list[Line]:
    """Models of rank 0's clock, per rank, from the edge of every leader to its parent in the tree.

    `leaders` holds per rank the leader of its domain; `edges` per rank its edge, of which only leaders' count. All
    have the same reference.
    """
    tree = sorted(set(leaders))
    models = {0: Line()}
    for parent, child in tree_edges(len(tree)):
        models[tree[child]] = models[tree[parent]].after(edges[tree[child]])
    return [models[leader] for leader in leaders]


class GlobalClock:
    """The clock of rank 0, as this rank reads it. Creation is collective, and the first comparison of the clocks.

    Global time is local time until `synchronise` is called. `clock` reads nanoseconds, `domain` names the hardware
    clock behind it, and `exchanges` is the number of ping-pongs in a comparison of two clocks.
    """

    def __init__(
        self,
        comm: MPI.Comm,
        clock: Callable[[], int] = time.perf_counter_ns,
        domain: str | None = None,
        exchanges: int = EXCHANGES,
    ) -> None:
        self._comm = comm
        self._clock = clock
        self._exchanges = exchanges
        comm.Barrier()
        reading = clock()
        self._unix_epoch = time.time() - (clock() - reading) * 1e-9
        members = comm.allgather((clock_domain() if domain is None else domain, reading))
        first_of: dict[str, int] = {}
        self.leaders = [first_of.setdefault(name, rank) for rank, (name, _) in enumerate(members)]
        """Per rank, the leader of its clock domain."""
        self.origin_ns: int = members[self.leaders[comm.rank]][1]
        """Reading at local time 0."""
        self._tree = sorted(set(self.leaders))
        self._first = self._latest = self._measure()
        self._edge = fit_line(self._first, self._latest)
        self._line = Line()
        self._reference = 0.0

    def due(self) -> bool:
        """Whether the clocks should be compared again, by the clock of this rank; never in a single domain.

        As long as no line is followed for longer than its baseline, the error stays below three uncertainties.
        """
        age = self._local(self._clock()) - self._latest.local
        baseline = self._latest.local - self._first.local
        return len(self._tree) > 1 and age >= min(baseline, RESYNC_SECONDS)

    def synchronise(self) -> ClockModel | None:
        """Compare the clocks and set every rank's model of the global one; rank 0 returns all. Collective.

        Ranks of a single domain exchange no messages.
        """
        self._learn(self._measure())
        if len(self._tree) == 1:
            return self._model(self._latest.local, [Line()] * self._comm.size) if self._comm.rank == 0 else None
        edges = self._comm.gather((self._latest.local, self._edge))
        fitted: list[tuple[float, Line]] | None = None
        model = None
        if edges is not None:
            reference = max(local for local, _ in edges)
            lines = compose(self.leaders, [edge.at(reference - local) for local, edge in edges])
            fitted = [(reference, line) for line in lines]
            model = self._model(reference, lines)
        self._reference, self._line = self._comm.scatter(fitted)
        return model

    def now(self) -> float:
        """Global time in seconds."""
        return self.to_global(self._clock())

    @overload
    def to_global(self, local_ns: int) -> float: ...
    @overload
    def to_global(self, local_ns: NDArray[np.int64]) -> NDArray[np.float64]: ...
    def to_global(self, local_ns: int | NDArray[np.int64]) -> Any:
        """Global time in seconds of clock readings in nanoseconds: one, or an array of them."""
        local = (local_ns - self.origin_ns) * 1e-9
        return local + self._line.offset + self._line.drift * (local - self._reference)

    def to_local(self, seconds: float) -> int:
        """Clock reading in nanoseconds at a global time: the inverse of `to_global`."""
        line = self._line
        local = (seconds - line.offset + line.drift * self._reference) / (1.0 + line.drift)
        return self.origin_ns + round(local * 1e9)

    def wait_until(self, seconds: float, sleep_until: Callable[[int], None]) -> float:
        """Wait for a global time; return by how many seconds this rank came after it, 0 where it came in time.

        `sleep_until` takes a clock reading, as `dlbench.compute.sleep.Sleeper.until` does.
        """
        deadline = self.to_local(seconds)
        late = self._clock() - deadline
        if late > 0:
            return late * 1e-9
        sleep_until(deadline)
        return 0.0

    def _local(self, reading: float) -> float:
        return (reading - self.origin_ns) * 1e-9

    def _model(self, reference: float, lines: Sequence[Line]) -> ClockModel:
        from dlbench.records.schema import ClockModel  # noqa: PLC0415 - rank 0 only

        return ClockModel(
            reference=reference,
            offset=[line.offset for line in lines],
            drift=[line.drift for line in lines],
            uncertainty=[line.uncertainty for line in lines],
            drift_uncertainty=[line.drift_uncertainty for line in lines],
            unix_epoch=self._unix_epoch,
        )

    def _learn(self, found: Measurement) -> None:
        """Fit the line to the parent's clock. One that left its line changed its drift: it needs a new baseline."""
        expected = self._edge.at(found.local - self._latest.local)
        if abs(found.offset - expected.offset) > found.uncertainty + expected.uncertainty:
            self._first = self._latest
        self._latest = found
        self._edge = fit_line(self._first, found)

    def _measure(self) -> Measurement:
        """Measure the parent's clock in the tree. Collective."""
        own = Measurement(self._local(self._clock()), 0.0, 0.0)
        for parent, child in tree_edges(len(self._tree)):
            if self._tree[parent] == self._comm.rank:
                self._answer(self._tree[child])
            elif self._tree[child] == self._comm.rank:
                own = self._ask(self._tree[parent])
        return own

    def _answer(self, child: int) -> None:
        message = np.zeros(1, np.int64)
        for _ in range(self._exchanges):
            self._comm.Recv(message, child, _TAG)
            message[0] = self._clock() - self.origin_ns
            self._comm.Send(message, child, _TAG)

    def _ask(self, parent: int) -> Measurement:
        """Keep the exchange with the shortest round trip: the parent read its clock somewhere inside it."""
        message = np.zeros(1, np.int64)
        best = (1 << 62, 0, 0)
        for _ in range(self._exchanges):
            sent = self._clock()
            self._comm.Send(message, parent, _TAG)
            self._comm.Recv(message, parent, _TAG)
            best = min(best, (self._clock() - sent, sent, int(message[0])))
        round_trip, sent, answer = best
        middle = self._local(sent + round_trip / 2)
        return Measurement(local=middle, offset=answer * 1e-9 - middle, uncertainty=round_trip * 0.5e-9)
