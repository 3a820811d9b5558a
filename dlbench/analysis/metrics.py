"""What an iteration costs, and how much of it is communication, per configuration.

Definitions by Raffi et al., "Characterizing the Scalability and Performance of Large-Scale AI Training Under
Multi-Tenancy" (SC26); summaries by Hoefler and Belli, "Scientific Benchmarking of Parallel Computing Systems" (SC15):
medians with order statistics, geometric means of rates, an interval by every number.

Runs beside other jobs stand in rows of their own (`concurrent`), with all their measured iterations, whether the other
jobs were running or not; `dlbench.analysis.slowdown` tells these apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from dlbench.analysis.bootstrap import geometric_mean, mean
from dlbench.analysis.campaign import FACTORS, Campaign, Schema
from dlbench.analysis.samples import (
    FACTOR_TYPES,
    Configuration,
    Estimate,
    configurations,
    estimate_types,
    measured,
    median,
    table,
)

TOTAL = "total"
"""Name of the row of `relevance` for all communication together."""

_ROWS = (*FACTORS, "concurrent")
_COUNTED: Schema = {**FACTOR_TYPES, "concurrent": bool, "runs": np.int64, "iterations": np.int64}

SUMMARY: Schema = {
    **_COUNTED,
    **estimate_types("seconds"),
    **dict.fromkeys(("minimum", "maximum"), np.float64),
    **estimate_types("throughput", "communication", "hidden", "skew"),
    "ideal_seconds": np.float64,
    **estimate_types("roofline"),
}
"""Columns of `summary`."""

RELEVANCE: Schema = {**_COUNTED, "name": str, **estimate_types("seconds", "share")}
"""Columns of `relevance`."""


def summary(campaign: Campaign, *, seed: int) -> pd.DataFrame:
    """One row per configuration, columns `SUMMARY`.

    - `seconds`: median over iterations of the slowest rank's runtime, with `minimum` and `maximum`.
    - `throughput`: geometric mean of local batch × replicas / the slowest rank's runtime, samples per second.
    - `communication`: arithmetic mean over iterations of the maximum over ranks of sync_time / runtime.
    - `hidden`: arithmetic mean of the maximum over ranks of (overrun + issue) / runtime.
    - `skew`: median of the last rank's begin − the first's, seconds.
    - `ideal_seconds`: the roofline's iteration in which communication takes no time; NaN where the runs do not agree,
      and where they computed nothing.
    - `roofline`: `ideal_seconds` / `seconds`.
    """
    # Records of before 0 stood for none have the roofline's there, too.
    ideals = campaign.runs["ideal_seconds"].where(campaign.runs["compute"] != "none", 0.0)
    return table(
        [
            _summary(configuration, _ideal(ideals.loc[configuration.runs]), seed)
            for configuration in configurations(campaign.runs, measured(campaign.iterations), _ROWS)
        ],
        SUMMARY,
    )


def _summary(configuration: Configuration, ideal: float, seed: int) -> dict[str, Any]:
    samples = configuration.samples
    seconds = median(samples("seconds"))
    return {
        **configuration.factors,
        **configuration.counts(),
        **seconds.columns("seconds"),
        "minimum": samples("seconds").values.min(),
        "maximum": samples("seconds").values.max(),
        **geometric_mean(samples("throughput"), seed).columns("throughput"),
        **mean(samples("communication"), seed).columns("communication"),
        **mean(samples("hidden"), seed).columns("hidden"),
        **median(samples("skew")).columns("skew"),
        "ideal_seconds": ideal,
        **Estimate(ideal / seconds.value, ideal / seconds.high, ideal / seconds.low).columns("roofline"),
    }


def _ideal(seconds: pd.Series[float]) -> float:
    """The ideal time of the runs, NaN where it is unknown (0 in the record) or not the same."""
    values = seconds.unique()
    return float(values[0]) if len(values) == 1 and values[0] > 0 else np.nan


def relevance(campaign: Campaign, *, seed: int) -> pd.DataFrame:
    """One row per configuration and communication class, and one for all together, columns `RELEVANCE`.

    - `name`: operation/scope, the largest share first, then `TOTAL`.
    - `seconds`: median over iterations of the class's time on the rank that spends most in it; of `TOTAL`, of the
      largest sync_time.
    - `share`: arithmetic mean over iterations of the maximum over ranks of that time / runtime; of `TOTAL`, this is the
      communication fraction. Maxima of different ranks do not add up to it.
    """
    found = [
        (configuration, name)
        for name, frame in _communication(campaign)
        for configuration in configurations(campaign.runs, frame, _ROWS)
    ]
    found.sort(key=lambda pair: (pair[0].number, pair[1] == TOTAL, -pair[0].frame["share"].mean(), pair[1]))
    return table([_class(configuration, name, seed) for configuration, name in found], RELEVANCE)


def _communication(campaign: Campaign) -> Iterator[tuple[str, pd.DataFrame]]:
    """Name, and seconds and share per measured iteration, of each class and of the total."""
    columns = ["run", "iteration", "seconds", "share"]
    for name, frame in measured(campaign.classes).groupby("name", sort=False):
        yield str(name), frame[columns]
    pair = ["run", "iteration"]
    largest = campaign.ranks.groupby(pair, sort=False)["sync_time"].max().rename("seconds").reset_index()
    share = measured(campaign.iterations)[[*pair, "communication"]].rename(columns={"communication": "share"})
    yield TOTAL, share.merge(largest, on=pair)[columns]


def _class(configuration: Configuration, name: str, seed: int) -> dict[str, Any]:
    return {
        **configuration.factors,
        **configuration.counts(),
        "name": name,
        **median(configuration.samples("seconds")).columns("seconds"),
        **mean(configuration.samples("share"), seed).columns("share"),
    }
