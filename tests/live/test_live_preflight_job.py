"""The preflight on real ranks: it passes on a sound machine, and names who or what is wrong on a sabotaged one."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest
from launch import Completed, Mpi
from live_runs import last_line, on_mpich, said

import dlbench

MODULE = ["-m", "dlbench.preflight"]

_SABOTAGE = """
import os
import signal
import time
from types import SimpleNamespace

from dlbench.comm.library import MPI
from dlbench.runtime.entry import main
from dlbench.runtime.machine.ring import Ring

RANK = MPI.COMM_WORLD.rank
{sabotage}
main("preflight")
"""

SLEEP_IN_THE_ANSWER = """
if RANK == 2:
    Ring._answer = lambda ring: time.sleep(60)
"""

STOP_WITH_THE_TOKEN = """
if RANK == 2:
    Ring._pass_on = lambda ring: os.kill(os.getpid(), signal.SIGSTOP)
"""

NEVER_GREET = """
if RANK == 2:
    Ring._greet = lambda ring: os.kill(os.getpid(), signal.SIGSTOP)
"""

EXIT_IN_THE_RING = """
if RANK == 2:
    Ring._answer = lambda ring: os._exit(3)
"""

RAISE_IN_THE_RING = """
def fail(ring):
    raise OSError("the link is down")

if RANK == 2:
    Ring._pass_on = fail
"""

FLIP_A_BIT = """
write = Ring._write

def write_wrong(ring, message, size, number):
    write(ring, message, size, number)
    if RANK == 1 and size == 65536 and number == 3:
        message.view("uint8")[1234] ^= 1

Ring._write = write_wrong
"""

TWO_HOSTS = """
os.uname = lambda: SimpleNamespace(nodename=f"node{RANK // 2}")
"""

DEALT_IN_TURN = """
os.uname = lambda: SimpleNamespace(nodename=f"node{RANK % 2}")
"""

CLOCK_AHEAD = """
true_time_ns = time.time_ns
if RANK // 2 == 1:
    time.time_ns = lambda: true_time_ns() + AHEAD
