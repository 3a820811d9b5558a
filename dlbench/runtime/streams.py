"""Standard output and error that take whatever is printed, and the one way to speak on the latter."""

from __future__ import annotations

import contextlib
import io
import os
import sys

TYPE_CHECKING = False  # that of typing takes 5 ms, in which Ctrl-C would leave a traceback
if TYPE_CHECKING:
    from typing import TextIO


def prepare_streams() -> None:
    """Print into nothing where a stream was closed (`>&-`), and ? for what its encoding lacks. Call it first."""
    sys.stdout, sys.stderr = _prepared(sys.stdout), _prepared(sys.stderr)


def _prepared(stream: TextIO | None) -> TextIO:
    if stream is None:
        return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    return stream


def keep_stdout_for_results() -> None:
    """Have libraries print to standard error, which knows no standard output but file descriptor 1.

    NCCL does, from its version to every line of NCCL_DEBUG, which would stand in the document of `--json`. Call it
    behind `prepare_streams`, before a library is loaded.
    """
    with contextlib.suppress(OSError):
        own = os.dup(1)
        os.dup2(2, 1)
        sys.stdout = os.fdopen(own, "w", encoding=sys.stdout.encoding, errors="replace")


def say(text: str) -> None:
    """One line on standard error, written at once."""
    with contextlib.suppress(OSError, ValueError):  # a stream that is gone must not keep a job from its end
        sys.stderr.write(f"dlbench: {text}\n")
        sys.stderr.flush()
