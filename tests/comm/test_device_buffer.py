"""Message buffers in the memory of a GPU: what they show, keep and guard. bf16 by the bits of IEEE 754's binary32."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from host_device import HostDriver
from hypothesis import given
from hypothesis import strategies as st
from logging_device import LoggingDevice

from dlbench.comm.content import GUARD, noise
from dlbench.comm.device_buffer import BF16, DeviceBuffer, plain
from dlbench.errors import PreflightError

FORMATS = {
    "bf16": BF16,
    "fp16": plain(np.float16),
    "fp32": plain(np.float32),
    "fp64": plain(np.float64),
    "fp8": plain(np.uint8),
}
DEVICE = HostDriver(memory_bytes=2**30).open(0)


def content(buffer: DeviceBuffer, nbytes: int) -> bytes:
    return ctypes.string_at(buffer.ptr, nbytes)


def test_a_bf16_lies_in_memory_as_the_upper_half_of_an_fp32() -> None:
    buffer = DeviceBuffer(DEVICE, 4, BF16)

    buffer.write(np.array([1.0, -2.0, 255.0, 2.0**-126], np.float32))

    # 1 is 3F80, −2 is C000, 255 = 1.9921875 · 2^7 is 437F, the smallest normal number is 0080.
    assert content(buffer, 8).hex(" ", 2) == "803f 00c0 7f43 8000"
    assert buffer.read().tolist() == [1.0, -2.0, 255.0, 2.0**-126]


@given(st.lists(st.integers(0, 255), min_size=1), st.integers(-100, 100))
def test_bf16_is_exact_for_values_of_8_significant_bits(values: list[int], exponent: int) -> None:
    exact = np.array(values, np.float32) * np.float32(2.0**exponent)

    assert np.array_equal(BF16.decode(BF16.encode(exact).view(np.uint8)), exact)


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_part_is_written_and_read_without_touching_the_rest(dtype: str) -> None:
    form = FORMATS[dtype]
    buffer = DeviceBuffer(DEVICE, 10, form)
    before = buffer.read()

    buffer.write(np.array([5, 6, 7], form.carrier), start=4)

    assert buffer.read(4, 7).tolist() == [5, 6, 7]
    assert buffer.read(4, 7).dtype == form.carrier
    assert np.array_equal(buffer.read(0, 4), before[:4])
    assert np.array_equal(buffer.read(7), before[7:])
    assert buffer.guard_intact()


def test_what_was_read_is_a_copy() -> None:
    buffer = DeviceBuffer(DEVICE, 2, plain(np.float32))
    buffer.write(np.array([1, 2], np.float32))
    read = buffer.read()

    buffer.write(np.array([3, 4], np.float32))

    assert read.tolist() == [1, 2]


@pytest.mark.parametrize("dtype", FORMATS)
def test_new_memory_holds_finite_noise_that_is_the_same_everywhere(dtype: str) -> None:
    form = FORMATS[dtype]
    elements = noise(form.carrier).size + 1000  # more than one block

    first = DeviceBuffer(DEVICE, elements, form).read()

    assert np.isfinite(first).all()
    assert np.unique(first[-1000:]).size > 200
    assert np.array_equal(first, DeviceBuffer(DEVICE, elements, form).read())


@pytest.mark.parametrize("offset", [0, GUARD.size - 1])
def test_a_byte_behind_the_end_does_not_stay_unnoticed(offset: int) -> None:
    buffer = DeviceBuffer(DEVICE, 3, plain(np.uint8))
    assert buffer.guard_intact()

    ctypes.memset(buffer.ptr + 3 + offset, 0, 1)

    assert not buffer.guard_intact()


def test_an_empty_buffer_has_a_guard_only() -> None:
    buffer = DeviceBuffer(DEVICE, 0, BF16)

    assert buffer.read().size == 0
    assert buffer.guard_intact()


def test_counts_go_beyond_32_bits() -> None:
    """On a device whose memory has no content, since uploads of 4.4 GB take their time."""
    device: Any = LoggingDevice()

    buffer = DeviceBuffer(device, 2_200_000_000, BF16)

    assert buffer.nbytes == 4_400_000_000
    assert device.allocated == 2**20 + 4_400_000_000 + GUARD.size


@pytest.mark.parametrize("count", [1e9, "7"])
def test_a_count_is_an_integer(count: Any) -> None:
    with pytest.raises(TypeError):
        DeviceBuffer(DEVICE, count, BF16)


def test_a_buffer_beyond_the_memory_is_refused() -> None:
    with pytest.raises(PreflightError, match="host:0 has 1073741824 bytes"):
        DeviceBuffer(DEVICE, 2**30, BF16)
