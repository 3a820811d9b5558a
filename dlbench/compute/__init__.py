"""Compute models, by the name that options and records use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbench.compute.none import NoCompute
from dlbench.compute.sleep import SleepCompute
from dlbench.errors import OptionError

if TYPE_CHECKING:
    from dlbench.compute.protocol import Compute

COMPUTE_MODELS = ("sleep", "gemm", "none")


def create(name: str, *, ranks_per_core: float, seed: int) -> Compute:
    """Compute model of that name for a rank that shares its cores as `ranks_per_core` says.

    Raises `OptionError` for an unknown name.
    """
    match name:
        case "none":
            return NoCompute()
        case "sleep":
            return SleepCompute(ranks_per_core)
        case "gemm":
            from dlbench.compute.gemm import GemmCompute  # noqa: PLC0415 - most runs sleep

            return GemmCompute(seed)
    raise OptionError(f"unknown compute model {name!r}; use {', '.join(COMPUTE_MODELS)}")
