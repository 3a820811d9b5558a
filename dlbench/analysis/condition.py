"""Conditions over the columns of the runs, as `--where` takes them, e.g. `gpus >= 64 and placement == 'inter-group'`.

pandas evaluates them, but would also call any method of a column, some of which write files. So an expression is first
held to be made of columns, values, comparisons, arithmetic, `and`, `or`, `not`, and a few methods of texts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches

import pandas as pd

from dlbench.errors import OptionError, one_line

TEXT_METHODS = ("contains", "startswith", "endswith", "match", "fullmatch", "len", "lower", "upper")
"""Methods of `COLUMN.str` that a condition may call."""

_PARTS = (
    *(ast.Expression, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.boolop, ast.unaryop, ast.cmpop),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.BitOr),
    *(ast.Name, ast.Load, ast.Constant, ast.List, ast.Tuple),
)
_ALLOWED = f"use columns, values, comparisons, + - * / // %, and, or, not, and .str.{' .str.'.join(TEXT_METHODS)}"
_BACKTICKS = re.compile("`([^`]*)`")
"""What pandas takes for a column whose name is no identifier."""
_LONGEST = 100
"""Characters of an expression that an error repeats."""
_LONGEST_NAME = 40


def matching(runs: pd.DataFrame, where: str) -> pd.Series[bool]:
    """Whether the condition holds, for each of the runs. Raises `OptionError` for an expression that is none."""
    shown = f"where {_shortened(where, _LONGEST)!r}"
    try:
        tree = ast.parse(_BACKTICKS.sub("run", where).strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _no_condition(shown, error.msg if isinstance(error, SyntaxError) else str(error)) from None
    parts = list(_parts(tree))
    if not all(isinstance(part, _PARTS) for part in parts):
        raise OptionError(f"{shown} has parts that no condition may have; {_ALLOWED}")
    columns = [*map(str, runs.columns)]
    names = [*(part.id for part in parts if isinstance(part, ast.Name)), *_BACKTICKS.findall(where)]
    for name in names:
        if name not in {"run", *columns}:
            raise OptionError(f"{shown}: {_no_column(name, columns)}")
    try:
        kept = runs.eval(where, local_dict={}, global_dict={})
    except Exception as error:  # evaluation raises whatever the operands do
        raise _no_condition(shown, str(error) or type(error).__name__) from None
    if not isinstance(kept, pd.Series) or kept.dtype != bool:
        raise _no_condition(shown, "it is neither true nor false for a run")
    return kept


def _parts(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes of the tree; of a call that is allowed, those of its column and arguments."""
    waiting = [tree]
    while waiting:
        match waiting.pop():
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(value=ast.Name() as column, attr="str"), attr=method),
                args=arguments,
                keywords=keywords,
            ) if method in TEXT_METHODS:
                waiting += [column, *arguments, *(keyword.value for keyword in keywords)]
            case part:
                yield part
                waiting += ast.iter_child_nodes(part)


def _no_condition(shown: str, why: str) -> OptionError:
    return OptionError(f"{shown} is no condition: {one_line(_shortened(why, _LONGEST))}; e.g. gpus >= 64")


def _no_column(name: str, columns: Sequence[str]) -> str:
    """What is wrong with a name that is no column, and what would be right."""
    name = _shortened(name, _LONGEST_NAME)
    close = get_close_matches(name, columns, n=1)
    hint = f"did you mean {close[0]}?" if close else f"text stands in quotes: '{name}';"
    there = ", ".join(_shortened(column, _LONGEST_NAME) for column in columns)
    return f"there is no column {name}; {hint} the columns are {there}"


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}…"
