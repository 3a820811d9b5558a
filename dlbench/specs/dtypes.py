"""Element types: how wide they are, and which of them messages can have."""

from __future__ import annotations

DTYPE_BYTES: dict[str, int] = {"bf16": 2, "fp16": 2, "fp32": 4, "tf32": 4, "fp64": 8, "fp8": 1}
"""Bytes of one element in memory, for every dtype that a GPU spec may give a peak for."""

MESSAGE_DTYPES = ("bf16", "fp16", "fp32", "fp64", "fp8")
"""Dtypes of a run. `tf32` is none: it is a way to multiply fp32 numbers, which travel as fp32."""
