"""NVIDIA's driver, as far as it is called without CuPy, with a list of the calls."""

from __future__ import annotations

import ctypes
from typing import Any

_FIRST = 100
"""Handle of the first device."""


class FakeCuda:
    """NVIDIA's driver on a host with some GPUs; `failing` is the function that gives an error."""

    def __init__(self, gpus: int, failing: str = "") -> None:
        self.gpus = gpus
        self.failing = failing
        self.calls: list[str] = []
        self.ordinals: list[int] = []
        """GPUs that were asked for."""
        self.current: int | None = None

    def context_of(self, index: int) -> int:
        """Handle of a GPU's primary context: more than an int holds."""
        return 0x7F0000000000 + index

    def load(self, name: str) -> Any:
        """The driver's library."""
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
        self.ordinals.append(ordinal)
        device._obj.value = _FIRST + ordinal
        return self._status("cuDeviceGet")

    def cuDevicePrimaryCtxRetain(self, context: Any, device: ctypes.c_int) -> int:  # noqa: N802
        context._obj.value = self.context_of(device.value - _FIRST)
        return self._status("cuDevicePrimaryCtxRetain")

    def cuCtxSetCurrent(self, context: ctypes.c_void_p) -> int:  # noqa: N802
        status = self._status("cuCtxSetCurrent")
        if not status:
            self.current = (context.value or 0) - self.context_of(0)
        return status

    def _status(self, name: str) -> int:
        self.calls.append(name)
        return 999 if name == self.failing else 0
