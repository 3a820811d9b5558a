"""Message buffers in the memory of a GPU, as any library that takes addresses can use them."""

from __future__ import annotations

from operator import index
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlbench.accelerator.protocol import Device
from dlbench.comm.content import GUARD, noise


class Format(NamedTuple):
    """How elements lie in memory, and as what NumPy sees them: two dtypes, since NumPy has no bf16."""

    stored: np.dtype[Any]
    carrier: np.dtype[Any]

    def encode(self, values: NDArray[Any]) -> NDArray[Any]:
        """From values to memory. bf16 is the upper half of an fp32: exact for values of 8 significant bits."""
        if self.stored == self.carrier:
            return np.ascontiguousarray(values, self.carrier)
        bits = np.ascontiguousarray(values, self.carrier).view(np.uint32) >> 16
        return bits.astype(self.stored)

    def decode(self, content: NDArray[np.uint8]) -> NDArray[Any]:
        """From memory to values."""
        stored = content.view(self.stored)
        if self.stored == self.carrier:
            return stored
        return (stored.astype(np.uint32) << 16).view(self.carrier)


def plain(dtype: Any) -> Format:
    """Format of what NumPy has as it lies in memory."""
    return Format(np.dtype(dtype), np.dtype(dtype))


BF16 = Format(np.dtype(np.uint16), np.dtype(np.float32))


class DeviceBuffer:
    """Device memory of `elements` elements, filled with noise, and a guard behind them.

    Raises `PreflightError` where the device has no memory for it, TypeError for a count that is no integer: a library
    would cut off its fraction, and everything behind 2^53.
    """

    __slots__ = ("_device", "_format", "_memory", "elements", "ptr")

    def __init__(self, device: Device, elements: int, format_: Format) -> None:
        self.elements = index(elements)
        self._device = device
        self._format = format_
        self._memory = device.allocate(self.nbytes + GUARD.size)
        self.ptr = self._memory.ptr
        content = format_.encode(noise(format_.carrier))
        for start in range(0, self.elements, content.size):
            device.upload(self._address(start), content[: self.elements - start])
        device.upload(self._address(self.elements), GUARD)

    @property
    def nbytes(self) -> int:
        """Size of the elements, without the guard."""
        return self.elements * self._format.stored.itemsize

    def read(self, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Host copy of elements `start` to `stop`."""
        start, stop, _ = slice(start, stop).indices(self.elements)
        return self._format.decode(
            self._device.download(self._address(start), (stop - start) * self._format.stored.itemsize)
        )

    def write(self, values: NDArray[Any], start: int = 0) -> None:
        """Replace the content from element `start` on; returns when it is there."""
        self._device.upload(self._address(start), self._format.encode(values))

    def guard_intact(self) -> bool:
        """Whether the bytes behind the last element are as they were written."""
        return bool(np.array_equal(self._device.download(self._address(self.elements), GUARD.size), GUARD))

    def _address(self, element: int) -> int:
        return self.ptr + element * self._format.stored.itemsize
