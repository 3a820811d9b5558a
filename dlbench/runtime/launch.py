"""The start of a rank: a watchdog, before anything that takes time or can hang, then MPI, then the run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from time import sleep
from typing import TYPE_CHECKING

from dlbench.accelerator.early import asks_for_gpu_buffers, make_current
from dlbench.errors import UserError
from dlbench.runtime.abort import SILENT_SECONDS, leave
from dlbench.runtime.preflight import START_VARIABLE, launcher_claim, start_limit
from dlbench.runtime.situation import Situation
from dlbench.runtime.streams import keep_stdout_for_results, prepare_streams, say
from dlbench.runtime.watchdog import Limits, Watchdog

if TYPE_CHECKING:
    from dlbench.accelerator.protocol import DriverLoader

PREFLIGHT = "preflight"
"""The program that is no strategy."""
_GRACE_SECONDS = 2.0
"""Longer than a launcher leaves between the SIGTERM that it sends to the ranks when one has left and SIGKILL."""


def launch(program: str, driver: DriverLoader | None = None) -> int:
    """Run this process as a rank of a program: a strategy, or the preflight. Exit code of the run.

    `driver` takes the place of CuPy as the way to the GPUs.
    """
    prepare_streams()
    keep_stdout_for_results()
    claim = launcher_claim(os.environ)
    situation = Situation(rank=claim.rank if claim else 0, host=os.uname().nodename)
    try:
        return _run(program, situation, driver)
    except UserError as error:  # which every rank finds by itself
        if situation.rank == 0:
            say(str(error))
        else:
            sleep(SILENT_SECONDS)  # a launcher ends all ranks when one has left, perhaps before rank 0 has spoken
        return error.exit_code


def _run(program: str, situation: Situation, driver: DriverLoader | None) -> int:
    limits = Limits(start_limit(os.environ), START_VARIABLE, _GRACE_SECONDS)
    watchdog = Watchdog(situation, limits, abort=leave)
    watchdog.start()
    if driver is None and asks_for_gpu_buffers(sys.argv[1:]):
        situation.enter("selecting the GPU")
        make_current(os.environ)
    situation.enter("starting MPI")
    from dlbench.comm.library import MPI  # noqa: PLC0415 - it takes its time, and waits for all ranks

    watchdog.abort = partial(leave, end=MPI.COMM_WORLD.Abort)
    watchdog.take_signals()
    situation.enter("importing")
    return _rank_of(program, driver)(sys.argv[1:], f"python -m dlbench.{program}", watchdog)


def _rank_of(program: str, driver: DriverLoader | None) -> Callable[[Sequence[str], str, Watchdog], int]:
    """What a rank of the program does with its arguments, its name and its watchdog. The import takes its time."""
    if program == PREFLIGHT:
        from dlbench.runtime.preflight_job import run_preflight  # noqa: PLC0415

        return run_preflight
    from dlbench.runtime.rank import run_rank  # noqa: PLC0415

    return partial(run_rank, program, driver=driver)
