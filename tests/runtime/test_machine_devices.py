"""Which GPU a rank would drive, from device files and the variables that choose among them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbench.runtime.machine.devices import Visible, visible
from dlbench.runtime.machine.facts import find_devices
from dlbench.runtime.machine.survey import DeviceFacts

FOUR = (0, 1, 2, 3)


def seen(vendor: str = "", accessible: tuple[int, ...] = (), **variables: str) -> Visible:
    return visible(DeviceFacts(vendor, accessible, variables))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "devices"),
    [
        (seen(), ()),
        (seen("cuda", FOUR), ("cuda:0", "cuda:1", "cuda:2", "cuda:3")),
        (seen("cuda", FOUR, CUDA_VISIBLE_DEVICES="2,0"), ("cuda:2", "cuda:0")),
        (seen("cuda", FOUR, CUDA_VISIBLE_DEVICES=""), ()),
        (seen("cuda", FOUR, CUDA_VISIBLE_DEVICES="NoDevFiles"), ()),
        (seen("cuda", (3,), CUDA_VISIBLE_DEVICES="0"), ("cuda:3",)),
        (seen("cuda", FOUR, CUDA_VISIBLE_DEVICES="GPU-8f1c, GPU-77aa"), ("GPU-8f1c", "GPU-77aa")),
        (seen("cuda", FOUR, ROCR_VISIBLE_DEVICES="1"), ("cuda:0", "cuda:1", "cuda:2", "cuda:3")),
        (seen(CUDA_VISIBLE_DEVICES="1,2"), ("cuda:1", "cuda:2")),
        (seen("hip", FOUR, ROCR_VISIBLE_DEVICES="2,3"), ("hip:2", "hip:3")),
        (seen("hip", FOUR, ROCR_VISIBLE_DEVICES="2,3", HIP_VISIBLE_DEVICES="1"), ("hip:3",)),
        (seen("hip", FOUR, ROCR_VISIBLE_DEVICES="2,3", CUDA_VISIBLE_DEVICES="1"), ("hip:3",)),
        (seen("hip", FOUR, HIP_VISIBLE_DEVICES="0", CUDA_VISIBLE_DEVICES="1"), ("hip:0",)),
        (seen(ROCR_VISIBLE_DEVICES="1"), ("hip:1",)),
        (seen(HIP_VISIBLE_DEVICES="1"), ("hip:1",)),
        (seen(SLURM_STEP_GPUS="2,3"), ("gpu:2", "gpu:3")),
    ],
)
def test_variables_choose_from_what_is_there(found: Visible, devices: tuple[str, ...]) -> None:
    assert found.devices == devices
    assert found.problem == ""


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (
            seen("cuda", FOUR, CUDA_VISIBLE_DEVICES="3,4"),
            "CUDA_VISIBLE_DEVICES=3,4 names GPU 4, but the rank can open 4",
        ),
        (
            seen("hip", FOUR, ROCR_VISIBLE_DEVICES="2", HIP_VISIBLE_DEVICES="2"),
            "HIP_VISIBLE_DEVICES=2 names GPU 2, but the rank can open 1",
        ),
        (
            seen(CUDA_VISIBLE_DEVICES="0,1,2,3", SLURM_STEP_GPUS="2"),
            "it sees 4 GPUs, but SLURM gave its step only SLURM_STEP_GPUS=2",
        ),
    ],
)
def test_variables_that_contradict_each_other_or_the_machine_are_told(found: Visible, problem: str) -> None:
    assert found.problem == problem


def test_what_a_variable_chose_is_told_from_what_is_just_there() -> None:
    assert seen("cuda", FOUR, CUDA_VISIBLE_DEVICES="0").chosen
    assert not seen("cuda", FOUR).chosen


def test_ranks_take_the_devices_that_they_see_in_turn() -> None:
    found = seen("cuda", FOUR, CUDA_VISIBLE_DEVICES="2,3")
    assert [found.of(local) for local in range(4)] == ["cuda:2", "cuda:3", "cuda:2", "cuda:3"]
    assert seen().of(0) == ""


@given(st.permutations(range(8)).flatmap(lambda order: st.integers(1, 8).map(lambda count: order[:count])))
def test_a_list_of_numbers_is_taken_in_its_order(numbers: list[int]) -> None:
    found = seen("cuda", tuple(range(10, 18)), CUDA_VISIBLE_DEVICES=",".join(map(str, numbers)))
    assert found.devices == tuple(f"cuda:{10 + number}" for number in numbers)


def dev(folder: Path, *names: str) -> str:
    """A folder of devices, which are files here."""
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    return str(folder)


def test_device_files_that_can_be_opened_count(tmp_path: Path) -> None:
    folder = dev(tmp_path, "nvidia0", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm")
    (tmp_path / "nvidia3").mkdir()  # cannot be opened for writing, as a GPU of another control group
    found = find_devices({"CUDA_VISIBLE_DEVICES": "0", "HOME": "/"}, folder)
    assert (found.vendor, found.accessible) == ("cuda", (0, 2, 10))
    assert found.variables == {"CUDA_VISIBLE_DEVICES": "0"}


def test_render_nodes_are_gpus_where_the_driver_of_amd_is(tmp_path: Path) -> None:
    folder = dev(tmp_path, "dri/renderD128", "dri/renderD129", "dri/card0")
    assert find_devices({}, folder) == DeviceFacts()
    (tmp_path / "kfd").touch()
    assert find_devices({}, folder) == DeviceFacts("hip", (0, 1), {})


def test_a_machine_without_device_files_has_none(tmp_path: Path) -> None:
    assert find_devices({}, str(tmp_path / "none")) == DeviceFacts()
