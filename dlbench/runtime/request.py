"""What a run was asked to do: all that the ranks need to know, as plain data that rank 0 broadcasts."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from dlbench.specs import GpuSpec, ModelSpec
from dlbench.strategies import Configuration, configure

DEFAULT_CEILING = 1000


class Delay(msgspec.Struct, frozen=True):
    """A known sleep before one op of one rank, in every iteration."""

    rank: int
    op: int
    milliseconds: float


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a configuration is run: everything but what is computed and communicated. Times are seconds."""

    iterations: int
    warmup: int
    min_seconds: float
    max_seconds: float | None
    until_ci: float | None
    max_iterations: int | None
    compute: Literal["sleep", "gemm", "spin", "none"]
    gemm_precision: Literal["auto", "bf16", "fp16", "tf32", "fp32", "fp64"]
    backend: Literal["mpi", "nccl"]
    buffers: Literal["host", "gpu"]
    persistent: bool
    progress: Literal["poll", "none"]
    sync: Literal["barrier", "window", "none"]
    check: bool
    delay: list[Delay]
    seed: int
    timeout: float
    grace: float
    record: str | None
    record_ops: bool
    label: dict[str, str]
    system: str
    placement: str
    experiment: str
    job: str
    concurrent_jobs: int
    json: bool

    @property
    def gpu_messages(self) -> bool:
        """Whether messages and matrix products are in the memory of the GPU."""
        return self.buffers == "gpu"

    @property
    def uses_gpu(self) -> bool:
        """Whether every rank drives a GPU."""
        return self.gpu_messages or self.compute == "spin"

    @property
    def ceiling(self) -> float:
        """The most iterations that may be measured, warm-up left out; infinite where only time ends the run."""
        if self.max_iterations is not None:
            return self.max_iterations
        if self.until_ci is not None:
            return max(DEFAULT_CEILING, self.iterations)
        return float("inf") if self.min_seconds else self.iterations


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """All that a rank needs to know; rank 0 reads it from options and files and broadcasts it."""

    strategy: str
    model: ModelSpec
    gpu: GpuSpec
    workload: dict[str, Any]
    """Keyword arguments of `configure`; None stands for the strategy's default."""
    run: RunOptions

    def configuration(self, world_size: int) -> Configuration:
        """The configuration at a world size; raises `LayoutError` or `OptionError` where it is impossible."""
        return configure(self.strategy, world_size=world_size, model=self.model, gpu=self.gpu, **self.workload)
