"""How wide lines of standard output may be, and how text is broken into them: the one place that asks the terminal."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap

WIDTH = 120
"""Characters of a line that tables try to fit where no terminal shows them."""
NARROWEST = 60
"""No table can be read below that."""
_QUOTED = re.compile(r"(?<!\w)'[^']{1,40}'(?!\w)")
"""Commands, mostly, which stay whole."""
_HELD = "\N{NO-BREAK SPACE}"


def terminal_columns() -> int | None:
    """Columns of the terminal that standard output is; None for a pipe or a file."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def line_width() -> int:
    """Characters that a line may have."""
    columns = terminal_columns()
    return WIDTH if columns is None else max(NARROWEST, columns)


def broken(text: str, width: int, margin: str = "") -> list[str]:
    """The text in lines of that width, after the first with a margin; broken at spaces, but not within quotes.

    A longer name stays whole.
    """
    held = _QUOTED.sub(lambda found: found[0].replace(" ", _HELD), text)
    lines = textwrap.wrap(held, width, subsequent_indent=margin, break_on_hyphens=False, break_long_words=False)
    return [line.replace(_HELD, " ") for line in lines]


def fitted(text: str, margin: str) -> str:
    """The text as a line or, on a terminal, as lines that fit it."""
    return text if terminal_columns() is None else "\n".join(broken(text, line_width(), margin))
