"""`dlbench run`: options are checked here, and the launcher gets a command that says what was asked."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from campaigns import Slurm

from dlbench.cli import run as command
from dlbench.cli.run import run
from dlbench.errors import DlbenchError, LayoutError, OptionError, PreflightError
from dlbench.runtime.options import parse_request, run_parser
from dlbench.slurm.launchers import Launch


@pytest.fixture(autouse=True)
def launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that is found, and never becomes this process."""

    def plan(name: str, ranks: int, environment: object, arguments: Sequence[str]) -> Launch:
        if arguments:
            return Launch(["/opt/my mpi/mpiexec", "-n", str(ranks)], {})
        return Launch(["/opt/my mpi/mpiexec", "-n", str(ranks)], {"HYDRA_IFACE": "lo", "DLBENCH_TEST_SET": "new"})

    def become(*_: object) -> None:
        pytest.fail("the launcher was started")

    monkeypatch.setattr(command, "plan_launch", plan)
    monkeypatch.setattr(os, "execvpe", become)
    monkeypatch.delenv("HYDRA_IFACE", raising=False)
    monkeypatch.setenv("DLBENCH_TEST_SET", "old")


def dry_run(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    """The words of the command that would be started."""
    run([*argv, "--dry-run"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    return shlex.split(lines[0])


def complaint(*argv: str, kind: type[DlbenchError] = OptionError) -> str:
    with pytest.raises(kind) as error:
        run(argv)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_ranks_get_the_options_of_the_run_and_not_those_of_the_launch(capsys: pytest.CaptureFixture[str]) -> None:
    words = dry_run(
        capsys, "dp", "--check", "-n", "4", "--label", "site=my lab", "--launcher-args=-prepend-rank", "--scale=0.5"
    )
    assert words == [
        "/opt/my mpi/mpiexec",
        "-n",
        "4",
        "-prepend-rank",
        sys.executable,
        "-m",
        "dlbench.dp",
        "--check",
        "--label",
        "site=my lab",
        "--scale=0.5",
    ]


def test_what_the_user_has_set_in_the_environment_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    assert not [word for word in dry_run(capsys, "dp", "-n", "1") if word.startswith("DLBENCH_TEST_SET")]


@pytest.mark.parametrize("ranks", [["-n", "8"], ["-n8"], ["--ranks", "8"], ["--ranks=8"]])
def test_the_number_of_ranks_can_be_given_in_every_usual_way(
    capsys: pytest.CaptureFixture[str], ranks: list[str]
) -> None:
    words = dry_run(capsys, "fsdp", *ranks, "--units", "4")
    assert words[2:4] == ["-n", "8"]
    assert words[-2:] == ["--units", "4"]


def test_the_command_of_a_dry_run_runs_in_a_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    echo = tmp_path / "my mpi" / "mpiexec"
    echo.parent.mkdir()
    echo.write_text('#!/bin/sh\nfor word in "$HYDRA_IFACE" "$@"; do echo "[$word]"; done\n')
    echo.chmod(0o755)
    monkeypatch.setattr(command, "plan_launch", lambda *_: Launch([str(echo)], {"HYDRA_IFACE": "l o"}))
    run(["dp", "-n", "1", "--label", "quote=it's $HOME", "--dry-run"])
    done = subprocess.run(capsys.readouterr().out, shell=True, capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.splitlines()[0] == "[l o]"
    assert done.stdout.splitlines()[-1] == "[quote=it's $HOME]"


def test_the_launcher_replaces_the_process_with_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execvpe", lambda file, words, environment: started.append((file, words, environment)))
    run(["dp", "-n", "2"])
    file, words, environment = started[0]
    assert file == words[0] == "/opt/my mpi/mpiexec"
    assert environment["HYDRA_IFACE"] == "lo"
    assert environment["DLBENCH_TEST_SET"] == "old"
    assert environment["PATH"] == os.environ["PATH"]


def test_a_launcher_that_cannot_be_started_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "execvpe", missing)
    message = complaint("dp", "-n", "2", kind=PreflightError)
    assert message == "cannot start /opt/my mpi/mpiexec: No such file or directory"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "which strategy? dlbench run STRATEGY -n N, with STRATEGY one of dp, fsdp, dp_pp, dp_pp_tp, dp_pp_ep"),
        (["-n", "4"], "which strategy?"),
        (["dp_p", "-n", "4"], "unknown strategy 'dp_p', did you mean dp_pp?"),
        (["dp"], "how many ranks? e.g. dlbench run dp -n 4"),
        (["dp", "-n", "0"], "expected an integer of 1 or more"),
        (["dp", "-n"], "expected one argument"),
        (["dp", "-n", "4", "--iteration", "3"], "did you mean --iterations?"),
        (["dp", "--rank", "4"], "did you mean --ranks?"),
        (["dp", "-n", "4", "--iterations", "0"], "--iterations: expected an integer of 1 or more"),
        (["dp", "-n", "4", "stray"], "unexpected argument 'stray'"),
        (["dp", "-n", "4", "--delay", "4:0:1"], "ranks are 0 to 3"),
        (["dp", "-n", "4", "--launcher-args", "'open"], '--launcher-args: "\'open" cannot be split into words'),
        (["dp", "-n", "4", "--config", "/nowhere.yaml"], "--config /nowhere.yaml: no such file or directory"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(argv: list[str], message: str) -> None:
    assert message in complaint(*argv)


def test_a_world_size_that_does_not_fit_is_refused_before_anything_starts() -> None:
    assert "is not a multiple of pp" in complaint("dp_pp", "-n", "6", "--pp", "4", kind=LayoutError)


def test_a_configuration_file_cannot_set_how_to_launch(tmp_path: Path) -> None:
    config = tmp_path / "site.yaml"
    config.write_text("ranks: 8\n", encoding="utf-8")
    assert f"{config}: ranks belongs on the command line" in complaint("dp", "-n", "4", "--config", str(config))


def test_a_configuration_file_reaches_the_ranks_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "site.yaml"
    config.write_text("iterations: 8\n", encoding="utf-8")
    words = dry_run(capsys, "dp", "-n", "4", "--config", str(config))
    arguments = words[words.index("dlbench.dp") + 1 :]
    assert parse_request("dp", run_parser("prog", "dp"), arguments).run.iterations == 8


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["dp", "--help"], ["dp", "-n", "4", "-h"]])
def test_help_leaves_with_zero_and_shows_both_kinds_of_options(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leave:
        run(argv)
    text = capsys.readouterr().out
    assert leave.value.code == 0
    assert "--ranks" in text
    assert "--dry-run" in text
    assert ("--until-ci" in text) == ("dp" in argv)


def test_the_command_line_answers_a_mistake_with_2_and_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dlbench", "run", "dp", "-n", "2", "--sync", "never"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("dlbench: argument --sync: invalid choice: 'never'")
    assert len(done.stderr.splitlines()) == 1


def test_srun_without_a_controller_is_refused_before_it_speaks_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Slurm(tmp_path / "bin")
    commands.refuses("scontrol", "scontrol: fatal: Could not establish a configuration source")
    monkeypatch.setenv("PATH", str(commands.folder))
    monkeypatch.setattr(command, "plan_launch", lambda *_: Launch(["srun", "-n", "2"]))
    with pytest.raises(PreflightError) as error:
        run(["dp", "-n", "2", "--launcher", "srun"])
    assert str(error.value) == ("srun cannot start ranks: no SLURM controller answers scontrol, see 'dlbench doctor'")
