"""Rank program: messages of more than 2^31 elements on 2 ranks, verified where counts go wrong."""

from __future__ import annotations

from dlbench.comm.library import MPI
from dlbench.comm.mpi import MpiBuffer, MpiCommunicator
from dlbench.comm.payload import Message
from dlbench.comm.small_counts import SmallCountMpiCommunicator
from dlbench.comm.variants import mpi_communicator
from dlbench.errors import PreflightError

ELEMENTS = 2**31 + 16
HALF = ELEMENTS // 2
BORDERS = (0, 2**30, HALF, 2**31 - 1, ELEMENTS)


def windows(elements: int, radius: int) -> list[tuple[int, int]]:
    return [(max(0, border - radius), min(border + radius, elements)) for border in BORDERS if border <= elements]


def transfer(
    group: MpiCommunicator, ranks: range, operation: str, send: MpiBuffer, receive: MpiBuffer, wait: bool = False
) -> None:
    """Perform a collective whose send buffer holds its payload around every border, and verify it there."""
    elements = min(send.elements, receive.elements) if operation != "alltoall" else send.elements // group.size
    case = Message(
        operation=operation, sequence=wait, ranks=ranks, elements=elements, carrier=group.carrier("fp8"), precision=8
    )
    put(case, send, group.rank)
    if wait:
        request = getattr(group, f"i{operation}")(send, receive)
        group.wait_all([request])
    else:
        getattr(group, operation)(send, receive)
    verify(case, receive, group.rank)


def put(case: Message, send: MpiBuffer, rank: int) -> None:
    for start, stop in windows(send.elements, 1000):
        send.write(case.sent(rank)(start, stop), start)


def verify(case: Message, receive: MpiBuffer, rank: int, peer: int = 0) -> None:
    for start, stop in windows(receive.elements, 500):
        assert (receive.read(start, stop) == case.expected(rank, peer)(start, stop)).all(), f"{case} at {start}"
    assert receive.guard_intact(), f"{case}: wrote behind the message"


def check_message(world: MpiCommunicator, send: MpiBuffer, receive: MpiBuffer) -> None:
    case = Message(
        operation="send", sequence=0, ranks=range(2), elements=ELEMENTS, carrier=world.carrier("fp8"), precision=8
    )
    if world.rank == 0:
        put(case, send, 0)
        world.send(send, 1)
    else:
        world.recv(receive, 0)
        verify(case, receive, 1, peer=0)


def check_refusal(alone: MpiCommunicator, send: MpiBuffer, receive: MpiBuffer) -> None:
    for call in (alone.reduce_scatter, alone.ireduce_scatter):
        try:
            call(send, receive)
        except PreflightError as error:
            assert f"cannot reduce-scatter {ELEMENTS} elements" in str(error)
            assert "--scale" in str(error)
        else:
            raise AssertionError("a reduce-scatter that the library cannot count was not refused")


def main() -> None:
    world = mpi_communicator(MPI.COMM_WORLD)
    alone = world.split(color=world.rank, key=0)
    both, self_ = range(2), range(world.rank, world.rank + 1)
    send, receive = world.allocate(ELEMENTS, "fp8"), world.allocate(ELEMENTS, "fp8")
    shard = world.allocate(HALF, "fp8")

    transfer(world, both, "allreduce", send, receive)
    transfer(world, both, "allreduce", send, receive, wait=True)
    check_message(world, send, receive)
    transfer(world, both, "allgather", shard, receive)
    transfer(world, both, "reduce_scatter", send, shard)
    transfer(world, both, "alltoall", send, receive)
    for wait in (False, True):
        transfer(alone, self_, "allgather", send, receive, wait)
        transfer(alone, self_, "alltoall", send, receive, wait)
    if isinstance(world, SmallCountMpiCommunicator):
        check_refusal(alone, send, receive)
    else:
        transfer(alone, self_, "reduce_scatter", send, receive)
    alone.close()
    world.close()


if __name__ == "__main__":
    main()
