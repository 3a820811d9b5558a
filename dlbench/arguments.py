"""An argument parser whose mistakes are one line, with the option that was probably meant."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import Any, NoReturn

from dlbench.errors import OptionError


class ArgumentParser(argparse.ArgumentParser):
    """`argparse.ArgumentParser` that raises `OptionError` in place of printing the usage and leaving.

    Options cannot be abbreviated: a script that works today must not become ambiguous with the next option.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **kwargs)

    # The overloads of the base class only serve callers that bring their own namespace type.
    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse `args` (default: the command line); raises `OptionError` where they are wrong."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(self._explain(unknown[0]))
        return parsed

    def error(self, message: str) -> NoReturn:
        """Raise `OptionError` with the message and where to read more."""
        raise OptionError(f"{message}; see '{self.prog} --help'")

    def _explain(self, unknown: str) -> str:
        if not unknown.startswith("-"):
            return f"unexpected argument {unknown!r}"
        option = unknown.split("=", 1)[0]
        close = difflib.get_close_matches(option, self._option_string_actions, n=1)
        return f"unknown option {option}" + (f", did you mean {close[0]}?" if close else "")
