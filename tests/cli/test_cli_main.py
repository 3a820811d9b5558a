"""The `dlbench` command: what every subcommand has in common."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest
import typer

from dlbench import __version__
from dlbench.cli import application as command_line
from dlbench.errors import CheckError, OptionError, RunError, SpecError, UserError

DLBENCH = [sys.executable, "-m", "dlbench"]


def outcome(error: BaseException, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and stderr where a command ends with the error."""

    def command() -> NoReturn:
        raise error

    exit_code = command_line._outcome(command)
    printed = capsys.readouterr()
    assert printed.out == ""
    return exit_code, printed.err


@pytest.mark.parametrize("kind", [UserError, OptionError, SpecError])
def test_a_users_mistake_is_one_line_and_exit_code_2(kind: type[UserError], capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(kind("use fewer ranks"), capsys) == (2, "dlbench: use fewer ranks\n")


@pytest.mark.parametrize("kind", [RunError, CheckError])
def test_a_failed_run_is_one_line_and_exit_code_1(kind: type[RunError], capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(kind("rank 3 is gone"), capsys) == (1, "dlbench: rank 3 is gone\n")


def test_an_interruption_is_silent_and_exit_code_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(typer.Abort(), capsys) == (130, "")


def test_an_error_of_our_own_making_keeps_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError):
        outcome(ZeroDivisionError(), capsys)


@pytest.mark.parametrize(("returned", "exit_code"), [(None, 0), (0, 0), (3, 3), ("text", 0)])
def test_the_exit_code_is_what_the_command_returns_if_it_is_one(returned: object, exit_code: int) -> None:
    assert command_line._outcome(lambda: returned) == exit_code


def run(*arguments: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DLBENCH, *arguments], stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )


def test_the_version_is_the_packages() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"dlbench {__version__}\n", "")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands(arguments: list[str]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert {"models", "gpus", "systems"} <= {line.split()[0] for line in done.stdout.splitlines() if line}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mdels"], "'mdels'"),
        (["models", "--jsn"], "--jsn"),
        (["models", "vit-h", "vit-l"], "vit-l"),
        (["--nothing"], "--nothing"),
        (["models", "vit-x"], "unknown model 'vit-x'; did you mean"),
        (["systems", "/nowhere.yaml"], "/nowhere.yaml: no such file or directory"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(arguments: list[str], said: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("dlbench: ")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


def test_a_reader_that_left_is_no_error_to_speak_of() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = run("models", stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize("arguments", [["models"], ["run", "dp", "--help"]])
def test_a_full_disk_is_one_line(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = run(*arguments, stdout=full.fileno())
    assert done.returncode == 2
    assert done.stderr == "dlbench: the output cannot be written: No space left on device\n"


def test_a_file_that_the_system_refuses_is_named() -> None:
    name = "n" * 300
    done = run("submit", "--system", "local", "--pattern", "tier", "-o", name)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"dlbench: {name}: File name too long\n"


@pytest.mark.parametrize(("command", "exit_code"), [("models >&-", 0), ("--nothing 2>&-", 2)])
def test_a_closed_stream_is_no_error(command: str, exit_code: int) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m dlbench {command}"], capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (exit_code, b"", b"")


def test_what_the_output_cannot_encode_is_a_question_mark() -> None:
    done = subprocess.run(
        [*DLBENCH, "run", "dp", "--help"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"within ?F of it" in b" ".join(done.stdout.split())


def test_an_interruption_of_the_imports_leaves_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    done = subprocess.run(
        DLBENCH, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (130, b"")


def test_control_c_ends_a_command_without_a_traceback() -> None:
    # A shell that runs the tests in the background has its children ignore interruptions.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    # A program of 5120 ops fills the pipe that nobody empties.
    command = [*DLBENCH, "describe", "dp_pp_tp", "-n", "32", "--program", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    signal.signal(signal.SIGINT, before)
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        process.wait(60)
        _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (130, b"")
