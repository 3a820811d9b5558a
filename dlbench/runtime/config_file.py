"""Configuration files: YAML with the names of the options, read as the command line that says the same."""

from __future__ import annotations

import argparse
from pathlib import Path

from dlbench.arguments import ArgumentParser
from dlbench.errors import OptionError, SpecError

_COMMAND_LINE_ONLY = ("config", "help", "ranks", "launcher", "launcher-args", "dry-run")
"""What a file cannot say: it is read by the ranks, after they were launched."""


def config_arguments(file: str, parser: ArgumentParser) -> list[str]:
    """The arguments that a file stands for, accepted by `parser`; raises `OptionError`, which names the file."""
    from dlbench.specs.reading import read_yaml  # noqa: PLC0415 - YAML, with --config only

    try:
        content = read_yaml(Path(file))
    except SpecError as error:
        raise OptionError(f"--config {error}") from None
    try:
        arguments = mapping_arguments(content, parser)
        parser.parse_args(arguments)
    except OptionError as error:
        raise OptionError(f"{file}: {error}") from None
    return arguments


def mapping_arguments(content: object, parser: ArgumentParser) -> list[str]:
    """The arguments that a mapping of option names to values stands for; raises `OptionError`, which names the key."""
    if not isinstance(content, dict):
        raise OptionError(f"expected a mapping such as 'iterations: 20', found {_described(content)}")
    arguments: list[str] = []
    for key, value in content.items():
        name = key.replace("_", "-")
        action = parser.find(f"--{name}")
        if name in _COMMAND_LINE_ONLY:
            raise OptionError(f"{key} belongs on the command line, not into a configuration file")
        if action is None:
            raise OptionError(parser.explain_unknown(f"--{name}").replace("option --", "key ").replace("--", ""))
        arguments += _option(name, action, value, parser)
    return arguments


def _option(name: str, action: argparse.Action, value: object, parser: ArgumentParser) -> list[str]:
    """One option with its value; null stands for the default."""
    flag, repeated = action.nargs == 0, isinstance(action, argparse._AppendAction)
    match value:
        case None:
            return []
        case True if flag:
            return [f"--{name}"]
        case False if parser.find(f"--no-{name}"):
            return [f"--no-{name}"]
        case list() if repeated:
            return [argument for item in value for argument in _option(name, action, item, parser)]
        case dict() if repeated:
            return [f"--{name}={key}={_text(name, item)}" for key, item in value.items()]
    if flag:
        raise OptionError(f"{name}: expected true or false, found {_described(value)}")
    return [f"--{name}={_text(name, value)}"]


def _text(name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise OptionError(f"{name}: expected a number or a text, found {_described(value)}")
    return str(value)


def _described(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case list():
            return "a list"
        case dict():
            return "a mapping"
        case _:
            return repr(value)
