"""The thread that notices signals and hangs while the rank is blocked inside a library.

Python runs signal handlers only between bytecodes, so a rank that waits in MPI would learn of SIGTERM when it is too
late. The C-level handler, however, writes each signal's number into a pipe at once (`signal.set_wakeup_fd`); this
thread reads it. Blocking MPI calls release the GIL, so the thread runs whatever the rank waits for.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any, Literal, NamedTuple

from dlbench.runtime.situation import Situation
from dlbench.runtime.streams import say

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
REPORT_SECONDS = 1.0
"""How long a hung rank waits before it ends the job, so that the other ranks can say where they hang too."""
REPEAT_SECONDS = 0.25
"""Within this time a signal is the same request, delivered by terminal, launcher and scheduler at once."""
_POLL_SECONDS = 0.25

Status = Literal["terminated", "failed"]


def signal_exit_code(number: int) -> int:
    """Exit code of a run that a signal ended: 128 + number, as shells have it."""
    return 128 + number


class Limits(NamedTuple):
    """How long a rank may take."""

    seconds: float
    """The longest that a step of the `Situation` may take."""
    setting: str
    """What sets them, e.g. `--timeout`."""
    grace_seconds: float
    """The longest that a signalled run may take to finish its iteration."""


class Watchdog:
    """Watches one rank from its first moment to its last.

    `abort(status, reason, exit_code)` ends the whole job and does not return; it and the `limits` change when MPI is
    there and when the options are known. Open MPI sends SIGTERM to the other ranks when one aborts, and SIGKILL a
    second later: in the grace they stay silent, so only the rank that failed speaks.
    """

    def __init__(self, situation: Situation, limits: Limits, abort: Callable[[Status, str, int], object]) -> None:
        self.situation = situation
        self.limits = limits
        self.abort = abort
        self.stop_signal = 0
        """The first signal that asked the run to stop; the loop reads it between iterations."""
        self._signalled = float("inf")
        """When that signal came."""
        self._closed = False
        self._handlers: dict[int, Any] = {}
        """Those of the process before `start`."""
        self._read, self._write = os.pipe()
        self._thread = threading.Thread(target=self._watch, name="dlbench-watchdog", daemon=True)

    def start(self) -> None:
        """Take over the signals and begin to watch. Call from the main thread."""
        os.set_blocking(self._write, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._handlers = {number: signal.getsignal(number) for number in SIGNALS}
        self.take_signals()
        self._thread.start()

    def take_signals(self) -> None:
        """Take over the signals, once more where a library may have done so since. Call from the main thread."""
        for number in SIGNALS:
            signal.signal(number, lambda number, frame: None)

    def enter(self, step: str, limits: Limits, current_op: Callable[[], str] | None = None) -> None:
        """Begin a step of the situation that has limits of its own."""
        self.situation.enter(step, current_op)  # first: the step before may have taken longer than the new limits
        self.limits = limits

    def close(self) -> None:
        """Stop watching and give the signals back: the run is over, what remains is to leave."""
        self._closed = True
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        with contextlib.suppress(OSError):
            os.write(self._write, b"\0")
        self._thread.join()
        os.close(self._read)
        os.close(self._write)

    def _watch(self) -> None:
        while not self._closed:
            ready, _, _ = select.select([self._read], [], [], _POLL_SECONDS)
            if ready:
                for number in os.read(self._read, 64):
                    self._receive(number)
            if self._closed:
                return
            now = monotonic()
            if now > self._signalled + self.limits.grace_seconds:
                self._end_by_signal(
                    f"{self.situation.step} was still running {self.limits.grace_seconds:g} s after the signal"
                )
            if now - self.situation.since > self.limits.seconds:
                self._end_by_timeout(now - self.situation.since)

    def _receive(self, number: int) -> None:
        if number not in SIGNALS:
            return
        if not self.stop_signal:
            self.stop_signal = number
            self._signalled = monotonic()
        elif monotonic() > self._signalled + REPEAT_SECONDS:
            self._end_by_signal(f"the signal came again in {self.situation.step}")

    def _end_by_signal(self, detail: str) -> None:
        name = signal.Signals(self.stop_signal).name
        self.abort("terminated", f"{name} on {self.situation.who()}; {detail}", signal_exit_code(self.stop_signal))

    def _end_by_timeout(self, seconds: float) -> None:
        hang = f"{self.situation.who()} is in {self.situation.where()} after {seconds:.1f} s"
        say(hang)
        sleep(REPORT_SECONDS)
        self.abort("failed", f"hang: {hang}; the limit is {self.limits.setting} {self.limits.seconds:g}", 1)
