"""GPUs: the figures of the datasheets, and what happens where one is missing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dlbench.errors import SpecError
from dlbench.specs import DTYPE_BYTES, MESSAGE_DTYPES, GpuSpec, gpu_names, load_gpu

FIELDS: dict[str, Any] = {
    "name": "small",
    "vendor": "nobody",
    "peak_flops": {"bf16": 1e12},
    "memory_bandwidth": 1e9,
    "memory_bytes": 10**9,
    "source": {"peak_flops": "guess", "memory_bandwidth": "guess", "memory_bytes": "guess"},
}


@pytest.mark.parametrize(
    ("name", "bf16", "bandwidth"),
    [
        ("a100", 312e12, 2.039e12),
        ("a100-40gb", 312e12, 1.555e12),
        ("a100-64gb", 312e12, 1.64e12),
        ("a100-80gb", 312e12, 2.039e12),
        ("b200", 2.25e15, 8.0e12),
        ("gb300", 2.5e15, 8.0e12),
        ("gh200", 989e12, 4.0e12),
        ("h100", 989e12, 3.35e12),
        ("h200", 989e12, 4.8e12),
        ("mi250x-gcd", 191.5e12, 1.6e12),
        ("mi300x", 1307.4e12, 5.3e12),
    ],
)
def test_a_shipped_gpu_has_the_dense_peak_and_the_bandwidth_of_its_datasheet(
    name: str, bf16: float, bandwidth: float
) -> None:
    gpu = load_gpu(name)
    assert gpu.peak("bf16") == bf16
    assert gpu.memory_bandwidth == bandwidth


def test_a_second_name_gives_the_same_gpu() -> None:
    assert load_gpu("a100") == load_gpu("a100-80gb")
    assert load_gpu("a100").name == "a100-80gb"


@pytest.mark.parametrize("name", [name for name in gpu_names() if name != "a100"])
def test_a_shipped_gpu_bears_the_name_of_its_file(name: str) -> None:
    assert load_gpu(name).name == name


@pytest.mark.parametrize("name", gpu_names())
def test_narrower_elements_are_never_slower(name: str) -> None:
    peaks = load_gpu(name).peak_flops
    assert peaks["fp64"] <= peaks["fp32"] <= peaks["fp16"] == peaks["bf16"]
    assert peaks.get("fp8", peaks["bf16"] * 2) == pytest.approx(peaks["bf16"] * 2, rel=1e-3)


def test_a_dtype_that_the_device_lacks_is_answered_with_those_that_it_has() -> None:
    with pytest.raises(SpecError) as caught:
        load_gpu("a100").peak("fp8")
    assert str(caught.value) == ("GPU a100-80gb has no peak for dtype 'fp8'; it has fp64, fp32, tf32, fp16, bf16")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peak_flops": {}}, "at peak_flops: expected a peak for at least one dtype, found none"),
        (
            {"peak_flops": {"bf61": 1e12}},
            "at peak_flops: expected dtypes out of bf16, fp16, fp32, tf32, fp64, fp8, found bf61",
        ),
        (
            {"source": {"peak_flops": "guess"}},
            "at source: expected a source for each of peak_flops, memory_bandwidth, memory_bytes, found peak_flops",
        ),
        (
            {"source": {}},
            "at source: expected a source for each of peak_flops, memory_bandwidth, memory_bytes, found none",
        ),
    ],
)
def test_a_gpu_that_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        GpuSpec(**{**FIELDS, **change})
    assert str(caught.value) == message


@pytest.mark.parametrize("name", gpu_names())
def test_a_gpu_survives_a_broadcast(name: str) -> None:
    gpu = load_gpu(name)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(gpu), type=GpuSpec) == gpu


def test_messages_have_every_dtype_but_the_one_that_only_multiplies() -> None:
    assert set(MESSAGE_DTYPES) == set(DTYPE_BYTES) - {"tf32"}
    assert {dtype: DTYPE_BYTES[dtype] for dtype in MESSAGE_DTYPES} == {
        "bf16": 2,
        "fp16": 2,
        "fp32": 4,
        "fp64": 8,
        "fp8": 1,
    }
