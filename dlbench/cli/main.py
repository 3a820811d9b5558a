"""Entry point of the `dlbench` command, light: what it imports cannot be interrupted without a traceback."""

from __future__ import annotations

import sys

from dlbench.runtime.streams import prepare_streams

INTERRUPTED = 130


def main() -> None:
    """Run the command line and leave with its exit code: 2 where the user can put it right, 1 where a run failed."""
    prepare_streams()
    try:
        from dlbench.cli.application import run_command_line  # noqa: PLC0415 - it takes its time

        exit_code = run_command_line()
    except KeyboardInterrupt:
        exit_code = INTERRUPTED
    sys.exit(exit_code)
