"""Matrix products on the GPU: which are launched, with what operands, how many are queued, when a phase is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from host_device import GIBIBYTE, HostDevice, HostDriver, HostEvent, HostMultiplier, StandInQueue
from hypothesis import given
from hypothesis import strategies as st

from dlbench.accelerator.protocol import Precision
from dlbench.compute.gemm import Block, blocks
from dlbench.compute.gpu_gemm import BATCH, LARGEST_POOL, GpuGemmCompute, largest_pool
from dlbench.compute.operands import ELEMENT_BYTES, random_elements, random_operand
from dlbench.compute.waiting import wait
from dlbench.errors import PreflightError

Shape = tuple[int, int, int, float]
PRECISIONS: list[Precision] = ["fp64", "fp32", "tf32", "fp16", "bf16"]


@dataclass(frozen=True)
class PhaseOf:
    gemms: tuple[Shape, ...]
    seconds: float = 0.0


@dataclass
class Journal:
    """What a device was asked for, in order."""

    entries: list[str] = field(default_factory=list)

    def count(self, entry: str) -> int:
        return sum(found.startswith(entry) for found in self.entries)


class JournalEvent(HostEvent):
    """Done when it is asked for the third time."""

    def __init__(self, name: str, journal: Journal) -> None:
        super().__init__(StandInQueue())
        self.name, self.journal = name, journal

    def record(self, stream: Any) -> None:
        self.journal.entries.append(f"record {self.name}")

    def synchronize(self) -> None:
        self.journal.entries.append(f"wait {self.name}")

    @property
    def done(self) -> bool:
        self.journal.entries.append(f"ask {self.name}")
        return self.journal.count(f"ask {self.name}") % 3 == 0


class JournalMultiplier(HostMultiplier):
    """Writes products down instead of performing them."""

    def __init__(self, journal: Journal) -> None:
        super().__init__("fp32")
        self.journal = journal

    def multiply(self, left: int, right: int, out: int, *, rows: int, columns: int, k: int) -> None:
        self.journal.entries.append(f"product {rows}x{columns}x{k}")


class JournalDevice(HostDevice):
    """A device whose events and products go into a journal."""

    def __init__(self) -> None:
        super().__init__(device().facts, StandInQueue())
        self.journal = Journal()
        self.events = 0

    def event(self) -> HostEvent:
        self.events += 1
        return JournalEvent(f"event {self.events}", self.journal)

    def multiplier(self, stream: Any, precision: Precision) -> HostMultiplier:
        return JournalMultiplier(self.journal)


def device(memory_bytes: int = GIBIBYTE) -> HostDevice:
    return HostDriver(memory_bytes=memory_bytes).open(0)


def journaled(phase: PhaseOf) -> tuple[Journal, Callable[..., Callable[[], None]]]:
    """Journal of a device, and the binding of a prepared phase; what preparing asked for is forgotten."""
    target = JournalDevice()
    compute = GpuGemmCompute(target, "fp32")
    compute.prepare([phase])
    target.journal.entries.clear()
    return target.journal, lambda progress=None: compute.bind(phase, progress)


def test_a_pool_is_a_sixteenth_of_the_free_memory_down_to_a_power_of_two_and_a_gibibyte_at_most() -> None:
    assert largest_pool(device(64 * GIBIBYTE)) == LARGEST_POOL
    assert largest_pool(device(8 * GIBIBYTE)) == GIBIBYTE // 2
    assert largest_pool(device(15 * GIBIBYTE)) == GIBIBYTE // 2


def test_small_equal_products_are_stacked_until_their_arithmetic_outlasts_their_launch() -> None:
    # Attention of a sequence of 2048 with heads of 128: 2 × 2048² × 128 = 1.07 GFLOP a product, 19 are 20.4 GFLOP.
    attention = PhaseOf(((2048, 2048, 128, 64.0),))
    assert blocks(attention, LARGEST_POOL, element_bytes=2, least_flops=2e10) == [
        Block(19 * 2048, 2048, 128, 3),
        Block(7 * 2048, 2048, 128, 1),
    ]


def test_a_large_product_is_launched_as_it_is() -> None:
    mlp = PhaseOf(((8192, 28672, 8192, 80.0),))
    assert blocks(mlp, LARGEST_POOL, element_bytes=2, edge=128, least_flops=2e10) == [Block(8192, 28672, 8192, 80)]


def test_cut_rows_and_columns_are_whole_tiles() -> None:
    # 2^20 bytes hold 524288 bf16: 524288 / 4096 = 128 columns of B; 524288 / 1000 = 524, of which 512 are tiles.
    assert blocks(PhaseOf(((100, 300, 4096, 1.0),)), 2**20, element_bytes=2, edge=128) == [
        Block(100, 128, 4096, 2),
        Block(100, 44, 4096, 1),
    ]
    assert blocks(PhaseOf(((1100, 500, 1000, 1.0),)), 2**20, element_bytes=2, edge=128) == [
        Block(512, 500, 1000, 2),
        Block(76, 500, 1000, 1),
    ]


shapes = st.tuples(st.integers(1, 300), st.integers(1, 300), st.integers(1, 100), st.floats(0.01, 40))


@given(shapes, st.integers(400, 40_000), st.sampled_from([1, 8, 128]), st.floats(0, 1e6))
def test_stacking_and_tiling_lose_no_row_and_no_column(shape: Shape, pool: int, edge: int, flops: float) -> None:
    m, n, k, count = shape
    found = blocks(PhaseOf((shape,)), pool, element_bytes=2, edge=edge, least_flops=flops)
    assert sum(block.rows * block.columns * block.times for block in found) == max(1, round(count * m)) * n
    assert all(2 * max(b.rows * b.k, b.k * b.columns, b.rows * b.columns) <= pool for b in found)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_product_is_that_of_the_operands_in_every_precision(precision: Precision) -> None:
    compute = GpuGemmCompute(device(), precision, seed=3)
    phase = PhaseOf(((3, 4, 5, 1.0),))
    compute.prepare([phase])
    compute.bind(phase)()
    left, right, out = (
        numbers(compute._device, pool.ptr, count, precision)
        for pool, count in zip(compute._pools, (15, 20, 12), strict=True)
    )
    expected = [[sum(left[i * 5 + j] * right[j * 4 + c] for j in range(5)) for c in range(4)] for i in range(3)]
    digits = {"fp64": 1e-14, "fp16": 2e-3, "bf16": 2e-2}.get(precision, 1e-6)
    np.testing.assert_allclose(out.reshape(3, 4), expected, rtol=digits, atol=digits)


def numbers(where: Any, address: int, count: int, precision: Precision) -> Any:
    """Device memory as float64."""
    raw = where.download(address, count * ELEMENT_BYTES[precision])
    if precision == "bf16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(float)
    dtype = {"fp64": np.float64, "fp16": np.float16}.get(precision, np.float32)
    return raw.view(dtype).astype(float)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_operands_are_random_finite_and_moderate(precision: Precision) -> None:
    target = device()
    memory = random_operand(target, 10_000, precision, np.random.default_rng(1))
    found = numbers(target, memory.ptr, 10_000, precision)
    assert memory.nbytes == 10_000 * ELEMENT_BYTES[precision]
    assert np.abs(found).max() <= 0.5
    # Uniform between -1/2 and 1/2: mean 0 ± 0.003, standard deviation 1/√12 = 0.289.
    assert abs(found.mean()) < 0.02
    assert found.std() == pytest.approx(0.289, abs=0.01)


def test_bf16_is_the_upper_half_of_an_fp32() -> None:
    single = random_elements(np.random.default_rng(2), 1000, "fp32")
    truncated = random_elements(np.random.default_rng(2), 1000, "bf16")
    np.testing.assert_array_equal(truncated, single.view(np.uint32) >> 16)
    assert truncated.dtype == np.uint16


def test_a_long_operand_repeats_itself_but_no_row_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlbench.compute.operands._CHUNK_ELEMENTS", 61)  # prime, as the real one
    target = device()
    memory = random_operand(target, 64 * 32, "fp32", np.random.default_rng(1))
    rows = numbers(target, memory.ptr, 64 * 32, "fp32").reshape(64, 32)
    assert len(np.unique(rows[:61], axis=0)) == 61


def test_the_real_chunk_is_prime() -> None:
    from dlbench.compute.operands import _CHUNK_ELEMENTS  # noqa: PLC0415

    assert all(_CHUNK_ELEMENTS % divisor for divisor in range(2, int(_CHUNK_ELEMENTS**0.5) + 1))


def test_phases_share_the_memory_of_the_largest_and_it_is_what_was_announced() -> None:
    small, large = PhaseOf(((2, 2, 2, 1.0),)), PhaseOf(((30, 20, 10, 1.0),))
    compute = GpuGemmCompute(device(), "bf16")
    compute.prepare([small, large])
    assert [pool.nbytes for pool in compute._pools] == [2 * 300, 2 * 200, 2 * 600]
    assert compute.memory_bytes([small, large]) == 2200
    assert compute.on_device


def test_the_flops_are_those_of_the_phase() -> None:
    assert GpuGemmCompute(device(), "bf16").flops(PhaseOf(((100, 20, 30, 2.5),))) == 250 * 2 * 20 * 30


def test_every_kind_of_block_is_performed_once_before_anything_is_in_flight() -> None:
    target = JournalDevice()
    compute = GpuGemmCompute(target, "fp32")
    phase = PhaseOf(((4096, 4096, 1024, 3.0), (4, 4096, 1024, 1.0)))
    compute.prepare([phase, phase])
    assert [entry for entry in target.journal.entries if entry.startswith("product")] == [
        "product 4096x4096x1024",
        "product 4x4096x1024",
    ]


def test_a_phase_ends_with_an_event_behind_its_last_product() -> None:
    journal, bind = journaled(PhaseOf(((4096, 4096, 1024, 2.0),)))
    bind()()
    assert journal.entries[-4:] == [
        "product 4096x4096x1024",
        "product 4096x4096x1024",
        "record event 3",
        "wait event 3",
    ]


def test_no_more_than_three_batches_of_products_are_in_the_queue() -> None:
    journal, bind = journaled(PhaseOf(((4096, 4096, 1024, 1000.0),)))
    bind()()
    waited = recorded = launched = 0
    at: dict[str, int] = {}
    for entry in journal.entries:
        kind, _, name = entry.partition(" ")
        if kind == "product":
            launched += 1
            assert launched - waited <= 3 * BATCH
        elif kind == "record":
            at[name], recorded = launched, recorded + 1
        elif name in at:
            waited = max(waited, at[name])
    assert launched == 1000
    assert recorded == 1 + -(-1000 // BATCH)


def test_requests_in_flight_are_driven_after_every_launch_and_while_the_phase_lasts() -> None:
    journal, bind = journaled(PhaseOf(((4096, 4096, 1024, 3.0),)))
    calls: list[int] = []
    bind(lambda: calls.append(journal.count("product")))()
    # The first mark and the last event are done when asked for the third time.
    assert calls == [0, 0, 1, 2, 3, 3, 3]


def test_without_products_a_phase_takes_no_time_and_no_memory() -> None:
    compute = GpuGemmCompute(device(), "bf16")
    compute.prepare([PhaseOf(())])
    compute.bind(PhaseOf(()), lambda: pytest.fail("nothing lasts, so nothing is driven"))()
    assert compute.memory_bytes([PhaseOf(())]) == 0


def test_another_thread_runs_while_a_phase_waits_and_drives_requests() -> None:
    driven, other_ran = threading.Event(), threading.Event()
    deadline = time.monotonic() + 20

    class LateEvent:
        @property
        def done(self) -> bool:
            return other_ran.is_set() or time.monotonic() > deadline

    def watch() -> None:
        driven.wait(20)
        other_ran.set()

    threading.Thread(target=watch, daemon=True).start()
    wait(LateEvent(), driven.set)  # type: ignore[arg-type]
    assert (driven.is_set(), other_ran.is_set()) == (True, True)


def test_what_does_not_fit_the_device_is_refused_before_it_runs() -> None:
    compute = GpuGemmCompute(device(1000), "fp32", pool_bytes=2**20)
    with pytest.raises(PreflightError, match="has 1000 bytes"):
        compute.prepare([PhaseOf(((64, 64, 64, 1.0),))])


def test_closing_releases_the_library_and_frees_the_pools_and_may_come_twice_or_too_early() -> None:
    compute = GpuGemmCompute(device(), "fp32")
    compute.close()
    compute.prepare([PhaseOf(((4, 4, 4, 1.0),))])
    multiplier = compute._multiplier
    assert isinstance(multiplier, HostMultiplier)
    compute.close()
    compute.close()
    assert multiplier.closed
    assert compute._pools == []


def test_a_phase_cannot_be_bound_before_it_was_prepared() -> None:
    with pytest.raises(AssertionError, match="prepare comes before bind"):
        GpuGemmCompute(device(), "fp32").bind(PhaseOf(((4, 4, 4, 1.0),)))


def test_the_record_tells_precision_library_device_and_how_products_are_stacked() -> None:
    assert GpuGemmCompute(device(64 * GIBIBYTE), "bf16").describe() == {
        "precision": "bf16",
        "library": "host through CuPy 14.2.0",
        "device": "host memory",
        "pool_bytes": "1073741824",
        "stacking": "equal products below 20 GFLOP are one, rows upon rows",
    }


def test_products_that_end_before_the_next_is_launched_are_remarked() -> None:
    compute = GpuGemmCompute(device(), "bf16")
    # 2 × 1000 × 1000 × 500 = 1 GFLOP, and one of each cannot be stacked.
    small = PhaseOf(((1000, 1000, 500, 1.0), (500, 1000, 1000, 1.0)))
    assert compute.remarks([small]) == [
        "gemm may be bound by launches: 2 products have 1 GFLOP on average",
    ]
    assert compute.remarks([PhaseOf(((8192, 8192, 8192, 1.0),))]) == []


def test_products_scaled_down_to_single_rows_are_remarked() -> None:
    remarks = GpuGemmCompute(device(), "bf16").remarks([PhaseOf(((10, 20, 30, 0.01),))])
    assert remarks[0] == "gemm performs 10 times the FLOPs: a product has one row at least"
