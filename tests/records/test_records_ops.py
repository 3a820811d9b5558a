"""The ops arrays beside a record."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from handmade import COUNTED, END, HEADER, WARMUP, WITH_OPS, text, write
from numpy.typing import NDArray

from dlbench.errors import RecordError
from dlbench.records.reader import OpsReader, read_ops

NAN = np.nan
FIRST = np.array([[[10.0, 10.3], [10.3, 10.5]], [[10.1, 10.4], [NAN, NAN]]])
SECOND = FIRST + 1


def ops_file(folder: Path, *arrays: NDArray[np.float64]) -> Path:
    path = folder / "run.ops.npy"
    with path.open("wb") as file:
        for array in arrays:
            np.save(file, array)
    return path


def opened(folder: Path, *arrays: NDArray[np.float64]) -> OpsReader:
    ops_file(folder, *arrays)
    return read_ops(write(folder / "run.jsonl", WITH_OPS, WARMUP, COUNTED, END))


def test_array_i_belongs_to_iteration_i(tmp_path: Path) -> None:
    ops = opened(tmp_path, FIRST, SECOND)
    assert len(ops) == 2
    np.testing.assert_array_equal(ops[0], FIRST)
    np.testing.assert_array_equal(ops[-1], SECOND)
    assert [array[0, 0, 0] for array in ops] == [10.0, 11.0]
    assert (ops.shape, ops.truncated, ops.notes) == ((2, 2, 2), False, [])


def test_arrays_are_views_of_the_file_that_cannot_be_written(tmp_path: Path) -> None:
    array = opened(tmp_path, FIRST, SECOND)[1]
    assert not array.flags.owndata
    assert not array.flags.writeable


def test_readers_hold_no_file_open(tmp_path: Path) -> None:
    opened(tmp_path, FIRST, SECOND)
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    readers = [read_ops(tmp_path / "run.jsonl") for _ in range(20)]
    totals = [np.nansum(array) for reader in readers for array in reader]
    assert len(totals) == 40
    assert len(list(descriptors.iterdir())) <= before + 1


def test_an_array_beyond_the_last_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(IndexError):
        opened(tmp_path, FIRST, SECOND)[2]


def test_a_file_cut_anywhere_keeps_every_complete_array(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", WITH_OPS, WARMUP, COUNTED)
    arrays = ops_file(tmp_path, FIRST, SECOND)
    whole = arrays.read_bytes()
    for size in range(len(whole)):
        arrays.write_bytes(whole[:size])
        ops = read_ops(path)
        assert len(ops) == size // (len(whole) // 2)
        assert ops.truncated == (size % (len(whole) // 2) > 0)
        for array, expected in zip(ops, (FIRST, SECOND), strict=False):
            np.testing.assert_array_equal(array, expected)


def test_a_cut_array_is_said(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", WITH_OPS, WARMUP)
    arrays = ops_file(tmp_path, FIRST, SECOND)
    arrays.write_bytes(arrays.read_bytes()[:-1])
    assert read_ops(path).notes == ["array 1 is cut and was dropped: the run was killed while it was written"]


def test_an_array_without_its_line_is_dropped_and_said(tmp_path: Path) -> None:
    ops_file(tmp_path, FIRST, SECOND)
    ops = read_ops(write(tmp_path / "run.jsonl", WITH_OPS, WARMUP))
    assert len(ops) == 1
    assert ops.notes == ["2 arrays for 1 iterations: those without an iteration line were dropped"]


def test_arrays_of_another_shape_than_the_op_tables_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"run\.ops\.npy: holds arrays of <f8 \(2, 3, 2\); .* <f8 \(2, 2, 2\)"):
        opened(tmp_path, np.zeros((2, 3, 2)))


def test_a_later_array_of_another_shape_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"run\.ops\.npy: array 1: no array of shape \(2, 2, 2\) begins here"):
        opened(tmp_path, FIRST, np.zeros((2, 3, 2)))


def test_arrays_of_another_dtype_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="holds arrays of <f4"):
        opened(tmp_path, FIRST.astype(np.float32))


@pytest.mark.parametrize("content", [b"PK\x03\x04 something else", bytes(4096), b"text", b"\x93NUMPY\x02\x00" * 99])
def test_a_foreign_file_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.ops.npy").write_bytes(content)
    with pytest.raises(RecordError, match=r"run\.ops\.npy: holds no arrays of numpy\.save"):
        read_ops(write(tmp_path / "run.jsonl", WITH_OPS, WARMUP))


def test_arrays_in_fortran_order_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="the op tables say <f8 .* in C order"):
        opened(tmp_path, np.asfortranarray(FIRST))


def test_every_wrong_bit_of_an_array_s_header_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", WITH_OPS, WARMUP, COUNTED)
    arrays = ops_file(tmp_path, FIRST, SECOND)
    whole = arrays.read_bytes()
    for bit in range(128 * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        arrays.write_bytes(damaged)
        with pytest.raises(RecordError, match=r"run\.ops\.npy: (holds (no )?arrays|array 1: no array)"):
            read_ops(path)


def test_a_run_without_op_recording_says_which_option_records(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="recorded no ops; record them with --record-ops"):
        read_ops(write(tmp_path / "run.jsonl", HEADER, WARMUP))


def test_a_missing_file_is_told_where_it_belongs(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"run\.ops\.npy: does not exist; it belongs beside run\.jsonl"):
        read_ops(write(tmp_path / "run.jsonl", WITH_OPS, WARMUP))


def test_a_run_killed_before_its_first_iteration_has_no_arrays(tmp_path: Path) -> None:
    (tmp_path / "run.ops.npy").touch()
    (tmp_path / "run.jsonl").write_bytes(text(WITH_OPS))
    assert list(read_ops(tmp_path / "run.jsonl")) == []
