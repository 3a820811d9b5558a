"""MPI on buffers of a GPU: which libraries take them, and what happens before each call."""

from __future__ import annotations

import importlib
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from logging_device import LoggingDevice

from dlbench.errors import PreflightError

OPEN_MPI = "Open MPI v5.0.7, package: Open MPI user@localhost Distribution"
MPICH = "MPICH Version:      4.3.0"
CRAY = "MPI VERSION    : CRAY MPICH version 8.1.25.17 (ANL base 3.4a2)\nMPI BUILD INFO : Thu Mar  2 11:55 2023"
COLLECTIVES = ("allreduce", "allgather", "reduce_scatter", "alltoall")


@pytest.fixture
def device_mpi() -> ModuleType:
    return importlib.import_module("dlbench.comm.device_mpi")  # not above: importing it starts MPI


def library(**functions: Any) -> SimpleNamespace:
    return SimpleNamespace(**functions)


def gpu_query(*supported: int) -> SimpleNamespace:
    """MPICH's function, for a library that supports GPUs of these numbers."""

    def query(number: int, found: Any) -> int:
        found._obj.value = number in supported
        return 0

    return library(MPIX_GPU_query_support=query)


@pytest.mark.parametrize(
    ("kind", "text", "scope", "expected"),
    [
        ("cuda", OPEN_MPI, library(MPIX_Query_cuda_support=lambda: 1), True),
        ("cuda", OPEN_MPI, library(MPIX_Query_cuda_support=lambda: 0), False),
        ("hip", OPEN_MPI, library(MPIX_Query_cuda_support=lambda: 1), False),
        ("hip", OPEN_MPI, library(MPIX_Query_rocm_support=lambda: 1), True),
        ("hip", MPICH, library(MPIX_Query_hip_support=lambda: 1), True),
        ("cuda", MPICH, gpu_query(0), True),
        ("hip", MPICH, gpu_query(0), False),
        ("hip", MPICH, gpu_query(2), True),
        ("cuda", MPICH, gpu_query(1), False),
        ("cuda", "MVAPICH 4.0", library(), False),
    ],
)
def test_a_library_takes_gpu_buffers_where_it_says_so(
    device_mpi: ModuleType, kind: str, text: str, scope: Any, expected: bool
) -> None:
    assert device_mpi.takes_gpu_buffers(kind, text, {}, [library(), scope]) is expected


@pytest.mark.parametrize(("environment", "expected"), [({"MPICH_GPU_SUPPORT_ENABLED": "1"}, True), ({}, False)])
def test_cray_mpich_takes_them_where_its_switch_is_on(
    device_mpi: ModuleType, environment: dict[str, str], expected: bool
) -> None:
    assert device_mpi.takes_gpu_buffers("hip", CRAY, environment, [library()]) is expected


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        (
            "cuda",
            CRAY,
            "set MPICH_GPU_SUPPORT_ENABLED=1, with an mpi4py that is linked with libmpi_gtl_cuda.so, "
            "or LD_PRELOAD=libmpi_gtl_cuda.so",
        ),
        (
            "hip",
            CRAY,
            "set MPICH_GPU_SUPPORT_ENABLED=1, with an mpi4py that is linked with libmpi_gtl_hsa.so, "
            "or LD_PRELOAD=libmpi_gtl_hsa.so",
        ),
        ("cuda", OPEN_MPI, "load an MPI that was built with CUDA"),
        ("hip", MPICH, "load an MPI that was built with ROCm"),
    ],
)
def test_the_remedy_is_that_of_the_library(device_mpi: ModuleType, kind: str, text: str, words: str) -> None:
    assert device_mpi.remedy(kind, text) == words


HCOLL = {"HCOLL_GPU_ENABLE": "1", "HCOLL_ENABLE_NBC": "1"}
DP = {"iallreduce"}
FSDP = {"allgather", "iallgather", "reduce_scatter", "iallreduce"}


@pytest.mark.parametrize("calls", [DP, FSDP], ids=["dp", "fsdp"])
def test_open_mpi_is_refused_where_it_would_crash_in_a_non_blocking_sum(
    device_mpi: ModuleType, calls: set[str]
) -> None:
    with pytest.raises(PreflightError) as caught:
        device_mpi.check_reductions("Open MPI v5.0.7", {"HCOLL_GPU_ENABLE": "1"}, calls)

    assert str(caught.value) == (
        "Open MPI v5.0.7 crashes in MPI_Iallreduce of buffers in GPU memory (CUDA), which it adds up on the host; use "
        "--backend nccl, or HCOLL with HCOLL_GPU_ENABLE=1 HCOLL_ENABLE_NBC=1 in the environment"
    )


