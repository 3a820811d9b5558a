"""Errors: one line each, whatever they quote."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbench.errors import DlbenchError, OptionError, one_line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\nb", r"a\nb"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\u2028", r"\u2028"),
        ("caf\udce9", r"caf\udce9"),
        ("µ × … C:\\n", "µ × … C:\\n"),
    ],
)
def test_what_breaks_a_line_or_cannot_be_printed_is_escaped(text: str, line: str) -> None:
    assert one_line(text) == line
    assert str(OptionError(f"--job {text} is wrong")) == f"--job {line} is wrong"


@given(st.text(st.characters(codec=None)))
def test_every_message_is_one_line_of_utf_8(text: str) -> None:
    message = str(DlbenchError(text))
    assert len(message.splitlines()) <= 1
    message.encode()


def test_bytes_of_another_encoding_in_a_file_name_can_be_shown() -> None:
    name = b"r\xe9sultats".decode(sys.getfilesystemencoding(), "surrogateescape")
    one_line(name).encode("ascii")
