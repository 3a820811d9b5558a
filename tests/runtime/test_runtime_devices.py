"""Which GPU a rank drives, whether it is the only one to do so, and whether its cores are near."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from host_device import HostDriver

from dlbench.accelerator.protocol import GpuFacts
from dlbench.errors import PreflightError
from dlbench.runtime.devices import (
    Place,
    check_places,
    device_index,
    find_place,
    near_cores,
    open_gpu,
    parse_cores,
    place_remarks,
)

GPU = GpuFacts(
    kind="cuda",
    index=0,
    name="NVIDIA H100 80GB HBM3",
    uuid="GPU-0a",
    pci="0000:3B:00.0",
    driver="12.8",
    runtime="12.9",
    cupy="14.2.0",
    memory_bytes=85_000_000_000,
    numa_node=1,
)


class Nccl:
    """Says its version, and no more."""

    def __init__(self, version: int) -> None:
        self._version = version

    def get_version(self) -> int:
        return self._version


def place(
    rank: int,
    *,
    host: str = "nid1",
    machine: str = "boot1",
    nccl: str = "2.23.4",
    near: bool | None = True,
    **facts: object,
) -> Place:
    """A rank on its GPU; without more, they all drive the same one."""
    return Place(rank, host, machine, msgspec.structs.replace(GPU, **facts), nccl, near)


def complaint(*places: Place) -> str:
    with pytest.raises(PreflightError) as error:
        check_places(places)
    return str(error.value)


@pytest.mark.parametrize(
    ("local_rank", "visible", "index"),
    [(0, 1, 0), (3, 1, 0), (0, 4, 0), (3, 4, 3)],
    ids=["the only one", "the only one that its step gave it", "the first", "the last"],
)
def test_a_rank_drives_the_only_gpu_it_sees_or_the_one_with_its_number_on_the_host(
    local_rank: int, visible: int, index: int
) -> None:
    assert device_index(local_rank, visible) == index


def test_a_rank_without_a_gpu_says_what_is_visible_and_how_to_get_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(PreflightError) as error:
        device_index(2, 2)
    assert str(error.value) == (
        "there is no GPU for local rank 2: 2 are visible, CUDA_VISIBLE_DEVICES=0,1; start at most 2 ranks on a host, "
        "or show them all its GPUs: srun --gpus-per-node=3 --gpu-bind=none"
    )


def test_the_gpu_is_opened_and_the_version_of_nccl_asked_for_where_it_is_used() -> None:
    driver = HostDriver(4, nccl=Nccl(22304))  # type: ignore[arg-type]
    gpu = open_gpu(lambda: driver, 2, nccl=True)
    assert (gpu.device.facts.label, gpu.nccl) == ("host:2", "2.23.4")

    gpu = open_gpu(lambda: HostDriver(4), 3, nccl=False)  # which has no NCCL
    assert (gpu.device.facts.label, gpu.nccl) == ("host:3", "")


def test_every_rank_may_have_a_gpu_of_its_own() -> None:
    check_places([place(0), place(1, uuid="GPU-0b", pci="0000:5E:00.0", index=1)])


def test_two_ranks_on_one_gpu_are_both_named_with_the_remedy() -> None:
    places = [place(0), place(1, uuid="GPU-0b"), place(2, host="nid2", machine="boot2"), place(3)]
    assert complaint(*places) == (
        "rank 0 (nid1, cuda:0) and rank 3 (nid1, cuda:0) drive one GPU, NVIDIA H100 80GB HBM3 GPU-0a; give every rank "
        "its own, e.g. srun --gpus-per-node=3 --gpu-bind=none"
    )


def test_a_gpu_that_has_no_uuid_is_known_by_its_bus_id() -> None:
    check_places([place(0, uuid=""), place(1, uuid="", pci="0000:5E:00.0")])
    assert "drive one GPU, NVIDIA H100 80GB HBM3 0000:3B:00.0;" in complaint(place(0, uuid=""), place(1, uuid=""))


def test_hosts_of_one_name_are_told_apart_by_their_kernel_and_containers_of_two_names_are_not() -> None:
    check_places([place(0, uuid="", host="localhost"), place(1, uuid="", host="localhost", machine="boot2")])
    assert "rank 0 (box1, cuda:0) and rank 1 (box2, cuda:0)" in complaint(place(0, host="box1"), place(1, host="box2"))


def test_gpus_that_cannot_be_told_apart_are_a_remark() -> None:
    nameless = [place(rank, uuid="", pci="") for rank in range(3)]
    check_places(nameless)
    assert place_remarks(nameless) == [
        "the GPUs of ranks 0-2 (nid1) say neither UUID nor PCI id: two ranks may share one"
    ]
    assert place_remarks(nameless[:1]) == []


def test_versions_of_nccl_that_differ_are_refused_with_their_ranks() -> None:
    places = [
        place(rank, uuid=f"GPU-{rank}", nccl="2.23.4" if rank < 4 else "2.21.5", host=f"nid{rank}") for rank in range(6)
    ]
    assert complaint(*places) == (
        "NCCL is not the same on all ranks: 2.23.4 on ranks 0-3 (nid0, nid1, …, nid3), 2.21.5 on ranks 4-5 (nid4, "
        "nid5); load one module and one environment on all hosts (the wheel nvidia-nccl in an environment comes before "
        "LD_LIBRARY_PATH)"
    )


def test_cores_away_from_the_gpu_are_a_remark_and_unknown_ones_are_not() -> None:
    assert place_remarks([place(0, near=True), place(1, near=None)]) == []
    assert place_remarks([place(0), place(1, near=False), place(2, near=False)]) == [
        "ranks 1-2 (nid1) may run on cores away from the NUMA node of the GPU; bind them, e.g. mpirun --bind-to numa, "
        "srun --cpu-bind=ldoms"
    ]


@pytest.mark.parametrize(
    ("text", "cores"), [("0-3", {0, 1, 2, 3}), ("0-1,8-9\n", {0, 1, 8, 9}), ("5", {5}), ("\n", set())]
)
def test_the_kernel_lists_cores_as_ranges(text: str, cores: set[int]) -> None:
    assert parse_cores(text) == cores


def test_cores_are_near_where_all_of_them_belong_to_the_numa_node_of_the_gpu(tmp_path: Path) -> None:
    (tmp_path / "node1").mkdir()
    (tmp_path / "node1" / "cpulist").write_text("16-31,48-63\n")
    assert near_cores({16, 63}, 1, str(tmp_path)) is True
    assert near_cores({15, 16}, 1, str(tmp_path)) is False
    assert near_cores({16}, 2, str(tmp_path)) is None  # no such node
    assert near_cores({16}, None, str(tmp_path)) is None


def test_the_record_names_the_gpu_of_a_rank() -> None:
    accelerator = place(0, near=False).accelerator()
    assert msgspec.to_builtins(accelerator) == {
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": "GPU-0a",
        "pci": "0000:3B:00.0",
        "driver": "12.8",
        "runtime": "12.9",
        "cupy": "14.2.0",
        "nccl": "2.23.4",
        "memory_bytes": 85_000_000_000,
        "numa_node": 1,
        "near_cores": False,
    }


def test_the_place_of_this_process_is_on_its_own_kernel() -> None:
    found = find_place(7, "nid7", open_gpu(lambda: HostDriver(2), 1, nccl=False))
    assert (found.who(), found.nccl) == ("rank 7 (nid7, host:1)", "")
    assert found.machine == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
