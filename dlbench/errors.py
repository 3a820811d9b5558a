"""The one exception tree of dlbench.

A message is one line that says what is wrong, where, and what would be right. The class decides the exit code:
2 for what the user can put right, 1 for a run that failed.
"""

from __future__ import annotations

import re

_NOT_OF_A_LINE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Control characters, line separators, and what Python makes of bytes that are not UTF-8."""


def one_line(text: str) -> str:
    r"""The text, with escapes such as `\n` for what would break the line or cannot be printed."""
    return _NOT_OF_A_LINE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class DlbenchError(Exception):
    """A run that failed: exit code 1. The message is one line whatever name or value it quotes."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class UserError(DlbenchError):
    """A mistake in what was asked: exit code 2."""

    exit_code = 2


class SpecError(UserError):
    """A model, GPU or system description is missing or wrong."""


class LayoutError(UserError):
    """The ranks do not fit the requested parallelism."""


class OptionError(UserError):
    """An option, or a key of a configuration file, is unknown, wrong or contradicts another."""


class PreflightError(UserError):
    """The machine, the launcher or the memory do not allow the run that was asked for."""


class RecordError(UserError):
    """A file is no run record, or cannot be written or read as one."""


class CheckError(DlbenchError):
    """A message arrived with other content than was sent."""


class RunError(DlbenchError):
    """A rank failed, hung, or was stopped."""
