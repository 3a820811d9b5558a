"""Payloads that check communication: what every rank sends, and what every rank must receive.

The values of a rank are differences of neighbouring pseudo-random sequences u, in the arithmetic of the carrier:

    value(rank, i) = u(rank, i) − u(next rank of the group, i)

A sum over the group telescopes to u(first rank, i) − u(one past the last, i): the expected value has a closed form at
any group size, and a contribution that is missing, doubled or taken from another message changes it. u is a hash of
operation, sequence number, world rank and element index, so other order, other peers and stale data change it too.

An unsigned carrier of w bits wraps around: every sum is exact. In a floating-point carrier with p significant bits,
the values of a group of n ranks are integers below 2^(p − ⌈log2 n⌉), so that every partial sum is exact in whatever
order the library adds: 10 bits of fp32 on 16 384 ranks. A wrong element looks right with the probability
2^−w or 2^−(p − ⌈log2 n⌉), so a wrong message of a few dozen elements does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dlbench.comm.protocol import Buffer
from dlbench.errors import OptionError

Values: TypeAlias = Callable[[int, int], NDArray[Any]]
"""Content of the elements from `start` to `stop`."""

UInt64s: TypeAlias = NDArray[np.uint64]

CHUNK = 2**18
"""Elements generated or compared at a time: each of the few temporary arrays takes 2 MB."""

_OPERATIONS = ("allreduce", "allgather", "reduce_scatter", "alltoall", "send")
# Odd and without a short linear relation: rank and index do not stand in for each other below 2^20 × 2^35.
_INDEX_FACTOR = np.uint64(0xD1342543DE82EF95)
_RANK_FACTOR = np.uint64(0xAF251AF3B0F025B5)


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

    def __post_init__(self) -> None:
        if self._bits() < 1:
            raise OptionError(
                f"--check cannot verify sums over {len(self.ranks)} ranks in a dtype of {self.precision} significant "
                "bits: they are not exact; use --dtype fp32, or leave --check out"
            )

    def sent(self, rank: int) -> Values:
        """What `rank`, an index into the group, sends."""
        return lambda start, stop: self._value(_uint64(rank), _indices(start, stop))

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
        first, end = _uint64(0), _uint64(len(self.ranks))
        return lambda start, stop: self._difference(first, end, _indices(offset + start, offset + stop))

    def _blocks_from(self, offset: int) -> Values:
        """One block of every rank in turn, each from element `offset` of what its rank sends."""
        block = np.uint64(self.elements)

        def values(start: int, stop: int) -> NDArray[Any]:
            indices = _indices(start, stop)
            sources = indices // block
            return self._value(sources, indices - sources * block + np.uint64(offset))

        return values

    def _value(self, rank: UInt64s, indices: UInt64s) -> NDArray[Any]:
        return self._difference(rank, rank + np.uint64(1), indices)

    def _difference(self, minuend: UInt64s, subtrahend: UInt64s, indices: UInt64s) -> NDArray[Any]:
        values = self._noise(minuend, indices)
        values -= self._noise(subtrahend, indices)
        return values

    def _noise(self, rank: UInt64s, indices: UInt64s) -> NDArray[Any]:
        """u(rank, index) as elements of the carrier; `rank` has one entry, or one per index."""
        world_rank = rank * np.uint64(self.ranks.step) + np.uint64(self.ranks.start)
        numbers = indices * _INDEX_FACTOR
        numbers += world_rank * _RANK_FACTOR + self._key()
        _scatter(numbers)
        return (numbers >> np.uint64(64 - self._bits())).astype(self.carrier)

    def _key(self) -> UInt64s:
        # A send and its receive are the same message.
        operation = _OPERATIONS.index("send" if self.operation == "recv" else self.operation)
        key = _uint64(self.sequence)
        _scatter(key)
        key += np.uint64(operation)
        _scatter(key)
        return key

    def _bits(self) -> int:
        summed = self.operation in ("allreduce", "reduce_scatter")
        if self.carrier.kind == "f" and summed:
            return self.precision - (len(self.ranks) - 1).bit_length()
        return self.precision


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
