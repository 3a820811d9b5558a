"""Real matrix products: as many FLOPs as the phase has, in bounded memory."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbench.compute import gemm
from dlbench.compute.gemm import Block, GemmCompute, blocks

Shape = tuple[int, int, int, float]

shapes = st.tuples(
    st.integers(1, 300),
    st.integers(1, 300),
    st.integers(1, 100),
    st.one_of(st.integers(1, 8).map(float), st.floats(0.01, 4)),
)


@dataclass(frozen=True)
class PhaseOf:
    gemms: tuple[Shape, ...]
    seconds: float = 0.0


def prepared(*phases: PhaseOf, pool_bytes: int = 2**20) -> GemmCompute:
    compute = GemmCompute(seed=7, pool_bytes=pool_bytes)
    compute.prepare(phases)
    return compute


def test_a_whole_product_has_2mnk_flops() -> None:
    assert GemmCompute().flops(PhaseOf(((10, 20, 30, 3.0),))) == 3 * 2 * 10 * 20 * 30


def test_the_products_of_a_phase_add_up() -> None:
    assert GemmCompute().flops(PhaseOf(((10, 20, 30, 1.0), (5, 4, 3, 2.0)))) == 12_000 + 240


def test_a_fraction_of_a_product_is_that_share_of_its_rows() -> None:
    assert blocks(PhaseOf(((100, 20, 30, 0.02),))) == [Block(2, 20, 30, 1)]
    assert blocks(PhaseOf(((100, 20, 30, 2.5),))) == [Block(100, 20, 30, 2), Block(50, 20, 30, 1)]


def test_a_tiny_fraction_is_one_row_and_none_is_nothing() -> None:
    assert blocks(PhaseOf(((100, 20, 30, 1e-6),))) == [Block(1, 20, 30, 1)]
    assert blocks(PhaseOf(((100, 20, 30, 0.0),))) == []


def test_rows_are_cut_where_an_operand_outgrows_its_pool() -> None:
    # 4 KiB hold 1024 floats: 1024 // 32 = 32 rows of A, so 100 rows are three blocks and 4 rows.
    assert blocks(PhaseOf(((100, 16, 32, 1.0),)), pool_bytes=4096) == [
        Block(32, 16, 32, 3),
        Block(4, 16, 32, 1),
    ]


def test_columns_are_cut_where_the_weights_alone_outgrow_their_pool() -> None:
    # 1024 // 64 = 16 columns of B at a time: 40 columns are two blocks and 8 columns; likewise 16 rows.
    assert blocks(PhaseOf(((16, 40, 64, 3.0),)), pool_bytes=4096) == [
        Block(16, 16, 64, 6),
        Block(16, 8, 64, 3),
    ]


@given(shapes, st.integers(400, 40_000))
def test_cutting_loses_no_row_and_no_column(shape: Shape, pool_bytes: int) -> None:
    m, n, k, count = shape
    cells = sum(block.rows * block.columns * block.times for block in blocks(PhaseOf((shape,)), pool_bytes))
    assert cells == max(1, round(count * m)) * n


@given(shapes, st.integers(400, 40_000))
def test_every_operand_fits_its_pool(shape: Shape, pool_bytes: int) -> None:
    for block in blocks(PhaseOf((shape,)), pool_bytes):
        assert 4 * max(block.rows * block.k, block.k * block.columns, block.rows * block.columns) <= pool_bytes


@given(shapes)
def test_flops_are_the_phases_within_half_a_row(shape: Shape) -> None:
    m, n, k, count = shape
    performed = GemmCompute().flops(PhaseOf((shape,)))
    assert abs(performed - 2 * m * n * k * count) <= n * k * (1 + 1e-9) or performed == 2 * n * k


def test_the_weights_of_llama3_70b_run_in_a_quarter_of_a_gibibyte() -> None:
    mlp = PhaseOf(((8192, 28672, 8192, 2.0), (8192, 8192, 28672, 1.0)))
    found = blocks(mlp)
    left = max(block.rows * block.k for block in found)
    right = max(block.k * block.columns for block in found)
    out = max(block.rows * block.columns for block in found)
    assert 4 * (left + right + out) <= 2**28
    assert sum(block.flops for block in found) == 3 * 2 * 8192 * 28672 * 8192


def test_the_product_is_the_product_of_the_operands() -> None:
    phase = PhaseOf(((3, 4, 5, 1.0),))
    compute = prepared(phase)
    left, right, out = compute._operands(Block(3, 4, 5, 1))
    out[:] = np.nan

    compute.bind(phase)()

    expected = [[sum(left[i, j] * right[j, c] for j in range(5)) for c in range(4)] for i in range(3)]
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
    assert out.dtype == np.float32


def test_phases_share_the_memory_of_the_largest() -> None:
    small, large = PhaseOf(((2, 2, 2, 1.0),)), PhaseOf(((30, 20, 10, 1.0),))
    compute = prepared(small, large)
    of_small, of_large = compute._operands(Block(2, 2, 2, 1)), compute._operands(Block(30, 20, 10, 1))
    assert [operand.size for operand in of_large] == [300, 200, 600]
    for mine, other in zip(of_small, of_large, strict=True):
        assert np.shares_memory(mine, other)


def test_operands_are_random_and_follow_the_seed() -> None:
    phase = PhaseOf(((8, 8, 8, 1.0),))
    block = Block(8, 8, 8, 1)
    first, second, other = prepared(phase), prepared(phase), GemmCompute(seed=8)
    other.prepare([phase])
    assert np.unique(first._operands(block)[0]).size == 64
    np.testing.assert_array_equal(first._operands(block)[0], second._operands(block)[0])
    assert not np.array_equal(first._operands(block)[0], other._operands(block)[0])


def test_a_bound_phase_allocates_no_memory() -> None:
    phase = PhaseOf(((200, 200, 200, 2.5),))
    run = prepared(phase).bind(phase)
    run()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        run()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # One result would take 160 000 bytes.
    assert peak - before < 2_000


def test_requests_in_flight_are_driven_after_every_product() -> None:
    phase = PhaseOf(((4, 4, 4, 2.5),))
    calls: list[int] = []
    prepared(phase).bind(phase, lambda: calls.append(1))()
    assert len(calls) == 3


def test_a_program_without_products_needs_no_memory() -> None:
    phase = PhaseOf(())
    compute = prepared(phase)
    compute.bind(phase)()
    assert compute.flops(phase) == 0


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"OMP_NUM_THREADS": "4", "OPENBLAS_NUM_THREADS": "2"}, "4"),
        ({"OPENBLAS_NUM_THREADS": "2"}, "2"),
        ({}, "as many as cores"),
    ],
)
def test_the_record_tells_precision_and_threads(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], told: str
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    description = GemmCompute().describe()
    assert description["precision"] == "float32"
    assert description["blas_threads"] == told


def test_products_scaled_down_to_single_rows_are_remarked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    # A hundredth of a product of 10 rows is a tenth of a row; one row is performed.
    assert GemmCompute().remarks([PhaseOf(((10, 20, 30, 0.01),))]) == [
        "gemm performs 10 times the FLOPs: a product has one row at least"
    ]
    assert GemmCompute().remarks([PhaseOf(((10, 20, 30, 1.0),))]) == []


def test_an_iteration_of_products_that_takes_long_is_remarked_with_what_makes_it_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(gemm, "sampled_rates", lambda kinds: [rates[block] for block in kinds])
    # 200 GFLOP in large products and 2 in small ones, two of such phases an iteration: 404 GFLOP at 20 GFLOP/s.
    rates = {Block(1000, 1000, 1000, 1): 20e9}
    phase = PhaseOf(((1000, 1000, 1000, 100.0), (10, 1000, 1000, 100.0)))
    assert GemmCompute().remarks([phase, phase]) == [
        "gemm computes for about 20 s an iteration on these cores; for 1 s multiply --time-scale by 0.05"
    ]
    assert GemmCompute().remarks([PhaseOf(((1000, 1000, 1000, 9.0),))]) == []


def test_what_is_short_on_any_core_needs_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(gemm, "sampled_rates", lambda _: pytest.fail("a sample was taken"))
    assert GemmCompute().remarks([PhaseOf(((100, 100, 100, 1.0),))]) == []


def test_thin_products_count_at_their_own_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    rates = {Block(1000, 1000, 1000, 1): 20e9, Block(1, 1000, 1000, 1): 2e9}
    monkeypatch.setattr(gemm, "sampled_rates", lambda kinds: [rates[block] for block in kinds])
    # 20 GFLOP at 20 GFLOP/s and 4 GFLOP at 2 GFLOP/s: 3 s.
    phases = [PhaseOf(((1000, 1000, 1000, 10.0),)), *[PhaseOf(((1, 1000, 1000, 1.0),))] * 2000]
    (remark,) = GemmCompute().remarks(phases)
    assert remark.startswith(
        "gemm computes for about 3 s an iteration on these cores; for 1 s multiply --time-scale by"
    )


def test_samples_tell_rates_that_a_core_can_have_in_the_order_of_their_blocks() -> None:
    kinds = [Block(200_000, 300, 200, 7), Block(1, 2000, 2000, 1), Block(3, 1, 1, 1)]
    thick, thin, tiny = gemm.sampled_rates(kinds)
    assert 1e8 < thick < 1e14
    assert 1e7 < thin < 1e14
    assert tiny < thick


def test_blas_threads_that_nobody_limits_are_remarked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    (remark,) = GemmCompute().remarks([PhaseOf(((10, 20, 30, 1.0),))])
    assert remark == "gemm uses all cores on every rank; set OMP_NUM_THREADS to cores per rank"
