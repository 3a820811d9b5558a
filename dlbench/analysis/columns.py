"""How the columns of the analysis are shown: heading, unit, and how a value is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dlbench.errors import one_line
from dlbench.quantities import significant

ABSENT = "-"


def number(value: float) -> str:
    """Five significant digits, as `dlbench run` prints them: 0.0051234, 12.345, 123457."""
    return significant(value, digits=5, smallest=-5)


def _scaled(factor: float) -> Callable[[float], str]:
    return lambda value: number(value * factor)


def _fixed(digits: int, factor: float = 1.0) -> Callable[[float], str]:
    return lambda value: f"{value * factor:.{digits}f}"


def plain(value: Any) -> str:
    """A factor, count or text as a cell: one line, whatever a record holds; - for the empty text."""
    if isinstance(value, str):
        return one_line(value) or ABSENT
    if pd.api.types.is_bool(value):
        return "yes" if value else "no"
    return f"{value:g}" if pd.api.types.is_float(value) else str(value)


def counted(count: int, noun: str) -> str:
    """The count and the noun, e.g. `1 run` or `6,000 runs`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Column:
    """How a column of a frame is shown."""

    heading: str
    unit: str = ""
    write: Callable[[Any], str] = plain


_MILLISECONDS = ("ms", _scaled(1e3))
_PERCENT = ("%", _fixed(1, 100))
_SAMPLES = ("samples/s", number)

COLUMNS: dict[str, Column] = {
    "gpus": Column("GPUs"),
    "local_batch": Column("batch"),
    "sequence_length": Column("sequence"),
    "time_scale": Column("time scale"),
    "gpu": Column("GPU"),
    "iterations": Column("iter."),
    "name": Column("class"),
    "seconds": Column("time", *_MILLISECONDS),
    "minimum": Column("minimum", *_MILLISECONDS),
    "maximum": Column("maximum", *_MILLISECONDS),
    "ideal_seconds": Column("ideal", *_MILLISECONDS),
    "isolated_seconds": Column("alone", *_MILLISECONDS),
    "concurrent_seconds": Column("beside", *_MILLISECONDS),
    "baseline_mode": Column("base mode"),
    "throughput": Column("throughput", *_SAMPLES),
    "per_gpu": Column("per GPU", *_SAMPLES),
    "communication": Column("comm.", *_PERCENT),
    "hidden": Column("hidden", *_PERCENT),
    "share": Column("of runtime", *_PERCENT),
    "roofline": Column("of ideal", *_PERCENT),
    "efficiency": Column("efficiency", *_PERCENT),
    "loss_per_doubling": Column("loss/doubling", *_PERCENT),
    "skew": Column("skew", "µs", _fixed(1, 1e6)),
    "left_out": Column("left out"),
    "overlap": Column("overlap", *_PERCENT),
    "all_running": Column("all running", *_PERCENT),
    "baseline_runs": Column("base runs"),
    "baseline_iterations": Column("base iter."),
    "sigma": Column("σ", "", _fixed(3)),
    "impact": Column("impact", "%", _fixed(1)),
    "run_id": Column("run"),
    "concurrent_runs": Column("concurrent"),
    "concurrent_jobs": Column("jobs"),
    "warmups": Column("warm-ups"),
    "reason_text": Column("reason"),
    "note": Column("note", "", str),
    "library_a": Column("library of A"),
    "library_b": Column("library of B"),
    "runs_a": Column("runs A"),
    "runs_b": Column("runs B"),
    "iterations_a": Column("iter. A"),
    "iterations_b": Column("iter. B"),
    "left_out_a": Column("left out A"),
    "left_out_b": Column("left out B"),
    "seconds_a": Column("time A", *_MILLISECONDS),
    "seconds_b": Column("time B", *_MILLISECONDS),
    "ratio": Column("B/A", "", _fixed(3)),
}
"""Columns whose heading is not their name, or that have a unit."""


def column(name: str) -> Column:
    """How the column of this name is shown."""
    return COLUMNS.get(name, Column(name.replace("_", " ")))
