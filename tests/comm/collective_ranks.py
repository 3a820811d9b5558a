"""Rank program: every operation, in every dtype, on groups of 1 to 4 ranks, with verified payloads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, TypeAlias

from host_device import HostDriver

from dlbench.comm import small_counts
from dlbench.comm.library import MPI
from dlbench.comm.mpi import CARRIERS
from dlbench.comm.payload import Message, fill, first_mismatch
from dlbench.comm.protocol import Buffer, Communicator
from dlbench.comm.variants import create

Group: TypeAlias = Communicator[Any, Any]

COLLECTIVES = {"allreduce": (1, 1), "allgather": (1, 0), "reduce_scatter": (0, 1), "alltoall": (0, 0)}
"""Operation, and whether its send and its receive side hold one block (1) or one for every rank of the group (0)."""

Exchange = Callable[[Group, str, Buffer, Buffer], None]
sequence = count()


def block(group: Group, operation: str, send: Buffer, receive: Buffer) -> None:
    getattr(group, operation)(send, receive)


def start_and_wait(group: Group, operation: str, send: Buffer, receive: Buffer) -> None:
    getattr(group, f"i{operation}")(send, receive).wait()


def start_and_test(group: Group, operation: str, send: Buffer, receive: Buffer) -> None:
    request = getattr(group, f"i{operation}")(send, receive)
    while not request.test():
        group.progress()


def start_and_wait_all(group: Group, operation: str, send: Buffer, receive: Buffer) -> None:
    group.wait_all([getattr(group, f"i{operation}")(send, receive)])


def message(group: Group, ranks: range, operation: str, elements: int, dtype: str) -> Message:
    return Message(
        operation=operation,
        sequence=next(sequence),
        ranks=ranks,
        elements=elements,
        carrier=group.carrier(dtype),
        precision=group.precision(dtype),
    )


def verify(case: Message, receive: Buffer, rank: int, peer: int = 0) -> None:
    mismatch = first_mismatch(receive, case.expected(rank, peer))
    assert mismatch is None, f"{case}: {mismatch}"
    assert receive.guard_intact(), f"{case}: wrote behind the message"


def check_collectives(group: Group, ranks: range, elements: int, dtype: str) -> None:
    for operation, (send_blocks, receive_blocks) in COLLECTIVES.items():
        if operation == "reduce_scatter" and elements > small_counts.LARGEST_SMALL_COUNT:
            continue
        send = group.allocate(elements * (send_blocks or group.size), dtype)
        receive = group.allocate(elements * (receive_blocks or group.size), dtype)
        for exchange in (block, start_and_wait, start_and_test, start_and_wait_all, block):
            case = message(group, ranks, operation, elements, dtype)
            fill(send, case.sent(group.rank))
            exchange(group, operation, send, receive)
            verify(case, receive, group.rank)


def check_overlap(group: Group, ranks: range, dtype: str) -> None:
    """Several all-reduces in flight at once, awaited in another order."""
    cases = [message(group, ranks, "allreduce", 1000 + index, dtype) for index in range(4)]
    buffers = [(group.allocate(case.elements, dtype), group.allocate(case.elements, dtype)) for case in cases]
    for case, (send, _) in zip(cases, buffers, strict=True):
        fill(send, case.sent(group.rank))
    requests = [group.iallreduce(send, receive) for send, receive in buffers]
    group.wait_all(requests[::-1])
    for case, (_, receive) in zip(cases, buffers, strict=True):
        verify(case, receive, group.rank)


def check_ring(group: Group, ranks: range, elements: int, dtype: str) -> None:
    """Every rank sends to the next and receives from the one before; the first one sends first."""
    case = message(group, ranks, "send", elements, dtype)
    if group.size == 1:
        return
    to, source = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    send, receive = group.allocate(elements, dtype), group.allocate(elements, dtype)
    fill(send, case.sent(group.rank))
    if group.rank == 0:
        group.send(send, to)
        group.recv(receive, source)
    else:
        group.recv(receive, source)
        group.send(send, to)
    verify(case, receive, group.rank, source)


def groups(world: Group) -> Iterator[tuple[Group, range]]:
    for size in range(1, world.size + 1):
        color, key = divmod(world.rank, size)
        first = color * size
        yield world.split(color, key), range(first, min(first + size, world.size))


def world_of(variant: str) -> Group:
    """World communicator; in the variant "pieces" every message of over 1000 elements counts as too large."""
    comm = MPI.COMM_WORLD
    match variant:
        case "pieces":
            small_counts.LARGEST_SMALL_COUNT, small_counts.PIECE = 1000, 256
            return small_counts.SmallCountMpiCommunicator(comm.Dup())
        case "nccl":
            driver = HostDriver.with_stand_in()
            return create(comm, backend="nccl", device=driver.open(0), nccl=driver.nccl())
        case "gpu" | "persistent gpu":
            return create(comm, buffers="gpu", persistent=variant != "gpu", device=HostDriver().open(0))
        case _:
            return create(comm, persistent=variant == "persistent")


def main(variant: str) -> None:
    world = world_of(variant)
    for group, ranks in groups(world):
        assert group.size == len(ranks)
        assert ranks[group.rank] == world.rank
        for dtype in CARRIERS:
            for elements in (1, 7, 3000):
                check_collectives(group, ranks, elements, dtype)
                check_ring(group, ranks, elements, dtype)
            check_overlap(group, ranks, dtype)
        group.close()
    world.close()
    print(f"rank {MPI.COMM_WORLD.rank} verified {next(sequence)} messages")


if __name__ == "__main__":
    main(*sys.argv[1:])
