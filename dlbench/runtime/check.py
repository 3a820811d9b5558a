"""`--check`: one pass through the program in which the content of every message is verified, before any timing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from dlbench.comm.payload import Message, fill, first_mismatch
from dlbench.comm.protocol import Buffer, Communicator
from dlbench.runtime.executor import Executor, describe_op
from dlbench.strategies.layout import Layout
from dlbench.strategies.ops import COLLECTIVES, Communication, Compute, Recv, Scope, Send, Wait, operation

_SCOPES = tuple(Scope)
_MOST_FAULTS = 10


class PayloadCheck:
    """Runs the communications of one rank's program with payloads that are known on both sides.

    `faults` describes what arrived wrong on this rank, at most ten messages; `messages` counts those verified.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        layout: Layout,
        rank: int,
        communicators: Mapping[Scope, Communicator[Any, Any]],
        dtype: str,
    ) -> None:
        self.faults: list[str] = []
        self.messages = 0
        self._executor = executor
        self._layout = layout
        self._rank = rank
        self._communicators = communicators
        self._dtype = dtype
        self._sequence: Counter[tuple[object, ...]] = Counter()
        self._index = 0

    def run(self) -> None:
        """One pass. Collective: every rank walks its own program."""
        started: dict[str, tuple[int, Communication, Message]] = {}
        for index, (op, call) in enumerate(zip(self._executor.program, self._executor.calls, strict=True)):
            self._index = index
            match op:
                case Compute():
                    pass
                case Wait(requests):
                    call()
                    for name in requests:
                        self._verify(*started.pop(name))
                case _:
                    message = self._message(op)
                    self._fill(op, message)
                    call()
                    if isinstance(op, COLLECTIVES) and not op.blocking:
                        started[op.buffer.name] = (index, op, message)
                    else:
                        self._verify(index, op, message)

    def current_op(self) -> str:
        """The op that this rank is in; for messages, from any thread."""
        return describe_op(self._index, self._executor.program[self._index])

    def _message(self, op: Communication) -> Message:
        """The message of an op, numbered alike on all ranks that take part in it and unlike any other of theirs."""
        communicator = self._communicators[op.group]
        number = self._number(op, communicator)
        return Message(
            operation=operation(op),
            sequence=number * len(_SCOPES) + _SCOPES.index(op.group),
            ranks=self._layout.group(op.group, self._rank),
            elements=op.buffer.elements,
            carrier=communicator.carrier(self._dtype),
            precision=communicator.precision(self._dtype),
        )

    def _number(self, op: Communication, communicator: Communicator[Any, Any]) -> int:
        if isinstance(op, Send | Recv):
            source, target = (communicator.rank, op.peer) if isinstance(op, Send) else (op.peer, communicator.rank)
            return self._count(op.group, source, target) * communicator.size + target
        return self._count(op.group, operation(op))

    def _count(self, *key: object) -> int:
        self._sequence[key] += 1
        return self._sequence[key] - 1

    def _fill(self, op: Communication, message: Message) -> None:
        buffer = self._executor.storage[op.buffer.name].send
        if buffer is not None:
            fill(buffer, message.sent(self._communicators[op.group].rank))

    def _verify(self, index: int, op: Communication, message: Message) -> None:
        self.messages += 1
        for fault in self._faults(op, message):
            if len(self.faults) < _MOST_FAULTS:
                self.faults.append(f"{describe_op(index, op)}: {fault}")

    def _faults(self, op: Communication, message: Message) -> Iterator[str]:
        storage = self._executor.storage[op.buffer.name]
        if storage.receive is not None:
            peer = op.peer if isinstance(op, Recv) else 0
            yield from self._wrong(storage.receive, message, self._communicators[op.group].rank, peer)
        for side, buffer in (("receive", storage.receive), ("send", storage.send)):
            if buffer is not None and not buffer.guard_intact():
                yield f"bytes behind the end of the {side} buffer were overwritten"

    @staticmethod
    def _wrong(buffer: Buffer, message: Message, rank: int, peer: int) -> Iterator[str]:
        mismatch = first_mismatch(buffer, message.expected(rank, peer))
        if mismatch is not None:
            yield (
                f"element {mismatch.element} is {mismatch.found}, expected {mismatch.expected} "
                f"({mismatch.count} of {buffer.elements} elements wrong)"
            )
