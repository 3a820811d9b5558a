"""Communication over NCCL, or RCCL, through CuPy.

Every operation goes to a non-blocking stream of communication, with an event behind it that the host polls. No event
ties that stream to the one of the computation: a phase of computation returns when its own stream has finished, and a
blocking collective when its event is reached, so what a collective sends is there before it is called.

Operations of several communicators on streams of their own can block each other for good: each GPU may begin with
another one, and wait for its partners with all that it has. NCCL prevents that from 2.26 on, where
NCCL_LAUNCH_ORDER_IMPLICIT is 1: it launches them in the order of the calls. It is set before the first communicator is
made, at which NCCL reads it from 2.31 on; earlier, at the first operation. So every communicator has a stream of its
own there. With an older NCCL, with RCCL, and where the user has set another value, all share one stream, which carries
them out one after the other in the order of the calls; programs must come to their end even so, and those of all
strategies do (`GpuInterpreter` of the tests). A request is complete when its own event is reached, whatever else the
stream holds behind it.

bf16 and fp16 are summed as floats; fp8 travels as an unsigned byte, whose sums are those of integers. All operations
are out of place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from os import sched_yield
from time import perf_counter_ns
from typing import Any, NamedTuple, Self
from weakref import WeakKeyDictionary

import numpy as np

from dlbench.accelerator.presence import nccl_version
from dlbench.accelerator.protocol import Device, Event, NcclLibrary, Stream
from dlbench.comm.device_buffer import BF16, DeviceBuffer, Format, plain
from dlbench.comm.library import MPI
from dlbench.errors import PreflightError, RunError

SUM = 0
"""`ncclSum`."""
FIRST_WITH_SPLIT = 21801
"""NCCL has ncclCommSplit since 2.18.1."""
FIRST_WITH_LAUNCH_ORDER = 22600
"""NCCL launches in the order of the calls, where it is asked to, since 2.26."""
LAUNCH_ORDER_VARIABLE = "NCCL_LAUNCH_ORDER_IMPLICIT"
ERROR_INTERVAL = 1_000_000
"""Nanoseconds between two questions for asynchronous errors."""


class Carrier(NamedTuple):
    """How elements of a dtype travel."""

    number: int
    """Of `ncclDataType_t`."""
    name: str
    format: Format
    precision: int
    """Significant bits of an element in a sum."""


CARRIERS = {
    "bf16": Carrier(9, "ncclBfloat16", BF16, precision=8),
    "fp16": Carrier(6, "ncclFloat16", plain(np.float16), precision=11),
    "fp8": Carrier(1, "ncclUint8", plain(np.uint8), precision=8),
    "fp32": Carrier(7, "ncclFloat32", plain(np.float32), precision=24),
    "fp64": Carrier(8, "ncclFloat64", plain(np.float64), precision=53),
}


class NcclBuffer(DeviceBuffer):
    """Device memory for messages of one datatype."""

    __slots__ = ("__weakref__", "datatype", "itemsize")

    def __init__(self, device: Device, elements: int, carrier: Carrier) -> None:
        super().__init__(device, elements, carrier.format)
        self.datatype = carrier.number
        self.itemsize = carrier.format.stored.itemsize


class NcclRequest:
    """An operation on a stream of communication. It keeps its buffers: they must not be freed under the operation."""

    __slots__ = ("_buffers", "_communicator", "_event")

    def __init__(self, communicator: NcclCommunicator, event: Event, buffers: tuple[NcclBuffer, ...]) -> None:
        self._communicator = communicator
        self._event: Event | None = event
        self._buffers = buffers

    def wait(self) -> None:
        """Return when the operation is complete. Raises `RunError` where NCCL has failed."""
        while not self.test():
            sched_yield()

    def test(self) -> bool:
        """Whether the operation is complete. Raises `RunError` where NCCL has failed."""
        if self._event is not None:
            if not self._communicator.reached(self._event):
                return False
            self._communicator.recycle(self._event)
            self._event = None
            self._buffers = ()
        return True


class NcclCommunicator:
    """A group of ranks over NCCL, beside `comm`, the same group over MPI for what is no message. Owns both.

    `stream` may be shared with other communicators. A failure of NCCL in any call is a `RunError`. Waiting has no limit
    of time: the run's watchdog has.
    """

    needs_progress = False

    def __init__(self, comm: MPI.Comm, device: Device, library: NcclLibrary, handle: Any, stream: Stream) -> None:
        self.rank = comm.rank
        self.size = comm.size
        self._comm = comm
        self._device = device
        self._library = library
        self._handle = handle
        self._failures = failures(library)
        self._stream = stream
        self._stream_ptr = stream.ptr
        self._shares_stream = False
        self._events: list[Event] = []
        self._exchanges: WeakKeyDictionary[NcclBuffer, dict[NcclBuffer, Callable[[int], None]]] = WeakKeyDictionary()
        """By send and receive buffer. They do not keep what is sent from, and with it what is received into."""
        self._next_question = 0

    def describe(self) -> dict[str, str]:
        """Backend, library, and the NCCL datatype that carries each dtype."""
        carriers = {dtype: carrier.name for dtype, carrier in CARRIERS.items()}
        return {"name": "nccl", "library": self._name(), **carriers}

    def remarks(self, largest_count: int) -> list[str]:
        """Says so where groups share the stream. Counts have 64 bits."""
        if not self._shares_stream:
            return []
        why = f"this is {self._name()}"
        if _knows_launch_order(self._device, self._library):
            why = f"{LAUNCH_ORDER_VARIABLE} is {os.environ.get(LAUNCH_ORDER_VARIABLE, 'not set')}"
        return [
            "operations of different groups run one after the other, on one stream: NCCL keeps several streams in "
            f"order from 2.26 on where {LAUNCH_ORDER_VARIABLE} is 1, and {why}"
        ]

    def split(self, color: int, key: int) -> Self:
        """Communicator of the ranks that gave the same colour, ordered by key. Collective.

        To be called while no operation is in flight. Raises `PreflightError` where NCCL fails.
        """
        group = self._comm.Split(color, key)
        handle = self._split_handle(color, key) if self._can_split() else connect(group, self._library)
        return type(self)(group, self._device, self._library, handle, self._stream_of_group())

    def allocate(self, elements: int, dtype: str) -> NcclBuffer:
        """Device buffer of `elements` elements; raises `PreflightError` where there is no memory for it."""
        return NcclBuffer(self._device, elements, CARRIERS[dtype])

    def carrier(self, dtype: str) -> np.dtype[Any]:
        """NumPy dtype in which buffers show elements of `dtype`."""
        return CARRIERS[dtype].format.carrier

    def precision(self, dtype: str) -> int:
        """Significant bits of an element of `dtype` in a sum."""
        return CARRIERS[dtype].precision

    def allreduce(self, send: NcclBuffer, receive: NcclBuffer) -> None:
        """Sum `send` over the group into `receive`."""
        self.iallreduce(send, receive).wait()

    def allgather(self, send: NcclBuffer, receive: NcclBuffer) -> None:
        """Concatenate every rank's `send` in rank order into `receive`."""
        self.iallgather(send, receive).wait()

    def reduce_scatter(self, send: NcclBuffer, receive: NcclBuffer) -> None:
        """Sum `send` over the group; this rank's block of the sum goes to `receive`."""
        self.ireduce_scatter(send, receive).wait()

    def alltoall(self, send: NcclBuffer, receive: NcclBuffer) -> None:
        """Exchange blocks: block i of `send` goes to rank i."""
        self.ialltoall(send, receive).wait()

    def send(self, send: NcclBuffer, peer: int) -> None:
        """Send the buffer to `peer`; returns when `peer` receives it, unlike a small message of MPI."""
        if send.elements:
            self._start((send,), self._handle.send, send.ptr, send.elements, send.datatype, peer).wait()

    def recv(self, receive: NcclBuffer, peer: int) -> None:
        """Receive the buffer from `peer`."""
        if receive.elements:
            self._start((receive,), self._handle.recv, receive.ptr, receive.elements, receive.datatype, peer).wait()

    def iallreduce(self, send: NcclBuffer, receive: NcclBuffer) -> NcclRequest:
        """Start `allreduce`."""
        count, datatype = send.elements, send.datatype
        return self._start((send, receive), self._handle.allReduce, send.ptr, receive.ptr, count, datatype, SUM)

    def iallgather(self, send: NcclBuffer, receive: NcclBuffer) -> NcclRequest:
        """Start `allgather`."""
        count, datatype = send.elements, send.datatype
        return self._start((send, receive), self._handle.allGather, send.ptr, receive.ptr, count, datatype)

    def ireduce_scatter(self, send: NcclBuffer, receive: NcclBuffer) -> NcclRequest:
        """Start `reduce_scatter`."""
        count, datatype = receive.elements, receive.datatype
        return self._start((send, receive), self._handle.reduceScatter, send.ptr, receive.ptr, count, datatype, SUM)

    def ialltoall(self, send: NcclBuffer, receive: NcclBuffer) -> NcclRequest:
        """Start `alltoall`: a send and a receive for every rank, this one included, that NCCL takes as one call."""
        bound = self._exchanges.setdefault(send, {})
        exchange = bound.get(receive) or bound.setdefault(receive, self._bind_exchange(send, receive))
        return self._start((send, receive), exchange)

    def wait_all(self, requests: Sequence[NcclRequest]) -> None:
        """Return when every request is complete."""
        for request in requests:
            request.wait()

    def progress(self) -> None:
        """Nothing to do: the GPU carries out what is on its streams."""

    def reached(self, event: Event) -> bool:
        """Whether the stream has come to an event. Asks now and then whether NCCL has failed, and raises `RunError`."""
        if event.done:
            return True
        now = perf_counter_ns()
        if now >= self._next_question:
            self._next_question = now + ERROR_INTERVAL
            self._call(self._handle.check_async_error)
        return False

    def recycle(self, event: Event) -> None:
        """Take back an event whose request is complete."""
        self._events.append(event)

    def close(self) -> None:
        """Wait for the stream, then destroy the communicator. Collective; children before parents."""
        self._mark(()).wait()
        self._stream.synchronize()
        self._exchanges.clear()
        self._events.clear()
        self._call(self._handle.destroy)
        self._comm.Free()

    def _start(self, buffers: tuple[NcclBuffer, ...], call: Callable[..., None], *arguments: int) -> NcclRequest:
        self._call(call, *arguments, self._stream_ptr)
        return self._mark(buffers)

    def _call(self, call: Callable[..., None], *arguments: int) -> None:
        try:
            call(*arguments)
        except self._failures as error:
            raise self._failed(error) from error

    def _mark(self, buffers: tuple[NcclBuffer, ...]) -> NcclRequest:
        event = self._events.pop() if self._events else self._device.event()
        event.record(self._stream)
        return NcclRequest(self, event, buffers)

    def _bind_exchange(self, send: NcclBuffer, receive: NcclBuffer) -> Callable[[int], None]:
        count, datatype = send.elements // self.size, send.datatype
        block = count * send.itemsize
        calls: list[Callable[[int], None]] = []
        for peer in range(self.size) if count else ():
            calls.append(partial(self._handle.send, send.ptr + peer * block, count, datatype, peer))
            calls.append(partial(self._handle.recv, receive.ptr + peer * block, count, datatype, peer))
        start, end = self._library.groupStart, self._library.groupEnd

        def exchange(stream: int) -> None:
            start()
            try:
                for call in calls:
                    call(stream)
            except BaseException:
                with suppress(*failures(self._library)):  # the first failure is the one to tell
                    end()
                raise
            end()

        return exchange

    def _name(self) -> str:
        name = "RCCL" if self._device.facts.kind == "hip" else "NCCL"
        return f"{name} {nccl_version(self._library.get_version())}"

    def _can_split(self) -> bool:
        """Whether the library has ncclCommSplit, and CuPy was built with one that has. RCCL's is not known to work."""
        library = self._library
        built = getattr(library, "get_build_version", library.get_version)()
        new = min(library.get_version(), built) >= FIRST_WITH_SPLIT and hasattr(self._handle, "commSplit")
        return new and self._device.facts.kind != "hip"

    def _split_handle(self, color: int, key: int) -> Any:
        try:
            return self._handle.commSplit(color, key)
        except self._failures as error:
            raise PreflightError(
                f"NCCL does not split its communicator on rank {self.rank} of {self.size} ({reason(error)}); {_ADVICE}"
            ) from error

    def _stream_of_group(self) -> Stream:
        """A new stream where NCCL keeps several in order, else the one of this communicator."""
        ordered = os.environ.get(LAUNCH_ORDER_VARIABLE) == "1"
        if ordered and _knows_launch_order(self._device, self._library):
            return self._device.stream()
        self._shares_stream = True
        return self._stream

    def _failed(self, error: Exception) -> RunError:
        return RunError(
            f"{reason(error)} (NCCL, rank {self.rank} of a group of {self.size} on {self._device.facts.label}); "
            "NCCL_DEBUG=WARN says more"
        )


