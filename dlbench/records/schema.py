"""The run record: what a run writes, and what every table and plot reads.

A record `NAME.jsonl` is JSON Lines: one `Header`, one `Iteration` per iteration, one `End`. Each line is an object
whose `kind` names its type. With op recording, `NAME.ops.npy` lies beside it: one array per iteration, appended with
`numpy.save`, shape (ranks, ops, 2): enter and leave of every op in seconds of the global clock, NaN where a rank's
program is shorter than the longest.

All times are seconds. Lists "per rank" have `world_size` entries in rank order.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

SCHEMA_VERSION = 1

Positive = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
Factor = Annotated[float, Meta(gt=0)]


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the message table: one kind of communication of one size."""

    operation: str
    scope: str
    group_size: Positive
    count: Positive
    """Times per iteration on the rank that does it most often."""
    elements: Positive
    bytes: Positive
    blocking: bool


class Backend(msgspec.Struct, frozen=True, kw_only=True):
    """What carried the messages."""

    name: str
    """mpi, nccl, or simulator."""
    library: str
    """Version string of the library, on one line."""
    carrier: str
    """Datatype that carried the run's dtype, e.g. `MPI_UINT16_T`."""
    persistent: bool = False
    launcher: str = ""


class ClockModel(msgspec.Struct, frozen=True, kw_only=True):
    """Global clock: global = local + offset + drift × (local − reference), per rank; rank 0's clock is global.

    `uncertainty` bounds the error of the offset: half the smallest round trip of the ping-pong, summed along the
    tree; 0 where ranks read the same hardware clock.
    """

    reference: float
    """Local time at which the offsets hold."""
    offset: list[float]
    drift: list[float]
    uncertainty: list[Seconds]
    unix_epoch: float
    """Unix time at global time 0: compares runs on wall-clock time."""


class OpEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A row of an op table: what column `index` of the ops array is."""

    op: str
    """compute, wait, or the name of a communication."""
    scope: str = ""
    name: str = ""
    """Phase or buffer; for a wait, its requests joined with commas."""
    elements: int = 0
    peer: int = -1
    blocking: bool = True
    seconds: float = 0.0
    """Duration by the roofline, for compute."""


class OpTable(msgspec.Struct, frozen=True, kw_only=True):
    """The ops of all ranks that run the same program."""

    ranks: list[NonNegative]
    ops: list[OpEntry]


class Header(msgspec.Struct, frozen=True, kw_only=True, tag="header", tag_field="kind"):
    """First line: all that is needed to repeat the run and to interpret it."""

    schema_version: Literal[1] = 1
    run_id: str
    created: str
    """UTC, ISO 8601."""
    simulated: bool = False
    strategy: str
    model: dict[str, Any]
    """The whole model spec, and its derived `parameters`."""
    gpu: dict[str, Any]
    """The whole GPU spec."""
    world_size: Positive
    replicas: Positive
    degrees: dict[str, Positive]
    """pp, tp, ep, sharding, as far as the strategy has them."""
    notes: list[str] = []
    """Where the run departs from the strategy's defaults, in words."""
    dtype: str
    local_batch: Positive
    microbatches: Positive
    sequence_length: Positive
    buckets: NonNegative = 0
    units: NonNegative = 0
    scale: Factor = 1.0
    """Factor on message sizes."""
    time_scale: Factor = 1.0
    """Factor on compute."""
    compute: str
    backend: Backend
    messages: list[Message]
    memory_bytes: NonNegative
    """Message buffers of the rank that needs most."""
    system: str = ""
    placement: str = ""
    experiment: str = ""
    job: str = ""
    labels: dict[str, str] = {}
    seed: int
    hosts: list[str]
    """Per rank."""
    devices: list[str]
    """Per rank."""
    environment: dict[str, str]
    clock: ClockModel
    packages: dict[str, str]
    command: list[str]
    options: dict[str, Any]
    """Every option of the run with its value."""
    op_tables: list[OpTable] = []
    """With op recording only."""


class Iteration(msgspec.Struct, frozen=True, kw_only=True, tag="iteration", tag_field="kind"):
    """One finished iteration."""

    index: NonNegative
    """Counts from 0, warm-up iterations included."""
    warmup: bool
    start: float
    """Global time at which the first rank began."""
    skew: list[Seconds]
    """Per rank: its own begin − `start`."""
    runtime: list[Seconds]
    """Per rank."""
    sync_time: list[Seconds]
    """Per rank: blocking communications + waits for non-blocking ones."""
    compute: list[Seconds]
    """Per rank: time in compute phases."""
    issue: list[Seconds]
    """Per rank: time to start non-blocking communications; no part of sync_time."""
    communication: dict[str, list[Seconds]]
    """Per communication class (`operation/scope`) and rank; the classes add up to sync_time."""
    late: list[NonNegative] = []
    """Ranks that came after the agreed start of the window."""


class End(msgspec.Struct, frozen=True, kw_only=True, tag="end", tag_field="kind"):
    """Last line: how the run ended. A record without it belongs to a run that was killed."""

    status: Literal["completed", "terminated", "failed"]
    reason: str
    iterations: NonNegative
    """Finished iterations in the record, warm-up included."""
    ended: str
    """UTC, ISO 8601."""
    clock: ClockModel | None = None
    """Measured again at the end: the drift over the run."""


Line = Header | Iteration | End
