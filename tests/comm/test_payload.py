"""Payloads: what is expected is what arrives, and whatever goes wrong on the way shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dlbench.comm.payload import CHUNK, INDEX_FACTOR, RANK_FACTOR, Message, Mismatch, Values, fill, first_mismatch

PRECISIONS = {"uint8": 8, "uint16": 16, "float32": 24, "float64": 53, "float16": 11}
OPERATIONS = ("allreduce", "allgather", "reduce_scatter", "alltoall", "send")

dtypes = st.sampled_from(sorted(PRECISIONS))
operations = st.sampled_from(OPERATIONS)
group_sizes = st.integers(1, 9)
sequences = st.integers(0, 2**40)


class HostBuffer:
    """A buffer without a library."""

    def __init__(self, elements: int, carrier: np.dtype[Any]) -> None:
        self.elements = elements
        self.content: NDArray[Any] = np.zeros(elements, carrier)

    def read(self, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        return self.content[start:stop]

    def write(self, values: NDArray[Any], start: int = 0) -> None:
        self.content[start : start + values.size] = values

    def guard_intact(self) -> bool:
        return True


def message(
    operation: str, *, sequence: int = 0, ranks: range = range(4), elements: int = 64, dtype: str = "uint16"
) -> Message:
    return Message(
        operation=operation,
        sequence=sequence,
        ranks=ranks,
        elements=elements,
        carrier=np.dtype(dtype),
        precision=PRECISIONS[dtype],
    )


def perform(case: Message, rank: int, peer: int, sent: list[NDArray[Any]]) -> NDArray[Any]:
    """What `rank` receives when a library without faults performs the operation on what was sent."""
    block = slice(rank * case.elements, (rank + 1) * case.elements)
    total = np.zeros_like(sent[0])
    for values in sent:
        total += values if case.operation in ("allreduce", "reduce_scatter") else 0
    match case.operation:
        case "allreduce":
            return total
        case "reduce_scatter":
            return total[block]
        case "allgather":
            return np.concatenate(sent)
        case "alltoall":
            return np.concatenate([values[block] for values in sent])
        case _:
            return sent[peer]


def sent_by_all(case: Message) -> list[NDArray[Any]]:
    size = len(case.ranks)
    blocks = size if case.operation in ("reduce_scatter", "alltoall") else 1
    return [case.sent(rank)(0, blocks * case.elements) for rank in range(size)]


def whole(values: Values, elements: int) -> NDArray[Any]:
    return values(0, elements)


@given(
    operations, dtypes, sequences, group_sizes, st.integers(0, 100), st.integers(1, 5), st.integers(1, 40), st.data()
)
def test_what_is_expected_is_what_the_operation_makes_of_what_is_sent(
    operation: str, dtype: str, sequence: int, size: int, first: int, step: int, elements: int, data: st.DataObject
) -> None:
    ranks = range(first, first + size * step, step)
    case = message(operation, sequence=sequence, ranks=ranks, elements=elements, dtype=dtype)
    rank, peer = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, size - 1))

    received = perform(case, rank, peer, sent_by_all(case))
    expected = whole(case.expected(rank, peer), received.size)

    assert expected.dtype == case.carrier
    np.testing.assert_array_equal(received, expected)


@given(operations, st.integers(0, 200), st.integers(0, 200))
def test_a_part_of_a_payload_is_the_same_part_of_the_whole(operation: str, start: int, stop: int) -> None:
    assume(start < stop)
    case = message(operation, elements=200)

    np.testing.assert_array_equal(case.sent(2)(start, stop), case.sent(2)(0, 200)[start:stop])
    np.testing.assert_array_equal(case.expected(2, 1)(start, stop), case.expected(2, 1)(0, 200)[start:stop])


@pytest.mark.parametrize(
    ("dtype", "size"),
    [*((dtype, size) for dtype in PRECISIONS for size in (2, 3, 300)), ("uint8", 16_384), ("float32", 16_384)],
)
def test_no_partial_sum_overflows_or_rounds_at_any_group_size(dtype: str, size: int) -> None:
    case = message("allreduce", ranks=range(size), elements=3, dtype=dtype)

    shares = np.array([case.sent(rank)(0, 3) for rank in range(size)]).astype(object)
    total = whole(case.expected(0), 3).astype(object)

    assert (shares >= 0).all()
    assert (shares.sum(axis=0) == total).all()
    assert (total < 2 ** PRECISIONS[dtype]).all()


def test_every_rank_has_a_share_in_a_message_with_as_many_elements_as_ranks() -> None:
    case = message("allreduce", ranks=range(1000), elements=1000, dtype="uint8")

    assert all(case.sent(rank)(0, 1000).any() for rank in range(1000))


@given(operations, operations, sequences, sequences, st.integers(0, 7), st.integers(0, 7), dtypes)
def test_payloads_of_different_operations_sequence_numbers_or_ranks_differ(
    operation: str, other: str, sequence: int, later: int, rank: int, neighbour: int, dtype: str
) -> None:
    assume((operation, sequence, rank) != (other, later, neighbour))
    first = message(operation, sequence=sequence, ranks=range(8), elements=512, dtype=dtype)
    second = message(other, sequence=later, ranks=range(8), elements=512, dtype=dtype)

    differing = np.mean(first.sent(rank)(0, 512) != second.sent(neighbour)(0, 512))

    assert differing > 0.8


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_receive_buffer_that_still_holds_the_message_before_is_found(operation: str) -> None:
    before = whole(message(operation, sequence=41).expected(1), 64)
    now = whole(message(operation, sequence=42).expected(1), 64)

    assert np.count_nonzero(before == now) <= 1


@pytest.mark.parametrize("operation", ["allreduce", "reduce_scatter"])
@pytest.mark.parametrize("fault", ["missing", "doubled", "replaced", "maximum", "or", "stale"])
@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_a_reduction_with_a_wrong_contribution_is_found(operation: str, fault: str, dtype: str) -> None:
    case = message(operation, elements=32, dtype=dtype)
    sent = sent_by_all(case)
    expected = whole(case.expected(0), 32)
    stale = sent_by_all(message(operation, sequence=1, elements=32, dtype=dtype))
    wrong: dict[str, NDArray[Any]] = {
        "missing": np.sum(sent[:-1], axis=0),
        "doubled": np.sum([*sent, sent[2]], axis=0),
        "replaced": np.sum([*sent[:-1], sent[0]], axis=0),
        "maximum": np.max(sent, axis=0),
        "or": np.bitwise_or.reduce(sent),
        "stale": np.sum([*sent[:-1], stale[-1]], axis=0),
    }

    assert (wrong[fault][:32] != expected).any()


def test_two_blocks_in_the_wrong_order_are_found() -> None:
    case = message("allgather", elements=16)
    blocks = whole(case.expected(0), 64).reshape(4, 16)

    assert (blocks[[1, 0, 2, 3]].ravel() != blocks.ravel()).any()


def test_groups_of_other_ranks_send_other_values() -> None:
    neighbours, strided = message("allgather", ranks=range(0, 2)), message("allgather", ranks=range(1, 3))

    assert (whole(neighbours.expected(0), 128) != whole(strided.expected(0), 128)).mean() > 0.9


def test_a_send_and_its_receive_are_the_same_message() -> None:
    sent = message("send", sequence=7).sent(3)(0, 64)

    np.testing.assert_array_equal(sent, message("recv", sequence=7).expected(0, peer=3)(0, 64))


@given(operations, dtypes, st.data())
def test_one_wrong_element_anywhere_is_found_with_its_place_and_its_value(
    operation: str, dtype: str, data: st.DataObject
) -> None:
    case = message(operation, elements=32, dtype=dtype)
    expected = case.expected(1, 2)
    buffer = HostBuffer(32, case.carrier)
    fill(buffer, expected)
    place = data.draw(st.integers(0, 31))
    right = buffer.content[place].item()
    buffer.content[place] = right - 1 if right else 1

    assert first_mismatch(buffer, expected) == Mismatch(place, right, right - 1 if right else 1, 1)


def test_a_right_buffer_has_no_mismatch() -> None:
    case = message("allreduce")
    buffer = HostBuffer(64, case.carrier)
    fill(buffer, case.expected(0))

    assert first_mismatch(buffer, case.expected(0)) is None


def test_not_a_number_is_a_mismatch() -> None:
    case = message("allreduce", dtype="float32")
    buffer = HostBuffer(64, case.carrier)
    fill(buffer, case.expected(0))
    buffer.content[5] = np.nan

    mismatch = first_mismatch(buffer, case.expected(0))

    assert mismatch is not None
    assert (mismatch.element, mismatch.count) == (5, 1)


def test_mismatches_beyond_the_first_chunk_are_counted_and_the_first_one_is_named() -> None:
    case = message("send", elements=2 * CHUNK + 5)
    buffer = HostBuffer(case.elements, case.carrier)
    fill(buffer, case.sent(0))
    assert first_mismatch(buffer, case.expected(1, peer=0)) is None
    buffer.content[[CHUNK + 3, 2 * CHUNK + 4]] ^= 1

    mismatch = first_mismatch(buffer, case.expected(1, peer=0))

    assert mismatch is not None
    assert (mismatch.element, mismatch.count) == (CHUNK + 3, 2)


def test_no_two_pairs_of_rank_and_index_share_a_hash_below_a_million_ranks_and_eight_tera_elements() -> None:
    index_per_rank = int(RANK_FACTOR) * pow(int(INDEX_FACTOR), -1, 2**64) % 2**64
    ranks_apart = np.arange(1, 2**20, dtype=np.uint64)

    indices_apart = np.abs((ranks_apart * np.uint64(index_per_rank)).view(np.int64))

    assert indices_apart.min() > 2**43


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_values_of_a_million_ranks_beyond_two_to_the_31_elements_take_no_memory(operation: str) -> None:
    case = message(operation, ranks=range(2**20), elements=2**33, dtype="float64")
    start = 2**33 - 3

    assert case.sent(2**20 - 1)(start, start + 3).shape == (3,)
    assert (case.expected(2**20 - 1, peer=5)(start, start + 3) >= 0).all()
