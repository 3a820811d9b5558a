"""The executor: binds a program's ops to calls once, then runs them in one flat loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from dlbench.strategies.layout import Layout
from dlbench.strategies.ops import (
    COLLECTIVES,
    Collective,
    Communication,
    Compute,
    Op,
    Recv,
    Scope,
    Send,
    Wait,
    communication_class,
    memory_elements,
    operation,
)

if TYPE_CHECKING:
    from dlbench.comm.protocol import Buffer, Communicator, Request
    from dlbench.compute.protocol import Compute as ComputeModel

Call = Callable[[], None]


class Storage(NamedTuple):
    """Memory behind a buffer of the program: what the op sends from and what it receives into, None where nothing."""

    send: Buffer | None
    receive: Buffer | None


def in_flight(program: Sequence[Op]) -> Iterator[frozenset[str]]:
    """Per op, the requests that are in flight when it begins."""
    pending: frozenset[str] = frozenset()
    for op in program:
        yield pending
        if isinstance(op, Wait):
            pending -= set(op.requests)
        elif isinstance(op, COLLECTIVES) and not op.blocking:
            pending |= {op.buffer.name}


def allocate(
    program: Sequence[Op], layout: Layout, communicators: Mapping[Scope, Communicator[Any, Any]], dtype: str
) -> dict[str, Storage]:
    """Memory for every buffer of the program.

    Raises ValueError where ops of different kind or size share a buffer: the strategy is wrong.
    """
    needs: dict[str, tuple[str, Scope, int, int]] = {}
    for op in program:
        if isinstance(op, Compute | Wait):
            continue
        need = (operation(op), op.group, *memory_elements(op, layout.group_size(op.group)))
        if needs.setdefault(op.buffer.name, need) != need:
            raise ValueError(f"buffer {op.buffer.name} is used as {needs[op.buffer.name]} and as {need}")
    return {
        name: Storage(
            send=communicators[group].allocate(send, dtype) if send else None,
            receive=communicators[group].allocate(receive, dtype) if receive else None,
        )
        for name, (_, group, send, receive) in needs.items()
    }


def describe_op(index: int, op: Op) -> str:
    """One op in a message, e.g. `op 12 (allreduce/world gradient[11])`."""
    match op:
        case Compute(phase):
            return f"op {index} (compute {phase.name})"
        case Wait(requests):
            names = requests[0] if len(requests) == 1 else f"{requests[0]} … {requests[-1]}"
            return f"op {index} (wait for {names})"
        case _:
            peer = f" peer {op.peer}" if isinstance(op, Send | Recv) else ""
            return f"op {index} ({communication_class(op)} {op.buffer.name}{peer})"


class Executor:
    """Runs the program of one rank.

    `communicators` holds one for every scope that the program uses. `progress` drives requests in flight during
    compute; None where nothing needs to. `delays` maps an op's index to a call that sleeps
    before that op; the delay lies outside the op's own time. After `iterate`, `enter` and `leave` hold the rank's
    clock (`time.perf_counter_ns`) around every op, and `begin` and `end` around the iteration.
    """

    def __init__(
        self,
        program: Sequence[Op],
        *,
        layout: Layout,
        communicators: Mapping[Scope, Communicator[Any, Any]],
        compute: ComputeModel,
        dtype: str,
        progress: Call | None = None,
        delays: Mapping[int, Call] | None = None,
    ) -> None:
        self.program = tuple(program)
        self.storage = allocate(self.program, layout, communicators, dtype)
        self.enter = [0] * len(self.program)
        self.leave = [0] * len(self.program)
        self.begin = 0
        self.end = 0
        self._communicators = communicators
        self._compute = compute
        self._progress = progress
        self._pending: dict[str, Request] = {}
        compute.prepare([op.phase for op in self.program if isinstance(op, Compute)])
        self.calls = [
            self._bind(op, bool(pending)) for op, pending in zip(self.program, in_flight(self.program), strict=True)
        ]
        self._steps = list(self.calls)
        for index, sleep in (delays or {}).items():
            self._steps[index] = self._delayed(index, sleep)

    def reset(self) -> None:
        """Forget the last iteration; before the ranks meet at the start line, so that it delays none of them."""
        self.begin = 0
        self.leave[:] = [0] * len(self.leave)

    def iterate(self) -> None:
        """Run the program once, after `reset`."""
        enter, leave, clock = self.enter, self.leave, perf_counter_ns
        self.begin = clock()
        for index, call in enumerate(self._steps):
            enter[index] = clock()
            call()
            leave[index] = clock()
        self.end = clock()

    def current_op(self) -> str:
        """The op that this rank is in, or its start or end; for messages, from any thread."""
        if not self.begin:
            return "the start"
        for index, left in enumerate(self.leave):
            if not left:
                return describe_op(index, self.program[index])
        return "the end"

    def _delayed(self, index: int, sleep: Call) -> Call:
        call, enter = self._steps[index], self.enter

        def delayed() -> None:
            sleep()
            enter[index] = perf_counter_ns()
            call()

        return delayed

    def _bind(self, op: Op, requests_in_flight: bool) -> Call:
        match op:
            case Compute(phase):
                return self._compute.bind(phase, self._progress if requests_in_flight else None)
            case Wait(requests):
                return self._bind_wait(requests, self._communicators[self._group_of(requests[0])])
            case _:
                return self._bind_communication(op)

    def _group_of(self, request: str) -> Scope:
        return next(op.group for op in self.program if isinstance(op, COLLECTIVES) and op.buffer.name == request)

    def _bind_communication(self, op: Communication) -> Call:
        communicator = self._communicators[op.group]
        storage = self.storage[op.buffer.name]
        if isinstance(op, Send):
            return partial(communicator.send, storage.send, op.peer)
        if isinstance(op, Recv):
            return partial(communicator.recv, storage.receive, op.peer)
        return self._bind_collective(op, communicator, storage)

    def _bind_collective(self, op: Collective, communicator: Communicator[Any, Any], storage: Storage) -> Call:
        if op.blocking:
            return partial(getattr(communicator, operation(op)), storage.send, storage.receive)
        start: Callable[[Any, Any], Request] = getattr(communicator, f"i{operation(op)}")
        send, receive, pending, name = storage.send, storage.receive, self._pending, op.buffer.name

        def begin() -> None:
            pending[name] = start(send, receive)

        return begin

    def _bind_wait(self, requests: tuple[str, ...], communicator: Communicator[Any, Any]) -> Call:
        wait_all, pending = communicator.wait_all, self._pending

        def wait() -> None:
            wait_all([pending.pop(name) for name in requests])

        return wait
