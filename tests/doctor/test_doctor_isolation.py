"""Commands and probes in processes of their own: whatever they do, there is an answer in time."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from dlbench.doctor.finding import Finding
from dlbench.doctor.isolation import Ended, Processes
from dlbench.doctor.text import dotted_version, last_line, shown

PATIENT = 60.0


def command(*words: str, seconds: float = PATIENT) -> Ended:
    return asyncio.run(Processes(os.environ, seconds).command(*words))


def shell(script: str, seconds: float = PATIENT) -> Ended:
    return command("sh", "-c", script, seconds=seconds)


def test_a_command_that_ends_well_has_no_failure() -> None:
    assert shell("echo out; echo err >&2") == Ended("out\n", "err\n", "")


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("exit 3", "ends with exit code 3"),
        ("echo working; echo 'no such host' >&2; exit 1", "ends with exit code 1: no such host"),
        ("echo only this; exit 1", "ends with exit code 1: only this"),
        ("echo 'sinfo: fatal: no configuration' >&2; exit 1", "ends with exit code 1: no configuration"),
        ("kill -SEGV $$", "crashes with SIGSEGV"),
        ("echo 'bus error at 0x7f' >&2; kill -ABRT $$", "crashes with SIGABRT: bus error at 0x7f"),
        ("kill -40 $$", "crashes with signal 40"),
    ],
)
def test_a_complaint_says_how_a_command_ended_with_its_last_words(script: str, complaint: str) -> None:
    assert shell(script).complaint == complaint


def test_a_command_that_is_not_there_is_told_from_one_that_fails() -> None:
    assert command("no-such-command-of-slurm") == Ended("", "", "is not on the PATH", absent=True)
    assert not shell("exit 127").absent


def test_a_file_that_is_no_program_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "srun").write_text("")
    assert command(str(tmp_path / "srun")).failure == "cannot be started: Permission denied"


def test_silence_ends_with_the_time_limit() -> None:
    begin = time.monotonic()
    assert shell("echo started; sleep 600", seconds=0.5).complaint == "gives no answer within 0.5 s: started"
    assert time.monotonic() - begin < 30


def test_what_a_silent_command_has_started_ends_with_it(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    shell(f"sleep 600 & echo $! > {pid_file}; wait", seconds=2.0)
    deadline = time.monotonic() + 30
    while _lives(int(pid_file.read_text())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _lives(int(pid_file.read_text()))


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_command_that_leaves_a_process_behind_is_not_waited_for_any_longer() -> None:
    begin = time.monotonic()
    ended = shell("sleep 20 & echo done")  # which holds what the command prints to
    assert (ended.out, ended.failure) == ("done\n", "")
    assert time.monotonic() - begin < 15


def test_bytes_that_are_no_text_are_read_all_the_same() -> None:
    assert shell(r"printf 'a\377\000b'").out == "a\ufffd\0b"


def test_of_endless_output_the_beginning_is_kept() -> None:
    assert len(shell("yes | head -c 200000").out) == 65_536


def test_commands_get_the_environment_that_was_given() -> None:
    ended = asyncio.run(
        Processes({"PATH": os.environ["PATH"], "SITE": "here"}, PATIENT).command("sh", "-c", "echo $SITE")
    )
    assert ended.out == "here\n"


def probe_of(package: str, folder: Path, seconds: float = PATIENT) -> Finding:
    """What the probe of MPI finds where mpi4py is the given source."""
    (folder / "mpi4py.py").write_text(package)
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return asyncio.run(Processes(environment, seconds).probe("mpi"))


@pytest.mark.parametrize(
    ("package", "found"),
    [
        ("import os; os.abort()", "its probe crashes with SIGABRT"),
        ("import ctypes; ctypes.string_at(0)", "its probe crashes with SIGSEGV"),
        ("import os; os._exit(0)", "its probe ends without an answer"),
        ("import os; print('no fabric', flush=True); os._exit(9)", "its probe ends with exit code 9: no fabric"),
        (
            "import os, sys; os.write(int(sys.argv[1]), b'{\\xff'); os._exit(0)",
            "its probe ends without an answer",
        ),
        ("raise OSError('libucx.so: not found\\nsecond line')", "OSError: libucx.so: not found second line"),
        ("raise SystemError", "SystemError: "),
    ],
    ids=["abort", "segfault", "silent end", "exit", "garbage", "exception", "exception without words"],
)
def test_whatever_a_library_does_is_a_finding(package: str, found: str, tmp_path: Path) -> None:
    finding = probe_of(package, tmp_path)
    assert finding.state == "broken"
    assert finding.found.startswith(found.strip())


def test_a_library_that_hangs_is_a_finding(tmp_path: Path) -> None:
    finding = probe_of("import time; time.sleep(600)", tmp_path, seconds=1.0)
    assert finding == Finding(state="broken", found="its probe gives no answer within 1 s")


def test_what_a_library_prints_is_no_answer_and_a_crash_behind_the_answer_is_no_harm(tmp_path: Path) -> None:
    package = "import atexit, os; print('{}', flush=True); atexit.register(os.abort); raise ImportError('no library')"
    assert probe_of(package, tmp_path) == Finding(state="broken", found="ImportError: no library")


def test_text_is_shown_on_one_line_without_control_characters_and_not_at_any_length() -> None:
    assert shown(" two\n lines\x1b[31m ") == "two lines\\x1b[31m"
    assert shown("x" * 1000) == "x" * 299 + "…"
    assert last_line("first\nlast \n\n") == "last"
    assert last_line("") == ""


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("MPICH Version: 5.0.2 MPICH Release date: Fri", "5.0.2"),
        ("Open MPI v5.0.11, package: Open MPI", "5.0.11"),
        ("MPI VERSION    : CRAY MPICH version 8.1.29.8 (ANL base 3.4a2)", "8.1.29.8"),
        ("Intel(R) MPI Library 2021.13 for Linux* OS", "2021.13"),
        ("slurm-wlm 22.05.8", "22.05.8"),
        ("no number", ""),
    ],
)
def test_the_first_dotted_number_is_the_version(text: str, number: str) -> None:
    assert dotted_version(text) == number


def test_a_process_that_is_a_rank_asks_its_mpi_as_a_process_of_its_own() -> None:
    """Variables of a launcher that waits for this rank: with them the library would join its job, or wait for it."""
    rank = {"PMI_SIZE": "2", "PMI_RANK": "0", "PMI_FD": "77", "PMIX_NAMESPACE": "job.1", "SLURM_STEP_ID": "0"}
    prober = Processes({**os.environ, **rank}, PATIENT)
    finding = asyncio.run(prober.probe("gpu_mpi", "cuda"))
    assert finding.facts == {"kind": "cuda"}
    assert finding.state in {"ok", "missing"}
    if finding.state == "missing":
        assert finding.found.endswith(" takes no buffers in GPU memory (cuda)")
        assert finding.remedy == "load an MPI that was built with CUDA"
