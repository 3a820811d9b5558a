"""The `dlbench` command: the application, and what happens to its errors."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated, Any

import typer

from dlbench import __version__
from dlbench.arguments import ArgumentParser
from dlbench.cli import (
    analyze,
    bandwidth,
    calibrate,
    cancel,
    compare,
    describe,
    doctor,
    extremes,
    plan,
    plot,
    pool,
    preflight,
    report,
    run,
    specs,
    status,
    submit,
    tax,
    timeline,
    topology,
    validate,
)
from dlbench.cli.main import INTERRUPTED
from dlbench.errors import DlbenchError
from dlbench.runtime.streams import say

HELP = "How distributed AI training behaves on real machines: alone, at scale and beside other jobs."
EPILOG = """examples:
  dlbench doctor                                                  what this machine has for runs
  dlbench run dp -n 2 --scale 0.01                                one run on two cores
  dlbench report results/ -o report.html                          what it measured
  dlbench submit --system leonardo --pattern tier --dry-run       jobs side by side: scripts for a cluster

'dlbench COMMAND --help' has the options and examples of each."""
USAGE_ERROR = 2
CLOSED_PIPE = 141
"""As of a program that SIGPIPE ends; 1 would pass for a failed run, or for a slower configuration."""

UsageError: Any = typer.BadParameter.__mro__[1]
"""Base of the errors of typer's parser, which has moved between packages."""


def run_command_line() -> int:
    """Exit code of the command that this process was started with."""
    return _outcome(lambda: app(prog_name="dlbench", standalone_mode=False))


def _outcome(command: Callable[[], object]) -> int:
    """Exit code of the command; its error, if it is one that we expect, is one line on stderr."""
    try:
        code = _code(command)
        print(end="", flush=True)
    except DlbenchError as error:
        return _fail(str(error), error.exit_code)
    except UsageError as error:
        return _fail(f"{error.format_message().rstrip('.')}; see 'dlbench --help'", USAGE_ERROR)
    except typer.Abort:
        return INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return CLOSED_PIPE
    except OSError as error:
        _discard_output()
        what = error.filename or "the output cannot be written"
        return _fail(f"{what}: {error.strerror or error}", USAGE_ERROR)
    return code if isinstance(code, int) else 0


def _code(command: Callable[[], object]) -> object:
    try:
        return command()
    except SystemExit as leave:  # argparse, having printed help; typer, where nobody reads any more
        if isinstance(leave.__context__, BrokenPipeError):
            raise leave.__context__ from None
        return leave.code


def _fail(message: str, exit_code: int) -> int:
    say(message)
    return exit_code


def _discard_output() -> None:
    """Leave nothing in the buffer of stdout that Python could fail to write once more when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _version(asked: bool) -> None:
    if asked:
        print(f"dlbench {__version__}")
        raise typer.Exit


def _help(asked: bool) -> None:
    if asked:
        _overview().print_help()
        raise typer.Exit


def _overview() -> ArgumentParser:
    """All commands, in the manner in which each of them prints its own help."""
    parser = ArgumentParser(prog="dlbench", usage="dlbench COMMAND [options]", description=HELP, epilog=EPILOG)
    parser.add_argument("--version", action="store_true", help="print the version and leave")
    commands = parser.add_argument_group("commands")
    for command in app.registered_commands:
        commands.add_argument(command.name or "", help=command.help)
    return parser


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True, add_help_option=False)
def _application(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
    help_: Annotated[bool, typer.Option("--help", "-h", callback=_help, is_eager=True)] = False,
) -> None:
    if context.invoked_subcommand is None:
        _help(True)


for group in (
    describe,
    run,
    plan,
    submit,
    status,
    cancel,
    pool,
    preflight,
    calibrate,
    doctor,
    specs,
    topology,
    validate,
    analyze,
    compare,
    plot,
    report,
    tax,
    extremes,
    bandwidth,
    timeline,
):
    group.register(app)
