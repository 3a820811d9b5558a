"""Kineto traces of a job whose every dependency is known, with delays before known events on known ranks.

Each rank has a main thread that runs ahead of its GPU: it launches kernels on a compute stream, and after each segment
an all-reduce on a stream of its own, which waits for the computation, as the next segment waits for it. Times are those
of an execution that starts everything as soon as all it depends on is over, and some latency after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from kineto_writer import EPOCH, Form, Writing, trace

COMPUTE, COMMUNICATION, SIDE = 7, 84, 22
MAIN, BACKWARD, PROCESS = 100, 200, 4242
LATENCY, CALL, GAP = 4_000, 2_000, 1_000
"""Nanoseconds: from the begin of a launch to its kernel, of a call, between kernels of a stream."""
TRANSFER = 30_000
ANNOTATION = "## backward ##"


class Op(NamedTuple):
    """A kernel of a segment and the op that launches it."""

    kernel: str
    gpu: int
    """Nanoseconds."""
    cpu: int = 6_000
    backward: bool = False
    """Whether the thread of the backward pass launches it."""


class Delay(NamedTuple):
    """What takes longer."""

    gpu: int = 0
    cpu: int = 0


@dataclass(kw_only=True)
class Job:
    """A job and how its traces are written."""

    segments: Sequence[Sequence[Op]]
    """Ops before each all-reduce."""
    ranks: int = 4
    delays: Mapping[tuple[int, int, int], Delay] = field(default_factory=dict)
    """By rank, segment and op."""
    extra: Mapping[tuple[int, int, int], int] = field(default_factory=dict)
    """Nanoseconds that a kernel on the side stream takes, launched before an op and waited for by nobody."""
    form: Form = "new"
    explicit: bool = True
    """Whether waits of streams are written."""
    flows: bool = True
    """Whether arrows between forward and backward are written."""
    synchronized: bool = True
    """Whether the main thread waits for the GPU after each segment."""

    def write(self, folder: Path) -> list[Path]:
        """Run the job and write a trace per rank."""
        ranks = [_Rank(self, number) for number in range(self.ranks)]
        for segment in range(len(self.segments)):
            for rank in ranks:
                rank.compute(segment)
            enters = [rank.enter() for rank in ranks]
            for rank in ranks:
                rank.leave(max(enters) + TRANSFER)
        paths = []
        for number, rank in enumerate(ranks):
            path = folder / f"rank{number}.json"
            path.write_bytes(trace(number, self.ranks, [], Writing(form=self.form, more_events=rank.events)))
            paths.append(path)
        return paths


class _Rank:
    """One rank while the job runs."""

    def __init__(self, job: Job, number: int) -> None:
        self.events: list[dict[str, Any]] = []
        self._job = job
        self._number = number
        self._now = EPOCH
        self._thread = MAIN
        self._free = dict.fromkeys((COMPUTE, COMMUNICATION, SIDE), EPOCH)
        self._correlation = 1_000
        self._hip = job.form == "rocm"
        self._old = job.form == "old"
        self._pending: tuple[int, int] = (0, 0)

    def compute(self, segment: int) -> None:
        ops = self._job.segments[segment]
        forward = [op for op in ops if not op.backward]
        for index, op in enumerate(ops[: len(forward)]):
            self._op((self._number, segment, index), op)
        if len(forward) < len(ops):
            self._backward(segment, ops, len(forward))

    def enter(self) -> int:
        """Launch the all-reduce, once the compute stream is done; when it begins."""
        recorded = self._call("EventRecord")
        self._wait(COMMUNICATION, COMPUTE, recorded)
        launched = self._now
        correlation = self._call("LaunchKernel")
        start = max(launched + LATENCY, self._free[COMPUTE] + GAP, self._free[COMMUNICATION] + GAP)
        self._pending = start, correlation
        return start

    def leave(self, end: int) -> None:
        start, correlation = self._pending
        name = "ncclDevKernel_Generic_1" if self._hip else "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
        self._gpu(name, COMMUNICATION, start, end, correlation)
        self._wait(COMPUTE, COMMUNICATION, self._call("EventRecord"))
        self._free[COMPUTE] = end
        if self._job.synchronized:
            begin, self._now = self._now, max(self._now + CALL, end + 5_000)
            name = "hipDeviceSynchronize" if self._hip else "cudaDeviceSynchronize"
            self._cpu(name, self._runtime, begin, self._now, {"correlation": self._next()})

    def _backward(self, segment: int, ops: Sequence[Op], first: int) -> None:
        """Ops of the other thread, for which the main thread waits."""
        begin, self._thread = self._now, BACKWARD
        self._now += 20_000
        for index in range(first, len(ops)):
            arrow = {"cat": "fwdbwd", "name": "fwdbwd", "id": 1_000 * segment + index, "pid": PROCESS, "dur": 0}
            if self._job.flows:
                self.events.append({**arrow, "ph": "s", "tid": MAIN, "ts": begin - 1_000})
                self.events.append({**arrow, "ph": "f", "bp": "e", "tid": BACKWARD, "ts": self._now})
            self._op((self._number, segment, index), ops[index])
            self._now += 4_000
        self._now += 10_000
        self._thread = MAIN
        self._cpu(ANNOTATION, "user_annotation", begin, self._now, {})

    def _op(self, place: tuple[int, int, int], op: Op) -> None:
        """An op on the CPU, in it the launch of its kernel, which follows the one before on the stream."""
        delay = self._job.delays.get(place, Delay())
        if side := self._job.extra.get(place):
            launched, correlation = self._now, self._call("MemcpyAsync")
            start = max(launched + LATENCY, self._free[SIDE] + GAP)
            self._free[SIDE] = start + side
            self._gpu("Memcpy HtoD (Pinned -> Device)", SIDE, start, start + side, correlation, "gpu_memcpy")
        begin = self._now
        self._now += op.cpu + delay.cpu
        launched, correlation = self._now, self._call("LaunchKernel")
        self._now += 1_000
        self._cpu(f"aten::{op.kernel}", "Operator" if self._old else "cpu_op", begin, self._now, {})
        start = max(launched + LATENCY, self._free[COMPUTE] + GAP)
        self._free[COMPUTE] = start + op.gpu + delay.gpu
        self._gpu(op.kernel, COMPUTE, start, self._free[COMPUTE], correlation)

    def _wait(self, stream: int, other: int, recorded: int) -> None:
        begin = self._now
        correlation = self._call("StreamWaitEvent")
        if self._job.explicit:
            args = {"stream": stream, "wait_on_stream": other, "wait_on_cuda_event_record_corr_id": recorded}
            self._slice("Stream Wait Event", "cuda_sync", (0, stream), begin, begin + CALL, args, correlation)

    @property
    def _runtime(self) -> str:
        return "Runtime" if self._old else "cuda_runtime"

    def _next(self) -> int:
        self._correlation += 1
        return self._correlation

    def _call(self, name: str) -> int:
        begin, correlation = self._now, self._next()
        self._now += CALL
        self._cpu(f"{'hip' if self._hip else 'cuda'}{name}", self._runtime, begin, self._now, {}, correlation)
        return correlation

    def _cpu(
        self, name: str, category: str, begin: int, end: int, args: Mapping[str, Any], correlation: int | None = None
    ) -> None:
        self._slice(name, category, (PROCESS, self._thread), begin, end, args, correlation)

    def _gpu(self, name: str, stream: int, start: int, end: int, correlation: int, category: str = "kernel") -> None:
        self._slice(
            name, "Kernel" if self._old and category == "kernel" else category, (0, stream), start, end, {}, correlation
        )

    def _slice(
        self,
        name: str,
        category: str,
        track: tuple[int, int],
        begin: int,
        end: int,
        args: Mapping[str, Any],
        correlation: int | None,
    ) -> None:
        args = dict(args) if correlation is None else {**args, "correlation": correlation}
        pid, tid = track
        place = {"pid": pid, "tid": tid, "ts": begin, "dur": end - begin}
        self.events.append({"ph": "X", "cat": category, "name": name, **place, "args": args})
