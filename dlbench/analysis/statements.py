"""Factors that are said once instead of in every row of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dlbench.analysis.campaign import KEY
from dlbench.analysis.columns import column, plain

_NOTHING: dict[str, object] = {"pp": 1, "tp": 1, "ep": 1, "sharding": 1, "buckets": 0, "units": 0, "persistent": False}
"""Values by which a factor says that a configuration lacks the thing."""
_CAUSES = ("strategy", "system", "model")
"""Factors that others follow from: degrees from the strategy, the GPU from the system."""


@dataclass(frozen=True, slots=True)
class Statement:
    """Factors that have one value in all rows, or in all rows of one system, strategy or model."""

    where: str
    """E.g. `in all rows` or `strategy fsdp`."""
    factors: tuple[str, ...]
    values: tuple[tuple[str, str], ...]
    """Heading and value, those aside that say that there is nothing to say."""

    def __str__(self) -> str:
        return f"{self.where}: {', '.join(map(' '.join, self.values))}"


def state(frame: pd.DataFrame, factors: Sequence[str], everywhere: str = "in all rows") -> Iterator[Statement]:
    """What can be said of factors once instead of in every row; the others need a column.

    The factors of `KEY` are stated only where they are equal in all rows.
    """
    if frame.empty:
        return
    equal = tuple(name for name in factors if _single(frame[name]))
    if equal:
        yield _statement(everywhere, frame, equal)
    left = [name for name in factors if name not in (*equal, *KEY)]
    for cause in _CAUSES:
        following = tuple(name for name in left if cause not in equal and _follows(frame, name, cause))
        left = [name for name in left if name not in following]
        groups = frame.groupby(cause, dropna=False) if following else ()
        for value, rows in groups:
            yield _statement(f"{column(cause).heading} {plain(value)}", rows, following)


def _statement(where: str, frame: pd.DataFrame, factors: tuple[str, ...]) -> Statement:
    values = {name: frame[name].iloc[0] for name in factors}
    said = {name: value for name, value in values.items() if value != _NOTHING.get(name, "")}
    return Statement(where, factors, tuple((column(name).heading, plain(value)) for name, value in said.items()))


def _single(values: pd.Series[Any]) -> bool:
    return values.nunique(dropna=False) == 1


def _follows(frame: pd.DataFrame, factor: str, cause: str) -> bool:
    """Whether the factor has one value for each of the cause."""
    return cause in frame and bool((frame.groupby(cause, dropna=False)[factor].nunique(dropna=False) == 1).all())
