"""The start of a rank: a watchdog, before anything that takes time or can hang, then MPI, then the run."""

from __future__ import annotations

import os
import sys
from functools import partial
from time import sleep

from dlbench.errors import PreflightError
from dlbench.runtime.abort import SILENT_SECONDS, leave
from dlbench.runtime.preflight import START_VARIABLE, launcher_claim, start_limit
from dlbench.runtime.situation import Situation
from dlbench.runtime.streams import prepare_streams, say
from dlbench.runtime.watchdog import Limits, Watchdog

_GRACE_SECONDS = 2.0
"""Longer than a launcher leaves between the SIGTERM that it sends to the ranks when one has left and SIGKILL."""


def launch(strategy: str) -> int:
    """Run this process as a rank of a strategy; exit code of the run."""
    prepare_streams()
    claim = launcher_claim(os.environ)
    situation = Situation(rank=claim.rank if claim else 0, host=os.uname().nodename)
    try:
        return _run(strategy, situation)
    except PreflightError as error:  # which every rank finds by itself
        if situation.rank == 0:
            say(str(error))
        else:
            sleep(SILENT_SECONDS)  # a launcher ends all ranks when one has left, perhaps before rank 0 has spoken
        return error.exit_code


def _run(strategy: str, situation: Situation) -> int:
    limits = Limits(start_limit(os.environ), START_VARIABLE, _GRACE_SECONDS)
    watchdog = Watchdog(situation, limits, abort=leave)
    watchdog.start()
    situation.enter("starting MPI")
    from dlbench.comm.library import MPI  # noqa: PLC0415 - it takes its time, and waits for all ranks

    watchdog.abort = partial(leave, end=MPI.COMM_WORLD.Abort)
    watchdog.take_signals()
    situation.enter("importing")
    from dlbench.runtime.rank import run_rank  # noqa: PLC0415 - it takes its time

    return run_rank(strategy, sys.argv[1:], f"python -m dlbench.{strategy}", watchdog)
