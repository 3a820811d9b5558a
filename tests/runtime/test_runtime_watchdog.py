"""The watchdog, in processes of their own: signals and hangs end them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from dlbench.runtime.watchdog import signal_exit_code

PROGRAM = """
import ctypes, os, signal, sys, time
from dlbench.runtime.situation import Situation
from dlbench.runtime.watchdog import SIGNALS, Limits, Watchdog

situation = Situation(rank={rank}, host="node1")


def abort(status, reason, code):
    print(status, reason, flush=True)
    os._exit(code)


def block_in_c():
    # Locked twice by one thread: no signal wakes it, as none wakes a rank in an MPI library that retries.
    mutex, lock = ctypes.create_string_buffer(64), ctypes.CDLL(None).pthread_mutex_lock
    lock(mutex)
    print("ready", flush=True)
    lock(mutex)


dog = Watchdog(situation, Limits({limit}, "--timeout", {grace}), abort)
dog.start()
{body}
"""
ITERATING = "situation.enter('iteration 7'); block_in_c()"


class Process:
    """A process under its watchdog, and what it has said."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self._popen = popen
        self.said: list[str] = []
        self.complained = ""

    def wait_until_ready(self) -> None:
        assert self._popen.stdout is not None
        assert self._popen.stdout.readline() == "ready\n", self._popen.communicate(timeout=20)

    def saying(self) -> str:
        """The next line on standard error, as it comes, without the seconds at its end."""
        assert self._popen.stderr is not None
        return self._popen.stderr.readline().rsplit(" ", 2)[0]

    def send(self, number: int) -> None:
        self._popen.send_signal(number)

    def end(self) -> int:
        out, self.complained = self._popen.communicate(timeout=30)
        self.said = out.splitlines()
        return self._popen.returncode


@contextmanager
def watched(body: str, *, rank: int = 0, limit: float = 600, grace: float = 5) -> Iterator[Process]:
    text = PROGRAM.format(rank=rank, limit=limit, grace=grace, body=body)
    with subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as popen:
        try:
            yield Process(popen)
        finally:
            popen.kill()


def test_exit_codes_of_signals_are_those_of_shells() -> None:
    assert signal_exit_code(signal.SIGTERM) == 143


def test_a_signalled_run_that_blocks_in_a_library_ends_after_the_grace() -> None:
    with watched(ITERATING, grace=0.5) as process:
        process.wait_until_ready()
        sent = time.monotonic()
        process.send(signal.SIGTERM)
        assert process.end() == 143
        assert time.monotonic() - sent >= 0.5
    reason = "SIGTERM on rank 0 (node1, cpu); iteration 7 was still running 0.5 s after the signal"
    assert process.said == [f"terminated {reason}"]
    assert process.complained == ""


def test_a_grace_that_changes_counts_from_the_signal() -> None:
    body = "situation.enter('starting MPI')\nprint('ready', flush=True)\nwhile not dog.stop_signal: time.sleep(0.01)\n"
    body += "situation.enter('iteration 0'); dog.limits = Limits(600, '--timeout', 1.5); time.sleep(60)"
    with watched(body, grace=0.8) as process:
        process.wait_until_ready()
        sent = time.monotonic()
        process.send(signal.SIGTERM)
        assert process.end() == 143
        assert time.monotonic() - sent >= 1.5
    assert process.said[0].endswith("iteration 0 was still running 1.5 s after the signal")


def test_a_second_signal_ends_the_run_at_once_with_the_code_of_the_first() -> None:
    with watched(ITERATING, grace=100) as process:
        process.wait_until_ready()
        process.send(signal.SIGUSR1)
        time.sleep(0.5)
        process.send(signal.SIGTERM)
        assert process.end() == 138
    assert process.said[0] == "terminated SIGUSR1 on rank 0 (node1, cpu); the signal came again in iteration 7"


def test_one_request_that_arrives_twice_keeps_its_grace() -> None:
    with watched(ITERATING, grace=1.5) as process:
        process.wait_until_ready()
        process.send(signal.SIGTERM)
        process.send(signal.SIGINT)
        assert process.end() in (143, 130)
    assert process.said[0].endswith("iteration 7 was still running 1.5 s after the signal")


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130), ("SIGUSR1", 138)])
def test_a_signal_before_the_iterations_ends_the_run_after_the_grace_too(name: str, code: int) -> None:
    with watched("situation.enter('allocating buffers'); block_in_c()", grace=0.3) as process:
        process.wait_until_ready()
        process.send(signal.Signals[name])
        assert process.end() == code
    assert process.said == [
        f"terminated {name} on rank 0 (node1, cpu); allocating buffers was still running 0.3 s after the signal"
    ]


FINISHES = """
print("ready", flush=True)
while not dog.stop_signal:
    time.sleep(0.01)
dog.close()
print("finished after", dog.stop_signal)
"""


def test_a_run_that_finishes_its_iteration_within_the_grace_is_left_alone() -> None:
    with watched(FINISHES, grace=10) as process:
        process.wait_until_ready()
        process.send(signal.SIGTERM)
        assert process.end() == 0
    assert process.said == ["finished after 15"]


def test_other_signals_are_not_the_watchdogs_business() -> None:
    body = "signal.signal(signal.SIGUSR2, lambda *_: None)\n" + FINISHES
    with watched(body) as process:
        process.wait_until_ready()
        process.send(signal.SIGUSR2)
        time.sleep(0.3)
        process.send(signal.SIGINT)
        assert process.end() == 0
    assert process.said == ["finished after 2"]


def test_a_step_beyond_its_limit_names_rank_op_and_seconds_and_ends_the_run() -> None:
    body = "situation.enter('iteration 3', lambda: 'op 5 (allreduce/world g)'); block_in_c()"
    with watched(body, rank=2, limit=0.4) as process:
        assert process.end() == 1
    # It is asked every quarter of a second.
    (hang,) = process.complained.splitlines()
    words = "dlbench: rank 2 (node1, cpu) is in op 5 (allreduce/world g) of iteration 3 after "
    assert hang.startswith(words)
    assert 0.4 <= float(hang.removeprefix(words).removesuffix(" s")) < 5
    assert process.said[1:] == [f"failed hang: {hang.removeprefix('dlbench: ')}; the limit is --timeout 0.4"]


def test_a_rank_that_hangs_gives_the_others_a_second_to_say_where_they_are() -> None:
    with watched("block_in_c()", limit=0.3) as process:
        assert process.saying() == "dlbench: rank 0 (node1, cpu) is in starting up after"
        spoken = time.monotonic()
        assert process.end() == 1
        assert time.monotonic() - spoken > 0.9


def test_the_limit_counts_from_the_beginning_of_each_step() -> None:
    body = "for step in 'abcdef':\n    situation.enter(step)\n    time.sleep(0.3)\ndog.close()"
    with watched(body, limit=1) as process:
        assert process.end() == 0
    assert (process.said, process.complained) == ([], "")


def test_the_end_of_a_hang_needs_no_standard_error() -> None:
    with watched("sys.stderr.close(); block_in_c()", limit=0.3) as process:
        assert process.end() == 1


def test_closing_gives_the_signals_back() -> None:
    body = (
        "taken = [signal.getsignal(number) for number in SIGNALS]\ndog.close()\n"
        "print(signal.SIG_DFL in taken, signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,"
        " signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.set_wakeup_fd(-1), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(20)"
    )
    with watched(body) as process:
        assert process.end() == -signal.SIGTERM
    assert process.said == ["False True True -1"]
