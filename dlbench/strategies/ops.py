"""Ops: the instructions of a communication program.

A program is the list of ops that one rank performs in one iteration. Ops are plain data: they know nothing of
MPI, NCCL, clocks or files, so the executor, the simulator, the exporters and the tests all walk the same list.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import msgspec

from dlbench.roofline import Phase


class Scope(StrEnum):
    """Which ranks take part in a communication, named by what they have in common."""

    WORLD = "world"
    REPLICA = "replica"
    """The ranks with the same coordinates in every replica: they average gradients."""
    PIPELINE = "pipeline"
    TENSOR = "tensor"
    EXPERT = "expert"
    SHARD = "shard"


class Buffer(msgspec.Struct, frozen=True):
    """A named message buffer of `elements` elements in the run's dtype.

    `elements` is the count that MPI takes: the whole vector of an all-reduce, one rank's shard of an all-gather or a
    reduce-scatter, one destination's chunk of an all-to-all, the message of a send or a receive. Ops that name the
    same buffer use the same memory, so two ops that can be in flight together never share a name.
    """

    name: str
    elements: int


class Compute(msgspec.Struct, frozen=True):
    """Computation between two communications."""

    phase: Phase


class AllReduce(msgspec.Struct, frozen=True):
    """Sum of one vector over the group, delivered to every rank of it."""

    group: Scope
    buffer: Buffer
    blocking: bool = True


class AllGather(msgspec.Struct, frozen=True):
    """Every rank's shard, delivered to every rank of the group."""

    group: Scope
    buffer: Buffer
    blocking: bool = True


class ReduceScatter(msgspec.Struct, frozen=True):
    """Sum over the group, of which every rank receives its shard."""

    group: Scope
    buffer: Buffer
    blocking: bool = True


class AllToAll(msgspec.Struct, frozen=True):
    """One chunk from every rank to every rank of the group."""

    group: Scope
    buffer: Buffer
    blocking: bool = True


class Send(msgspec.Struct, frozen=True):
    """Blocking send to rank `peer` of the group."""

    group: Scope
    peer: int
    buffer: Buffer


class Recv(msgspec.Struct, frozen=True):
    """Blocking receive from rank `peer` of the group."""

    group: Scope
    peer: int
    buffer: Buffer


class Wait(msgspec.Struct, frozen=True):
    """Completion of non-blocking collectives; a request bears the name of its buffer."""

    requests: tuple[str, ...]


Collective: TypeAlias = AllReduce | AllGather | ReduceScatter | AllToAll
Communication: TypeAlias = Collective | Send | Recv
Op: TypeAlias = Compute | Communication | Wait

COLLECTIVES = (AllReduce, AllGather, ReduceScatter, AllToAll)
COMMUNICATIONS = (*COLLECTIVES, Send, Recv)

_OPERATIONS: dict[type[Communication], str] = {
    AllReduce: "allreduce",
    AllGather: "allgather",
    ReduceScatter: "reduce_scatter",
    AllToAll: "alltoall",
    Send: "send",
    Recv: "recv",
}


def operation(op: Communication) -> str:
    """Name of a communication in records and tables, e.g. `reduce_scatter`."""
    return _OPERATIONS[type(op)]


def communication_class(op: Communication) -> str:
    """Communication class of an op, `operation/scope`, e.g. `allreduce/replica`: the unit of accounting."""
    return f"{operation(op)}/{op.group}"


def op_row(op: Op) -> dict[str, object]:
    """An op as plain data, for records and tables: `op`, and what it has of the other keys.

    `scope`, `name` (phase or buffer), `elements`, `peer`, `blocking`, `seconds`, `requests`.
    """
    match op:
        case Compute(phase):
            return {"op": "compute", "name": phase.name, "seconds": phase.seconds}
        case Wait(requests):
            return {"op": "wait", "requests": list(requests)}
    message = {"op": operation(op), "scope": op.group, "name": op.buffer.name, "elements": op.buffer.elements}
    if isinstance(op, Send | Recv):
        return {**message, "blocking": True, "peer": op.peer}
    return {**message, "blocking": op.blocking}


def memory_elements(op: Communication, group_size: int) -> tuple[int, int]:
    """Elements of memory that an op sends from and receives into, as (send, receive)."""
    elements = op.buffer.elements
    match op:
        case AllReduce():
            return elements, elements
        case AllGather():
            return elements, elements * group_size
        case ReduceScatter():
            return elements * group_size, elements
        case AllToAll():
            return elements * group_size, elements * group_size
        case Send():
            return elements, 0
        case Recv():
            return 0, elements
