"""What two GPUs show and one cannot: that NCCL carries data from one to the other, and does so beside products.

Two ranks run this, each on a GPU of its own. Importing it starts MPI.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

from device_checks import (
    DTYPES,
    FAILED,
    Bench,
    Check,
    Row,
    Sizes,
    carried,
    judged,
    overlapped,
    rows,
    skipped,
    started,
    wrong,
)

from dlbench.accelerator.protocol import Driver
from dlbench.comm.library import MPI
from dlbench.comm.nccl import connect
from dlbench.comm.payload import Message, fill
from dlbench.comm.protocol import Communicator
from dlbench.comm.variants import create
from dlbench.errors import DlbenchError, PreflightError

RANKS = 2
RANK = MPI.COMM_WORLD.rank
WHAT = "two GPUs"


def collectives(bench: Bench, comm: MPI.Intracomm) -> Iterator[Row]:
    """A group of both ranks carries every element of every collective and message, in every dtype."""
    try:
        library = bench.driver.nccl()
    except PreflightError as error:
        yield skipped(f"collectives, {WHAT}", str(error))
        return
    world = create(comm, backend="nccl", device=bench.device, nccl=library)
    group = world.split(0, comm.rank)
    yield from carried(bench, group, WHAT)
    yield from messages(bench, group)
    yield started(bench, world, WHAT)
    group.close()
    world.close()


def messages(bench: Bench, group: Communicator[Any, Any]) -> Iterator[Row]:
    """Rank 0 sends, rank 1 receives and compares, in every dtype."""
    for dtype in DTYPES:
        message = Message(
            operation="send",
            sequence=0,
            ranks=range(RANKS),
            elements=bench.sizes.message_elements,
            carrier=group.carrier(dtype),
            precision=group.precision(dtype),
        )
        send, receive = (group.allocate(message.elements, dtype) for _ in range(2))
        fill(send, message.sent(0))
        if group.rank == 0:
            group.send(send, 1)
        else:
            group.recv(receive, 0)
        found = wrong(receive if group.rank else send, message.expected(1, 0), send)
        yield judged(f"message of {dtype}, {WHAT}", found, "0 wrong", found.startswith("0 "))


def overlap(bench: Bench, comm: MPI.Intracomm) -> Iterator[Row]:
    """What NCCL carries between the GPUs runs beside what occupies the compute streams of both."""
    try:
        library = bench.driver.nccl()
    except PreflightError as error:
        yield skipped(f"overlap, {WHAT}", str(error))
        return
    yield from overlapped(bench, connect(comm, library), WHAT)


CHECKS: tuple[Callable[[Bench, MPI.Intracomm], Iterable[Row]], ...] = (collectives, overlap)


def pair(load: Callable[[], Driver], sizes: Sizes, first: int) -> Iterator[Row]:
    """All rows, on rank 0; rank i drives the GPU behind the first by i."""
    comm = MPI.COMM_WORLD
    try:
        if comm.size != RANKS:
            raise PreflightError(f"{comm.size} ranks were started, and not {RANKS}")
        driver = load()
        device = driver.open((first + comm.rank) % driver.count())
        trouble = ""
    except DlbenchError as error:
        trouble = str(error)
    troubles = [f"rank {rank}: {text}" for rank, text in enumerate(comm.allgather(trouble)) if text]
    if troubles:
        yield Row(WHAT, troubles[0], "both can be used", FAILED)
        return
    bench = Bench(driver=driver, device=device, sizes=sizes, agreed=lambda figure: comm.allreduce(figure) / RANKS)
    for check in CHECKS:
        yield from merged(comm, list(rows(bench, [named(check, comm)])))


def named(check: Callable[[Bench, MPI.Intracomm], Iterable[Row]], comm: MPI.Intracomm) -> Check:
    """The check as one of a bench, under its name."""

    def bound(bench: Bench) -> Iterable[Row]:
        return check(bench, comm)

    bound.__name__ = f"{check.__name__}, {WHAT}"
    return bound


def merged(comm: MPI.Intracomm, own: Sequence[Row]) -> Iterator[Row]:
    """On rank 0 a row for every check of both ranks, which is that of a rank where it failed. Collective."""
    for of_ranks in zip_longest(*(comm.gather(own) or [])):
        failed = [(rank, row) for rank, row in enumerate(of_ranks) if row and row.verdict == FAILED]
        rank, row = failed[0] if failed else next((rank, row) for rank, row in enumerate(of_ranks) if row)
        yield row._replace(found=f"rank {rank}: {row.found}") if failed else row
