"""Matrix products through CuPy's gemmEx, which is cuBLAS's or hipBLAS's.

Sources: cuBLAS Library documentation, cublasGemmEx and its types; CuPy's header for hipBLAS, which translates CUDA's
data types, fails on those of bf16 by ending the process, and takes a data type for the type of sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dlbench.accelerator.protocol import Precision
from dlbench.errors import PreflightError

_NO_TRANSPOSE = 0
_R_32F, _R_64F, _R_16F, _R_16BF = 0, 1, 2, 14
_SUM_32F, _SUM_64F, _SUM_32F_FAST_TF32 = 68, 70, 77
_TENSOR_OP, _HIP_DEFAULT = 99, -1
_AMPERE = 8
"""Compute capability of the first GPUs that multiply bf16 and TF32."""


class GemmTypes(NamedTuple):
    """What gemmEx is told of a precision."""

    operand: int
    """`cudaDataType` of A, B and C."""
    sum: int
    """`cublasComputeType_t`; on ROCm a `cudaDataType`."""
    algorithm: int

    @property
    def scalar(self) -> np.dtype[Any]:
        """Dtype of alpha and beta: that of the sums."""
        return np.dtype(np.float64 if self.operand == _R_64F else np.float32)


_CUDA = {
    "fp64": GemmTypes(_R_64F, _SUM_64F, _TENSOR_OP),
    "fp32": GemmTypes(_R_32F, _SUM_32F, _TENSOR_OP),
    "tf32": GemmTypes(_R_32F, _SUM_32F_FAST_TF32, _TENSOR_OP),
    "fp16": GemmTypes(_R_16F, _SUM_32F, _TENSOR_OP),
    "bf16": GemmTypes(_R_16BF, _SUM_32F, _TENSOR_OP),
}
_HIP = {
    "fp64": GemmTypes(_R_64F, _R_64F, _HIP_DEFAULT),
    "fp32": GemmTypes(_R_32F, _R_32F, _HIP_DEFAULT),
    "fp16": GemmTypes(_R_16F, _R_32F, _HIP_DEFAULT),
}
_INSTEAD: dict[Precision, Precision] = {"bf16": "fp16", "tf32": "fp32"}


def gemm_types(precision: Precision, *, hip: bool, capability: int, gpu: str) -> GemmTypes:
    """Types for products of a precision on the GPU named `gpu`, whose major compute capability is given.

    Raises `PreflightError` where the GPU or its library has no such products.
    """
    instead = f"choose --gemm-precision {_INSTEAD.get(precision, precision)}"
    if hip and precision not in _HIP:
        why = {
            "bf16": "CuPy's gemmEx on ROCm would end the process",
            "tf32": "CuPy's gemmEx on ROCm does not offer them",
        }
        raise PreflightError(f"no {precision} products on {gpu}: {why[precision]}; {instead}")
    if not hip and precision in _INSTEAD and capability < _AMPERE:
        raise PreflightError(f"no {precision} products on {gpu}: its compute capability is below 8.0; {instead}")
    return (_HIP if hip else _CUDA)[precision]


class GemmExMultiplier:
    """Products of one precision on one stream, by a handle of its own.

    `use` makes a stream the one that CuPy's calls go to: gemmEx sets the handle's stream to it each time. As that
    also gives the handle back its default workspace, there is no use in setting another one; the library allocates
    it with the first product, which is done here.
    """

    def __init__(self, cublas: Any, types: GemmTypes, stream: Any, use: Callable[[Any], None]) -> None:
        self._cublas = cublas
        self._types = types
        self._stream = stream
        self._use = use
        # The library reads them through pointers during each call, so they live as long as the multiplier.
        self._one, self._zero = np.ones(1, types.scalar), np.zeros(1, types.scalar)
        self._alpha, self._beta = self._one.ctypes.data, self._zero.ctypes.data
        self._handle: int = cublas.create()

    def multiply(self, left: int, right: int, out: int, *, rows: int, columns: int, k: int) -> None:  # noqa: PLR0913
        """Enqueue C[rows, columns] = A[rows, k] B[k, columns], row-major and dense at the given addresses.

        The library counts by columns. A row-major matrix is, by columns, its transpose; so it computes Cᵀ = Bᵀ Aᵀ.
        """
        operand, total, algorithm = self._types
        self._use(self._stream)
        self._cublas.gemmEx(
            self._handle,
            _NO_TRANSPOSE,
            _NO_TRANSPOSE,
            columns,
            rows,
            k,
            self._alpha,
            right,
            operand,
            columns,
            left,
            operand,
            k,
            self._beta,
            out,
            operand,
            columns,
            total,
            algorithm,
        )

    def close(self) -> None:
        """Release the handle; after the last product is done."""
        if self._handle:
            self._cublas.destroy(self._handle)
            self._handle = 0
