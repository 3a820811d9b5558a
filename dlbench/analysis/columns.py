"""How the columns of the analysis are shown: heading, unit, and how a value is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from dlbench.errors import one_line
from dlbench.quantities import si, significant

ABSENT = "-"
_LONGEST_NAME = 48
"""Characters of the name of a buffer or kernel: those of C++ have no end."""


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


def _known(value: int) -> str:
    return ABSENT if value < 0 else str(value)


def _size(value: int) -> str:
    return ABSENT if value < 0 else si(value, "B")


def _shortened(value: str) -> str:
    return plain(value if len(value) <= _LONGEST_NAME else f"{value[: _LONGEST_NAME - 1]}…")


def _probability(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"  # noqa: PLR2004


def _of_samples(value: float) -> str:
    """A p-value of 200 samples or more, of which the smallest, 1 / (samples + 1), only says that none was as far."""
    return "≤ 0.005" if value < 0.005 else f"{value:.3f}"  # noqa: PLR2004


_MILLISECONDS = ("ms", _scaled(1e3))
_MICROSECONDS = ("µs", _scaled(1e6))
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
    "seconds": Column("median time", *_MILLISECONDS),
    "minimum": Column("minimum", *_MILLISECONDS),
    "maximum": Column("maximum", *_MILLISECONDS),
    "ideal_seconds": Column("ideal", *_MILLISECONDS),
    "isolated_seconds": Column("median alone", *_MILLISECONDS),
    "concurrent_seconds": Column("median beside", *_MILLISECONDS),
    "baseline_mode": Column("base mode"),
    "throughput": Column("throughput", *_SAMPLES),
    "per_gpu": Column("per GPU", *_SAMPLES),
    "communication": Column("mean comm.", *_PERCENT),
    "hidden": Column("mean hidden", *_PERCENT),
    "share": Column("mean of runtime", *_PERCENT),
    "roofline": Column("of ideal", *_PERCENT),
    "efficiency": Column("efficiency", *_PERCENT),
    "loss_per_doubling": Column("loss/doubling", *_PERCENT),
    "skew": Column("median skew", "µs", _fixed(1, 1e6)),
    "energy_source": Column("energy from"),
    "joules": Column("energy", "J", number),
    "samples_per_joule": Column("efficiency", "samples/J", number),
    "watts": Column("per GPU", "W", number),
    "left_out": Column("left out"),
    "overlap": Column("overlap", *_PERCENT),
    "all_running": Column("all running", *_PERCENT),
    "baseline_runs": Column("base runs"),
    "baseline_iterations": Column("base iter."),
    "sigma": Column("σ", "", _fixed(3)),
    "impact": Column("impact", "%", _fixed(1)),
    "run_id": Column("run"),
    "concurrent_runs": Column("concurrent"),
    "sha256": Column("SHA-256"),
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
    "seconds_a": Column("geo. mean A", *_MILLISECONDS),
    "seconds_b": Column("geo. mean B", *_MILLISECONDS),
    "ratio": Column("B/A", "", _fixed(3)),
    "source": Column("group"),
    "group_size": Column("group size"),
    "block_seconds": Column("block a", *_MILLISECONDS),
    "spread_seconds": Column("spread b", *_MILLISECONDS),
    "tail_location": Column("μ", "b", _fixed(4)),
    "tail_scale": Column("σ", "b", _fixed(4)),
    "tail_shape": Column("ξ", "", _fixed(4)),
    "likelihood_location": Column("μ by ML", "b", _fixed(4)),
    "likelihood_scale": Column("σ by ML", "b", _fixed(4)),
    "likelihood_shape": Column("ξ by ML", "", _fixed(4)),
    "anderson_darling": Column("A²", "", number),
    "p_value": Column("p", "", _of_samples),
    "correlation": Column("QQ corr.", "", _fixed(4)),
    "predicted_ranks": Column("ranks"),
    "tau": Column("wait", *_MILLISECONDS),
    "likelihood_tau": Column("wait by ML", *_MILLISECONDS),
    "measured_seconds": Column("measured", *_MILLISECONDS),
    "error": Column("error", *_PERCENT),
    "collective_seconds": Column("in collectives", *_MILLISECONDS),
    "bandwidth": Column("B*", "GB/s", _scaled(1e-9)),
    "reduction": Column("lower by", "%", _fixed(2, 100)),
    "elasticity": Column("|ε|", "", number),
    "flops_factor": Column("FLOPS", "×", number),
    **{name: Column(name.replace("_", " "), *_MICROSECONDS) for name in ("tau_range", "tau_med", "tau_mean")},
    "tau_range_p95": Column("its p95", *_MICROSECONDS),
    "transfer": Column("transfer", *_MICROSECONDS),
    "exposed": Column("exposed", *_MICROSECONDS),
    "uncertainty": Column("uncertainty", "µs", _fixed(3, 1e6)),
    "share_first": Column("of first", *_PERCENT),
    "share_median": Column("of median", *_PERCENT),
    **{name: Column(name.replace("_", " "), *_MICROSECONDS) for name in ("predicted", "gap", "end_skew", "window")},
    "gap_share": Column("of tax", *_PERCENT),
    "determination": Column("R²", "", _fixed(4)),
    "determination_busy": Column("R² busy", "", _fixed(4)),
    "culprit": Column("culprit", "", _shortened),
    "culprit_class": Column("of class"),
    "culprit_number": Column("number", "", _known),
    "path_difference": Column("difference", *_MILLISECONDS),
    "path_share": Column("of tax", *_PERCENT),
    "culprit_rank": Column("rank", "", _known),
    "culprit_rank_share": Column("of times", *_PERCENT),
    "culprit_seconds": Column("blamed", *_MICROSECONDS),
    "blamed": Column("blamed", *_MILLISECONDS),
    "blamed_share": Column("of tax", *_PERCENT),
    "caused": Column("caused", *_MILLISECONDS),
    "bytes": Column("size", "", _size),
    "buffer": Column("buffer", "", _shortened),
    "straggler": Column("straggler", "rank", _known),
    "straggler_share": Column("last in", *_PERCENT),
    "straggler_p": Column("p last", "", _probability),
    "expected_stretches": Column("by chance", "", _fixed(1)),
    "stretches_p": Column("p stretches", "", _probability),
}
"""Columns whose heading is not their name, or that have a unit."""


def column(name: str) -> Column:
    """How the column of this name is shown."""
    return COLUMNS.get(name, Column(name.replace("_", " ")))
