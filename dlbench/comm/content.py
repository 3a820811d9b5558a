"""What new message buffers hold: noise, and behind it a guard that no message may touch.

The noise is the same in every process and finite in every dtype. Memory that was never written would be the kernel's
one zero page, which flatters the bandwidth.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

GUARD = np.full(64, 0xA5, np.uint8)
_NOISE_BYTES = 2**20


@cache
def noise(dtype: np.dtype[Any]) -> NDArray[Any]:
    """1 MiB of noise: floats from 0 to 1, or integers of any value."""
    random = np.random.default_rng(0)
    if dtype.kind == "f":
        return random.random(_NOISE_BYTES // dtype.itemsize, np.float64).astype(dtype)
    return np.frombuffer(random.bytes(_NOISE_BYTES), dtype)
