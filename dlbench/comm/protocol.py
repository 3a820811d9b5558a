"""What a communication backend offers.

A backend issues the collectives of a program on buffers that it allocated itself. Everything that can be done once
(datatype look-up, descriptors, persistent requests) is done in `allocate` or on the first call, so that a call in a
timed iteration is little more than the library's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray


class Request(Protocol):
    """A non-blocking communication in flight."""

    def wait(self) -> None:
        """Return when the communication is complete and its data is there."""

    def test(self) -> bool:
        """Whether the communication is complete; drives it forward."""


class Buffer(Protocol):
    """Memory for messages, allocated by the backend that uses it.

    Behind the last element lies a guard: bytes of known content that no message may touch.
    """

    @property
    def elements(self) -> int:
        """Capacity in elements."""

    def read(self, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Host copy or view of elements `start` to `stop`, in the dtype that carries the run's dtype."""

    def write(self, values: NDArray[Any], start: int = 0) -> None:
        """Replace the content from element `start` on by `values`, one-dimensional, of the carrier's dtype."""

    def guard_intact(self) -> bool:
        """Whether the bytes behind the last element are as they were written."""


BufferT = TypeVar("BufferT", bound=Buffer)
RequestT = TypeVar("RequestT", bound=Request)


class Communicator(Protocol[BufferT, RequestT]):
    """A group of ranks that communicate through one backend.

    Counts come from the buffers: an all-gather needs receive.elements = size × send.elements, a reduce-scatter the
    reverse, an all-to-all size × chunk on both sides. Blocking calls return when the data is there.
    """

    @property
    def rank(self) -> int:
        """Rank of this process in the group."""

    @property
    def size(self) -> int:
        """Ranks in the group."""

    def describe(self) -> dict[str, str]:
        """Backend, library, version, and the datatype that carries each dtype: goes into the record."""

    def remarks(self, largest_count: int) -> list[str]:
        """What a record must say of messages of up to so many elements; they may travel in another form.

        Raises `PreflightError` where the backend cannot carry them.
        """

    def split(self, color: int, key: int) -> Self:
        """Communicator of the ranks that gave the same colour, ordered by key. Collective."""

    def allocate(self, elements: int, dtype: str) -> BufferT:
        """Buffer of `elements` elements of `dtype` ("bf16", "fp16", "fp32", "fp64", "fp8"), its pages touched."""

    def carrier(self, dtype: str) -> np.dtype[Any]:
        """NumPy dtype in which `Buffer.read` and `Buffer.write` see elements of `dtype`."""

    def precision(self, dtype: str) -> int:
        """Significant bits of an element of `dtype` in this backend's sums.

        16 for a bf16 that is summed as an unsigned 16-bit integer, 8 for one that is summed as a float.
        """

    def allreduce(self, send: BufferT, receive: BufferT) -> None:
        """Sum `send` over the group into `receive`."""

    def allgather(self, send: BufferT, receive: BufferT) -> None:
        """Concatenate every rank's `send` in rank order into `receive`."""

    def reduce_scatter(self, send: BufferT, receive: BufferT) -> None:
        """Sum `send` over the group; this rank's block of the sum goes to `receive`."""

    def alltoall(self, send: BufferT, receive: BufferT) -> None:
        """Block i of `send` goes to rank i, whose block for this rank arrives as block i of `receive`."""

    def send(self, send: BufferT, peer: int) -> None:
        """Send the buffer to `peer`."""

    def recv(self, receive: BufferT, peer: int) -> None:
        """Receive the buffer from `peer`."""

    def iallreduce(self, send: BufferT, receive: BufferT) -> RequestT:
        """Start `allreduce`."""

    def iallgather(self, send: BufferT, receive: BufferT) -> RequestT:
        """Start `allgather`."""

    def ireduce_scatter(self, send: BufferT, receive: BufferT) -> RequestT:
        """Start `reduce_scatter`."""

    def ialltoall(self, send: BufferT, receive: BufferT) -> RequestT:
        """Start `alltoall`."""

    def wait_all(self, requests: Sequence[RequestT]) -> None:
        """Return when every request is complete. The requests may belong to communicators of this backend."""

    @property
    def needs_progress(self) -> bool:
        """Whether outstanding requests may stand still unless `progress` is called."""

    def progress(self) -> None:
        """Let the library move outstanding requests forward; returns at once."""

    def close(self) -> None:
        """Release the communicator. Collective; children before parents."""
