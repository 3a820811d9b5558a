"""One clock for all ranks.

Ranks that read the same hardware clock form a clock domain; inside it there is nothing to synchronise. The lowest
rank of each domain leads it. Leaders synchronise by ping-pong along a binomial tree, in ⌈log₂ domains⌉ rounds, and
every leader's clock becomes a linear model of its parent's. Models compose along the tree into models of rank 0's
clock, the global clock (the scheme of Hunold and Carpen-Amarie, "Hierarchical Clock Synchronization in MPI",
CLUSTER 2018).

Local time is seconds since the domain's origin, a reading that all domains take at about the same moment. So times
are small numbers and float64 keeps their nanoseconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from dlbench.records.schema import ClockModel

if TYPE_CHECKING:
    from mpi4py import MPI

EXCHANGES = 100
_TAG = 7337


def clock_domain() -> str:
    """Name of the hardware clock behind `time.perf_counter_ns`: equal on ranks that read the same one.

    On Linux a running kernel has one monotonic clock, which time namespaces can shift. The host name tells machines
    apart that were restored from one snapshot and so share a boot id; elsewhere it is all there is.
    """
    host = os.uname().nodename
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{host} {boot} {Path('/proc/self/ns/time').readlink()}"
    except OSError:
        return host


class Measurement(msgspec.Struct, frozen=True):
    """Where the parent's clock stood: parent = local + offset ± uncertainty at the local time. Seconds."""

    local: float
    offset: float
    uncertainty: float


class Line(msgspec.Struct, frozen=True):
    """Linear model of another clock: local + offset + drift × (local − reference), with one reference for all."""

    offset: float = 0.0
    drift: float = 0.0
    uncertainty: float = 0.0

    def after(self, inner: Line) -> Line:
        """Model of this line's target for a clock that `inner` leads to this line's source."""
        return Line(
            offset=inner.offset + self.offset + self.drift * inner.offset,
            drift=inner.drift + self.drift + inner.drift * self.drift,
            uncertainty=inner.uncertainty + self.uncertainty,
        )


def fit_line(start: Measurement, end: Measurement | None, reference: float) -> Line:
    """Line through two measurements, evaluated at `reference`; `uncertainty` bounds its error between them.

    The baseline is too short for a drift as long as the two uncertainties alone could explain the difference of the
    offsets: then, and without a second measurement, the drift is 0.
    """
    if end is None:
        return Line(start.offset, 0.0, start.uncertainty)
    change = end.offset - start.offset
    uncertainty = max(start.uncertainty, end.uncertainty)
    if abs(change) <= start.uncertainty + end.uncertainty:
        return Line(start.offset, 0.0, uncertainty + abs(change))
    drift = change / (end.local - start.local)
    return Line(start.offset + drift * (reference - start.local), drift, uncertainty)


def tree_edges(size: int) -> Iterator[tuple[int, int]]:
    """Edges (parent, child) of the binomial tree over 0 … size − 1, in the order of their rounds.

    In one round nobody takes part twice, and a parent's own edge lies in an earlier round than its children's.
    """
    stride = 1 << (size - 1).bit_length()
    while stride := stride >> 1:
        yield from ((child - stride, child) for child in range(stride, size, 2 * stride))


def compose(leaders: Sequence[int], edges: Sequence[Line]) -> list[Line]:
    """Models of rank 0's clock, per rank, from the edge of every leader to its parent in the tree.

    `leaders` holds per rank the leader of its domain; `edges` per rank its edge, of which only leaders' count.
    """
    tree = sorted(set(leaders))
    models = {0: Line()}
    for parent, child in tree_edges(len(tree)):
        models[tree[child]] = models[tree[parent]].after(edges[tree[child]])
    return [models[leader] for leader in leaders]


class GlobalClock:
    """The clock of rank 0, as this rank reads it. Creation is collective.

    Measure at least once, then `fit`; until then global time is local time. `clock` reads nanoseconds and `domain`
    names the hardware clock behind it.
    """

    def __init__(
        self,
        comm: MPI.Comm,
        clock: Callable[[], int] = time.perf_counter_ns,
        domain: str | None = None,
    ) -> None:
        self._comm = comm
        self._clock = clock
        comm.Barrier()
        reading = clock()
        self._unix_epoch = time.time() - (clock() - reading) * 1e-9
        members = comm.allgather((clock_domain() if domain is None else domain, reading))
        first_of: dict[str, int] = {}
        self.leaders = [first_of.setdefault(name, rank) for rank, (name, _) in enumerate(members)]
        """Per rank, the leader of its clock domain."""
        self.origin_ns: int = members[self.leaders[comm.rank]][1]
        """Reading at local time 0."""
        self._line = Line()
        self._reference = 0.0

    def measure(self, exchanges: int = EXCHANGES) -> Measurement:
        """Measure the parent's clock in the tree by `exchanges` ping-pongs. Collective; free in a single domain."""
        tree = sorted(set(self.leaders))
        own = Measurement(self._local(self._clock()), 0.0, 0.0)
        for parent, child in tree_edges(len(tree)):
            if tree[parent] == self._comm.rank:
                self._answer(tree[child], exchanges)
            elif tree[child] == self._comm.rank:
                own = self._ask(tree[parent], exchanges)
        return own

    def fit(self, start: Measurement, end: Measurement | None = None) -> ClockModel | None:
        """Set this rank's model of the global clock; rank 0 returns all ranks' models. Collective.

        The offsets hold at the time of `start`, and `uncertainty` bounds their error; with `end` the bound holds
        from `start` to `end`, for clocks of constant drift.
        """
        pairs = self._comm.gather((start, end))
        fitted: list[tuple[float, Line]] | None = None
        model = None
        if pairs is not None:
            reference = max(first.local for first, _ in pairs)
            lines = compose(self.leaders, [fit_line(first, last, reference) for first, last in pairs])
            fitted = [(reference, line) for line in lines]
            model = ClockModel(
                reference=reference,
                offset=[line.offset for line in lines],
                drift=[line.drift for line in lines],
                uncertainty=[line.uncertainty for line in lines],
                unix_epoch=self._unix_epoch,
            )
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

    def _answer(self, child: int, exchanges: int) -> None:
        message = np.zeros(1, np.int64)
        for _ in range(exchanges):
            self._comm.Recv(message, child, _TAG)
            message[0] = self._clock() - self.origin_ns
            self._comm.Send(message, child, _TAG)

    def _ask(self, parent: int, exchanges: int) -> Measurement:
        """Keep the exchange with the shortest round trip: the parent read its clock somewhere inside it."""
        message = np.zeros(1, np.int64)
        best = (1 << 62, 0, 0)
        for _ in range(exchanges):
            sent = self._clock()
            self._comm.Send(message, parent, _TAG)
            self._comm.Recv(message, parent, _TAG)
            best = min(best, (self._clock() - sent, sent, int(message[0])))
        round_trip, sent, answer = best
        middle = self._local(sent + round_trip / 2)
        return Measurement(local=middle, offset=answer * 1e-9 - middle, uncertainty=round_trip * 0.5e-9)
