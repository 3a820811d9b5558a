"""What programs print, as a cell of a table can show it."""

from __future__ import annotations

import re

from dlbench.errors import one_line

_MOST_CHARACTERS = 300


def shown(text: str) -> str:
    """The text on one line, without control characters, and cut where it is long."""
    line = one_line(" ".join(text.split()))
    return line if len(line) <= _MOST_CHARACTERS else f"{line[: _MOST_CHARACTERS - 1]}…"


def last_line(text: str) -> str:
    """The last line that says something; programs end with what stopped them."""
    return shown(next((line for line in reversed(text.splitlines()) if line.strip()), ""))


def dotted_version(text: str) -> str:
    """The first version number in a text, e.g. `5.0.2`; empty where there is none."""
    found = re.search(r"\d+(?:\.\d+)+", text)
    return found[0] if found else ""
