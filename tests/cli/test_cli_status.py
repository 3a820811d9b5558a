"""`dlbench status` and `dlbench cancel`: what is printed of a campaign."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from campaigns import Slurm, make_campaign

from dlbench.cli import main as command_line
from dlbench.cli import status as module

Answer = tuple[int, str, str]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    commands = Slurm(tmp_path / "bin")
    commands.prints("squeue", "7 RUNNING None")
    monkeypatch.setenv("PATH", str(commands.folder))
    return commands


@pytest.fixture
def dlbench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, slurm: Slurm) -> Any:
    """Run dlbench beside a campaign `c` whose first experiment is job 7, which runs."""
    make_campaign(tmp_path / "c").note("submitted", "mix-000", "7")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["dlbench", *arguments])
        with pytest.raises(SystemExit) as end:
            command_line.main()
        printed = capsys.readouterr()
        return int(end.value.code or 0), printed.out, printed.err

    return run


def test_every_experiment_has_a_row(dlbench: Any) -> None:
    code, out, err = dlbench("status", "c")
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [
        ["experiment", "kind", "jobs", "nodes", "state", "job", "iterations", "reason"],
        ["mix-000", "concurrent", "2", "4", "running", "7", "0", "-"],
        ["alone-000", "baseline", "1", "2", "planned", "-", "0", "-"],
        ["1", "running,", "1", "planned"],
    ]


def test_json_has_the_same_in_an_array(dlbench: Any) -> None:
    assert json.loads(dlbench("status", "c", "--json")[1])[0] == {
        "experiment": "mix-000",
        "kind": "concurrent",
        "jobs": 2,
        "nodes": 4,
        "state": "running",
        "job_id": "7",
        "iterations": 0,
        "reason": "",
    }


def test_watching_ends_when_nothing_is_under_way(dlbench: Any, slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            slurm.prints("squeue", "7 NODE_FAIL None")

    monkeypatch.setattr(module, "sleep", sleep)
    code, out, _ = dlbench("status", "c", "--watch", "0.5")
    assert (code, slept) == (0, [0.5, 0.5])
    assert out.count("1 running, 1 planned") == 2
    assert out.endswith("1 failed, 1 planned\n")


def test_cancelling_says_what_it_does(dlbench: Any, slurm: Slurm) -> None:
    assert dlbench("cancel", "c") == (0, "mix-000: ending\n", "")
    assert slurm.calls("scancel") == [["--batch", "--signal=TERM", "7"]]
    slurm.prints("squeue", "7 COMPLETED None")
    assert dlbench("cancel", "c", "mix-000")[1] == "nothing to cancel: no experiment is pending or running\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("status", "nowhere"),
            "nowhere: is no campaign, it has no campaign.yaml; name the folder of 'dlbench submit'",
        ),
        (
            ("cancel", "nowhere"),
            "nowhere: is no campaign, it has no campaign.yaml; name the folder of 'dlbench submit'",
        ),
        (("cancel", "c", "mix"), "c has no experiment 'mix'; it has alone-000, mix-000"),
        (
            ("status", "c", "--watch", "0"),
            "argument --watch: expected a number above 0, found '0'; see 'dlbench status --help'",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(dlbench: Any, arguments: tuple[str, ...], message: str) -> None:
    assert dlbench(*arguments) == (2, "", f"dlbench: {message}\n")