"""


def sabotaged(folder: Path, sabotage: str) -> list[str]:
    """Arguments of Python for a preflight after some lines that spoil it."""
    program = folder / "sabotaged.py"
    program.write_text(_SABOTAGE.format(sabotage=textwrap.dedent(sabotage)), encoding="utf-8")
    return [str(program)]


def environments(mpi: Mpi, *variables: tuple[str, ...], cwd: Path | None = None) -> Completed:
    """A preflight with a rank for each set of variables, on one host."""
    command = [mpi.python, *MODULE]
    first, *others = [["env", *settings, *command] for settings in variables]
    words = [word for other in others for word in (":", "-n", "1", *other)]
    return replace(mpi, python=first[0]).launch(1, [*first[1:], *words], cwd=cwd)


def findings(completed: Completed, severity: str) -> list[str]:
    return [line.removeprefix(f"{severity}: ") for line in completed.stdout.splitlines() if line.startswith(severity)]


def wait_until_heard(pid: int, signum: signal.Signals) -> None:
    """Wait until a process has a handler for a signal: while it starts, the signal just ends it."""
    deadline = time.monotonic() + 20
    bit = 1 << (signum - 1)
    while not int(re.search(r"^SigCgt:\t(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.M)[1], 16) & bit:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def reason(completed: Completed) -> str:
    """The one line that says why the preflight broke off."""
    (line,) = [line for line in said(completed.stderr) if line.startswith("FAILED")]
    return line


def test_a_sound_machine_passes_with_a_row_per_host(mpi: Mpi) -> None:
    completed = mpi.launch(4, MODULE)

    assert (completed.returncode, last_line(completed.stdout)) == (0, "OK"), completed
    assert findings(completed, "error") == []
    assert said(completed.stderr) == []
    row = completed.stdout.splitlines()[5].split()
    assert row[:3] == [os.uname().nodename, "0-3", "cpu"]
    assert row[3:7] == ["+0.000", "±", "0.000", "ms"]  # one host has one clock


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_small_rings_close_too(mpi: Mpi, ranks: int) -> None:
    completed = mpi.launch(ranks, [*MODULE, "--json"])

    assert completed.returncode == 0, completed
    document = json.loads(completed.stdout)
    assert (document["status"], document["ranks"]) == ("ok", ranks)
    links = [(link["sender"], link["receiver"]) for link in document["links"]]
    assert links == {1: [], 2: [(0, 1), (1, 0)], 3: [(0, 1), (1, 2), (2, 0)]}[ranks]
    assert all(link["latency"] > 0 and link["bandwidth"] > 0 for link in document["links"])


def test_a_rank_that_sleeps_is_named_by_the_hop_that_it_holds_up(mpi: Mpi, tmp_path: Path) -> None:
    completed = mpi.launch(4, [*sabotaged(tmp_path, SLEEP_IN_THE_ANSWER), "--hop-timeout", "1.5"], timeout=30)

    assert completed.returncode == 1
    failed = reason(completed)
    host = re.escape(os.uname().nodename)
    assert re.fullmatch(
        rf"FAILED: hang: rank 1 \({host}, cpu\) is in a message of 8 bytes of the ring hop rank 1 \({host}\) → "
        rf"rank 2 \({host}\) after \d\.\d s; the limit is --hop-timeout 1\.5",
        failed,
    )


def test_a_rank_that_stops_with_the_token_is_named_by_the_one_before_it(mpi: Mpi, tmp_path: Path) -> None:
    completed = mpi.launch(4, [*sabotaged(tmp_path, STOP_WITH_THE_TOKEN), "--hop-timeout", "1"], timeout=30)

    assert completed.returncode not in (0, 2)
    failed = reason(completed)
    assert "rank 1 (" in failed
    assert re.search(r"is in waiting for rank 2 \(\S+\) to pass the token on after \d\.\d s", failed)
    assert failed.endswith("the limit is 5 s above --hop-timeout: 6")


def test_a_rank_that_never_greets_is_named_by_its_neighbours(mpi: Mpi, tmp_path: Path) -> None:
    program = sabotaged(tmp_path, NEVER_GREET)

    completed = mpi.launch(4, program, env={"DLBENCH_START_TIMEOUT": "2.5"}, timeout=30)

    assert completed.returncode == 1
    failed = reason(completed)
    assert failed.startswith("FAILED: hang: rank 1 (")
    assert "is in waiting for the greeting of rank 2 after" in failed
    assert not [
        line for line in said(completed.stderr) if line.startswith("rank 0")
    ]  # who has nothing to say waits longer


def test_a_rank_that_dies_in_the_ring_does_not_leave_the_others_hanging(mpi: Mpi, tmp_path: Path) -> None:
    completed = mpi.launch(4, [*sabotaged(tmp_path, EXIT_IN_THE_RING), "--hop-timeout", "2"], timeout=30)

    assert completed.returncode != 0
    assert "OK" not in completed.stdout


def test_a_rank_that_raises_says_where(mpi: Mpi, tmp_path: Path) -> None:
    completed = mpi.launch(4, sabotaged(tmp_path, RAISE_IN_THE_RING), timeout=30)

    assert completed.returncode == 1
    (failed,) = said(completed.stderr)
    assert re.fullmatch(r"FAILED: rank 2 \(\S+, cpu\) failed in .*: OSError: the link is down", failed)


def test_a_hang_is_a_document_too(mpi: Mpi, tmp_path: Path) -> None:
    program = sabotaged(tmp_path, SLEEP_IN_THE_ANSWER)

    completed = mpi.launch(4, [*program, "--hop-timeout", "1", "--json"], timeout=30)

    document = json.loads(completed.stdout)
    assert document["status"] == "failed"
    assert document["reason"].startswith("hang: rank 1 (")
    assert [finding["severity"] for finding in document["findings"]] == ["error"]


def test_a_link_that_corrupts_is_named_in_both_directions(mpi: Mpi, tmp_path: Path) -> None:
    completed = mpi.launch(4, sabotaged(tmp_path, FLIP_A_BIT))

    assert completed.returncode == 1
    host = os.uname().nodename
    wrong = "1 of 65536 bytes are wrong, the first is byte 1234"
    assert findings(completed, "error") == [
        f"ring: rank 1 ({host}) → rank 0 ({host}) corrupts messages: {wrong}",
        f"ring: rank 1 ({host}) → rank 2 ({host}) corrupts messages: {wrong}",
    ]
    assert last_line(completed.stdout).startswith("FAILED: 2 errors; first: rank 1")


def test_ranks_that_share_a_device_are_an_error(mpi: Mpi) -> None:
    completed = environments(mpi, *[(f"CUDA_VISIBLE_DEVICES={device}",) for device in (0, 1, 1, 2)])

    assert completed.returncode == 1
    (error,) = findings(completed, "error")
    host = os.uname().nodename
    assert error == f"devices: 2 ranks (1-2) of host {host} share cuda:1 (CUDA_VISIBLE_DEVICES=1)"
    assert "cuda:0,cuda:1,cuda:1,cuda:2" in completed.stdout


@on_mpich
def test_ranks_with_a_device_each_pass(mpi: Mpi) -> None:
    completed = environments(mpi, *[("CUDA_VISIBLE_DEVICES=2,3",)] * 2)

    assert (completed.returncode, last_line(completed.stdout)) == (0, "OK")
    assert "cuda:2,cuda:3" in completed.stdout


@on_mpich
def test_a_rank_with_another_dlbench_is_an_error(mpi: Mpi, tmp_path: Path) -> None:
    copy = tmp_path / "site" / "dlbench"
    shutil.copytree(dlbench.__path__[0], copy, ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / "roofline.py").open("a") as source:
        source.write("# changed\n")
    (copy / "__init__.py").write_text('__version__ = "9.9.9"\n')
    own = f"PYTHONPATH={Path(dlbench.__path__[0]).parent}"

    completed = environments(mpi, (own,), (own,), (f"PYTHONPATH={copy.parent}",), cwd=tmp_path)

    assert completed.returncode == 1
    version, content = findings(completed, "error")
    host = os.uname().nodename
    assert version == f"versions: rank 2 ({host}): dlbench 9.9.9, but {dlbench.__version__} on most ranks"
    assert content.startswith(f"versions: rank 2 ({host}): content of the package dlbench, SHA-256 ")
    assert any(str(copy) in warning for warning in findings(completed, "warning"))


@on_mpich
@pytest.mark.parametrize(("ahead", "severity"), [(500_000_000, "warning"), (10_000_000_000, "error")])
def test_a_clock_that_is_off_is_measured(mpi: Mpi, tmp_path: Path, ahead: int, severity: str) -> None:
    program = sabotaged(tmp_path, TWO_HOSTS + CLOCK_AHEAD.replace("AHEAD", str(ahead)))

    completed = mpi.launch(4, [*program, "--json"])

    document = json.loads(completed.stdout)
    assert document["status"] == {"warning": "ok", "error": "failed"}[severity]
    assert [host["name"] for host in document["hosts"]] == ["node0", "node1"]
    first, second = document["hosts"]
    assert (first["clock_offset_seconds"], first["clock_uncertainty_seconds"]) == (0, 0)
    assert abs(second["clock_offset_seconds"] - ahead * 1e-9) <= second["clock_uncertainty_seconds"] + 1e-6
    (clock,) = [finding for finding in document["findings"] if finding["check"] == "clock"]
    assert (clock["severity"], clock["rank"], clock["host"]) == (severity, 2, "node1")
    assert "ahead of that of rank 0" in clock["message"]


@on_mpich
def test_ranks_dealt_out_in_turn_are_an_error_and_virtual_nodes_a_warning(mpi: Mpi, tmp_path: Path) -> None:
    completed = mpi.launch(4, [*sabotaged(tmp_path, DEALT_IN_TURN), "--ranks-per-node", "2"])

    assert completed.returncode == 1
    first, second = findings(completed, "error")
    assert first.startswith("rank order: host node0 has 2 ranks (0,2): ")
    assert second.startswith("rank order: host node1 has 2 ranks (1,3): ")
    assert "hosts: node0, node1 are one machine: their ranks share its cores and its network" in findings(
        completed, "warning"
    )


def test_other_ranks_per_node_than_asked_for_are_an_error(mpi: Mpi) -> None:
    completed = mpi.launch(3, [*MODULE, "--ranks-per-node", "2"])

    assert completed.returncode == 1
    assert findings(completed, "error") == [
        f"ranks per node: host {os.uname().nodename} has 3 ranks (0-2), asked for were 2 per node"
    ]


def test_another_number_of_ranks_than_asked_for_is_refused_once(mpi: Mpi) -> None:
    completed = mpi.launch(3, [*MODULE, "-n", "4"])

    assert (completed.returncode, completed.stdout) == (2, "")
    (line,) = said(completed.stderr)
    assert line.startswith("MPI sees a world of 3 ranks, but -n asks for 4; ")


@pytest.mark.parametrize(
    ("options", "code", "line"),
    [
        (["--hop-timout", "3"], 2, "unknown option --hop-timout, did you mean --hop-timeout?; see "),
        (["--clock-limit", "0"], 2, "argument --clock-limit: expected a number above 0, found '0'; see "),
    ],
)
def test_wrong_options_are_refused_once(mpi: Mpi, options: list[str], code: int, line: str) -> None:
    completed = mpi.launch(3, [*MODULE, *options])

    assert completed.returncode == code
    (text,) = said(completed.stderr)
    assert text == f"{line}'python -m dlbench.preflight --help'"


@on_mpich
def test_help_is_printed_once(mpi: Mpi) -> None:
    completed = mpi.launch(3, [*MODULE, "--help"])

    assert completed.returncode == 0
    assert completed.stdout.count("usage:") == 1


def test_a_signal_ends_it_in_one_line(mpi: Mpi, tmp_path: Path) -> None:
    with mpi.start(2, [*sabotaged(tmp_path, "if RANK: print('here', flush=True); time.sleep(60)")]) as job:
        job.wait_for_output("here")
        rank = job.rank_pids()[0]
        wait_until_heard(rank, signal.SIGTERM)
        os.kill(rank, signal.SIGTERM)
        completed = job.wait(20)

    assert completed.returncode not in (0, 1, 2)
    assert "Traceback" not in completed.stderr
    assert reason(completed).startswith("FAILED: SIGTERM on rank 0 (")


@on_mpich
def test_the_command_as_a_rank_starts_no_others(mpi: Mpi) -> None:
    completed = mpi.launch(2, ["-m", "dlbench", "preflight", "--json"])

    assert completed.returncode == 0, completed
    assert json.loads(completed.stdout)["ranks"] == 2