@pytest.mark.parametrize(
    ("calls", "persistent", "names"),
    [
        ({"ireduce_scatter", "iallreduce"}, False, "MPI_Iallreduce and MPI_Ireduce_scatter_block"),
        ({"ireduce_scatter"}, False, "MPI_Ireduce_scatter_block"),
        (DP, True, "MPI_Allreduce_init"),
        ({"allreduce", "reduce_scatter"}, True, "MPI_Allreduce_init and MPI_Reduce_scatter_block_init"),
    ],
)
def test_hcoll_helps_with_nothing_but_the_non_blocking_all_reduce(
    device_mpi: ModuleType, calls: set[str], persistent: bool, names: str
) -> None:
    with pytest.raises(PreflightError, match=f"crashes in {names} of buffers.*; use --backend nccl$"):
        device_mpi.check_reductions("Open MPI v4.1.7rc1", HCOLL, calls, persistent=persistent)


@pytest.mark.parametrize(
    ("library", "environment", "calls", "persistent"),
    [
        ("Open MPI v5.0.7", HCOLL, DP, False),
        ("Open MPI v5.0.7", HCOLL, FSDP, False),
        ("Open MPI v5.0.7", {}, {"allreduce", "reduce_scatter", "iallgather", "ialltoall", "send"}, False),
        ("Open MPI v5.0.7", {}, {"allgather", "alltoall"}, True),
        ("MPICH Version: 4.3.0", {}, FSDP, True),
        ("MPI VERSION : CRAY MPICH version 8.1.25.17 (ANL base 3.4a2)", {}, FSDP, False),
    ],
)
def test_other_calls_and_other_libraries_are_not_refused(
    device_mpi: ModuleType, library: str, environment: dict[str, str], calls: set[str], persistent: bool
) -> None:
    device_mpi.check_reductions(library, environment, calls, persistent=persistent)


def test_a_communicator_is_not_made_for_calls_in_which_its_library_would_crash(
    device_mpi: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_mpi, "takes_gpu_buffers", lambda *_: True)
    monkeypatch.setattr(device_mpi, "version", lambda: "Open MPI v5.0.7")
    create = importlib.import_module("dlbench.comm.variants").create
    comm = device_mpi.MPI.COMM_SELF

    with pytest.raises(PreflightError, match=r"crashes in MPI_Iallreduce of"):
        create(comm, buffers="gpu", device=LoggingDevice(), calls=DP)
    with pytest.raises(PreflightError, match=r"crashes in MPI_Allreduce_init of"):
        create(comm, buffers="gpu", device=LoggingDevice(), calls={"allreduce"}, persistent=True)
    create(comm, buffers="gpu", device=LoggingDevice(kind="hip"), calls=DP).close()
    create(comm, buffers="gpu", device=LoggingDevice(), calls={"allreduce"}).close()


@pytest.fixture
def world(device_mpi: ModuleType) -> Any:
    """Communicator on a logging device, over an MPI that logs too; its buffers are addresses."""
    device = LoggingDevice()

    class Inner:
        rank, size = 0, 1

        def __getattr__(self, name: str) -> Any:
            return lambda *_: device.log.append((name,))

    return device_mpi.DeviceMpiCommunicator(Inner(), device, device.stream()), device.log


@pytest.mark.parametrize("operation", [*COLLECTIVES, *(f"i{name}" for name in COLLECTIVES)])
def test_the_stream_is_synchronised_before_each_collective(world: Any, operation: str) -> None:
    communicator, log = world

    getattr(communicator, operation)(None, None)

    assert log == [("synchronize", 701), (operation,)]


@pytest.mark.parametrize("operation", ["send", "recv"])
def test_the_stream_is_synchronised_before_each_message(world: Any, operation: str) -> None:
    communicator, log = world

    getattr(communicator, operation)(None, 0)

    assert log == [("synchronize", 701), (operation,)]


def test_requests_need_to_be_driven_forward_and_groups_are_closed(world: Any) -> None:
    communicator, log = world

    communicator.progress()
    communicator.close()

    assert communicator.needs_progress
    assert log == [("progress",), ("close",)]


def test_a_descriptor_is_the_address_and_size_of_the_memory(device_mpi: ModuleType) -> None:
    device = LoggingDevice()

    buffer = device_mpi.DeviceMpiBuffer(device, 2_200_000_000, device_mpi.CARRIERS["bf16"])
    memory, datatype = buffer.spec

    assert (memory.address, memory.nbytes) == (2**20, 4_400_000_000)
    assert datatype == device_mpi.CARRIERS["bf16"].datatype
