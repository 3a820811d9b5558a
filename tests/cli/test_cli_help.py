"""Help: one manner for all commands, each with examples that a reader can try as they stand."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from dlbench.cli.application import _outcome, app

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
CHANGELOG = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
COMMANDS = [command.name or "" for command in app.registered_commands]
SMALL = ("--scale", "--dry-run", "--config", "--launcher srun", "--gpu ", "--backend nccl")
"""One of them stands in an example of `dlbench run`: it starts nothing here, or what a small machine bears."""

Help = Callable[..., str]


@pytest.fixture
def help_of(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Help:
    """What `dlbench [COMMAND] --help` prints on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def shown(*command: str) -> str:
        assert _outcome(lambda: app([*command, "--help"], prog_name="dlbench", standalone_mode=False)) == 0
        printed = capsys.readouterr()
        assert printed.err == ""
        return printed.out

    return shown


def examples(text: str) -> list[str]:
    """Example commands of a help text."""
    return re.findall(r"^  (dlbench .*)$", text.partition("examples:\n")[2], re.MULTILINE)


def test_the_overview_has_every_command_with_its_whole_summary(help_of: Help) -> None:
    overview = " ".join(help_of().split())
    for command in app.registered_commands:
        assert f" {command.name} {command.help} " in overview, command.name
    assert "…" not in overview
    assert "..." not in overview


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_usage_its_summary_and_an_example_of_itself(command: str, help_of: Help) -> None:
    text = help_of(command)
    assert text.startswith(f"usage: dlbench {command} ")
    assert not re.search(r"\[\[|\{[A-Z]|<list|\[default:", text)
    assert any(line.startswith(f"dlbench {command} ") or line == f"dlbench {command}" for line in examples(text)), text


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_examples_of_runs_are_small_enough_for_the_machine_of_a_reader(command: str, help_of: Help) -> None:
    runs = [line for line in examples(help_of(*filter(None, [command]))) if line.startswith("dlbench run ")]
    assert [line for line in runs if not any(word in line for word in SMALL)] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_stands_in_the_readme_and_in_the_changelog(command: str) -> None:
    assert re.search(rf"dlbench {command}\b", README), "README.md"
    assert re.search(rf"`(dlbench )?{command}\b", CHANGELOG), "CHANGELOG.md"
