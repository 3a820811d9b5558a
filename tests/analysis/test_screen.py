"""How wide lines of standard output may be, and how text is broken into them."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from dlbench.analysis.screen import broken, fitted, line_width, terminal_columns

Terminal = Callable[[int], None]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make standard output a terminal of that many columns."""

    def open_terminal(columns: int) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(columns))

    return open_terminal


def test_a_pipe_has_lines_of_120_characters_whatever_columns_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert (terminal_columns(), line_width()) == (None, 120)
    assert fitted("word " * 40, "  ") == "word " * 40


@pytest.mark.parametrize(("columns", "width"), [(40, 60), (60, 60), (80, 80), (200, 200)])
def test_a_terminal_has_lines_of_its_width_but_not_below_60(terminal: Terminal, columns: int, width: int) -> None:
    terminal(columns)
    assert (terminal_columns(), line_width()) == (columns, width)


def test_text_for_a_terminal_is_broken_at_spaces(terminal: Terminal) -> None:
    terminal(60)
    assert fitted("# " + "x" * 55 + " two-part", "#   ") == "# " + "x" * 55 + "\n#   two-part"


def test_a_name_is_never_broken_nor_is_what_stands_in_quotes() -> None:
    assert broken("see 'dlbench doctor' for more", 14, " ") == ["see", " 'dlbench doctor'", " for more"]
    assert broken("a-long-name-indeed", 6) == ["a-long-name-indeed"]


def test_an_apostrophe_is_no_quote() -> None:
    assert broken("a job's nodes and a run's nodes", 20) == ["a job's nodes and a", "run's nodes"]
