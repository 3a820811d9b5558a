"""What `python -m dlbench.dp` and its like begin with; it imports next to nothing before it can take signals."""

from __future__ import annotations

import signal
import sys

TYPE_CHECKING = False  # that of typing takes 5 ms, in which Ctrl-C would leave a traceback
if TYPE_CHECKING:
    from dlbench.accelerator.protocol import DriverLoader


def main(program: str, driver: DriverLoader | None = None) -> None:
    """Run this process as a rank of a strategy, or of the preflight; leaves with the exit code of the run.

    `driver` takes the place of CuPy as the way to the GPUs.
    """
    # Until the watchdog takes over, SIGINT ends the process like SIGTERM, without a traceback from each rank.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from dlbench.runtime.launch import launch  # noqa: PLC0415 - it takes its time, in which the signal may come

    sys.exit(launch(program, driver))
