"""An argument parser whose mistakes are one line, with the option that was probably meant."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from dlbench.errors import OptionError, one_line

Number = TypeVar("Number", int, float)

_LIMIT = 2**63
"""No option means anything beyond it, and every number below it can be sent and recorded."""


class ArgumentParser(argparse.ArgumentParser):
    """`argparse.ArgumentParser` that raises `OptionError` in place of printing the usage and leaving.

    Options cannot be abbreviated: a script that works today must not become ambiguous with the next option.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **kwargs)
        # For the base class only plain numbers can be negative values: -1e-3 and -5us would be unknown options.
        self._negative_number_matcher = re.compile(r"-\.?[0-9]")

    # The overloads of the base class only serve callers that bring their own namespace type.
    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse `args` (default: the command line); raises `OptionError` where they are wrong.

        Every one must be text that a table and a record can show: UTF-8, without control characters. Options may stand
        between the values of a positional argument that takes several.
        """
        args = sys.argv[1:] if args is None else args
        for argument in args:
            if one_line(argument) != argument:
                self.error(f"argument {argument!r}: expected UTF-8 text without control characters")
        several = any(action.nargs in {"*", "+"} for action in self._get_positional_actions())
        parse = self.parse_known_intermixed_args if several else self.parse_known_args
        parsed, unknown = parse(args, namespace)
        if unknown:
            self.error(self.explain_unknown(unknown[0]))
        return parsed

    def error(self, message: str) -> NoReturn:
        """Raise `OptionError` with the message and where to read more."""
        raise OptionError(f"{message}; see '{self.prog} --help'")

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        # For the base class the value of `--model=--` only ends the options: it gives an empty list.
        if action.nargs is None and arg_strings == ["--"]:
            raise argparse.ArgumentError(action, "expected one argument, found '--'")
        return super()._get_values(action, arg_strings)

    def find(self, option: str) -> argparse.Action | None:
        """What the parser does with an option such as `--iterations`; None where it does not know it."""
        return self._option_string_actions.get(option)

    def explain_unknown(self, unknown: str, *others: ArgumentParser) -> str:
        """What is wrong with an argument that neither the parser nor the others know, and what was probably meant."""
        if not unknown.startswith("-"):
            return f"unexpected argument {unknown!r}"
        option = unknown.split("=", 1)[0]
        known = [name for parser in (self, *others) for name in parser._option_string_actions]
        close = difflib.get_close_matches(option, known, n=1)
        return f"unknown option {option}" + (f", did you mean {close[0]}?" if close else "")


def at_least(minimum: Number) -> Callable[[str], Number]:
    """Argument type: a finite number of the minimum's type, not less than it."""
    return _number(type(minimum), lambda value: value >= minimum, f"of {minimum:g} or more")


def between(minimum: Number, maximum: Number) -> Callable[[str], Number]:
    """Argument type: a number of the minimum's type, neither less than it nor more than the maximum."""
    return _number(type(minimum), lambda value: minimum <= value <= maximum, f"from {minimum:g} to {maximum:g}")


def more_than(bound: float) -> Callable[[str], float]:
    """Argument type: a finite float above the bound."""
    return _number(float, lambda value: value > bound, f"above {bound:g}")


def text(value: str) -> str:
    """Argument type: a text that is not empty, such as a name or a path."""
    if not value:
        raise argparse.ArgumentTypeError("expected a text, found ''")
    return value


def path(value: str) -> str:
    """Argument type: a path, in which `~` stands for a home folder."""
    try:
        return str(Path(text(value)).expanduser())
    except RuntimeError:
        raise argparse.ArgumentTypeError(f"found no home folder for {value!r}; write the whole path") from None


def _number(kind: type[Number], allowed: Callable[[Number], bool], demand: str) -> Callable[[str], Number]:
    name = "an integer" if kind is int else "a number"

    def convert(text: str) -> Number:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not allowed(value) or value == float("inf"):
            raise argparse.ArgumentTypeError(f"expected {name} {demand}, found {text!r}")
        if value >= _LIMIT:
            raise argparse.ArgumentTypeError(f"expected {name} below 2^63, found {text!r}")
        return value

    return convert
