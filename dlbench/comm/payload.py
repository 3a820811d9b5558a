"""Payloads that check communication: what every rank sends, and what every rank must receive.

All values derive from u, a hash of operation, sequence number, world rank and element index, cut to the significant
bits of the dtype. Other order, other peers and stale data change it.

Where data only moves, a rank sends u(rank, i).

Where data is summed, the sum over a group of n ranks is to be U = u(first rank, i), whatever n is, and the ranks send
shares of it. With the weights W(j) = j (j + 1), the rank at position j sends

    ⌊U W(j + 1) / W(n)⌋ − ⌊U W(j) / W(n)⌋,    j = (rank + i) mod n

These telescope to U, so the expected value has a closed form at any group size. No partial sum exceeds U: sums are
exact in every dtype and in whatever order the library adds, and no unsigned integer overflows (MPICH would wrap
around, the vector instructions of Open MPI saturate). The shares differ from rank to rank, and each rank takes all
positions in turn; a share that is missing, doubled or replaced by another one shows. In a group with more ranks than
U has values most shares of one element are 0, so a message needs as many elements as there are ranks to show all.

A wrong element of d significant bits looks right with the probability 2^−d; a wrong message of many elements does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dlbench.comm.protocol import Buffer

Values: TypeAlias = Callable[[int, int], NDArray[Any]]
"""Content of the elements from `start` to `stop`."""

UInt64s: TypeAlias = NDArray[np.uint64]

CHUNK = 2**18
"""Elements generated or compared at a time: each of the few temporary arrays takes 2 MB."""

_OPERATIONS = ("allreduce", "allgather", "reduce_scatter", "alltoall", "send")
_SUM_BITS = 24
"""U W(n) fits 64 bits up to a million ranks."""

# Odd, and without a short linear relation: no other rank and index below 2^20 and 2^43 hash the same number.
INDEX_FACTOR = np.uint64(0xD1342543DE82EF95)
RANK_FACTOR = np.uint64(0xAF251AF3B0F025B5)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first wrong element of a buffer, and how many are wrong."""

    element: int
    expected: float
    found: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One communication of a group whose content can be checked.

    `operation` is the op's name in records, `sequence` a number (0 or more) that all ranks of the group give this
    message and no other one, `ranks` the world ranks of the group in group order. `elements` is the count that MPI
    takes: the vector of an all-reduce, one shard, one chunk, the message. `carrier` and `precision` are the
    communicator's for the run's dtype.
    """

    operation: str
    sequence: int
    ranks: range
    elements: int
    carrier: np.dtype[Any]
    precision: int

    def sent(self, rank: int) -> Values:
        """What `rank`, an index into the group, sends."""
        if self.operation in ("allreduce", "reduce_scatter"):
            return lambda start, stop: self._share(rank, _indices(start, stop)).astype(self.carrier)
        return lambda start, stop: self._moved(_uint64(rank), _indices(start, stop))

    def expected(self, rank: int, peer: int = 0) -> Values:
        """What `rank` must receive; from `peer` in a receive. Both are indices into the group."""
        match self.operation:
            case "allreduce":
                return self._sum_from(0)
            case "reduce_scatter":
                return self._sum_from(rank * self.elements)
            case "allgather":
                return self._blocks_from(0)
            case "alltoall":
                return self._blocks_from(rank * self.elements)
            case _:
                return self.sent(peer)

    def _sum_from(self, offset: int) -> Values:
        """Sum of what the ranks send, from element `offset` on."""
        return lambda start, stop: self._sum(_indices(offset + start, offset + stop)).astype(self.carrier)

    def _blocks_from(self, offset: int) -> Values:
        """One block of every rank in turn, each from element `offset` of what its rank sends."""
        block = np.uint64(self.elements)

        def values(start: int, stop: int) -> NDArray[Any]:
            indices = _indices(start, stop)
            sources = indices // block
            return self._moved(sources, indices - sources * block + np.uint64(offset))

        return values

    def _moved(self, rank: UInt64s, indices: UInt64s) -> NDArray[Any]:
        return self._hash(rank, indices, self.precision).astype(self.carrier)

    def _sum(self, indices: UInt64s) -> UInt64s:
        return self._hash(_uint64(0), indices, min(self.precision, _SUM_BITS))

    def _share(self, rank: int, indices: UInt64s) -> UInt64s:
        size = len(self.ranks)
        position = (indices + np.uint64(rank)) % np.uint64(size)
        whole, weight = self._sum(indices), np.uint64(size * (size + 1))
        below = position * (position + np.uint64(1))
        upto = below + np.uint64(2) * (position + np.uint64(1))
        share: UInt64s = whole * upto // weight
        share -= whole * below // weight
        return share

    def _hash(self, rank: UInt64s, indices: UInt64s, bits: int) -> UInt64s:
        """u(rank, index) of `bits` bits; `rank` has one entry, or one per index."""
        world_rank = rank * np.uint64(self.ranks.step) + np.uint64(self.ranks.start)
        numbers = indices * INDEX_FACTOR
        numbers += world_rank * RANK_FACTOR + self._key()
        _scatter(numbers)
        numbers >>= np.uint64(64 - bits)
        return numbers

    def _key(self) -> UInt64s:
        # A send and its receive are the same message.
        operation = _OPERATIONS.index("send" if self.operation == "recv" else self.operation)
        key = _uint64(self.sequence)
        _scatter(key)
        key += np.uint64(operation)
        _scatter(key)
        return key


def fill(buffer: Buffer, values: Values) -> None:
    """Write the whole buffer."""
    for start, stop in _chunks(buffer.elements):
        buffer.write(values(start, stop), start)


def first_mismatch(buffer: Buffer, expected: Values) -> Mismatch | None:
    """Compare the whole buffer; None where every element is right."""
    first: tuple[int, float, float] | None = None
    count = 0
    for start, stop in _chunks(buffer.elements):
        found, right = buffer.read(start, stop), expected(start, stop)
        wrong = np.flatnonzero(found != right)
        count += wrong.size
        if wrong.size and first is None:
            index = int(wrong[0])
            first = start + index, right[index].item(), found[index].item()
    return None if first is None else Mismatch(*first, count)


def _chunks(elements: int) -> Iterator[tuple[int, int]]:
    for start in range(0, elements, CHUNK):
        yield start, min(start + CHUNK, elements)


def _uint64(number: int) -> UInt64s:
    # An array of one: NumPy's scalars warn of the wrap-around that a hash wants.
    return np.array([number], np.uint64)


def _indices(start: int, stop: int) -> UInt64s:
    return np.arange(start, stop, dtype=np.uint64)


def _scatter(numbers: UInt64s) -> None:
    """Replace 64-bit numbers by their hashes: the finaliser of splitmix64 (Steele, Lea and Flood 2014)."""
    numbers += np.uint64(0x9E3779B97F4A7C15)
    numbers ^= numbers >> np.uint64(30)
    numbers *= np.uint64(0xBF58476D1CE4E5B9)
    numbers ^= numbers >> np.uint64(27)
    numbers *= np.uint64(0x94D049BB133111EB)
    numbers ^= numbers >> np.uint64(31)
