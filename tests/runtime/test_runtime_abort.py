"""The end of a run that breaks off, in processes of their own: one of the ranks speaks, and all of them end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from dlbench.runtime import abort as module
from dlbench.runtime.abort import Abort

RANK = """
import os, sys, time
from dlbench.runtime.abort import Abort

rank, size, shared_file, at = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
abort = Abort(rank, size, shared_file=os.open(shared_file, os.O_RDWR | os.O_APPEND), end=os._exit)
time.sleep(max(0, at - time.time()))
abort("failed", f"rank {rank} failed", 9)
"""


def fail_together(folder: Path, ranks: Sequence[int], size: int) -> list[str]:
    """What the ranks of one host say that fail at one moment and live on until they end themselves."""
    shared_file = folder / "shared"
    shared_file.touch()
    command = [sys.executable, "-c", RANK]
    at = str(time.time() + 1.5)
    processes = [
        subprocess.Popen([*command, str(rank), str(size), str(shared_file), at], stderr=subprocess.PIPE, text=True)
        for rank in ranks
    ]
    said = [process.communicate(timeout=30)[1] for process in processes]
    assert [process.returncode for process in processes] == [9] * len(processes)
    return [line for text in said for line in text.splitlines()]


LEAVE = """
import os, sys, time
from dlbench.runtime.abort import leave

time.sleep(max(0, float(sys.argv[2]) - time.time()))
leave("terminated", f"rank {sys.argv[1]}", 143)
"""


def test_of_the_ranks_of_a_launcher_that_leave_before_they_know_each_other_one_speaks() -> None:
    at = str(time.time() + 1)
    processes = [
        subprocess.Popen([sys.executable, "-c", LEAVE, rank, at], stderr=subprocess.PIPE, text=True) for rank in "0123"
    ]
    said = "".join(process.communicate(timeout=30)[1] for process in processes)
    assert [process.returncode for process in processes] == [143] * 4
    assert said in {f"dlbench: FAILED: rank {rank}\n" for rank in range(4)}


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that the code under test would have slept; nobody sleeps."""
    seconds: list[float] = []
    monkeypatch.setattr(module, "sleep", seconds.append)
    return seconds


@pytest.fixture
def descriptors(tmp_path: Path) -> Iterator[Callable[[str], int]]:
    """Opens, once more with every call, the file that a host shares."""
    opened: list[int] = []

    def descriptor(host: str) -> int:
        opened.append(os.open(tmp_path / host, os.O_RDWR | os.O_CREAT | os.O_APPEND))
        return opened[-1]

    yield descriptor
    for number in opened:
        os.close(number)


def aborting(shared_file: int, rank: int = 0, size: int = 4) -> tuple[Abort, list[int]]:
    """An abort that ends nothing, and the exit codes with which it would have."""
    codes: list[int] = []
    return Abort(rank, size, shared_file=shared_file, end=codes.append), codes


def test_of_the_ranks_of_a_host_that_fail_together_the_lowest_speaks(tmp_path: Path) -> None:
    assert fail_together(tmp_path, [4, 5, 6, 7], size=8) == ["dlbench: FAILED: rank 4 failed"]


def test_ranks_of_a_large_job_whose_turns_coincide_still_have_one_speaker(tmp_path: Path) -> None:
    assert len(fail_together(tmp_path, [50_000, 50_001, 50_002, 50_003], size=100_000)) == 1


def test_a_rank_that_fails_and_is_then_found_hanging_speaks_once(
    waits: list[float], descriptors: Callable[[str], int], capsys: pytest.CaptureFixture[str]
) -> None:
    abort, codes = aborting(descriptors("node1"))
    abort("failed", "a link is down", 1)
    abort("failed", "hang", 1)
    assert capsys.readouterr().err == "dlbench: FAILED: a link is down\n"
    assert codes == [1, 1]


@pytest.mark.parametrize(("size", "spacing"), [(2, 0.5), (6, 0.5), (8, 0.375), (1024, 3 / 1024), (100_000, 3e-5)])
def test_every_rank_has_a_turn_of_its_own_within_three_seconds(
    waits: list[float], descriptors: Callable[[str], int], size: int, spacing: float
) -> None:
    for rank in (0, 1, size - 1):
        waits.clear()
        aborting(descriptors("node1"), rank, size)[0]("failed", "", 1)
        assert waits[0] == pytest.approx(rank * spacing)
        assert waits[0] < 3
        assert sum(waits) < 4.5  # the job has 5 s to end


def test_a_rank_whose_end_another_one_has_noted_is_silent_and_lets_that_one_end_the_job_first(
    waits: list[float], descriptors: Callable[[str], int], capsys: pytest.CaptureFixture[str]
) -> None:
    notes: list[tuple[str, str]] = []

    def note(status: str, reason: str) -> bool:
        notes.append((status, reason))
        return len(notes) == 1

    for host in ("node1", "node2"):
        abort, codes = aborting(descriptors(host))
        abort.note = note
        abort("terminated", f"SIGTERM on {host}", 143)
        assert codes == [143]

    assert notes == [("terminated", "SIGTERM on node1"), ("terminated", "SIGTERM on node2")]
    assert capsys.readouterr().err == "dlbench: FAILED: SIGTERM on node1\n"
    speaker, silent = waits[1], waits[3]
    assert silent > 2 * speaker


def test_where_ranks_share_no_file_several_lines_are_better_than_none(
    waits: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (0, 1):
        aborting(-1, rank)[0]("failed", f"rank {rank}", 1)
    assert capsys.readouterr().err == "dlbench: FAILED: rank 0\ndlbench: FAILED: rank 1\n"


def test_the_end_needs_no_standard_error(waits: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def write(self, text: str) -> None:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Gone())
    abort, codes = aborting(-1)
    abort("failed", "nobody hears this", 1)
    assert codes == [1]
