"""Configurations and their samples: which iterations are pooled, and in which order.

Runs are pooled only where all their factors are equal. Within a configuration, runs stand in the order of their
`run_id` and iterations in that of their index, so a number depends neither on the order in which files were found nor
on what else was read.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dlbench.analysis.campaign import FACTORS, RUNS, Schema
from dlbench.analysis.columns import column, plain
from dlbench.statistics import median_interval

FACTOR_TYPES: Schema = {name: RUNS[name] for name in FACTORS}
"""Types of the columns with which every table begins."""


_ROUNDING = 1e-12


class Estimate(NamedTuple):
    """A number and its 95 % confidence interval, NaN where there is none."""

    value: float
    low: float = np.nan
    high: float = np.nan

    def map(self, function: Callable[[float], float]) -> Estimate:
        """The estimate of an increasing function of the number."""
        return Estimate(*map(function, self))

    @property
    def one_sided(self) -> bool:
        """Whether the interval ends at the number; where number and ends are the same up to rounding, it does not."""
        return self.value in self[1:] and self.high - self.low > _ROUNDING

    def columns(self, name: str) -> dict[str, float]:
        """As three columns of a table."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


def one_sided(estimates: Mapping[str, Estimate]) -> str:
    """What to know of the bootstrap intervals that were widened to reach their estimates; empty where none was."""
    names = [name for name, estimate in estimates.items() if estimate.one_sided]
    if not names:
        return ""
    ends = f"interval of {names[0]} ends" if len(names) == 1 else f"intervals of {', '.join(names)} end"
    return f"{ends} at the estimate: nearly all resamples lie on one side of it"


def estimate_types(*names: str) -> Schema:
    """Types of the columns of estimates."""
    return {column: np.float64 for name in names for column in Estimate(0.0).columns(name)}


@dataclass(frozen=True, slots=True)
class Samples:
    """One number per iteration, run by run."""

    values: NDArray[np.float64]
    lengths: tuple[int, ...]
    """Iterations of each run; they add up to the number of values."""


def median(samples: Samples) -> Estimate:
    """Median over all iterations of all runs and its order-statistics interval (`dlbench.statistics`); NaN of none."""
    if not len(samples.values):
        return Estimate(np.nan)
    interval = median_interval(samples.values)
    ends = (interval.low, interval.high) if interval else ()
    return Estimate(float(np.median(samples.values)), *ends)


@dataclass(frozen=True)
class Configuration:
    """Runs that are equal in the factors, and some of their iterations."""

    number: int
    """Position in the order of the factors, among the configurations of the same runs."""
    factors: dict[str, Any]
    frame: Mapping[str, NDArray[Any]]
    """Columns over the iterations, run by run; `run` is one of them."""

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Iterations of each run that has any."""
        run = self.frame["run"]
        starts = np.flatnonzero(np.r_[True, run[1:] != run[:-1]]) if len(run) else np.array([], dtype=np.int64)
        return tuple(np.diff(np.r_[starts, len(run)]).tolist())

    @property
    def runs(self) -> NDArray[Any]:
        """Number of each run that has any iteration."""
        return np.asarray(self.frame["run"][np.cumsum((0, *self.lengths))[:-1]])

    def samples(self, column: str) -> Samples:
        """The values of a column."""
        return Samples(self.frame[column], self.lengths)

    def where(self, kept: NDArray[np.bool_]) -> Configuration:
        """The iterations for which `kept` is true."""
        return Configuration(self.number, self.factors, {name: values[kept] for name, values in self.frame.items()})

    def counts(self) -> dict[str, int]:
        """How many runs and iterations there are, as columns of a table."""
        return {"runs": len(self.lengths), "iterations": sum(self.lengths)}

    def key(self, names: Iterable[str]) -> tuple[Hashable, ...]:
        """Values of some factors."""
        return tuple(self.factors[name] for name in names)


def measured(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of the iterations that count: warm-ups never do."""
    found: pd.DataFrame = frame[~frame["warmup"]]
    return found


def configurations(runs: pd.DataFrame, frame: pd.DataFrame, by: Sequence[str] = FACTORS) -> list[Configuration]:
    """Configurations of `runs` by the columns `by`, in the order of these, with their rows of `frame`.

    `frame` has the columns `run` and `iteration`, at most one row per pair, and others that are kept; rows of other
    runs are left out, and configurations without rows.
    """
    if runs.empty or frame.empty:
        return []
    ordered = runs.sort_values([*by, "run_id"])
    grouped = ordered.groupby(list(by), dropna=False, sort=False)
    place = np.full(max(ordered.index.max(), frame["run"].max()) + 1, -1)
    place[ordered.index] = np.arange(len(ordered))
    places = place[frame["run"]]
    order = np.lexsort((frame["iteration"], places))
    rows = order[np.count_nonzero(places < 0) :]
    numbers = grouped.ngroup().to_numpy()
    bounds = np.searchsorted(numbers[places[rows]], np.arange(grouped.ngroups + 1))
    columns = {str(name): values.to_numpy()[rows] for name, values in frame.items()}
    firsts = ordered[list(by)].iloc[np.searchsorted(numbers, np.arange(grouped.ngroups))].to_dict("records")
    return [
        Configuration(
            number,
            {str(name): value for name, value in factors.items()},
            {name: values[low:high] for name, values in columns.items()},
        )
        for number, (factors, low, high) in enumerate(zip(firsts, bounds[:-1], bounds[1:], strict=True))
        if low < high
    ]


def table(rows: Sequence[Mapping[str, Any]], types: Schema) -> pd.DataFrame:
    """The rows as a frame with exactly these columns, also where there are no rows."""
    return pd.DataFrame(rows, columns=list(types)).astype(types)


def nearest(wanted: Mapping[str, Any], others: Iterable[Mapping[str, Any]], names: Sequence[str]) -> str:
    """In what those of `others` that are most like the wanted configuration differ from it, in the words of tables.

    E.g. `dtype fp16 or fp32 instead of bf16`; several factors have commas between them. "" where there are no others.
    """
    differing: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for other in others:
        differing.setdefault(tuple(name for name in names if other[name] != wanted[name]), []).append(other)
    if not differing:
        return ""
    factors = min(differing, key=len)
    return ", ".join(
        f"{column(name).heading} {' or '.join(sorted({said(other[name]) for other in differing[factors]}))}"
        f" instead of {said(wanted[name])}"
        for name in factors
    )


def said(value: object) -> str:
    """A factor's value in a sentence, where the dash of a table would be taken for a hyphen: `none`."""
    return "none" if value == "" else plain(value)
