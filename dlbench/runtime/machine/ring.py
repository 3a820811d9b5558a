"""A token that goes once round all ranks: every link of the ring carries checked messages, and is timed.

One hop is under way at a time, so a link is named whether it hangs or corrupts, and is timed without the others. The
rank that holds the token has a limit for its hop; the rank that gave it the token waits somewhat longer for it to go
on. So one of two ranks says who is stuck, after a time that does not depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlbench.comm.library import MPI
from dlbench.comm.payload import Message
from dlbench.runtime.machine.survey import Fault, Hop, Lap
from dlbench.runtime.watchdog import Limits, Watchdog

SIZES = {8: 20, 64 * 1024: 5, 1024 * 1024: 4}
"""Bytes of a message, and how often it goes to and fro. The first time connects, and is not timed."""
SMALLEST, LARGEST = min(SIZES), max(SIZES)
_PATIENCE_SECONDS = 5.0
"""How much longer than a rank that can name the culprit those wait that cannot: it takes its time to end the job."""
_TAG = 7338
_WORD = np.dtype(np.uint64)

Words = NDArray[np.uint64]


class Ring:
    """The ring of all ranks, seen from this one. `hop_seconds` is the limit of a hop."""

    def __init__(self, comm: MPI.Intracomm, host: str, watchdog: Watchdog, hop_seconds: float) -> None:
        self._comm = comm
        self._host = host
        self._watchdog = watchdog
        self._start = watchdog.limits
        self._hop = Limits(hop_seconds, "--hop-timeout", self._start.grace_seconds)
        self._next, self._previous = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        self._names = {comm.rank: f"rank {comm.rank} ({host})"}
        self._under_way = ""
        self._faults: dict[tuple[int, int], Fault] = {}
        self._payloads = {rank: _payloads(rank, comm.size) for rank in {comm.rank, self._next, self._previous}}

    def run(self) -> Lap:
        """Pass the token on once. Collective; all messages go between neighbours, but for one barrier."""
        if self._comm.size == 1:
            return Lap()
        self._greet()
        if self._comm.rank:
            self._enter(f"waiting for the token from {self._names[self._previous]}", self._start)
            self._answer()
        hop = self._pass_on()
        if self._comm.size > 2 and self._comm.rank:  # noqa: PLR2004 - of two ranks each is busy with the other
            self._comm.Send(_signal(), self._previous, _TAG)
        if self._comm.size > 2 and self._next:  # noqa: PLR2004
            patience = _patient(self._hop, f"{_PATIENCE_SECONDS:g} s above {self._hop.setting}:")
            self._enter(f"waiting for {self._names[self._next]} to pass the token on", patience)
            self._comm.Recv(_signal(), self._next, _TAG)
        if not self._comm.rank:
            self._enter("waiting for the token to come round", self._start)
            self._answer()
        return Lap(hop=hop, faults=tuple(self._faults.values()))

    def _greet(self) -> None:
        """Wait until all ranks are there: a hop's time must not count what a slow file system takes."""
        neighbours = list(dict.fromkeys((self._next, self._previous)))
        requests = [self._comm.isend(self._host, rank, _TAG) for rank in neighbours]
        for rank in neighbours:
            self._enter(f"waiting for the greeting of rank {rank}", self._start)
            self._names[rank] = f"rank {rank} ({self._comm.recv(source=rank, tag=_TAG)})"
        MPI.Request.Waitall(requests)
        self._enter("waiting for all ranks to have greeted", _patient(self._start, self._start.setting))
        self._comm.Ibarrier().Wait()

    def _pass_on(self) -> Hop:
        """Send each size to the next rank and back, some times."""
        own, peer = self._names[self._comm.rank], self._names[self._next]
        self._enter(f"the ring hop {own} → {peer}", self._hop, self._message)
        fastest = {size: self._exchange(size, rounds) for size, rounds in SIZES.items()}
        return Hop(
            sender=self._comm.rank,
            receiver=self._next,
            latency=fastest[SMALLEST] / 2,
            bandwidth=LARGEST / (fastest[LARGEST] / 2),
        )

    def _exchange(self, size: int, rounds: int) -> float:
        """Seconds of the shortest round trip."""
        self._under_way = f"a message of {size} bytes"
        send, receive = _words(size), _words(size)
        times = []
        for number in range(rounds):
            self._write(send, size, number)
            self._comm.Recv(_signal(), self._next, _TAG)  # the other side must not be busy with the message before
            begin = perf_counter_ns()
            self._comm.Send(send, self._next, _TAG)
            self._comm.Recv(receive, self._next, _TAG)
            times.append((perf_counter_ns() - begin) * 1e-9)
            self._verify(receive, self._next, number)
        return min(times[1:])

    def _answer(self) -> None:
        """The other side of the previous rank's hop."""
        for size, rounds in SIZES.items():
            send, receive = _words(size), _words(size)
            for number in range(rounds):
                self._write(send, size, number)
                self._comm.Send(_signal(), self._previous, _TAG)
                self._comm.Recv(receive, self._previous, _TAG)
                self._comm.Send(send, self._previous, _TAG)
                self._verify(receive, self._previous, number)

    def _write(self, message: Words, size: int, number: int) -> None:
        np.add(self._payloads[self._comm.rank][size], np.uint64(number), out=message)

    def _verify(self, message: Words, sender: int, number: int) -> None:
        expected = self._payloads[sender][message.nbytes] + np.uint64(number)
        if np.array_equal(message, expected):
            return
        wrong = np.flatnonzero(message.view(np.uint8) != expected.view(np.uint8))
        fault = Fault(
            sender=sender, receiver=self._comm.rank, size=message.nbytes, byte=int(wrong[0]), count=len(wrong)
        )
        self._faults.setdefault((sender, message.nbytes), fault)

    def _message(self) -> str:
        return self._under_way

    def _enter(self, step: str, limits: Limits, current_op: Callable[[], str] | None = None) -> None:
        self._watchdog.enter(step, limits, current_op)


def _patient(limits: Limits, setting: str) -> Limits:
    return Limits(limits.seconds + _PATIENCE_SECONDS, setting, limits.grace_seconds)


def _words(size: int) -> Words:
    return np.zeros(size // _WORD.itemsize, _WORD)


def _signal() -> NDArray[np.uint8]:
    return np.zeros(1, np.uint8)


def _payloads(rank: int, ranks: int) -> dict[int, NDArray[Any]]:
    """What a rank sends of each size, in its first round."""
    messages = {
        size: Message(
            operation="send",
            sequence=sequence,
            ranks=range(ranks),
            elements=size // _WORD.itemsize,
            carrier=_WORD,
            precision=64,
        )
        for sequence, size in enumerate(SIZES)
    }
    return {size: message.sent(rank)(0, message.elements) for size, message in messages.items()}
