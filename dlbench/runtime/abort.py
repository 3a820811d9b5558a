"""The end of a run that breaks off: one rank says why, for all."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable

# Not where it is used: while the main thread hangs in an import, the watchdog's thread cannot import anything.
from socket import AF_UNIX, socket
from time import sleep

from dlbench.runtime.streams import say
from dlbench.runtime.watchdog import Status

Note = Callable[[Status, str], bool]
"""Puts the end into the record; False where another rank has done so."""

_TURN_SECONDS = 0.5
_LAST_TURN_SECONDS = 3.0
_FORWARD_SECONDS = 0.25
"""How long a launcher gets to forward the last words of a rank: at an abort it drops what it has not read yet."""
SILENT_SECONDS = 1.0
"""How long a rank that does not speak gives the one that does, before it ends the job itself."""


def leave(status: Status, reason: str, exit_code: int, end: Callable[[int], object] = os._exit) -> None:
    """End a rank that knows nothing of the others yet, and say why unless another one on this host does.

    An address that only one process can have, and that ends with it, keeps apart the ranks of a launcher.
    """
    try:
        address = socket(AF_UNIX)
        address.bind(f"\0dlbench {os.getuid()} {os.getppid()}")
    except OSError as error:
        first = error.errno != errno.EADDRINUSE
    else:
        first = True
    if first:
        say(f"FAILED: {reason}")
    sleep(SILENT_SECONDS)
    end(exit_code)


class Abort:
    """Ends the whole job from this rank, and says why unless another rank does.

    A broken network fails on many ranks at once, and MPI can no longer tell them of each other. So they take turns,
    the lowest first, within 3 s whatever their number. Of the ranks on a host the first that appends to the file which
    they share (descriptor `shared_file`) may speak; of the hosts, the first that notes the end in the record. Without
    a record nothing but the turns keeps apart hosts that fail at the same moment.

    `end(exit_code)` ends all ranks.
    """

    def __init__(self, rank: int, size: int, *, shared_file: int, end: Callable[[int], object]) -> None:
        self.note: Note = lambda status, reason: True
        self._turn_seconds = rank * min(_TURN_SECONDS, _LAST_TURN_SECONDS / size)
        self._shared_file = shared_file
        self._lock = threading.Lock()
        self._end = end

    def __call__(self, status: Status, reason: str, exit_code: int) -> None:
        """End the job; callable from any thread."""
        sleep(self._turn_seconds)
        if self._first_on_host() and self.note(status, reason):
            say(f"FAILED: {reason}")
            sleep(_FORWARD_SECONDS)
        else:
            sleep(SILENT_SECONDS)
        self._end(exit_code)

    def _first_on_host(self) -> bool:
        try:
            with self._lock:  # the watchdog's thread and the main thread have one file position
                os.write(self._shared_file, b"\0")
                return os.lseek(self._shared_file, 0, os.SEEK_CUR) == 1
        except OSError:  # without the file: better several lines than none
            return True
