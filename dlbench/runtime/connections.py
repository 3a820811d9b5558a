"""The first messages between ranks, before anything is timed.

NCCL connects two ranks, and takes memory for it, when a kind of operation first needs them. What is left of a GPU's
memory is known only behind that, and the first iteration should not begin with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from msgspec.structs import replace

from dlbench.specs import DTYPE_BYTES
from dlbench.strategies.layout import Layout
from dlbench.strategies.ops import COMMUNICATIONS, Communication, Op, Recv, Send, memory_elements

MOST_BYTES = 64 * 2**20
"""Of the buffers of one first message. NCCL chooses its algorithm, and with it the connections, by size: so messages
keep theirs as far as that is affordable on a GPU that is yet to be found too small."""

CommunicationT = TypeVar("CommunicationT", bound=Communication)


def first_messages(program: Iterable[Op], layout: Layout, dtype: str) -> tuple[Communication, ...]:
    """The first communication of each kind with each group and peer, blocking, of no more than `MOST_BYTES`.

    They end on every rank if the programs do, even where one operation is carried out after the other: the first of a
    kind is the same one for all that take part, and what is left out is left out for all of them.
    """
    first: dict[tuple[type[Communication], str, int | None], Communication] = {}
    for op in program:
        if isinstance(op, COMMUNICATIONS):
            first.setdefault((type(op), op.group, op.peer if isinstance(op, Send | Recv) else None), op)
    most = MOST_BYTES // DTYPE_BYTES[dtype]
    return tuple(_blocking(_shrunk(op, layout.group_size(op.group), most)) for op in first.values())


def _blocking(op: Communication) -> Communication:
    return op if isinstance(op, Send | Recv) else replace(op, blocking=True)


def _shrunk(op: CommunicationT, group_size: int, most: int) -> CommunicationT:
    """The op with no more than `most` elements of memory, but one at least from or for every rank."""
    of_one = sum(memory_elements(replace(op, buffer=replace(op.buffer, elements=1)), group_size))
    return replace(op, buffer=replace(op.buffer, elements=min(op.buffer.elements, max(1, most // of_one))))
