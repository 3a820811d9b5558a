"""What `python -m dlbench.dp` and its like begin with."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn


def main(strategy: str) -> NoReturn:
    """Run this process as a rank of a strategy; leaves with the exit code of the run."""
    # Until the watchdog takes over, SIGINT ends the process like SIGTERM, without a traceback from each rank.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from dlbench.runtime.rank import run_rank  # noqa: PLC0415 - it takes its time, in which the signal may come

    sys.exit(run_rank(strategy, sys.argv[1:], prog=f"python -m dlbench.{strategy}"))
