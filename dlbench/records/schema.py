"""The run record: what a run writes, and what every table and plot reads.

A record `NAME.jsonl` is JSON Lines: one `Header`, one `Iteration` per iteration, one `End`, and a `Clock` wherever the
clocks were compared again. Each line is an object whose `kind` names its type. With op recording, `NAME.ops.npy` lies
beside it: one array per iteration, appended with `numpy.save`, shape (ranks, ops, 2): enter and leave of every op in
seconds of the global clock, NaN where a rank's program is shorter than the longest.

All times are seconds. Lists "per rank" have `world_size` entries in rank order. The docstrings of the fields are the
descriptions of the published JSON Schema (`dlbench.records.publish`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA_VERSION = 1

DTYPE_BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
"""Bytes per element of each dtype that a record can name."""

HEADER_START = b'{"kind":"header"'
END_START = b'{"kind":"end"'
"""How a line of its kind begins in the file: the writer puts the kind first and no blanks."""

Positive = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
Factor = Annotated[float, Meta(gt=0)]
Rate = Annotated[float, Meta(ge=0)]
Amount = Annotated[float, Meta(ge=0, le=1e9)]
"""Seconds, joules, watts or megahertz of a GPU in an iteration; a larger one is damage, and would outweigh all else."""
Mask = Annotated[int, Meta(ge=0, le=2**63 - 1)]
EnergySource = Literal["", "counter", "sampled power", "counter and sampled power"]
Drift = Annotated[float, Meta(gt=-1)]
"""A clock that runs against the global one by as much would stand still."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the message table: one kind of communication of one size."""

    operation: str
    """allreduce, allgather, reduce_scatter, alltoall, send, or recv."""
    scope: str
    """Which ranks take part: world, replica, pipeline, tensor, expert, or shard."""
    group_size: Positive
    """Ranks that take part."""
    count: Positive
    """Times per iteration on the rank that does it most often."""
    elements: Positive
    """Count that MPI takes: whole vector, shard, chunk, or message."""
    bytes: Positive
    """`elements` × bytes per element of the dtype."""
    blocking: bool
    """False where the communication is started and waited for later."""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """The groups of a scope: rank r is number r // stride % size in its group, whose ranks are stride apart."""

    size: Positive
    """Ranks in each group."""
    stride: Positive
    """Distance between the world ranks of neighbours in the group."""


class Backend(msgspec.Struct, frozen=True, kw_only=True):
    """What carried the messages."""

    name: str
    """mpi, nccl, or simulator."""
    library: str
    """Version string of the library, on one line."""
    carrier: str
    """Datatype that carried the run's dtype, e.g. `MPI_UINT16_T`."""
    persistent: bool = False
    """Whether collectives were persistent requests."""
    launcher: str = ""
    """What started the ranks, e.g. mpiexec or srun."""


