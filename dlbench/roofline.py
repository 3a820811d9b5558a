"""Roofline: FLOPs, bytes and time of the phases of a transformer layer, and the matrix products inside them.

A phase takes t = FLOPs / min(peak, FLOPs/bytes × bandwidth): it is bound by arithmetic or by memory, whichever is
slower. The formulas are those of the paper that dlbench reproduces (Raffi et al., SC26): they count multi-head
attention without grouped queries and an MLP of two products, whatever the model's own variant is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from dlbench.specs import GpuSpec, ModelSpec
from dlbench.specs.dtypes import DTYPE_BYTES


class Gemm(NamedTuple):
    """C[m, n] = A[m, k] B[k, n], `times` times, 2 m n k FLOPs each. A part of a phase has fractions of products."""

    m: int
    n: int
    k: int
    times: float

    @property
    def flops(self) -> float:
        """FLOPs of all these products."""
        return 2 * self.m * self.n * self.k * self.times

    def scaled(self, factor: float) -> Gemm:
        """The same product, `factor` times as often."""
        return self._replace(times=self.times * factor)


class Phase(msgspec.Struct, frozen=True):
    """A stretch of computation: what it does (FLOPs, bytes moved, matrix products) and how long it takes."""

    name: str
    flops: float
    bytes: float
    seconds: float
    gemms: tuple[Gemm, ...] = ()

    @property
    def intensity(self) -> float:
        """Arithmetic intensity in FLOPs per byte."""
        return self.flops / self.bytes

    def scaled(self, factor: float, name: str | None = None) -> Phase:
        """`factor` times the phase: FLOPs, bytes, seconds and products alike."""
        return Phase(
            name=name or self.name,
            flops=self.flops * factor,
            bytes=self.bytes * factor,
            seconds=self.seconds * factor,
            gemms=tuple(gemm.scaled(factor) for gemm in self.gemms),
        )


def combined(name: str, phases: Iterable[Phase]) -> Phase:
    """The phases one after the other, as one phase."""
    parts = tuple(phases)
    return Phase(
        name=name,
        flops=sum(part.flops for part in parts),
        bytes=sum(part.bytes for part in parts),
        seconds=sum(part.seconds for part in parts),
        gemms=tuple(gemm for part in parts for gemm in part.gemms),
    )


def attention(model: ModelSpec, gpu: GpuSpec, *, dtype: str, samples: int, sequence_length: int) -> Phase:
    """Attention of one layer, forward.

    FLOPs = 8 B N d² + 4 B N² d: four projections of all B N tokens, then scores and weighted values per head.
    Bytes = 4 d² s + 2 B N d s: the weights, and the tokens in and out.
    """
    tokens, d = samples * sequence_length, model.hidden_size
    head_size, products = d // model.heads, samples * model.heads
    gemms = (
        Gemm(tokens, d, d, 4),
        Gemm(sequence_length, sequence_length, head_size, products),
        Gemm(sequence_length, head_size, sequence_length, products),
    )
    flops = 8 * tokens * d**2 + 4 * tokens * sequence_length * d
    elements = 4 * d**2 + 2 * tokens * d
    return _phase("attention", gpu, dtype, flops, elements, gemms)


def mlp(model: ModelSpec, gpu: GpuSpec, *, dtype: str, samples: int, sequence_length: int) -> Phase:
    """MLP of one layer, forward: every token through its k active experts (k = 1 without experts).

    FLOPs = 4 B N d H k. Bytes = 2 d H s E + 2 B N d s: the weights of all E experts, and the tokens in and out.
    """
    tokens, d, h = samples * sequence_length, model.hidden_size, model.feed_forward_size
    gemms = (Gemm(tokens, h, d, model.active_experts), Gemm(tokens, d, h, model.active_experts))
    flops = 4 * tokens * d * h * model.active_experts
    elements = 2 * d * h * model.experts + 2 * tokens * d
    return _phase("mlp", gpu, dtype, flops, elements, gemms)


def forward(model: ModelSpec, gpu: GpuSpec, *, dtype: str, samples: int, sequence_length: int) -> Phase:
    """All layers of the model, forward: Σ over L layers of attention and MLP."""
    layer = [
        part(model, gpu, dtype=dtype, samples=samples, sequence_length=sequence_length) for part in (attention, mlp)
    ]
    return combined("forward", layer).scaled(model.layers)


def backward(phase: Phase, name: str = "backward") -> Phase:
    """Backward of a forward phase: twice its FLOPs, bytes and time.

    Each product C[m, n] = A[m, k] B[k, n] becomes two: dA[m, k] = dC Bᵀ and dB[k, n] = Aᵀ dC.
    """
    gemms = tuple(
        gradient for m, n, k, times in phase.gemms for gradient in (Gemm(m, k, n, times), Gemm(k, n, m, times))
    )
    return Phase(name, 2 * phase.flops, 2 * phase.bytes, 2 * phase.seconds, gemms)


def _phase(name: str, gpu: GpuSpec, dtype: str, flops: float, elements: float, gemms: tuple[Gemm, ...]) -> Phase:
    moved = elements * DTYPE_BYTES[dtype]
    seconds = max(flops / gpu.peak(dtype), moved / gpu.memory_bandwidth)
    return Phase(name=name, flops=float(flops), bytes=float(moved), seconds=seconds, gemms=gemms)
