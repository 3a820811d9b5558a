"""What every strategy is made of: the work of one iteration, and the description of the strategy itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import msgspec

from dlbench import roofline
from dlbench.errors import OptionError
from dlbench.roofline import Phase
from dlbench.specs import GpuSpec, ModelSpec
from dlbench.strategies.layout import Layout
from dlbench.strategies.ops import Buffer, Op, Scope

LARGEST_COUNT = 2**63 - 1
"""MPI_Count, which the largest MPI calls take, is a signed integer of 64 bits."""
LONGEST_PHASE_SECONDS = 1e6
"""Eleven days. Clocks count nanoseconds in 64 bits, which hold ten thousand such phases."""


def share(total: int, parts: int, index: int) -> int:
    """Part `index` of `total` split evenly: parts differ by at most one, and earlier parts get more."""
    base, extra = divmod(total, parts)
    return base + (index < extra)


def padded_share(total: int, parts: int) -> int:
    """The largest part of `total` split evenly, to which the others are padded."""
    return -(-total // parts)


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The work of one replica in one iteration."""

    model: ModelSpec
    gpu: GpuSpec
    dtype: str
    local_batch: int
    """Samples per replica and iteration."""
    microbatches: int = 1
    """Parts of the local batch that go through a pipeline one after the other."""
    sequence_length: int
    buckets: int = 0
    units: int = 0
    scale: float = 1.0
    """Factor on the elements of every message."""
    time_scale: float = 1.0
    """Factor on every compute phase."""

    @property
    def samples(self) -> int:
        """Samples per microbatch."""
        return self.local_batch // self.microbatches

    @property
    def activation_elements(self) -> int:
        """Elements of one microbatch's activations between two layers, b N d."""
        return self.samples * self.sequence_length * self.model.hidden_size

    def buffer(self, name: str, elements: int) -> Buffer:
        """Message buffer, scaled: at least one element. Raises `OptionError` above what MPI can count."""
        scaled = max(1, round(elements * self.scale))
        if scaled > LARGEST_COUNT:
            raise OptionError(f"{name} would have {scaled:.3g} elements, more than 2^63 - 1; use a smaller --scale")
        return Buffer(name, scaled)

    def forward(self) -> Phase:
        """Forward of one microbatch through the whole model."""
        return self._phase(roofline.forward)

    def attention(self) -> Phase:
        """Forward of one microbatch through the attention of one layer."""
        return self._phase(roofline.attention)

    def mlp(self) -> Phase:
        """Forward of one microbatch through the MLP of one layer."""
        return self._phase(roofline.mlp)

    def _phase(self, formula: Callable[..., Phase]) -> Phase:
        phase = formula(
            self.model,
            self.gpu,
            dtype=self.dtype,
            samples=self.samples,
            sequence_length=self.sequence_length,
        )
        phase = phase.scaled(self.time_scale)
        if phase.seconds > LONGEST_PHASE_SECONDS:
            raise OptionError(
                f"{phase.name} would take {phase.seconds:.3g} s, more than {LONGEST_PHASE_SECONDS:g} s; "
                "use a smaller --time-scale, --local-batch or --sequence-length"
            )
        return phase


Program: TypeAlias = Callable[[Workload, Layout, int], Iterator[Op]]
"""The ops of one iteration on one rank. Pure: it knows no MPI, no clock and no file.

Programs are written for groups of several ranks. `Configuration.ops` leaves out the communication of groups of one.
"""


class Strategy(msgspec.Struct, frozen=True, kw_only=True):
    """A way to spread training over ranks."""

    name: str
    title: str
    summary: str
    models: tuple[str, ...]
    """The models that the paper trains with it; the first is the default."""
    defaults: Mapping[str, int]
    """The strategy's own options and their values in the paper's Table IV."""
    inner_scope: Scope | None = None
    """The innermost dimension of its layout."""
    gpu_counts: tuple[int, ...]
    """The paper's world sizes."""
    program: Program

    @property
    def model(self) -> str:
        """Name of the model that runs if none is asked for."""
        return self.models[0]
