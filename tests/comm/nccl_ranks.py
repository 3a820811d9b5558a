"""Rank program on 2 ranks over the stand-in: values, waiting, faults, and the end of communicators."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from host_device import HostDevice, HostDriver
from numpy.typing import NDArray

from dlbench.comm.library import MPI
from dlbench.comm.nccl import NcclCommunicator, nccl_communicator
from dlbench.errors import PreflightError, RunError

DELAY = 0.03
driver = HostDriver.with_stand_in()
device, library = driver.open(0), driver.nccl()
mine = MPI.COMM_WORLD.rank


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """The stand-in reads it at every call."""
    os.environ.update(variables)
    yield
    for name in variables:
        del os.environ[name]


def new_world() -> NcclCommunicator:
    return nccl_communicator(MPI.COMM_WORLD, device, library)


def raised(kind: type[Exception], act: Callable[[], object]) -> str:
    try:
        act()
    except kind as error:
        return str(error)
    raise AssertionError(f"raised no {kind.__name__}")


def check_hand_worked_values(world: NcclCommunicator) -> None:
    """1.5 + 2.25; 256 + 1 has 9 bits, so bf16 rounds it to the even 256; 200 + 100 is 44 in a byte."""
    cases = {
        "bf16": ((1.5, 256), (2.25, 1), [3.75, 256]),
        "fp16": ((1.5, 2048), (2.25, 1), [3.75, 2048]),
        "fp32": ((1.5, 2**24), (2.25, 1), [3.75, 2**24]),
        "fp64": ((1.5, 2**24), (2.25, 1), [3.75, 2**24 + 1]),
        "fp8": ((1, 200), (2, 100), [3, 44]),
    }
    for dtype, (first, second, total) in cases.items():
        send, receive = world.allocate(2, dtype), world.allocate(2, dtype)
        send.write(np.array(second if mine else first, world.carrier(dtype)))
        world.allreduce(send, receive)
        assert receive.read().dtype == world.carrier(dtype)
        assert receive.read().tolist() == total, (dtype, receive.read())
        assert receive.guard_intact()


def check_blocks(world: NcclCommunicator) -> None:
    send, all_of_them, half = world.allocate(4, "bf16"), world.allocate(8, "bf16"), world.allocate(2, "bf16")
    send.write(np.array([1, 2, 3, 4], np.float32) * (10 if mine else 1))
    world.allgather(send, all_of_them)
    assert all_of_them.read().tolist() == [1, 2, 3, 4, 10, 20, 30, 40]
    world.reduce_scatter(send, half)
    assert half.read().tolist() == ([33, 44] if mine else [11, 22])
    received = world.allocate(4, "bf16")
    world.alltoall(send, received)
    assert received.read().tolist() == ([3, 4, 30, 40] if mine else [1, 2, 10, 20])


def check_waiting(world: NcclCommunicator) -> None:
    """Each operation begins late; what waits for it finds its data."""
    send, receive = world.allocate(100_000, "fp32"), world.allocate(100_000, "fp32")
    with environment(STAND_IN_DELAY=str(int(DELAY * 1e6))):
        for value in (1, 2):
            send.write(np.full(send.elements, value, np.float32))
            started = time.perf_counter()
            world.allreduce(send, receive)
            assert time.perf_counter() - started >= DELAY
            assert (receive.read() == 2 * value).all()
        started = time.perf_counter()
        requests = [world.iallreduce(send, receive) for _ in range(2)]
        assert not requests[1].test()
        assert time.perf_counter() - started < DELAY
        world.wait_all(requests[::-1])
        assert time.perf_counter() - started >= 2 * DELAY
        assert all(request.test() for request in requests)
        if mine:
            world.recv(receive, 0)
            assert (receive.read() == send.read()).all()
        else:
            started = time.perf_counter()
            world.send(send, 1)
            assert time.perf_counter() - started >= DELAY, "a send ends when it is received"


def check_groups(world: NcclCommunicator) -> None:
    """Communicators of one rank, and of both in reverse order; by NCCL's own split, and by new ids."""
    for version in ("22304", "21700"):
        with environment(STAND_IN_VERSION=version):
            both = world.split(0, -mine)
            assert (both.rank, both.size, both._handle.rank_id(), both._handle.size()) == (1 - mine, 2, 1 - mine, 2)
            both.close()
            alone = world.split(mine, 0)
            assert (alone.rank, alone.size) == (0, 1)
            check_alone(alone)
            alone.close()


def check_alone(alone: NcclCommunicator) -> None:
    content: NDArray[Any] = np.array([3, 5], np.float32)
    for operation in ("allreduce", "allgather", "reduce_scatter", "alltoall"):
        send, receive = alone.allocate(2, "bf16"), alone.allocate(2, "bf16")
        send.write(content)
        getattr(alone, operation)(send, receive)
        assert receive.read().tolist() == [3, 5], operation


class BottomlessDevice(HostDevice):
    """Its memory has addresses and no content."""

    def allocate(self, nbytes: int) -> Any:
        return super().allocate(16)

    def upload(self, address: int, content: NDArray[Any]) -> None:
        pass


def check_large_counts() -> None:
    with environment(STAND_IN_FAULT="dry"):
        bottomless = BottomlessDevice(device.facts, device._queue)
        world = nccl_communicator(MPI.COMM_WORLD, bottomless, library)
        buffer = world.allocate(2_200_000_000, "bf16")
        world.allreduce(buffer, buffer)
        world.close()


def check_wrong_data(world: NcclCommunicator) -> None:
    send, receive = world.allocate(8, "bf16"), world.allocate(8, "bf16")
    send.write(np.ones(8, np.float32))
    with environment(STAND_IN_FAULT="wrong"):
        world.allreduce(send, receive)
    assert (receive.read() != 2).tolist() == [True] + 7 * [False]


def check_failures() -> None:
    """Each communicator is given up after its failure: nothing else can be done with it."""
    with environment(STAND_IN_FAULT="id"):
        assert "rank 0 of 2 has no unique id (NcclError: NCCL_ERROR_SYSTEM_ERROR" in raised(PreflightError, new_world)
    for fault, elements, words in (
        ("async", 4, "remote process exited"),
        ("", 4 + mine, "invalid usage"),
    ):
        world = new_world()
        with environment(**({"STAND_IN_FAULT": fault} if fault else {})):
            request = world.iallreduce(world.allocate(elements, "fp32"), world.allocate(elements, "fp32"))
        message = raised(RunError, request.wait)
        assert words in message and f"rank {mine} of a group of 2 on host:0" in message, message
        world._handle.abort()
    world = new_world()
    with environment(STAND_IN_FAULT="lost"):
        request = world.iallreduce(world.allocate(1, "fp32"), world.allocate(1, "fp32"))
    until = time.perf_counter() + 0.1
    while time.perf_counter() < until:
        assert not request.test()
    MPI.COMM_WORLD.Barrier()
    world._handle.abort()


def check_end(world: NcclCommunicator) -> None:
    """An operation that nobody has waited for is over before its communicator is destroyed."""
    with environment(STAND_IN_DELAY=str(int(DELAY * 1e6))):
        world.iallreduce(world.allocate(1, "fp32"), world.allocate(1, "fp32"))
        world.close()


def main() -> None:
    world = new_world()
    child = world.split(0, mine)
    check_end(child)
    check_end(world)
    world = new_world()
    check_hand_worked_values(world)
    check_blocks(world)
    check_waiting(world)
    check_groups(world)
    check_wrong_data(world)
    check_large_counts()
    check_failures()
    world.close()
    print(f"rank {mine} is as promised")


main()
