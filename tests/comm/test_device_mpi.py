"""MPI on buffers of a GPU: which libraries take them, and what happens before each call."""

from __future__ import annotations

import importlib
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from logging_device import LoggingDevice

OPEN_MPI = "Open MPI v5.0.7, package: Open MPI user@localhost Distribution"
MPICH = "MPICH Version:      4.3.0"
CRAY = "CRAY MPICH version 8.1.32.10 (ANL base 3.4a2)"
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