def nccl_communicator(comm: MPI.Comm, device: Device, library: NcclLibrary, *, groups: bool = True) -> NcclCommunicator:
    """Communicator over NCCL of the ranks of `comm`, which gets a duplicate beside it. Collective.

    `groups` says whether it will be split: then NCCL is asked to order launches, which costs it a little each time.
    Raises `PreflightError` where NCCL does not start.
    """
    own = comm.Dup()
    if groups and _knows_launch_order(device, library):
        os.environ.setdefault(LAUNCH_ORDER_VARIABLE, "1")
    return NcclCommunicator(own, device, library, connect(own, library), device.stream())


def _knows_launch_order(device: Device, library: NcclLibrary) -> bool:
    return device.facts.kind != "hip" and library.get_version() >= FIRST_WITH_LAUNCH_ORDER


def connect(comm: MPI.Comm, library: NcclLibrary) -> Any:
    """NCCL's own communicator of the ranks of `comm`. Collective; raises `PreflightError` where NCCL does not start."""
    identity, trouble = comm.bcast(_unique_id(library) if comm.rank == 0 else None)
    if trouble:
        raise PreflightError(f"NCCL does not start: rank 0 of {comm.size} has no unique id ({trouble}); {_ADVICE}")
    try:
        return library.NcclCommunicator(comm.size, identity, comm.rank)
    except failures(library) as error:
        raise PreflightError(
            f"NCCL does not start on rank {comm.rank} of {comm.size} ({reason(error)}); {_ADVICE}"
        ) from error


def failures(library: NcclLibrary) -> tuple[type[Exception], ...]:
    """What CuPy raises where NCCL fails: a KeyError with the status where it has no name for it, e.g. 8."""
    return library.NcclError, KeyError


def reason(error: Exception) -> str:
    """Why NCCL failed."""
    return f"NCCL status {error}" if isinstance(error, KeyError) else str(error)


_ADVICE = "NCCL_DEBUG=INFO says why; often NCCL_SOCKET_IFNAME must name the network interface that joins the hosts"


def _unique_id(library: NcclLibrary) -> tuple[bytes, str]:
    """A new id, or why there is none: the other ranks wait for one of them."""
    try:
        return library.get_unique_id(), ""
    except Exception as error:
        return b"", f"{type(error).__name__}: {reason(error)}"
