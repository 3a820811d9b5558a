"""Slowdown by other jobs: runs of an experiment against the same configuration alone.

σ as defined by Raffi et al. (SC26): geometric-mean throughput of the baseline ÷ throughput beside the other jobs;
(σ − 1) × 100 is the congestion impact in percent. The σ of a configuration is a ratio of geometric means, not a mean of
ratios, and stands beside the absolute times (Hoefler and Belli, SC15, rules 3 and 4).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dlbench.analysis.bootstrap import ratio
from dlbench.analysis.campaign import FACTORS, Campaign, Schema
from dlbench.analysis.overlap import MIN_OVERLAP, concurrent_iterations
from dlbench.analysis.samples import (
    FACTOR_TYPES,
    Configuration,
    configurations,
    estimate_types,
    measured,
    median,
    nearest,
    said,
    table,
)
from dlbench.statistics import geometric_mean

COMPARABLE = tuple(name for name in FACTORS if name != "mode")
"""What a baseline has in common with a run beside other jobs."""

SLOWDOWN: Schema = {
    **FACTOR_TYPES,
    **dict.fromkeys(("runs", "iterations", "left_out"), np.int64),
    **dict.fromkeys(("overlap", "all_running"), np.float64),
    **dict.fromkeys(("baseline_runs", "baseline_iterations"), np.int64),
    "baseline_mode": str,
    **estimate_types("isolated_seconds", "concurrent_seconds", "sigma", "impact"),
    "reason": str,
}
"""Columns of `Slowdown.table`."""

ITERATIONS: Schema = {
    **dict.fromkeys(("run", "iteration"), np.int32),
    **FACTOR_TYPES,
    **dict.fromkeys(("sigma", "overlap", "all_running"), np.float64),
    "counted": bool,
}
"""Columns of `Slowdown.iterations`."""

_WORKLOAD = ("strategy", "model", "system")


@dataclass(frozen=True, slots=True)
class Slowdown:
    """How much slower jobs are beside others."""

    table: pd.DataFrame
    """One row per configuration, columns `SLOWDOWN`."""
    iterations: pd.DataFrame
    """One row per measured iteration, columns `ITERATIONS`; `sigma` is NaN without a baseline."""


def slowdown(campaign: Campaign, *, seed: int, min_overlap: float = MIN_OVERLAP) -> Slowdown:
    """Slowdown of every configuration that ran beside other jobs; empty where none did.

    - `iterations` that count, of `runs`: measured, and with an overlap of at least `min_overlap`; `left_out`: those
      with less.
    - `overlap`, `all_running`: means over all measured iterations, see `dlbench.analysis.overlap`.
    - `sigma`: geometric mean of the baseline's throughput ÷ that of the iterations that count; `impact` in percent.
    - `baseline_runs`, `baseline_iterations`, `baseline_mode`: runs that had no jobs beside them and are equal in all
      factors. Those of the same mode serve; where there are none, those of all other modes.
    - `isolated_seconds`, `concurrent_seconds`: median time of an iteration of the baseline, and of those that count.
    - `reason`: why there is no `sigma`.

    Raises `OptionError` for a `min_overlap` outside 0 … 1.
    """
    beside = concurrent_iterations(campaign, min_overlap)
    baselines = _Baselines(campaign)
    pairs = [_Pair(found, baselines.find(found.factors)) for found in configurations(campaign.runs, beside)]
    rows = [pair.row(seed) for pair in pairs]
    for pair, row in zip(pairs, rows, strict=True):
        if np.isnan(row["sigma"]):
            row["reason"] = "; ".join(_reasons(pair, baselines, campaign.runs, min_overlap))
    return Slowdown(table(rows, SLOWDOWN), _iterations(pairs, campaign.runs))


class _Baseline(NamedTuple):
    configuration: Configuration
    mode: str
    """Its modes, joined by a comma; none for runs that name none."""


class _Baselines:
    """Configurations of the runs that had no other jobs beside them."""

    def __init__(self, campaign: Campaign) -> None:
        alone = campaign.runs[~campaign.runs["concurrent"]]
        iterations = measured(campaign.iterations)[["run", "iteration", "seconds", "throughput"]]
        self._modes = alone["mode"]
        self._of_mode = {found.key(FACTORS): found for found in configurations(alone, iterations)}
        self._of_any_mode = {found.key(COMPARABLE): found for found in configurations(alone, iterations, COMPARABLE)}

    def find(self, factors: Mapping[str, Any]) -> _Baseline | None:
        """The baseline of a configuration, None where no run is comparable."""
        same = self._of_mode.get(tuple(factors[name] for name in FACTORS))
        found = same or self._of_any_mode.get(tuple(factors[name] for name in COMPARABLE))
        if found is None:
            return None
        modes = {mode or "none" for mode in self._modes.loc[found.runs]}
        return _Baseline(found, ", ".join(sorted(modes)))

    def why_none(self, factors: Mapping[str, Any]) -> str:
        """In what the runs that come nearest differ."""
        others = [found.factors for found in self._of_any_mode.values()]
        alike = [other for other in others if all(other[name] == factors[name] for name in _WORKLOAD)]
        if not alike:
            workload = ", ".join(f"{name} {said(factors[name])}" for name in _WORKLOAD)
            return f"no baseline: no run of {workload} was alone"
        return f"no baseline: the nearest runs alone have {nearest(factors, alike, COMPARABLE)}"


class _Pair(NamedTuple):
    """A configuration beside other jobs, with all its measured iterations, and the same alone."""

    beside: Configuration
    baseline: _Baseline | None

    def row(self, seed: int) -> dict[str, Any]:
        """Its row in the table, without a reason."""
        counted = self.beside.where(self.beside.frame["counted"])
        counts = counted.counts()
        alone = self.baseline.configuration if self.baseline else self._nothing()
        sigma = ratio(alone.samples("throughput"), counted.samples("throughput"), seed)
        return {
            **self.beside.factors,
            **counts,
            "left_out": len(self.beside.frame["run"]) - counts["iterations"],
            **{name: self.beside.frame[name].mean() for name in ("overlap", "all_running")},
            **{f"baseline_{name}": count for name, count in alone.counts().items()},
            "baseline_mode": self.baseline.mode if self.baseline else "",
            **median(alone.samples("seconds")).columns("isolated_seconds"),
            **median(counted.samples("seconds")).columns("concurrent_seconds"),
            **sigma.columns("sigma"),
            **sigma.map(lambda value: (value - 1) * 100).columns("impact"),
            "reason": "",
        }

    def _nothing(self) -> Configuration:
        return self.beside.where(np.zeros(len(self.beside.frame["run"]), dtype=bool))

    def sigmas(self) -> NDArray[np.float64]:
        """Slowdown of each iteration, NaN without a baseline."""
        throughput = self.beside.frame["throughput"]
        alone = geometric_mean(self.baseline.configuration.frame["throughput"]) if self.baseline else np.nan
        return np.asarray(alone / throughput)


def _reasons(pair: _Pair, baselines: _Baselines, runs: pd.DataFrame, min_overlap: float) -> Iterator[str]:
    """Why a configuration has no σ."""
    if pair.baseline is None:
        yield baselines.why_none(pair.beside.factors)
    frame = pair.beside.frame
    if frame["counted"].any():
        return
    for name in ("experiment", "job"):
        if (runs.loc[pair.beside.runs, name] == "").all():
            yield f"the runs name no {name}, so what ran beside them is not known"
            return
    wanted, highest = 100 * min_overlap, 100 * frame["overlap"].max()
    yield f"no iteration had {wanted:g} % of the other jobs beside it; the highest overlap is {highest:.1f} %"
    worst = frame["unseen"].argmax()
    if frame["unseen"][worst]:
        yield f"{frame['unseen'][worst]} of {frame['others'][worst]} other jobs left no iteration in any record"


def _iterations(pairs: Sequence[_Pair], runs: pd.DataFrame) -> pd.DataFrame:
    """The iterations of all pairs, with their factors."""
    if not pairs:
        return table([], ITERATIONS)
    frames = [pd.DataFrame({**pair.beside.frame, "sigma": pair.sigmas()}) for pair in pairs]
    joined = pd.concat(frames, ignore_index=True).join(runs[list(FACTORS)], on="run")
    return joined[list(ITERATIONS)].astype(ITERATIONS)
