"""In what precision the matrix products of a run are carried out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbench.errors import OptionError

if TYPE_CHECKING:
    from dlbench.accelerator.protocol import Kind, Precision

PRECISIONS: tuple[Precision, ...] = ("bf16", "fp16", "tf32", "fp32", "fp64")
GEMM_PRECISIONS = ("auto", *PRECISIONS)
"""Values of the option; `auto` is the dtype of the run."""
_OPTION = "--gemm-precision"


def refusal(precision: str, kind: Kind) -> str | None:
    """Why a device of the kind must not be asked for products of the precision; None where it may."""
    if precision == "fp8":
        return "gemmEx, which multiplies, has no fp8"
    if precision == "bf16" and kind == "hip":
        return "on ROCm a bf16 product through CuPy aborts the process"
    return None


def gpu_precision(option: str, dtype: str, kind: Kind) -> Precision:
    """Precision of the products on a GPU for a value of the option and the dtype of the run.

    Raises `OptionError` where it cannot be, and names one that can.
    """
    precision = dtype if option == "auto" else option
    if reason := refusal(precision, kind):
        other = "fp16" if kind == "hip" else "bf16"
        raise OptionError(f"--compute gemm cannot multiply in {precision}: {reason}; use {_OPTION} {other}")
    for known in PRECISIONS:
        if precision == known:
            return known
    raise OptionError(f"unknown precision {precision!r}; use {_OPTION} {', '.join(GEMM_PRECISIONS)}")


def require_cpu_precision(option: str) -> None:
    """Raise `OptionError` unless NumPy multiplies in the precision that the option asks for."""
    if option not in {"auto", "fp32"}:
        raise OptionError(
            f"{_OPTION} {option} needs a GPU: on the CPU gemm multiplies in fp32; "
            "use --backend nccl or --buffers gpu, or leave it out"
        )


def require_no_precision(option: str, compute: str) -> None:
    """Raise `OptionError` where a precision is asked for and nothing is multiplied."""
    if option != "auto":
        raise OptionError(f"{_OPTION} has no meaning with --compute {compute}; use --compute gemm, or leave it out")