class Accelerator(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU that a rank drove."""

    name: str
    """As its driver names it, e.g. `NVIDIA H100 80GB HBM3`."""
    uuid: str = ""
    """Tells apart all GPUs of a host; empty where it is not known."""
    pci: str = ""
    """Bus id, e.g. `0000:3B:00.0`; empty where it is not known."""
    driver: str
    """Version that the driver supports, of CUDA or ROCm."""
    runtime: str
    """Version of the CUDA or HIP runtime."""
    cupy: str
    """Version of CuPy."""
    nccl: str = ""
    """Version of NCCL or RCCL; empty where messages did not travel by it."""
    memory_bytes: NonNegative
    """Memory of the GPU."""
    numa_node: int | None = None
    """NUMA node of the host that the GPU hangs on; null where it is not known."""
    near_cores: bool | None = None
    """Whether all cores that the rank may run on belong to that node; null where either is not known."""


class Energy(msgspec.Struct, frozen=True, kw_only=True):
    """What the GPUs say of themselves at the end of an iteration; null on ranks whose GPU does not.

    Readings are taken once between two iterations, outside the timed region, so that the joules of a run add up. They
    include what happens between the iterations: divide by `seconds`, not by the runtime.
    """

    joules: list[Amount | None]
    """Per rank: energy since the reading before."""
    seconds: list[Amount | None]
    """Per rank: time since the reading before; above 0 where there are joules."""
    sm_mhz: list[Amount | None]
    """Per rank: clock of the multiprocessors."""
    memory_mhz: list[Amount | None]
    """Per rank: clock of the memory."""
    power_limit_watts: list[Amount | None]
    """Per rank: the limit in force."""
    throttle: list[Mask | None]
    """Per rank: NVML's bit mask of reasons why the clocks are not higher, at this reading or the one before."""


class ClockModel(msgspec.Struct, frozen=True, kw_only=True):
    """Global clock: global = local + offset + drift × (local − reference), per rank; rank 0's clock is global.

    The error of a rank's global time is at most uncertainty + drift_uncertainty × |local − reference|, as long as its
    clock keeps its drift. `uncertainty` is half the smallest round trip of the ping-pong, summed along the tree; both
    are 0 where ranks read the same hardware clock.
    """

    reference: float
    """Local time at which the offsets hold, seconds."""
    offset: list[float]
    """Per rank, seconds."""
    drift: list[Drift]
    """Per rank, seconds per second, above −1."""
    uncertainty: list[Seconds]
    """Per rank, seconds: bound on the error of the offset."""
    drift_uncertainty: list[Rate]
    """Per rank, seconds per second: bound on the error of the drift."""
    unix_epoch: float
    """Unix time at global time 0, seconds: compares runs on wall-clock time."""

    def error(self, seconds: float) -> list[float]:
        """Per rank, bound on the error of times near the global time `seconds`."""
        terms = zip(self.offset, self.drift, self.uncertainty, self.drift_uncertainty, strict=True)
        return [
            uncertainty + drift_uncertainty * abs((seconds - offset - self.reference) / (1.0 + drift))
            for offset, drift, uncertainty, drift_uncertainty in terms
        ]


class OpEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A row of an op table: what column `index` of the ops array is."""

    op: str
    """compute, wait, or the name of a communication."""
    scope: str = ""
    """Scope of a communication."""
    name: str = ""
    """Phase or buffer."""
    elements: int = 0
    """Elements of a communication, as in the message table."""
    peer: int = -1
    """Rank in the group that a send or receive talks to."""
    blocking: bool = True
    """False for a communication that a later wait completes."""
    seconds: float = 0.0
    """Duration by the roofline, for compute."""
    requests: list[str] = []
    """Buffers of the communications that a wait completes."""


class OpTable(msgspec.Struct, frozen=True, kw_only=True):
    """The ops of all ranks that run the same program."""

    ranks: list[NonNegative]
    """World ranks that run this program; every rank is in one table."""
    ops: list[OpEntry]
    """One entry per op, in program order."""


class Header(msgspec.Struct, frozen=True, kw_only=True, tag="header", tag_field="kind"):
    """First line: all that is needed to repeat the run and to interpret it."""

    schema_version: Literal[1] = 1
    """Version of the format."""
    run_id: str
    """Name of the run, the file's name without its ending."""
    created: str
    """UTC, ISO 8601."""
    simulated: bool = False
    """True where a network model, not a machine, gave the times."""
    strategy: str
    """Parallelisation strategy, e.g. dp or dp_pp_tp."""
    model: dict[str, Any]
    """The whole model spec, and its derived `parameters`."""
    gpu: dict[str, Any]
    """The whole GPU spec."""
    world_size: Positive
    """Ranks of the run."""
    replicas: Positive
    """Copies of the model; replicas × product of the degrees = world_size."""
    degrees: dict[str, Positive]
    """pp, tp, ep, sharding, as far as the strategy has them."""
    groups: dict[str, Group] = {}
    """Per scope of the strategy's communication: who is in a group with whom."""
    notes: list[str] = []
    """Where the run departs from the strategy's defaults, in words."""
    dtype: str
    """bf16, fp16, fp32, fp64, or fp8."""
    local_batch: Positive
    """Samples per replica and iteration."""
    microbatches: Positive
    """Parts into which a pipeline cuts the local batch; 1 without a pipeline."""
    sequence_length: Positive
    """Tokens (or patches) per sample."""
    buckets: NonNegative = 0
    """Gradient buckets of data parallelism; 0 for other strategies."""
    units: NonNegative = 0
    """Units of fully sharded data parallelism; 0 for other strategies."""
    scale: Factor = 1.0
    """Factor on message sizes."""
    time_scale: Factor = 1.0
    """Factor on compute."""
    compute: str
    """Compute model: what stood in for the computation, e.g. sleep or gemm."""
    backend: Backend
    """What carried the messages."""
    messages: list[Message]
    """Message table."""
    ideal_seconds: Seconds = 0.0
    """An iteration by the roofline in which communication takes no time; pipelines with their bubble; 0 for none."""
    memory_bytes: NonNegative
    """Message buffers of the rank that needs most."""
    system: str = ""
    """Name of the system spec."""
    placement: str = ""
    """Placement class, e.g. intra-group."""
    experiment: str = ""
    """Experiment that the run belongs to."""
    job: str = ""
    """Job of the experiment, or of the batch system."""
    concurrent_jobs: NonNegative = 0
    """Jobs that the experiment runs side by side: 1 for a baseline, 0 where that is not known."""
    labels: dict[str, str] = {}
    """Free labels from the command line."""
    seed: int
    """Seed of everything random in the run."""
    hosts: list[str]
    """Per rank."""
    devices: list[str]
    """Per rank."""
    accelerators: list[Accelerator] = []
    """Per rank: the GPUs; empty where the ranks drove none."""
    energy_source: EnergySource = ""
    """Where joules come from: NVML's counter, sampled power, or both; empty where energy was not measured."""
    environment: dict[str, str]
    """Environment variables that matter to the run."""
    clock: ClockModel
    """Clock model, measured before the first iteration; `clock` lines replace it."""
    packages: dict[str, str]
    """Package versions."""
    command: list[str]
    """Command line of the ranks."""
    options: dict[str, Any]
    """Every option of the run with its value."""
    op_tables: list[OpTable] = []
    """With op recording only."""


class Iteration(msgspec.Struct, frozen=True, kw_only=True, tag="iteration", tag_field="kind"):
    """One finished iteration."""

    index: NonNegative
    """Counts from 0, warm-up iterations included."""
    warmup: bool
    """Warm-up iterations are never counted; they come first."""
    start: float
    """Global time at which the first rank began, seconds."""
    skew: list[Seconds]
    """Per rank, seconds: its own begin − `start`."""
    runtime: list[Seconds]
    """Per rank, seconds."""
    sync_time: list[Seconds]
    """Per rank, seconds: blocking communications + waits for non-blocking ones."""
    compute: list[Seconds]
    """Per rank, seconds in compute phases; timed ones (sleeps) count as long as they were meant to be."""
    overrun: list[Seconds]
    """Per rank, seconds that timed phases took beyond that: late wake-ups, and communication inside a phase."""
    issue: list[Seconds]
    """Per rank, seconds to start non-blocking communications; no part of sync_time."""
    communication: dict[str, list[Seconds]]
    """Per communication class (`operation/scope`) and rank, seconds; the classes add up to sync_time."""
    late: list[NonNegative] = []
    """Ranks that came after the agreed start of the window."""
    energy: Energy | None = None
    """Energy and clocks of the GPUs; null where they were not measured."""


class Clock(msgspec.Struct, frozen=True, kw_only=True, tag="clock", tag_field="kind"):
    """The clocks were compared again, between two iterations: another model holds from now on."""

    index: NonNegative
    """First iteration whose times are converted with `model`."""
    model: ClockModel
    """Clock model, from the first comparison of the clocks to this one."""


class End(msgspec.Struct, frozen=True, kw_only=True, tag="end", tag_field="kind"):
    """Last line: how the run ended. A record without it belongs to a run that was killed."""

    status: Literal["completed", "terminated", "failed"]
    """completed; terminated by a signal or a time limit; failed."""
    reason: str
    """In words; for a failure, the rank, its host and device."""
    iterations: NonNegative
    """Finished iterations in the record, warm-up included."""
    ended: str
    """UTC, ISO 8601."""
    signal: str = ""
    """Name of the signal that ended the run, e.g. SIGTERM; empty where none did."""
    clock: ClockModel | None = None
    """Measured again at the end: the drift over the run. No time in the record is converted with it."""


Line = Header | Iteration | Clock | End


def ops_path(record: Path) -> Path:
    """Where the ops arrays of a record lie: `NAME.ops.npy` beside `NAME.jsonl`."""
    return record.with_suffix(".ops.npy")


def ops_shape(header: Header) -> tuple[int, int, int]:
    """Shape of each ops array of a record: (ranks, ops of the longest program, 2)."""
    return header.world_size, max((len(table.ops) for table in header.op_tables), default=0), 2
