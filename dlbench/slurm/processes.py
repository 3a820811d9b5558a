"""Processes of a run on this host, told apart by a mark in their environment.

Launchers put ranks into sessions of their own, and their parent may be gone: neither groups nor parents hold them all.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

MARK_VARIABLE = "DLBENCH_POOL_RUN"
"""Environment variable with the name of the run that a process belongs to."""


def marked(names: set[str]) -> dict[int, str]:
    """Live processes of the runs with these names, by process id."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        name = _mark(folder)
        if name in names and not _is_over(folder):
            found[int(folder.name)] = name
    return found


def kill_marked(names: set[str]) -> None:
    """End the processes of these runs on this host at once."""
    for pid in marked(names):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _mark(folder: Path) -> str:
    try:
        entries = (folder / "environ").read_bytes().split(b"\0")
    except OSError:  # gone, or somebody else's
        return ""
    start = f"{MARK_VARIABLE}=".encode()
    return next((os.fsdecode(entry[len(start) :]) for entry in entries if entry.startswith(start)), "")


def _is_over(folder: Path) -> bool:
    """Whether a process has ended and only waits for its parent to hear of it."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
