"""The driver and its device in front of a CuPy whose memory is the process's."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_cuda import FakeCuda
from fake_cupy import CUDARuntimeError, FakeCupy

from dlbench.accelerator.cupy_driver import CupyDevice, CupyDriver
from dlbench.accelerator.presence import Status
from dlbench.accelerator.protocol import Device, Driver, GpuFacts
from dlbench.accelerator.spin_kernel import CUDA_SOURCE, HIP_SOURCE
from dlbench.errors import PreflightError


def driver_of(cupy: FakeCupy, sysfs: Path = Path("/nowhere")) -> CupyDriver:
    """The driver on a host that has one, whatever this host has."""
    return CupyDriver(cupy.find, sysfs, lambda: Status("NVIDIA, CUDA 12.8"))


def opened(cupy: FakeCupy, index: int = 0, sysfs: Path = Path("/nowhere")) -> CupyDevice:
    """A GPU, and none of the calls that opened it."""
    device = driver_of(cupy, sysfs).open(index)
    cupy.calls.clear()
    return device


def facts(cupy: FakeCupy, sysfs: Path = Path("/nowhere"), index: int = 0) -> GpuFacts:
    return opened(cupy, index, sysfs).facts


def refusal(cupy: FakeCupy, index: int = 0) -> str:
    with pytest.raises(PreflightError) as refused:
        driver_of(cupy).open(index)
    return str(refused.value)


def test_it_is_a_driver_of_devices() -> None:
    driver: Driver = driver_of(FakeCupy())
    device: Device = driver.open(0)
    assert device.facts.label == "cuda:0"


def test_a_host_without_a_driver_is_refused_before_cupy_is_loaded_which_takes_long() -> None:
    def find(name: str) -> Any:
        raise AssertionError(f"{name} was loaded")

    with pytest.raises(PreflightError) as refused:
        CupyDriver(find, driver=lambda: Status("", "no GPU driver on this host", "run on a node with GPUs"))
    assert str(refused.value) == "no GPU driver on this host; run on a node with GPUs"


def test_a_gpu_is_made_current_and_proven_usable_before_anything_else_of_cupy() -> None:
    cupy = FakeCupy()
    driver_of(cupy).open(1)
    assert cupy.calls[:2] == [("use", 1), ("Memory", 256)]


def test_a_driver_that_may_hang_has_started_and_has_the_gpus_context_before_cupy_keeps_pythons_lock() -> None:
    cuda, cupy = FakeCuda(2), FakeCupy()
    seen: list[tuple[list[str], list[str]]] = []

    def load(name: str) -> Any:
        seen.append((list(cuda.calls), cupy.names()))
        return cuda.load(name)

    driver = CupyDriver(cupy.find, driver=lambda: Status("NVIDIA, CUDA 12.8"), load=load)
    assert cuda.calls == ["cuInit"]
    driver.open(1)
    assert cuda.calls[1:] == ["cuDeviceGet", "cuDevicePrimaryCtxRetain"]
    assert cuda.ordinals == [1]
    assert [names for _, names in seen] == [[], []], "nothing was asked of CuPy yet"


def test_the_facts_of_an_nvidia_gpu() -> None:
    assert facts(FakeCupy(), index=1) == GpuFacts(
        kind="cuda",
        index=1,
        name="NVIDIA H100 80GB HBM3",
        uuid="GPU-30313233-3435-3637-3839-616263646566",  # the bytes of 0 to 9 and a to f in ASCII
        pci="0000:3B:01.0",
        driver="12.8",
        runtime="12.9",
        cupy="14.2.0",
        memory_bytes=85_000_000_000,
        numa_node=None,
    )


@pytest.mark.parametrize(
    ("raw", "name"),
    [(b"H100\x1b[31m\n80GB", "H100\\x1b[31m\\n80GB"), (b"H100 \xff", "H100 \N{REPLACEMENT CHARACTER}")],
)
def test_a_name_that_would_upset_a_terminal_is_escaped(raw: bytes, name: str) -> None:
    cupy = FakeCupy()
    cupy.properties["name"] = raw
    assert facts(cupy).name == name


def test_the_facts_of_an_amd_gpu() -> None:
    found = facts(FakeCupy(hip=True))
    assert (found.label, found.name, found.uuid) == ("hip:0", "AMD Instinct MI250X", "GPU-0123456789abcdef")
    assert (found.driver, found.runtime) == ("6.3", "6.3")


@pytest.mark.parametrize("uuid", [b"\x8f\x01\x20", b"", None])
def test_a_uuid_that_cupy_cut_or_does_not_have_gives_way_to_the_bus_id(uuid: bytes | None) -> None:
    cupy = FakeCupy()
    cupy.properties["uuid"] = uuid
    if uuid is None:
        del cupy.properties["uuid"]
    assert facts(cupy).uuid == "0000:3B:00.0"


@pytest.mark.parametrize(("content", "node"), [("1\n", 1), ("0\n", 0), ("-1\n", None), ("", None)])
def test_the_numa_node_is_the_one_that_the_system_tells_for_the_bus_id(
    content: str, node: int | None, tmp_path: Path
) -> None:
    place = tmp_path / "bus/pci/devices/0000:3b:00.0"  # in lower case, as the system has it
    place.mkdir(parents=True)
    (place / "numa_node").write_text(content)
    assert facts(FakeCupy(), tmp_path).numa_node == node


def test_a_gpu_that_is_not_there_is_refused_with_how_many_there_are() -> None:
    assert refusal(FakeCupy(gpus=2, statuses={"use": 101}), 4) == (
        "GPU 4 of 2: this process sees no GPU with that number; "
        "correct CUDA_VISIBLE_DEVICES or what the launcher was asked for"
    )


def test_a_gpu_in_exclusive_mode_shows_when_something_is_allocated_on_it() -> None:
    assert refusal(FakeCupy(statuses={"Memory": 46})).startswith("GPU 0 of 2: the GPU is held by another process")


def test_on_a_host_without_a_driver_that_is_what_is_said() -> None:
    cupy = FakeCupy(statuses={"use": 35, "getDeviceCount": 35})
    cupy.runtime.driver = 0
    assert refusal(cupy) == "no GPU driver on this host; run on a node with GPUs, or have the driver installed"


def test_memory_that_is_not_there_is_refused_with_what_is_needed_and_free() -> None:
    cupy = FakeCupy()
    device = opened(cupy)
    cupy.statuses["Memory"] = 2
    with pytest.raises(PreflightError) as refused:
        device.allocate(44_000_000_000)
    assert str(refused.value) == (
        "cuda:0 has 30.00 GB of memory free, but a buffer needs 44.00 GB; --scale shrinks the messages"
    )


def test_another_trouble_of_an_allocation_is_not_taken_for_a_lack_of_memory() -> None:
    cupy = FakeCupy()
    device = opened(cupy)
    cupy.statuses["Memory"] = 700
    with pytest.raises(CUDARuntimeError):
        device.allocate(10)


def test_what_is_uploaded_can_be_copied_and_comes_back() -> None:
    cupy = FakeCupy()
    device = opened(cupy)
    first, second = device.allocate(12), device.allocate(12)
    device.upload(first.ptr, np.array([1, 2, 3], np.float32))
    device.copy(first.ptr, second.ptr, 12, device.stream())
    assert device.download(second.ptr, 12).view(np.float32).tolist() == [1, 2, 3]
    assert first.nbytes == 12


def test_an_upload_waits_until_the_content_is_on_the_gpu() -> None:
    """The default stream ends it: streams that do not block would not wait for what is still under way."""
    cupy = FakeCupy()
    device = opened(cupy)
    device.upload(device.allocate(4).ptr, np.ones(1, np.float32))
    assert cupy.calls[-2:] == [("memcpy", 1), ("streamSynchronize", 0)]


def test_copies_go_in_the_right_direction_and_to_the_stream() -> None:
    cupy = FakeCupy()
    device = opened(cupy)
    stream, memory = device.stream(), device.allocate(16)
    device.copy(memory.ptr, memory.ptr + 8, 8, stream)
    device.download(memory.ptr, 8)
    assert cupy.calls[-2:] == [("memcpyAsync", 3, stream.ptr), ("memcpy", 2)]


def test_streams_do_not_block() -> None:
    stream: Any = opened(FakeCupy()).stream()
    assert stream.how == {"non_blocking": True}


def test_events_keep_no_time_unless_they_are_asked_to() -> None:
    made: list[dict[str, bool]] = []
    cupy = FakeCupy()
    event = cupy.cuda.Event

    def made_so(**how: bool) -> Any:
        made.append(how)
        return event(**how)

    cupy.cuda.Event = made_so
    device = opened(cupy)
    device.event()
    device.timed_event()
    assert made == [{"disable_timing": True}, {"disable_timing": False}]


def test_an_event_is_recorded_on_the_stream_that_is_given() -> None:
    cupy = FakeCupy()
    device = opened(cupy)
    stream, event = device.stream(), device.event()
    event.record(stream)
    event.synchronize()
    assert cupy.calls == [("record", stream.ptr), ("synchronize event",)]


def test_an_event_is_done_is_not_done_or_tells_that_the_gpu_has_failed() -> None:
    cupy = FakeCupy()
    event = opened(cupy).event()
    cupy.runtime.event_status = 0
    assert event.done
    cupy.runtime.event_status = 600
    assert not event.done
    cupy.runtime.event_status = 700
    with pytest.raises(CUDARuntimeError, match="cudaErrorNumber700"):
        _ = event.done


def test_the_time_between_events_is_in_seconds() -> None:
    device = opened(FakeCupy())
    begin, end = device.timed_event(), device.timed_event()  # the fake's time is the number of the event
    assert math.isclose(device.elapsed(begin, end), 0.001)


def test_the_first_product_is_done_when_a_multiplier_is_made() -> None:
    cupy = FakeCupy()
    device = opened(cupy)
    stream = device.stream()
    device.multiplier(stream, "bf16")
    assert cupy.names() == ["getDeviceProperties", "Memory", "create", "use stream", "gemmEx", "synchronize"]
    assert cupy.cuda.cublas.last["m"] == cupy.cuda.cublas.last["n"] == cupy.cuda.cublas.last["k"] == 16


def test_products_and_spins_change_the_current_stream_only_where_it_is_another_one() -> None:
    cupy = FakeCupy()
    device = opened(cupy)
    first, second = device.stream(), device.stream()
    memory = device.allocate(3 * 64)
    ones = [device.multiplier(stream, "fp32") for stream in (first, second)]
    cupy.calls.clear()

    def multiply(which: int) -> None:
        ones[which].multiply(memory.ptr, memory.ptr + 64, memory.ptr + 128, rows=4, columns=4, k=4)

    multiply(1)
    multiply(0)
    multiply(0)
    device.spin(second, 10)
    device.spin(second, 10)
    used = [arguments[0] for name, *arguments in cupy.calls if name == "use stream"]
    assert used == [first.ptr, second.ptr]


def test_what_cublas_refuses_is_one_line() -> None:
    cupy = FakeCupy()
    device = opened(cupy)
    cupy.cuda.cublas.error = "CUBLAS_STATUS_NOT_SUPPORTED"
    with pytest.raises(PreflightError, match="^no fp16 products on cuda:0: cuBLAS answers CUBLAS_STATUS_NOT_SUPPORTED"):
        device.multiplier(device.stream(), "fp16")


def test_bf16_on_rocm_is_refused_before_anything_of_its_library_is_called() -> None:
    cupy = FakeCupy(hip=True)
    device = opened(cupy)
    with pytest.raises(PreflightError, match=r"^no bf16 products on hip:0 \(AMD Instinct MI250X\).* fp16$"):
        device.multiplier(device.stream(), "bf16")
    assert "create" not in cupy.names()


def test_a_spin_is_one_thread_for_so_many_nanoseconds() -> None:
    cupy = FakeCupy()
    device = opened(cupy)
    device.spin(device.stream(), 1_500)
    device.spin(device.stream(), 2_500)
    assert cupy.calls[0] == ("getVersion",)
    assert [call for call in cupy.calls if call[0] == "compile"] == [("compile", CUDA_SOURCE, "spin")]
    launches = [call for call in cupy.calls if call[0] == "launch"]
    assert launches == [("launch", (1,), (1,), 1500), ("launch", (1,), (1,), 2500)]
    assert launches[0][3].dtype == np.uint64  # eight bytes, as the kernel's parameter


def test_a_spin_on_rocm_counts_the_ticks_of_its_clock() -> None:
    cupy = FakeCupy(hip=True)
    device = opened(cupy, 1)
    device.spin(device.stream(), 1_500)
    assert ("deviceGetAttribute", 10017, 1) in cupy.calls
    assert ("compile", HIP_SOURCE, "spin") in cupy.calls
    assert cupy.calls[-1] == ("launch", (1,), (1,), 150)  # 100 MHz


def test_without_a_compiler_a_spin_is_refused_with_what_brings_it() -> None:
    cupy = FakeCupy(statuses={"getVersion": 1})
    device = opened(cupy)
    with pytest.raises(PreflightError, match="^CuPy finds no NVRTC"):
        device.spin(device.stream(), 10)


def test_nccl_is_cupys_own_module() -> None:
    cupy = FakeCupy()
    assert driver_of(cupy).nccl() is cupy.nccl


def test_there_is_no_meter_for_a_gpu_that_nvml_does_not_know() -> None:
    cupy = FakeCupy(hip=True)
    assert driver_of(cupy).meter(facts(cupy)) is None
