"""A run that goes wrong: wrong data, a rank that raises, a rank that hangs. It ends soon, and says why, once."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from launch import Mpi
from live_runs import last_line, on_mpich, record_path, run, sabotaged, said, valid_record

from dlbench.records.reader import read

FLIP_AN_ELEMENT = """
    class Sabotaged(Faithful):
        def iallreduce(self, send, receive):
            self.last = receive
            return self.inner.iallreduce(send, receive)

        def wait_all(self, requests):
            self.inner.wait_all(requests)
            if RANK == 1:
                right = int(self.last.read()[7])
                print(f"right is {right}", flush=True)
                self.last.write(np.array([right ^ 1], self.last.read().dtype), 7)
"""

EXCHANGE_TWO_PEERS = """
    class Sabotaged(Faithful):
        def alltoall(self, send, receive):
            self.inner.alltoall(send, receive)
            if RANK == 1:
                receive.write(np.roll(receive.read(), receive.elements // 2))
"""

SEND_THE_FIRST_MESSAGE_AGAIN = """
    class Sabotaged(Faithful):
        first = None

        def send(self, send, peer):
            if self.first is None:
                self.first = send.read().copy()
            send.write(self.first)
            self.inner.send(send, peer)
"""

ONE_BYTE_TOO_MANY = """
    import ctypes

    class Sabotaged(Faithful):
        def allgather(self, send, receive):
            self.inner.allgather(send, receive)
            if RANK == 1:
                content = receive.read()
                ctypes.memset(content.ctypes.data + content.nbytes, 0, 1)
"""

RAISE_IN_ITERATION_3 = """
    class Sabotaged(Faithful):
        iteration = 0

        def wait_all(self, requests):
            if RANK == 1 and self.iteration == 3:
                raise OSError("the link is down")
            self.iteration += 1
            self.inner.wait_all(requests)
"""


def test_the_check_finds_one_wrong_element(mpi: Mpi, tmp_path: Path) -> None:
    program = sabotaged(tmp_path, "dp", FLIP_AN_ELEMENT)

    completed = mpi.launch(2, [*program, "--check", "--record", str(tmp_path)])

    assert completed.returncode == 1
    right = int(re.findall(r"right is (\d+)", completed.stdout)[0])
    (wrong,) = re.findall("# check      WRONG: (.*)", completed.stdout)
    # ViT-H has 632 404 480 parameters: a bucket of eight, scaled, has 7905 elements.
    assert re.fullmatch(
        rf"rank 1 \(\S+, cpu\) op 16 \(allreduce/world gradient\[7\]\): "
        rf"element 7 is {right ^ 1}, expected {right} \(1 of 7905 elements wrong\)",
        wrong,
    )
    assert last_line(completed.stdout) == f"FAILED: wrong data: {wrong}"
    record = valid_record(tmp_path)
    assert record.iterations == []
    assert record.end is not None
    assert (record.end.status, record.end.reason) == ("failed", f"wrong data: {wrong}")


@on_mpich
@pytest.mark.parametrize(
    ("strategy", "sabotage", "fault"),
    [
        ("dp_pp_ep", EXCHANGE_TWO_PEERS, r"rank 1 \(\S+, cpu\) op \d+ \(alltoall/expert .*\): element 0 is"),
        (
            "dp_pp",
            SEND_THE_FIRST_MESSAGE_AGAIN,
            r"rank 1 \(\S+, cpu\) op \d+ \(recv/pipeline .* peer 0\): element 0",
        ),
        (
            "fsdp",
            ONE_BYTE_TOO_MANY,
            r"rank 1 \(\S+, cpu\) op 0 \(allgather/shard .*\): bytes behind the end of the receive buffer",
        ),
    ],
    ids=["exchanged peers", "stale message", "one byte too many"],
)
def test_the_check_finds(mpi: Mpi, strategy: str, sabotage: str, fault: str, tmp_path: Path) -> None:
    completed = mpi.launch(2, [*sabotaged(tmp_path, strategy, sabotage), "--check", "--no-record"])

    assert completed.returncode == 1
    assert last_line(completed.stdout).startswith("FAILED: wrong data: rank ")
    assert re.search(f"# check      WRONG: {fault}", completed.stdout), completed.stdout


def test_wrong_data_goes_unnoticed_without_the_check(mpi: Mpi, tmp_path: Path) -> None:
    completed = mpi.launch(2, [*sabotaged(tmp_path, "dp", FLIP_AN_ELEMENT), "--no-record", "--iterations", "1"])

    assert (completed.returncode, last_line(completed.stdout)) == (0, "OK")


def test_a_rank_that_raises_ends_the_job_and_names_itself_once(mpi: Mpi, tmp_path: Path) -> None:
    program = sabotaged(tmp_path, "dp", RAISE_IN_ITERATION_3)

    with mpi.start(4, [*program, "--iterations", "100000", "--record", str(tmp_path)]) as job:
        job.wait_for_output("\n             2 ")
        failed = time.monotonic()
        completed = job.wait(20)
        assert time.monotonic() - failed < 5

    assert completed.returncode not in (0, 2)
    (line,) = said(completed.stderr)
    assert re.fullmatch(
        r"FAILED: rank 1 \(\S+, cpu\) failed in op 17 \(wait for gradient\[0\] … gradient\[7\]\) of iteration 3: "
        "OSError: the link is down",
        line,
    )
    assert "Traceback" not in completed.stderr
    record = valid_record(tmp_path)
    assert len(record.iterations) == 3
    assert record.end is not None
    assert (record.end.status, record.end.iterations) == ("failed", 3)
    assert record.end.reason == line.removeprefix("FAILED: ")


def test_a_rank_that_raises_during_the_check_is_the_only_one_that_speaks(mpi: Mpi, tmp_path: Path) -> None:
    sabotage = RAISE_IN_ITERATION_3.replace("self.iteration == 3", "True")

    completed = mpi.launch(4, [*sabotaged(tmp_path, "dp", sabotage), "--check", "--record", str(tmp_path)])

    assert completed.returncode not in (0, 2)
    (line,) = said(completed.stderr)
    assert re.fullmatch(
        r"FAILED: rank 1 \(\S+, cpu\) failed in op 17 \(wait .*\) of checking the messages: OSError: the link is down",
        line,
    )
    assert read(record_path(tmp_path)).notes == []


@pytest.mark.parametrize("recorded", [True, False], ids=["with a record", "without"])
def test_of_ranks_that_fail_together_the_lowest_speaks(mpi: Mpi, recorded: bool, tmp_path: Path) -> None:
    program = sabotaged(tmp_path, "dp", RAISE_IN_ITERATION_3.replace("RANK == 1", "RANK >= 4"))
    record = ("--record", str(tmp_path)) if recorded else ("--no-record",)

    with mpi.start(8, [*program, *record, "--iterations", "4"]) as job:
        job.wait_for_output("\n             2 ")
        failed = time.monotonic()
        completed = job.wait(20)
        assert time.monotonic() - failed < 5

    (line,) = said(completed.stderr)
    assert line.startswith("FAILED: rank 4 (")
    if recorded:
        found = valid_record(tmp_path)
        assert found.notes == []  # no second end line
        assert found.end is not None
        assert found.end.reason == line.removeprefix("FAILED: ")


@on_mpich
def test_a_traceback_is_there_for_who_asks_for_it(mpi: Mpi, tmp_path: Path) -> None:
    program = sabotaged(tmp_path, "dp", RAISE_IN_ITERATION_3)

    completed = mpi.launch(2, [*program, "--no-record"], env={"DLBENCH_TRACEBACK": "1"})

    assert completed.stderr.count("Traceback") == 1
    assert len(said(completed.stderr)) == 1


def test_a_hang_ends_at_the_timeout_and_every_rank_says_where_it_is(mpi: Mpi, tmp_path: Path) -> None:
    options = ("--delay", "1:3:600000", "--timeout", "2", "--record", str(tmp_path))

    started = time.monotonic()
    completed = run(mpi, "dp", 4, *options)

    assert time.monotonic() - started < 20
    assert completed.returncode not in (0, 2)
    lines = said(completed.stderr)
    assert sorted(re.sub(r" after [0-9.]+ s$", "", line) for line in lines[:4]) == [
        f"rank {rank} ({host(lines)}, cpu) is in {op} of iteration 0"
        for rank, op in enumerate(
            (
                "op 17 (wait for gradient[0] … gradient[7])",
                "op 3 (compute backward)",
                "op 17 (wait for gradient[0] … gradient[7])",
                "op 17 (wait for gradient[0] … gradient[7])",
            )
        )
    ]
    assert re.fullmatch(r"FAILED: hang: rank 0 .* is in op 17 .* after 2\.\d s; the limit is --timeout 2", lines[4])
    record = valid_record(tmp_path)
    assert record.end is not None
    assert (record.end.status, record.end.reason) == ("failed", lines[4].removeprefix("FAILED: "))


def test_a_rank_that_has_done_its_iteration_while_another_hangs_in_it_says_so(mpi: Mpi) -> None:
    """Stage 1 waits for the other 2 s after the iteration began, and the run hangs 4 s after."""
    options = ("--delay", "0:15:600000", "--delay", "1:0:2000", "--timeout", "4", "--no-record")

    completed = run(mpi, "dp_pp", 2, *options)

    lines = said(completed.stderr)
    assert sorted(re.sub(r" after 4\.\d s$", "", line) for line in lines[:2]) == [
        f"rank 0 ({host(lines)}, cpu) is in op 15 (compute backward) of iteration 0",
        f"rank 1 ({host(lines)}, cpu) is in the end of iteration 0",
    ]
    assert [line.partition(":")[0] for line in lines[2:]] == ["FAILED"]


def host(lines: list[str]) -> str:
    (name,) = {re.findall(r"rank \d+ \((\S+), cpu\)", line)[0] for line in lines}
    return name
