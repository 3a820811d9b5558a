"""The phases' real matrix products on the GPU, on a compute stream of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain, repeat, starmap
from typing import TYPE_CHECKING

import numpy as np

from dlbench.compute.gemm import Block, PoolElements, blocks, excess_remarks
from dlbench.compute.none import no_time
from dlbench.compute.operands import ELEMENT_BYTES, random_operand
from dlbench.compute.waiting import wait

if TYPE_CHECKING:
    from dlbench.accelerator.protocol import Device, Event, Memory, Multiplier, Precision, Stream
    from dlbench.compute.protocol import Phase

LARGEST_POOL = 2**30
"""Bound on each of the three pools, in bytes: what fits it keeps a GPU busy for milliseconds."""
_SHARE_OF_FREE = 16
"""A pool takes no more than one part in so many of the memory that is free."""
EDGE = 128
"""Rows and columns of cut blocks are multiples of it, as the tiles of tensor cores are."""
LEAST_FLOPS = 2e10
"""Smaller products are stacked: 20 µs at 1 PFLOP/s, beside some 5 µs that Python takes to launch one."""
BATCH = 64
"""Launches between two marks; three batches at most are queued, far below the thousand that block a launch."""
_LIBRARIES = {"cuda": "cuBLAS", "hip": "rocBLAS", "host": "host"}


def largest_pool(device: Device) -> int:
    """Bytes of a pool at most: a power of two, so that ranks whose GPUs are as good as equally full agree on it."""
    share = max(1, device.free_bytes() // _SHARE_OF_FREE)
    return min(LARGEST_POOL, 1 << share.bit_length() - 1)


class GpuGemmCompute:
    """Performs the matrix products of a phase on the GPU.

    Operands hold random numbers from `seed`. All phases share three pools of at most `pool_bytes` each (default
    `largest_pool`); results overwrite each other. The products go to `stream` (default: a new one). A phase returns
    when its last product is done, so what a rank communicates after it needs no event of this stream to wait for.
    """

    name = "gemm"
    timed = False
    on_device = True

    def __init__(
        self,
        device: Device,
        precision: Precision,
        *,
        seed: int = 0,
        pool_bytes: int | None = None,
        stream: Stream | None = None,
    ) -> None:
        self.precision = precision
        self.seed = seed
        self.pool_bytes = pool_bytes or largest_pool(device)
        self._device = device
        self._pools: list[Memory] = []
        self._stream = stream or device.stream()
        self._multiplier: Multiplier | None = None
        self._marks: tuple[Event, Event]
        self._end: Event

    def describe(self) -> dict[str, str]:
        """Precision, library, device, and how products become launches."""
        facts = self._device.facts
        return {
            "precision": self.precision,
            "library": f"{_LIBRARIES[facts.kind]} through CuPy {facts.cupy}",
            "device": facts.name,
            "pool_bytes": str(self.pool_bytes),
            "stacking": f"equal products below {LEAST_FLOPS / 1e9:g} GFLOP are one, rows upon rows",
        }

    def remarks(self, phases: Iterable[Phase]) -> list[str]:
        """Says so where scaled products have come down to single rows, and where launches take longer than products."""
        found = list(phases)
        performed = sum(map(self.flops, found))
        remarks = excess_remarks(performed, found)
        launches = sum(block.times for phase in found for block in self._blocks(phase))
        if launches and performed < LEAST_FLOPS * launches:
            mean = f"{performed / launches / 1e9:.3g} GFLOP"
            remarks.append(f"gemm may be bound by launches: {launches} products have {mean} on average")
        return remarks

    def memory_bytes(self, phases: Iterable[Phase]) -> int:
        """Bytes of the three pools on the device; the library's workspace, tens of MB, comes on top."""
        return sum(self._pool_elements(phases)) * ELEMENT_BYTES[self.precision]

    def prepare(self, phases: Iterable[Phase]) -> None:
        """Allocate and fill the pools for the largest block of the phases, and perform each kind of block once.

        CUDA loads a kernel when it is first launched, and may wait until the device is idle for that. With a collective
        under way that waits for this rank, it never would be.
        """
        found = list(phases)
        random = np.random.default_rng(self.seed)
        left, right, out = self._pool_elements(found)
        self._pools = [
            *(random_operand(self._device, elements, self.precision, random) for elements in (left, right)),
            self._device.allocate(out * ELEMENT_BYTES[self.precision]),
        ]
        self._multiplier = self._device.multiplier(self._stream, self.precision)
        self._marks = (self._device.event(), self._device.event())
        self._end = self._device.event()
        for block in dict.fromkeys(block._replace(times=1) for phase in found for block in self._blocks(phase)):
            self._launch(block)()
        self._stream.synchronize()

    def flops(self, phase: Phase) -> int:
        """FLOPs that a call of the bound phase performs: the phase's own, up to the rounding to whole rows."""
        return sum(block.flops for block in self._blocks(phase))

    def bind(self, phase: Phase, progress: Callable[[], None] | None = None) -> Callable[[], None]:
        """Bind a phase that was among those prepared; `progress` is called after every launch and while waiting."""
        products = [(self._launch(block), block.times) for block in self._blocks(phase)]
        if not products:
            return no_time
        stream, marks, end, after_each = self._stream, self._marks, self._end, progress or no_time

        def multiply() -> None:
            for number, launch in enumerate(chain.from_iterable(starmap(repeat, products))):
                if number % BATCH == 0:
                    mark = marks[number // BATCH % 2]
                    wait(mark, progress)
                    mark.record(stream)
                launch()
                after_each()
            end.record(stream)
            wait(end, progress)

        return multiply

    def close(self) -> None:
        """Finish the stream, release the library's handle, free the pools."""
        if self._multiplier is None:
            return
        self._stream.synchronize()
        self._multiplier.close()
        self._multiplier = None
        self._pools = []

    def _blocks(self, phase: Phase) -> list[Block]:
        size = ELEMENT_BYTES[self.precision]
        return blocks(phase, self.pool_bytes, element_bytes=size, edge=EDGE, least_flops=LEAST_FLOPS)

    def _pool_elements(self, phases: Iterable[Phase]) -> PoolElements:
        return PoolElements.of(block for phase in phases for block in self._blocks(phase))

    def _launch(self, block: Block) -> Callable[[], None]:
        if self._multiplier is None:
            raise AssertionError("prepare comes before bind")
        left, right, out = (pool.ptr for pool in self._pools)
        return partial(self._multiplier.multiply, left, right, out, rows=block.rows, columns=block.columns, k=block.k)
