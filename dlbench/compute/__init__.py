"""Compute models, by the name that options and records use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbench.compute.none import NoCompute
from dlbench.compute.precision import GEMM_PRECISIONS, gpu_precision, require_cpu_precision, require_no_precision
from dlbench.compute.sleep import SleepCompute
from dlbench.errors import OptionError

if TYPE_CHECKING:
    from dlbench.accelerator.protocol import Device, Stream
    from dlbench.compute.protocol import Compute

__all__ = ["COMPUTE_MODELS", "GEMM_PRECISIONS", "create"]

COMPUTE_MODELS = ("sleep", "gemm", "spin", "none")


def create(
    name: str,
    *,
    ranks_per_core: float,
    seed: int,
    device: Device | None = None,
    stream: Stream | None = None,
    precision: str = "auto",
    dtype: str = "fp32",
) -> Compute:
    """Compute model of that name for a rank that shares its cores as `ranks_per_core` says.

    With a device, gemm and spin work on it, on `stream` (default: a new one). `precision` is one of `GEMM_PRECISIONS`,
    `dtype` that of the run.
    Raises `OptionError` for an unknown name, and for a precision or a model that cannot be there.
    """
    if name not in COMPUTE_MODELS:
        raise OptionError(f"unknown compute model {name!r}; use {', '.join(COMPUTE_MODELS)}")
    if name == "gemm":
        return _gemm(seed, device, stream, precision, dtype)
    require_no_precision(precision, name)
    if name == "spin":
        return _spin(device, stream)
    return NoCompute() if name == "none" else SleepCompute(ranks_per_core)


def _gemm(seed: int, device: Device | None, stream: Stream | None, precision: str, dtype: str) -> Compute:
    if device is None:
        from dlbench.compute.gemm import GemmCompute  # noqa: PLC0415 - most runs sleep

        require_cpu_precision(precision)
        return GemmCompute(seed)
    from dlbench.compute.gpu_gemm import GpuGemmCompute  # noqa: PLC0415 - most runs have no GPU

    return GpuGemmCompute(device, gpu_precision(precision, dtype, device.facts.kind), seed=seed, stream=stream)


def _spin(device: Device | None, stream: Stream | None) -> Compute:
    if device is None:
        raise OptionError("--compute spin needs a GPU, on which it spins; use --compute sleep on the CPU")
    from dlbench.compute.spin import SpinCompute  # noqa: PLC0415 - most runs have no GPU

    return SpinCompute(device, stream)
