"""Two sets of runs against each other: which configurations became slower.

The verdict follows from the interval of the ratio of geometric-mean times, not from the ratio: what the samples cannot
tell stays ambiguous.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dlbench.analysis.bootstrap import geometric_mean, ratio
from dlbench.analysis.campaign import FACTORS, Campaign, Schema
from dlbench.analysis.overlap import MIN_OVERLAP, concurrent_iterations
from dlbench.analysis.samples import (
    FACTOR_TYPES,
    Configuration,
    Estimate,
    Samples,
    configurations,
    estimate_types,
    measured,
    nearest,
    table,
)
from dlbench.errors import OptionError
from dlbench.statistics import FEWEST_SAMPLES

SAME, FASTER, SLOWER, AMBIGUOUS = VERDICTS = ("SAME", "FASTER", "SLOWER", "AMBIGUOUS")

COMPARED = (*(name for name in FACTORS if name != "library"), "concurrent", "experiment")
"""What a configuration has in common in both sets: the library may have changed. The experiment is that of runs beside
other jobs, "" for all others: only the same neighbours are comparable."""

_COMPARED_TYPES: Schema = {
    **{name: dtype for name, dtype in FACTOR_TYPES.items() if name in COMPARED},
    "concurrent": bool,
    "experiment": str,
}


def _side_types(suffix: str) -> Schema:
    counts = dict.fromkeys((f"{name}{suffix}" for name in ("runs", "iterations", "left_out")), np.int64)
    return {f"library{suffix}": str, **counts, **estimate_types(f"seconds{suffix}")}


COMPARISON: Schema = {
    **_COMPARED_TYPES,
    **_side_types("_a"),
    **_side_types("_b"),
    **estimate_types("ratio"),
    **dict.fromkeys(("verdict", "reason"), str),
}
"""Columns of `Comparison.table`."""

UNMATCHED: Schema = {**_COMPARED_TYPES, **_side_types(""), "reason": str}
"""Columns of `Comparison.only_a` and `only_b`."""


_MOST_DIFFERENCES = 2
"""Factors: runs that differ in more of them are another experiment."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """B against A."""

    table: pd.DataFrame
    """One row per configuration in both, columns `COMPARISON`."""
    only_a: pd.DataFrame
    """Configurations that B lacks, columns `UNMATCHED`."""
    only_b: pd.DataFrame
    """Configurations that A lacks."""

    @property
    def slower(self) -> int:
        """Number of configurations that are slower in B."""
        return int((self.table["verdict"] == SLOWER).sum())


def compare(
    a: Campaign, b: Campaign, *, threshold: float = 0.02, seed: int, min_overlap: float = MIN_OVERLAP
) -> Comparison:
    """Compare the times of B with those of A, configuration by configuration.

    - `seconds_a`, `seconds_b`: geometric mean of the time of an iteration; `ratio`: B ÷ A.
    - `verdict`: SAME, its interval lies within 1 / (1 + threshold) … 1 + threshold; SLOWER, above that; FASTER, below;
      else AMBIGUOUS, also where there is no interval, and `reason` says why.
    - `library_a`, `library_b`: of the communication library; several are joined by `|`.

    Of runs beside other jobs, only the iterations count that at least `min_overlap` of them overlapped; `left_out_a`
    and `left_out_b` count the others. Raises `OptionError` for a threshold that is negative or not finite.
    """
    if not (math.isfinite(threshold) and threshold >= 0):
        raise OptionError(f"threshold {threshold:g} is impossible; use a share of the time of 0 or more, e.g. 0.02")
    in_a, in_b = (_sides(campaign, min_overlap) for campaign in (a, b))
    rows = [
        {**side.factors, **side.columns(seed, "_a"), **in_b[key].columns(seed, "_b")}
        | _verdict(side, in_b[key], threshold, seed)
        for key, side in in_a.items()
        if key in in_b
    ]
    return Comparison(
        table(rows, COMPARISON),
        _unmatched([side for key, side in in_a.items() if key not in in_b], in_b.values(), "B", seed),
        _unmatched([side for key, side in in_b.items() if key not in in_a], in_a.values(), "A", seed),
    )


class _Side(NamedTuple):
    """A configuration in one of the sets."""

    factors: dict[str, Any]
    counted: Configuration
    left_out: int

    @property
    def seconds(self) -> Samples:
        return self.counted.samples("seconds")

    def columns(self, seed: int, suffix: str = "") -> dict[str, Any]:
        """What a table says of it."""
        columns = {
            "library": " | ".join(sorted(set(self.counted.frame["library"]))),
            **self.counted.counts(),
            "left_out": self.left_out,
        }
        seconds = geometric_mean(self.seconds, seed).columns(f"seconds{suffix}")
        return {f"{name}{suffix}": value for name, value in columns.items()} | seconds


def _sides(campaign: Campaign, min_overlap: float) -> dict[tuple[Any, ...], _Side]:
    """Configurations of a set by their factors."""
    runs = campaign.runs.assign(experiment=campaign.runs["experiment"].where(campaign.runs["concurrent"], ""))
    iterations = measured(campaign.iterations)
    alone = iterations[~iterations["run"].map(runs["concurrent"]).astype(bool)].assign(counted=True)
    columns = ["run", "iteration", "seconds", "counted"]
    both = pd.concat([alone[columns], concurrent_iterations(campaign, min_overlap)[columns]])
    found = configurations(runs, both.assign(library=both["run"].map(runs["library"])), COMPARED)
    return {configuration.key(COMPARED): _side(configuration) for configuration in found}


def _side(configuration: Configuration) -> _Side:
    counted = configuration.frame["counted"].astype(bool)
    return _Side(configuration.factors, configuration.where(counted), int(np.count_nonzero(~counted)))


def _verdict(a: _Side, b: _Side, threshold: float, seed: int) -> dict[str, Any]:
    found = ratio(b.seconds, a.seconds, seed)
    verdict = classify(found, threshold)
    reason = _ambiguity(a, b, found, threshold) if verdict == AMBIGUOUS else ""
    return {**found.columns("ratio"), "verdict": verdict, "reason": reason}


def classify(ratio: Estimate, threshold: float) -> str:
    """Verdict on a ratio of times by its interval."""
    if ratio.low > 1 + threshold:
        return SLOWER
    if ratio.high < 1 / (1 + threshold):
        return FASTER
    if ratio.low >= 1 / (1 + threshold) and ratio.high <= 1 + threshold:
        return SAME
    return AMBIGUOUS


def _ambiguity(a: _Side, b: _Side, found: Estimate, threshold: float) -> str:
    """Why there is no verdict."""
    if math.isnan(found.low):
        few = [
            _shortage(name, side) for name, side in (("A", a), ("B", b)) if len(side.seconds.values) < FEWEST_SAMPLES
        ]
        return f"no interval below {FEWEST_SAMPLES} iterations: {', '.join(few)}"
    ends = [f"{end:.4g}" for end in (1 / (1 + threshold), 1 + threshold) if found.low <= end <= found.high]
    return f"the interval contains {' and '.join(ends)}: more runs would narrow it"


def _shortage(name: str, side: _Side) -> str:
    left_out = f" and {side.left_out} without the other jobs beside them" if side.left_out else ""
    return f"{name} has {len(side.seconds.values)}{left_out}"


def _unmatched(lonely: Sequence[_Side], others: Iterable[_Side], name: str, seed: int) -> pd.DataFrame:
    """Rows of configurations that the other set, of this name, lacks."""
    factors = [other.factors for other in others]
    rows = []
    for side in lonely:
        reason = _nearest(side.factors, factors, name) if factors else f"{name} has no run"
        rows.append({**side.factors, **side.columns(seed), "reason": reason})
    return table(rows, UNMATCHED)


def _nearest(wanted: dict[str, Any], others: Sequence[dict[str, Any]], name: str) -> str:
    """In what the nearest runs of the other set differ, "" where that is more than a reader would call near."""
    differences = min(sum(other[factor] != wanted[factor] for factor in COMPARED) for other in others)
    if differences > _MOST_DIFFERENCES:
        return ""
    return f"the nearest runs in {name} have {nearest(wanted, others, COMPARED)}"
