"""GPUs: the figures of their datasheets that the roofline needs."""

from __future__ import annotations

import msgspec

from dlbench.errors import SpecError
from dlbench.specs.check import Positive, Rate, Text, require, require_sources
from dlbench.specs.dtypes import DTYPE_BYTES


class GpuSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One GPU, or the part of it that one rank drives.

    Raises `SpecError` for a peak of an unknown dtype or a figure without a source.
    """

    name: Text
    vendor: Text
    peak_flops: dict[str, Rate]
    """Dense peak (no sparsity) by dtype in FLOP/s, for the dtypes that the device multiplies in hardware."""
    memory_bandwidth: Rate
    """Bytes/s."""
    memory_bytes: Positive
    source: dict[str, Text]
    """Where each figure comes from."""

    def __post_init__(self) -> None:
        require(bool(self.peak_flops), "peak_flops", "a peak for at least one dtype", "none")
        for dtype in self.peak_flops:
            require(dtype in DTYPE_BYTES, "peak_flops", f"dtypes out of {', '.join(DTYPE_BYTES)}", dtype)
        require_sources(self.source, "source", ("peak_flops", "memory_bandwidth", "memory_bytes"))

    def peak(self, dtype: str) -> float:
        """Dense peak in FLOP/s. Raises `SpecError` where the device has none for the dtype."""
        try:
            return self.peak_flops[dtype]
        except KeyError:
            has = ", ".join(self.peak_flops)
            raise SpecError(f"GPU {self.name} has no peak for dtype {dtype!r}; it has {has}") from None
