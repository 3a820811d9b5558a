"""A GPU, NCCL and MPI that only write down what is asked of them, for tests of the order of calls."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlbench.accelerator.protocol import GpuFacts, Kind

Log = list[tuple[Any, ...]]


def facts(kind: Kind) -> GpuFacts:
    return GpuFacts(kind=kind, index=3, name="", uuid="", pci="", driver="", runtime="", cupy="", memory_bytes=2**60)


class LoggingStream:
    def __init__(self, log: Log, ptr: int) -> None:
        self.ptr = ptr
        self._log = log

    def synchronize(self) -> None:
        self._log.append(("synchronize", self.ptr))


@dataclass
class LoggingEvent:
    """Reached as soon as `is_done` says so, unless it is among the `unreached`."""

    log: Log
    number: int
    is_done: Callable[[], bool]
    unreached: set[int]

    @property
    def done(self) -> bool:
        done = self.number not in self.unreached and self.is_done()
        self.log.append(("done" if done else "not done", self.number))
        return done

    def record(self, stream: LoggingStream) -> None:
        self.log.append(("record", self.number, stream.ptr))


@dataclass
class Address:
    """Memory without content."""

    ptr: int
    nbytes: int


@dataclass
class LoggingDevice:
    """Allocates addresses one after the other, from 2^20 on; its events are done when `is_done` says so."""

    kind: Kind = "cuda"
    log: Log = field(default_factory=list)
    is_done: Callable[[], bool] = lambda: True
    unreached: set[int] = field(default_factory=set)
    streams: int = 0
    events: int = 0
    allocated: int = 2**20

    @property
    def facts(self) -> GpuFacts:
        return facts(self.kind)

    def allocate(self, nbytes: int) -> Address:
        self.allocated += nbytes
        return Address(self.allocated - nbytes, nbytes)

    def upload(self, address: int, content: NDArray[Any]) -> None:
        pass

    def download(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        return np.zeros(nbytes, np.uint8)

    def stream(self) -> LoggingStream:
        self.streams += 1
        return LoggingStream(self.log, 700 + self.streams)

    def event(self) -> LoggingEvent:
        self.events += 1
        return LoggingEvent(self.log, self.events, self.is_done, self.unreached)


class LibraryError(RuntimeError):
    """What NCCL raises, and the call that it comes from."""

    call = ""


class LoggingHandle:
    """CuPy's communicator: every method may be called, and is written down."""

    def __init__(self, library: LoggingNccl, how: str) -> None:
        self._library = library
        self.how = how

    def commSplit(self, color: int, key: int) -> LoggingHandle:  # noqa: N802
        self._library.fail("commSplit")
        return LoggingHandle(self._library, f"commSplit {color} {key}")

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(*arguments: int) -> None:
            self._library.log.append((name, *arguments))
            if self._library.unknown_status:
                raise KeyError(self._library.unknown_status)
            self._library.fail(name)

        return call


@dataclass
class LoggingNccl:
    """The module `cupy.cuda.nccl`; calls named in `failing` raise, and those of a communicator for `unknown_status`."""

    log: Log
    version: int = 22602
    built: int = 22602
    failing: set[str] = field(default_factory=set)
    unknown_status: int = 0
    launch_orders: list[str | None] = field(default_factory=list)
    """What the environment says of the order of launches, each time a communicator is made by an id."""
    NcclError = LibraryError

    def NcclCommunicator(self, size: int, identity: bytes, rank: int) -> LoggingHandle:  # noqa: N802
        self.launch_orders.append(os.environ.get("NCCL_LAUNCH_ORDER_IMPLICIT"))
        if "NcclCommunicator" in self.failing:
            raise LibraryError("NCCL_ERROR_SYSTEM_ERROR: unhandled system error")
        return LoggingHandle(self, f"id {identity.decode()} rank {rank} of {size}")

    def fail(self, name: str) -> None:
        if name in self.failing:
            error = LibraryError("NCCL_ERROR_REMOTE_ERROR: remote process exited")
            error.call = name
            raise error

    def get_version(self) -> int:
        return self.version

    def get_build_version(self) -> int:
        return self.built

    def get_unique_id(self) -> bytes:
        if "get_unique_id" in self.failing:
            raise LibraryError("NCCL_ERROR_SYSTEM_ERROR: unhandled system error")
        return b"blue"

    def groupStart(self) -> None:  # noqa: N802
        self.log.append(("groupStart",))

    def groupEnd(self) -> None:  # noqa: N802
        self.log.append(("groupEnd",))
        self.fail("groupEnd")


@dataclass
class LoggingMpi:
    """An MPI communicator that every rank seems to share."""

    log: Log
    rank: int = 1
    size: int = 3
    from_root: Any = (b"blue", "")

    def bcast(self, value: Any) -> Any:
        return value if self.rank == 0 else self.from_root

    def Split(self, color: int, key: int) -> LoggingMpi:  # noqa: N802
        return LoggingMpi(self.log, 0, 2)

    def Dup(self) -> LoggingMpi:  # noqa: N802
        return self

    def Free(self) -> None:  # noqa: N802
        self.log.append(("Free",))
