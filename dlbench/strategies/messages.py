"""What a configuration communicates: its message table and the memory of its message buffers.

Both walk one program of each role, so they cost the same at 8 ranks and at 100 000.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from dlbench.specs import DTYPE_BYTES
from dlbench.strategies.configuration import FACTOR_RANGE, Configuration, Role
from dlbench.strategies.ops import (
    COLLECTIVES,
    COMMUNICATIONS,
    Communication,
    Scope,
    memory_elements,
    operation,
)


class MessageRow(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of communication of one size."""

    operation: str
    scope: Scope
    group_size: int
    count: int
    """Times per iteration on the rank that does it most often."""
    elements: int
    bytes: int
    """Message size, elements × dtype size."""
    blocking: bool


def message_table(configuration: Configuration) -> list[MessageRow]:
    """All communication of one iteration, in the order in which it first occurs."""
    counts: Counter[tuple[str, Scope, int, bool]] = Counter()
    for role in configuration.roles():
        counts |= Counter(
            (operation(op), op.group, op.buffer.elements, not isinstance(op, COLLECTIVES) or op.blocking)
            for op in _communications(configuration, role.rank)
        )
    return [
        MessageRow(
            operation=name,
            scope=scope,
            group_size=configuration.layout.group_size(scope),
            count=count,
            elements=elements,
            bytes=elements * DTYPE_BYTES[configuration.workload.dtype],
            blocking=blocking,
        )
        for (name, scope, elements, blocking), count in counts.items()
    ]


def memory(configuration: Configuration) -> dict[Role, int]:
    """Bytes of the message buffers, send and receive side, on each rank of a role."""
    return {role: memory_bytes(configuration, role.rank) for role in configuration.roles()}


def memory_bytes(configuration: Configuration, rank: int) -> int:
    """Bytes of the message buffers of one rank, send and receive side."""
    needs: dict[str, int] = {}
    for op in _communications(configuration, rank):
        elements = sum(memory_elements(op, configuration.layout.group_size(op.group)))
        needs[op.buffer.name] = max(elements, needs.get(op.buffer.name, 0))
    return sum(needs.values()) * DTYPE_BYTES[configuration.workload.dtype]


def moved_bytes(configuration: Configuration) -> int:
    """Bytes of all messages of an iteration on the rank that has most."""
    elements = (
        sum(op.buffer.elements for op in _communications(configuration, role.rank)) for role in configuration.roles()
    )
    return max(elements, default=0) * DTYPE_BYTES[configuration.workload.dtype]


def smallest(configuration: Configuration) -> Configuration:
    """The same with the smallest messages that a scale can make: of one element, unless they are enormous."""
    workload = msgspec.structs.replace(configuration.workload, scale=FACTOR_RANGE[0])
    return msgspec.structs.replace(configuration, workload=workload)


def _communications(configuration: Configuration, rank: int) -> Iterator[Communication]:
    return (op for op in configuration.ops(rank) if isinstance(op, COMMUNICATIONS))
