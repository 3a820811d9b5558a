"""A kernel of one thread that does nothing but watch the device's clock, so its stream is occupied for a set time.

It is compiled when it is first needed: on CUDA by NVRTC, on ROCm by hipRTC.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

NAME = "spin"

CUDA_SOURCE = r"""
__device__ unsigned long long now() {
    unsigned long long nanoseconds;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
    return nanoseconds;
}

extern "C" __global__ void spin(const unsigned long long ticks) {
    const unsigned long long begin = now();
    while (now() - begin < ticks) {
    }
}
"""
"""Ticks are nanoseconds (PTX ISA, %globaltimer). How often the clock advances is the GPU's own affair."""

HIP_SOURCE = r"""
extern "C" __global__ void spin(const unsigned long long ticks) {
    const unsigned long long begin = wall_clock64();
    while (wall_clock64() - begin < ticks) {
    }
}
"""
"""Ticks are those of a clock of constant frequency, which the device tells (HIP, wall_clock64)."""

HIP_WALL_CLOCK_RATE = 10017
"""hipDeviceAttributeWallClockRate, in kHz."""
_GIGAHERTZ = 1_000_000
"""In kHz: a tick a nanosecond."""
_ONE = (1,)


class SpinKernel:
    """The kernel for the current device `index`, compiled.

    `use` makes a stream the one that CuPy's launches go to.
    """

    def __init__(self, cupy: Any, index: int, use: Callable[[Any], None]) -> None:
        runtime = cupy.cuda.runtime
        self._use = use
        self._kilohertz = runtime.deviceGetAttribute(HIP_WALL_CLOCK_RATE, index) if runtime.is_hip else _GIGAHERTZ
        self._kernel = cupy.RawKernel(HIP_SOURCE if runtime.is_hip else CUDA_SOURCE, NAME)
        self._kernel.compile()

    def launch(self, stream: Any, nanoseconds: int) -> None:
        """Enqueue the kernel for so long."""
        self._use(stream)
        ticks = nanoseconds * self._kilohertz // _GIGAHERTZ
        self._kernel(_ONE, _ONE, (np.uint64(ticks),))
