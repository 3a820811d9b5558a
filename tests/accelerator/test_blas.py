from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_cupy import FakeCupy
from hypothesis import given
from hypothesis import strategies as st

from dlbench.accelerator.blas import GemmExMultiplier, GemmTypes, gemm_types
from dlbench.accelerator.protocol import Precision
from dlbench.errors import PreflightError


def types(precision: Precision, *, hip: bool = False, capability: int = 9) -> GemmTypes:
    return gemm_types(precision, hip=hip, capability=capability, gpu="cuda:1 (the GPU)")


def multiplier(cupy: FakeCupy, precision: Precision, *, hip: bool = False) -> GemmExMultiplier:
    return GemmExMultiplier(cupy.cuda.cublas, types(precision, hip=hip), SimpleNamespace(), lambda stream: None)


def product(precision: Precision, left: Any, right: Any, *, hip: bool = False) -> Any:
    """What gemmEx, which counts by columns, makes of two matrices that lie by rows."""
    out = np.full((left.shape[0], right.shape[1]), np.nan, left.dtype)
    multiplier(FakeCupy(hip=hip), precision, hip=hip).multiply(
        left.ctypes.data,
        right.ctypes.data,
        out.ctypes.data,
        rows=left.shape[0],
        columns=right.shape[1],
        k=left.shape[1],
    )
    return out


def test_a_product_of_matrices_by_rows_is_what_one_computes_by_hand() -> None:
    left = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    right = np.array([[1, 0], [0, 1], [10, 100]], np.float32)
    assert product("fp32", left, right).tolist() == [[31, 302], [64, 605]]


@given(st.integers(1, 7), st.integers(1, 7), st.integers(1, 7), st.sampled_from(["fp64", "fp32", "fp16"]))
def test_products_of_all_shapes_agree_with_numpy(rows: int, columns: int, k: int, precision: Precision) -> None:
    dtype = {"fp64": np.float64, "fp32": np.float32, "fp16": np.float16}[precision]
    random = np.random.default_rng(rows * 100 + columns * 10 + k)
    left, right = (random.integers(-4, 5, shape).astype(dtype) for shape in ((rows, k), (k, columns)))
    for hip in (False, True):
        assert np.array_equal(product(precision, left, right, hip=hip), left @ right)


@pytest.mark.parametrize(
    ("precision", "operands", "sums"),
    [("fp64", 1, 70), ("fp32", 0, 68), ("tf32", 0, 77), ("fp16", 2, 68), ("bf16", 14, 68)],
)
def test_each_precision_has_the_numbers_of_cuda(precision: Precision, operands: int, sums: int) -> None:
    cupy = FakeCupy()
    left, right, out = (np.ones((8, 8)) for _ in range(3))  # large enough for every type
    multiplier(cupy, precision).multiply(left.ctypes.data, right.ctypes.data, out.ctypes.data, rows=4, columns=2, k=8)
    told = cupy.cuda.cublas.last
    assert (told["Atype"], told["Btype"], told["Ctype"]) == (operands,) * 3
    assert (told["computeType"], told["algo"]) == (sums, 99)
    assert (told["m"], told["n"], told["k"]) == (2, 4, 8)
    assert (told["lda"], told["ldb"], told["ldc"]) == (2, 8, 2)
    assert (told["A"], told["B"]) == (right.ctypes.data, left.ctypes.data)
    assert (told["transa"], told["transb"]) == (0, 0)


def test_rocm_names_sums_by_a_data_type_and_takes_its_default_algorithm() -> None:
    assert types("fp16", hip=True) == (2, 0, -1)
    assert types("fp64", hip=True) == (1, 1, -1)


@pytest.mark.parametrize(
    ("precision", "hip", "capability", "text"),
    [
        (
            "bf16",
            True,
            9,
            "no bf16 products on cuda:1 (the GPU): CuPy's gemmEx on ROCm would end the process; "
            "choose --gemm-precision fp16",
        ),
        (
            "tf32",
            True,
            9,
            "no tf32 products on cuda:1 (the GPU): CuPy's gemmEx on ROCm does not offer them; "
            "choose --gemm-precision fp32",
        ),
        (
            "bf16",
            False,
            7,
            "no bf16 products on cuda:1 (the GPU): its compute capability is below 8.0; choose --gemm-precision fp16",
        ),
        (
            "tf32",
            False,
            7,
            "no tf32 products on cuda:1 (the GPU): its compute capability is below 8.0; choose --gemm-precision fp32",
        ),
    ],
)
def test_what_a_gpu_does_not_multiply_is_refused_with_what_to_choose(
    precision: Precision, hip: bool, capability: int, text: str
) -> None:
    with pytest.raises(PreflightError) as refused:
        types(precision, hip=hip, capability=capability)
    assert str(refused.value) == text


def test_fp16_and_fp32_are_multiplied_by_every_gpu() -> None:
    assert types("fp16", capability=7).operand == 2
    assert types("fp32", capability=7).operand == 0


def test_a_product_goes_to_the_stream_of_its_multiplier() -> None:
    used: list[Any] = []
    cupy, stream = FakeCupy(), SimpleNamespace()
    ones = np.ones((2, 2), np.float32)
    products = GemmExMultiplier(cupy.cuda.cublas, types("fp32"), stream, used.append)
    products.multiply(ones.ctypes.data, ones.ctypes.data, ones.ctypes.data, rows=1, columns=1, k=1)
    assert used == [stream]


def test_the_handle_is_released_once() -> None:
    cupy = FakeCupy()
    products = multiplier(cupy, "fp32")
    products.close()
    products.close()
    assert cupy.calls == [("create",), ("destroy", 77)]
