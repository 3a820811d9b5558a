"""Which GPU is made current before MPI starts; a libcuda that is counted takes the place of NVIDIA's."""

from __future__ import annotations

from typing import Any

import pytest
from fake_cuda import FakeCuda

from dlbench.accelerator.early import LOCAL_RANKS, asks_for_gpu_buffers, local_rank, make_current, own_gpu

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
