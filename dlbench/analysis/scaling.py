"""How throughput grows with the GPUs, in runs without other jobs beside them.

Parallel efficiency as defined by Raffi et al. (SC26): throughput per GPU ÷ the same at the smallest count. Of geometric
means, and with the interval of their ratio, as Hoefler and Belli (SC15) ask for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from dlbench.analysis.bootstrap import geometric_mean, ratio
from dlbench.analysis.campaign import FACTORS, Campaign, Schema
from dlbench.analysis.samples import (
    FACTOR_TYPES,
    Configuration,
    Estimate,
    configurations,
    estimate_types,
    measured,
    table,
)

SERIES = tuple(name for name in FACTORS if name != "gpus")
"""What the points of a series have in common: every factor but the number of GPUs, the parallel degrees included."""

SCALING: Schema = {
    **FACTOR_TYPES,
    **dict.fromkeys(("runs", "iterations", "smallest"), np.int64),
    **estimate_types("throughput", "per_gpu", "efficiency", "loss_per_doubling"),
}
"""Columns of `scaling`."""


def scaling(campaign: Campaign, *, seed: int) -> pd.DataFrame:
    """One row per configuration of runs that had no other jobs beside them, series by series, columns `SCALING`.

    - `throughput`: geometric mean, samples per second; `per_gpu`: the same ÷ GPUs.
    - `smallest`: the smallest number of GPUs in the series.
    - `efficiency`: `per_gpu` ÷ that at `smallest`, where it is 1 without an interval.
    - `loss_per_doubling`: share of `per_gpu` that each doubling since the next smaller number of GPUs cost,
      1 − (ratio of `per_gpu`)^(1 / log2 (ratio of GPUs)); NaN at `smallest`.
    """
    alone = campaign.runs[~campaign.runs["concurrent"]]
    points = configurations(alone, measured(campaign.iterations), (*SERIES, "gpus"))
    series = (list(members) for _, members in groupby(points, key=lambda point: point.key(SERIES)))
    return table([row for members in series for row in _rows(members, seed)], SCALING)


def _rows(series: Sequence[Configuration], seed: int) -> Iterator[dict[str, Any]]:
    """Rows of a series, from the smallest number of GPUs to the largest."""
    smallest = series[0]
    for previous, point in zip((smallest, *series), series, strict=False):
        gpus = point.factors["gpus"]
        throughput = geometric_mean(point.samples("throughput"), seed)
        first = point is smallest
        yield {
            **point.factors,
            **point.counts(),
            "smallest": smallest.factors["gpus"],
            **throughput.columns("throughput"),
            **throughput.map(lambda value, gpus=gpus: value / gpus).columns("per_gpu"),  # type: ignore[misc]
            **(Estimate(1.0) if first else _efficiency(point, smallest, seed)).columns("efficiency"),
            **(Estimate(math.nan) if first else _loss(point, previous, seed)).columns("loss_per_doubling"),
        }


def _efficiency(point: Configuration, reference: Configuration, seed: int) -> Estimate:
    growth = point.factors["gpus"] / reference.factors["gpus"]
    return ratio(point.samples("throughput"), reference.samples("throughput"), seed).map(lambda value: value / growth)


def _loss(point: Configuration, previous: Configuration, seed: int) -> Estimate:
    doublings = math.log2(point.factors["gpus"] / previous.factors["gpus"])
    kept = _efficiency(point, previous, seed).map(lambda value: value ** (1 / doublings))
    return Estimate(1 - kept.value, 1 - kept.high, 1 - kept.low)
