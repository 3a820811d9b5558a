"""Small models, readable programs and an interpreter of blocking semantics, for the tests of the strategies."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Any

from dlbench.specs import GpuSpec, ModelSpec
from dlbench.strategies import Configuration, configure
from dlbench.strategies.ops import COLLECTIVES, Compute, Op, Recv, Send, Wait, operation

GPU = GpuSpec(
    name="abacus",
    vendor="none",
    peak_flops={"bf16": 1e9, "fp32": 5e8},
    memory_bandwidth=1e9,
    memory_bytes=10**9,
    source={"peak_flops": "made up", "memory_bandwidth": "made up", "memory_bytes": "made up"},
)


def small_model(**sizes: Any) -> ModelSpec:
    """Decoder with d = 4, L = 2, N = 3: 2 V d = 40, per layer 2·16 + 2·16 + 3·4·5 + 8 = 132, final norm 4: P = 308."""
    defaults: dict[str, Any] = {
        "name": "small",
        "family": "decoder",
        "hidden_size": 4,
        "layers": 2,
        "heads": 2,
        "kv_heads": 2,
        "feed_forward_size": 5,
        "vocabulary_size": 5,
        "sequence_length": 3,
        "source": "made up",
    }
    return ModelSpec(**{**defaults, **sizes})


def small(strategy: str, world_size: int, model: ModelSpec | None = None, **options: Any) -> Configuration:
    """Configuration of a small model, local batch 2 and, where there is a pipeline, 2 microbatches."""
    piped = {} if strategy in ("dp", "fsdp") else {"microbatches": 2}
    settled = {"local_batch": 2, **piped, **options}
    return configure(strategy, world_size=world_size, model=model or small_model(), gpu=GPU, **settled)


def lines(program: Iterable[Op]) -> list[str]:
    """One readable line per op; `start` marks what does not block."""
    return [_line(op) for op in program]


def _line(op: Op) -> str:
    match op:
        case Compute(phase):
            return f"compute {phase.name}"
        case Wait(requests):
            return f"wait {' '.join(requests)}"
        case Send(group, peer, buffer):
            return f"send {group} to {peer}: {buffer.name} {buffer.elements}"
        case Recv(group, peer, buffer):
            return f"recv {group} from {peer}: {buffer.name} {buffer.elements}"
        case _:
            start = "" if op.blocking else "start "
            return f"{start}{operation(op)} {op.group}: {op.buffer.name} {op.buffer.elements}"


def expected(text: str) -> list[str]:
    """The lines of a hand-written program."""
    return [line.strip() for line in text.strip().splitlines()]


class Deadlock(AssertionError):
    """No rank can go on."""


class Interpreter:
    """Runs programs with the strictest semantics that MPI allows: sends wait for their receive, collectives for all.

    The n-th collective that a rank issues on a group meets the n-th of the others, and must be the same one.
    """

    def __init__(self, programs: Sequence[Sequence[Op]], groups: Any) -> None:
        self.programs = programs
        self.groups = groups
        self.position = [0] * len(programs)
        self.issued: dict[tuple[int, Any], int] = defaultdict(int)
        self.arrived: dict[Any, dict[int, Any]] = defaultdict(dict)
        self.in_flight: list[dict[str, Any]] = [{} for _ in programs]
        self.waiting: dict[int, Any] = {}

    def run(self) -> None:
        """Finish all programs, or raise `Deadlock`; AssertionError where ranks disagree."""
        while any(self._current(rank) for rank in range(len(self.programs))):
            moved = [rank for rank in range(len(self.programs)) if self._step(rank)]
            if not moved:
                raise Deadlock({rank: self._current(rank) for rank in range(len(self.programs))})
        assert not any(self.in_flight), "requests that nobody waits for"

    def _current(self, rank: int) -> Op | None:
        program = self.programs[rank]
        return program[self.position[rank]] if self.position[rank] < len(program) else None

    def _step(self, rank: int) -> bool:
        op = self._current(rank)
        match op:
            case None | Recv():
                return False  # a receive moves on together with its send
            case Compute():
                done = True
            case Wait(requests):
                done = all(self._complete(self.in_flight[rank][request]) for request in requests)
                if done:
                    for request in requests:
                        del self.in_flight[rank][request]
            case Send():
                done = self._meet(rank, op)
            case _:
                done = self._collective(rank, op)
        self.position[rank] += done
        return done

    def _meet(self, rank: int, op: Send) -> bool:
        group = self.groups(op.group, rank)
        peer = group[op.peer]
        other = self._current(peer)
        if not (isinstance(other, Recv) and self.groups(other.group, peer)[other.peer] == rank):
            return False
        assert other.buffer.elements == op.buffer.elements
        self.position[peer] += 1
        return True

    def _collective(self, rank: int, op: Any) -> bool:
        if rank not in self.waiting:
            group = self.groups(op.group, rank)
            key = (op.group, group, self.issued[rank, (op.group, group)])
            self.issued[rank, (op.group, group)] += 1
            self.arrived[key][rank] = (operation(op), op.buffer.elements, op.blocking)
            assert len(set(self.arrived[key].values())) == 1, self.arrived[key]
            if not op.blocking:
                assert op.buffer.name not in self.in_flight[rank], f"{op.buffer.name} is in flight already"
                self.in_flight[rank][op.buffer.name] = key
                return True
            self.waiting[rank] = key
        if not self._complete(self.waiting[rank]):
            return False
        del self.waiting[rank]
        return True

    def _complete(self, key: Any) -> bool:
        return len(self.arrived[key]) == len(key[1])


class GpuInterpreter:
    """Runs programs on GPUs as strictly as NCCL may: a rank's operations are carried out one after the other.

    They are, in the order of the calls and whatever their communicators, where each one fills the GPU. An operation is
    carried out as soon as it is the next one on all ranks that take part: a send therefore waits for its receive. A
    call that keeps the host until then, as the first one of a kind does while NCCL connects the ranks, changes nothing:
    no later operation could overtake it.
    """

    def __init__(self, programs: Sequence[Sequence[Op]], groups: Any) -> None:
        self.groups = groups
        self.queue = [deque[Any](op for op in program if not isinstance(op, Compute | Wait)) for program in programs]

    def run(self) -> None:
        """Finish all programs, or raise `Deadlock`."""
        while any(self.queue):
            if not [rank for rank in range(len(self.queue)) if self._carry_out(rank)]:
                raise Deadlock({rank: queue[0] for rank, queue in enumerate(self.queue) if queue})

    def _carry_out(self, rank: int) -> bool:
        """Finish the next operation of a rank on all ranks that take part, if it is their next one too."""
        if not self.queue[rank]:
            return False
        op = self.queue[rank][0]
        group = self.groups(op.group, rank)
        partners = [group[op.peer]] if isinstance(op, Send | Recv) else [peer for peer in group if peer != rank]
        if not all(self.queue[peer] and self._meets(rank, op, peer) for peer in partners):
            return False
        for each in (rank, *partners):
            self.queue[each].popleft()
        return True

    def _meets(self, rank: int, op: Any, peer: int) -> bool:
        other = self.queue[peer][0]
        if self.groups(other.group, peer) != self.groups(op.group, rank) or other.buffer.elements != op.buffer.elements:
            return False
        if isinstance(op, Send | Recv):
            opposite = Recv if isinstance(op, Send) else Send
            return isinstance(other, opposite) and self.groups(other.group, peer)[other.peer] == rank
        return type(other) is type(op)


def run_all(configuration: Configuration) -> None:
    """Interpret the programs of all ranks of a configuration."""
    ranks = range(configuration.layout.world_size)
    Interpreter([configuration.program(rank) for rank in ranks], configuration.layout.group).run()


def run_all_on_gpus(configuration: Configuration) -> None:
    """Interpret the programs of all ranks of a configuration, with NCCL's semantics."""
    programs = [configuration.program(rank) for rank in range(configuration.layout.world_size)]
    GpuInterpreter(programs, configuration.layout.group).run()


def in_flight_conflicts(program: Sequence[Op]) -> list[Op]:
    """Ops that use a buffer while an earlier op still does."""
    pending: set[str] = set()
    conflicts: list[Op] = []
    for op in program:
        if isinstance(op, Wait):
            pending -= set(op.requests)
        elif not isinstance(op, Compute):
            if op.buffer.name in pending:
                conflicts.append(op)
            if isinstance(op, COLLECTIVES) and not op.blocking:
                pending.add(op.buffer.name)
    return conflicts
