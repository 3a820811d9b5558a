"""The process of one rank: `python -m dlbench.dp` and its like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from dlbench.comm.library import MPI
from dlbench.errors import OptionError
from dlbench.runtime.agreement import agree, from_root
from dlbench.runtime.process import join_host, run_process
from dlbench.runtime.request import RunRequest
from dlbench.runtime.runner import Runner
from dlbench.runtime.watchdog import Watchdog

if TYPE_CHECKING:
    from dlbench.accelerator.protocol import DriverLoader


def run_rank(
    strategy: str, argv: Sequence[str], prog: str, watchdog: Watchdog, driver: DriverLoader | None = None
) -> int:
    """Exit code of the run. Any failure that concerns this rank alone ends the whole job.

    `driver` takes the place of CuPy as the way to the GPUs. Raises `PreflightError` where the launcher does not belong
    to the MPI library.
    """

    def work(comm: MPI.Intracomm) -> int:
        host, abort = join_host(comm, watchdog)
        watchdog.situation.enter("reading the options")
        request = _request(comm, strategy, argv, prog)
        return Runner(comm, request, host, watchdog, abort, driver).run()

    return run_process(watchdog, work)


def _request(comm: MPI.Intracomm, strategy: str, argv: Sequence[str], prog: str) -> RunRequest:
    """What rank 0 reads from the command line and the specs, on every rank."""

    def read() -> bytes:
        from dlbench.runtime.options import check_request, parse_request, run_parser  # noqa: PLC0415 - rank 0 only

        request = parse_request(strategy, run_parser(prog, strategy), argv)
        check_request(request, comm.size)
        return msgspec.msgpack.encode(request)

    request = msgspec.msgpack.decode(from_root(comm, read), type=RunRequest)
    agree(comm, lambda: _check_strategy(comm.rank, strategy, request.strategy))
    return request


def _check_strategy(rank: int, own: str, first: str) -> None:
    """Raise `OptionError` where a launcher, told so, has started another strategy on this rank than on rank 0."""
    if own != first:
        raise OptionError(
            f"rank 0 runs dlbench.{first}, but rank {rank} dlbench.{own}; start one strategy on all ranks"
        )
