"""Random operands of matrix products: zeros take less power than the numbers of a training, which distorts clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dlbench.accelerator.protocol import Device, Memory, Precision

ELEMENT_BYTES: dict[Precision, int] = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}
"""Of an operand in memory; tf32 multiplies what lies there as fp32."""
_CHUNK_ELEMENTS = 2**22 - 3
"""Prime: a longer operand repeats itself, but no two of its rows are alike before there are so many of them."""


def random_elements(random: np.random.Generator, count: int, precision: Precision) -> NDArray[Any]:
    """Random numbers from -0.5 to 0.5, `count` of them, so that a product of k of them stays far from fp16's maximum.

    bf16 comes as uint16, the upper half of an fp32: NumPy has no such type.
    """
    if precision == "fp64":
        return random.random(count) - 0.5
    single = random.random(count, np.float32)
    single -= np.float32(0.5)
    match precision:
        case "fp16":
            return single.astype(np.float16)
        case "bf16":
            return (single.view(np.uint32) >> 16).astype(np.uint16)
    return single


def random_operand(device: Device, count: int, precision: Precision, random: np.random.Generator) -> Memory:
    """Device memory with `count` random numbers, uploaded piece by piece.

    Raises `PreflightError` where the device has too little memory.
    """
    size = ELEMENT_BYTES[precision]
    memory = device.allocate(count * size)
    chunk = random_elements(random, min(count, _CHUNK_ELEMENTS), precision)
    for begin in range(0, count, _CHUNK_ELEMENTS):
        device.upload(memory.ptr + begin * size, chunk[: count - begin])
    return memory
