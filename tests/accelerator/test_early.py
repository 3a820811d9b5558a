"""Which GPU is made current before MPI starts; a libcuda that is counted takes the place of NVIDIA's."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from dlbench.accelerator.early import LOCAL_RANKS, asks_for_gpu_buffers, local_rank, make_current, own_gpu


class FakeCuda:
    """NVIDIA's driver on a host with some GPUs; `failing` is the function that gives an error."""

    def __init__(self, gpus: int, failing: str = "") -> None:
        self.gpus = gpus
        self.failing = failing
        self.calls: list[str] = []
        self.current: int | None = None

    def load(self, name: str) -> Any:
        assert name == "libcuda.so.1"
        return self

    def cuInit(self, flags: int) -> int:  # noqa: N802
        assert flags == 0
        return self._status("cuInit")

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = self.gpus
        return self._status("cuDeviceGetCount")

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:  # noqa: N802
        assert 0 <= ordinal < self.gpus
        device._obj.value = 100 + ordinal
        return self._status("cuDeviceGet")

    def cuDevicePrimaryCtxRetain(self, context: Any, device: ctypes.c_int) -> int:  # noqa: N802
        context._obj.value = 0x7F0000000000 + device.value  # more than an int holds
        return self._status("cuDevicePrimaryCtxRetain")

    def cuCtxSetCurrent(self, context: ctypes.c_void_p) -> int:  # noqa: N802
        status = self._status("cuCtxSetCurrent")
        if not status:
            self.current = (context.value or 0) - 0x7F0000000000 - 100
        return status

    def _status(self, name: str) -> int:
        self.calls.append(name)
        return 999 if name == self.failing else 0


CALLS = ["cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"]


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("", False),
        ("--buffers gpu", True),
        ("--buffers=gpu --check", True),
        ("--no-record --buffers gpu", True),
        ("--buffers host", False),
        ("--buffers gpu --buffers host", False),
        ("--buffers=host --buffers gpu", True),
        ("--buffers", False),
        ("--backend nccl", False),
        ("--buffer gpu", False),
        ("--label buffers=gpu", False),
        ("--config gpu.yaml", False),
    ],
)
def test_buffers_on_the_gpu_are_seen_on_the_command_line_and_the_last_word_counts(line: str, asked: bool) -> None:
    assert asks_for_gpu_buffers(line.split()) is asked


@pytest.mark.parametrize("variable", LOCAL_RANKS)
def test_every_launcher_tells_the_local_rank_in_its_own_variable(variable: str) -> None:
    assert local_rank({variable: "3", "PMI_RANK": "7"}) == 3


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "2", "SLURM_LOCALID": "0"}, 2),
        ({"MPI_LOCALRANKID": "1", "SLURM_LOCALID": "0"}, 1),
        ({"SLURM_LOCALID": "5"}, 5),
        ({"MPI_LOCALRANKID": "one", "SLURM_LOCALID": "5"}, 5),
        ({"PMI_RANK": "5"}, None),
        ({}, None),
    ],
)
def test_the_innermost_launcher_counts_as_mpiexec_in_a_slurm_job_inherits_its_variables(
    environment: dict[str, str], rank: int | None
) -> None:
    assert local_rank(environment) == rank


@pytest.mark.parametrize(
    ("rank", "visible", "index"),
    [(0, 4, 0), (3, 4, 3), (4, 4, None), (3, 1, 0), (None, 1, 0), (None, 4, None), (0, 0, None)],
)
def test_a_rank_drives_the_only_gpu_that_it_sees_or_the_one_with_its_number(
    rank: int | None, visible: int, index: int | None
) -> None:
    assert own_gpu(rank, visible) == index


@pytest.mark.parametrize(("rank", "gpus", "index"), [("0", 4, 0), ("3", 4, 3), ("3", 1, 0)])
def test_the_primary_context_of_the_ranks_gpu_becomes_the_current_one(rank: str, gpus: int, index: int) -> None:
    cuda = FakeCuda(gpus)
    assert make_current({"SLURM_LOCALID": rank}, cuda.load) == cuda.current == index
    assert cuda.calls == CALLS


@pytest.mark.parametrize(("rank", "gpus"), [("4", 4), ("0", 0), ("", 2)])
def test_no_gpu_is_touched_where_none_is_the_ranks_own(rank: str, gpus: int) -> None:
    cuda = FakeCuda(gpus)
    assert make_current({"SLURM_LOCALID": rank}, cuda.load) is None
    assert cuda.calls == ["cuInit", "cuDeviceGetCount"]


@pytest.mark.parametrize("failing", CALLS)
def test_what_the_driver_refuses_is_left_to_the_opening_of_the_gpu(failing: str) -> None:
    cuda = FakeCuda(2, failing)
    assert make_current({"SLURM_LOCALID": "1"}, cuda.load) is cuda.current is None
    assert cuda.calls == CALLS[: CALLS.index(failing) + 1]


def test_a_host_without_a_driver_or_with_a_stub_of_it_is_none_of_its_business() -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    assert make_current({"SLURM_LOCALID": "0"}, missing) is None
    assert make_current({"SLURM_LOCALID": "0"}, lambda name: object()) is None
