"""The phases' real matrix products, on the CPU through NumPy in float32."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from time import perf_counter
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dlbench.compute.none import no_time
from dlbench.compute.operands import random_elements
from dlbench.compute.protocol import Phase

Matrix: TypeAlias = NDArray[np.float32]

POOL_BYTES = 80 * 2**20
"""Bound on each of the three operand pools."""
_ELEMENT_BYTES = 4
_ROUNDING = 1.05
"""FLOPs beyond what was planned that need no remark."""
_LONG_SECONDS = 1.0
"""An iteration of products that takes longer needs a remark: its reader has seen that of the roofline."""
_SAMPLE_FLOPS = 2**28
"""Bound on the FLOPs of a product that tells a rate, in rows beyond the first `_SAMPLE_ROWS`: it takes milliseconds."""
_SAMPLE_ROWS = 16
"""From so many on, a product is about as fast as one of more."""
_LEAST_SHARE = 0.02
"""Share of the FLOPs below which products are taken to be as fast as the others are on average."""
_SAMPLE_SECONDS = 0.2
"""Longer than a turn of the scheduler: other ranks and programs on these cores are in the rate."""
_SLOWEST = 1e9
"""FLOP/s that every core reaches."""


def _blas_threads() -> str:
    return os.environ.get("OMP_NUM_THREADS") or os.environ.get("OPENBLAS_NUM_THREADS") or ""


class Block(NamedTuple):
    """A product C[rows, columns] = A[rows, k] B[k, columns] that fits the pools, done `times` times."""

    rows: int
    columns: int
    k: int
    times: int

    @property
    def flops(self) -> int:
        """2 × rows × columns × k for every time."""
        return 2 * self.rows * self.columns * self.k * self.times


def _spans(total: int, step: int) -> Iterator[tuple[int, int]]:
    """Cut `total` into pieces of `step` and a remainder, as (length, times)."""
    whole, rest = divmod(total, step)
    if whole:
        yield step, whole
    if rest:
        yield rest, 1


def _within(room: int, length: int, edge: int) -> int:
    """The length, or where it outgrows the room what fits of it: whole edges, if one fits, and at least 1."""
    return length if length <= room else room // edge * edge or max(1, room)


def blocks(
    phase: Phase,
    pool_bytes: int = POOL_BYTES,
    *,
    element_bytes: int = _ELEMENT_BYTES,
    edge: int = 1,
    least_flops: float = 0.0,
) -> list[Block]:
    """Products that make up a phase.

    `count` products of m rows are count × m rows, rounded to whole ones and at least one where count > 0: 0.02 of
    a product is its first 0.02 m rows. Rows, and columns where one weight matrix alone outgrows its pool, are cut
    so that each operand fits its pool; where cut, they are multiples of `edge` if that fits.

    Equal products with fewer than `least_flops` are stacked, rows upon rows, until they have as many.
    """
    pool = pool_bytes // element_bytes
    found = []
    for m, n, k, count in phase.gemms:
        columns = _within(pool // k, n, edge)
        room = pool // max(k, columns)
        total = max(1, round(count * m)) if count > 0 else 0
        found += [
            Block(rows, width, k, products * row_blocks * column_blocks)
            for height, products in _spans(total, m * max(1, math.ceil(least_flops / (2 * m * n * k))))
            for rows, row_blocks in _spans(height, _within(room, height, edge))
            for width, column_blocks in _spans(n, columns)
        ]
    return found


class PoolElements(NamedTuple):
    """Elements of the pools of A, B and C."""

    left: int
    right: int
    out: int

    @classmethod
    def of(cls, found: Iterable[Block]) -> PoolElements:
        """As large as the largest of the blocks needs each."""
        operands = [(block.rows * block.k, block.k * block.columns, block.rows * block.columns) for block in found]
        return cls(*map(max, zip(*operands, strict=True))) if operands else cls(0, 0, 0)


def excess_remarks(performed: int, phases: Iterable[Phase]) -> list[str]:
    """Says so where scaled products have come down to single rows: more FLOPs are performed than the phases have."""
    planned = sum(2.0 * m * n * k * count for phase in phases for m, n, k, count in phase.gemms)
    if performed <= _ROUNDING * planned:
        return []
    return [f"gemm performs {performed / planned:.3g} times the FLOPs: a product has one row at least"]


def sampled_rates(kinds: Sequence[Block]) -> list[float]:
    """FLOP/s that products like each of the blocks achieve here and now.

    They are done in turn, as in an iteration, after a first round, in which BLAS starts its threads: products of a few
    rows are as fast as the memory that their weights come from, and a weight used again at once comes from a cache.
    """
    samples = [
        block._replace(rows=min(block.rows, max(_SAMPLE_ROWS, _SAMPLE_FLOPS // (2 * block.columns * block.k))), times=1)
        for block in kinds
    ]
    pools = tuple(np.ones(elements, np.float32) for elements in PoolElements.of(samples))
    products = [_views(pools, block) for block in samples]
    seconds, rounds = np.zeros(len(products)), -1
    begin = perf_counter()
    while rounds < 1 or perf_counter() - begin < _SAMPLE_SECONDS:
        rounds += 1
        for place, (left, right, out) in enumerate(products):
            start = perf_counter()
            np.matmul(left, right, out=out)
            seconds[place] += (perf_counter() - start) * (rounds > 0)
    return [block.flops * rounds / each for block, each in zip(samples, seconds.tolist(), strict=True)]


def _views(pools: Sequence[Matrix], block: Block) -> tuple[Matrix, Matrix, Matrix]:
    """Operands of a block, A, B and C, in their pools."""
    left, right, out = pools
    rows, columns, k = block.rows, block.columns, block.k
    return (
        left[: rows * k].reshape(rows, k),
        right[: k * columns].reshape(k, columns),
        out[: rows * columns].reshape(rows, columns),
    )


class GemmCompute:
    """Performs the matrix products of a phase.

    Operands hold random numbers from `seed`. All phases share three pools, of at most `pool_bytes` each, so the
    memory does not grow with the model; results overwrite each other.
    """

    name = "gemm"
    timed = False
    on_device = False

    def __init__(self, seed: int = 0, pool_bytes: int = POOL_BYTES) -> None:
        self.seed = seed
        self.pool_bytes = pool_bytes
        self._left = self._right = self._out = np.empty(0, np.float32)

    def describe(self) -> dict[str, str]:
        """Precision, library and BLAS threads."""
        return {
            "precision": "float32",
            "library": f"NumPy {np.__version__}",
            "blas_threads": _blas_threads() or "as many as cores",
        }

    def remarks(self, phases: Iterable[Phase]) -> list[str]:
        """Says so where scaled products have come down to single rows, take long, and where BLAS takes all cores.

        `phases` are those of an iteration. Called on all ranks at once, a sample has the share of the cores that a rank
        has in a run.
        """
        found = list(phases)
        performed = sum(map(self.flops, found))
        remarks = [*excess_remarks(performed, found), *self._duration_remarks(performed, found)]
        if not _blas_threads():
            remarks.append("gemm uses all cores on every rank; set OMP_NUM_THREADS to cores per rank")
        return remarks

    def _duration_remarks(self, performed: int, phases: Sequence[Phase]) -> list[str]:
        """Says so where the products of an iteration take more than a second: a core is no GPU."""
        if performed < _SLOWEST * _LONG_SECONDS:
            return []
        flops: Counter[Block] = Counter()
        for block in chain.from_iterable(blocks(phase, self.pool_bytes) for phase in phases):
            flops[block._replace(times=1)] += block.flops
        kinds = [block for block, share in flops.items() if share >= _LEAST_SHARE * performed]
        kinds = kinds or [flops.most_common(1)[0][0]]
        sampled = sum(flops[block] for block in kinds)
        rates = sampled_rates(kinds)
        seconds = performed / sampled * sum(flops[block] / rate for block, rate in zip(kinds, rates, strict=True))
        if seconds < _LONG_SECONDS:
            return []
        return [
            f"gemm computes for about {seconds:.2g} s an iteration on these cores; "
            f"for 1 s multiply --time-scale by {1 / seconds:.2g}"
        ]

    def memory_bytes(self, phases: Iterable[Phase]) -> int:
        """Bytes of the three pools."""
        return sum(self._pool_elements(phases)) * _ELEMENT_BYTES

    def prepare(self, phases: Iterable[Phase]) -> None:
        """Allocate and fill the pools for the largest block of the phases."""
        random = np.random.default_rng(self.seed)

        self._left, self._right, self._out = (
            random_elements(random, elements, "fp32") for elements in self._pool_elements(phases)
        )

    def _pool_elements(self, phases: Iterable[Phase]) -> PoolElements:
        return PoolElements.of(block for phase in phases for block in blocks(phase, self.pool_bytes))

    def flops(self, phase: Phase) -> int:
        """FLOPs that a call of the bound phase performs: the phase's own, up to the rounding to whole rows."""
        return sum(block.flops for block in blocks(phase, self.pool_bytes))

    def bind(self, phase: Phase, progress: Callable[[], None] | None = None) -> Callable[[], None]:
        """Bind a phase that was among those prepared; `progress` is called after every product."""
        products = [(*self._operands(block), block.times) for block in blocks(phase, self.pool_bytes)]
        matmul, after_each = np.matmul, progress or no_time

        def multiply() -> None:
            for left, right, out, times in products:
                for _ in range(times):
                    matmul(left, right, out=out)
                    after_each()

        return multiply

    def close(self) -> None:
        """Free the pools."""
        self._left = self._right = self._out = np.empty(0, np.float32)

    def _operands(self, block: Block) -> tuple[Matrix, Matrix, Matrix]:
        return _views((self._left, self._right, self._out), block)
