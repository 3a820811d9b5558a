"""What an iteration costs in energy, per configuration, for runs whose GPUs all told it.

Means, not medians: the counters of GPUs move in steps, so single iterations are coarse, while their sum is complete.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from dlbench.analysis.bootstrap import mean, ratio_of_sums
from dlbench.analysis.campaign import FACTORS, Campaign, Schema
from dlbench.analysis.samples import FACTOR_TYPES, Estimate, configurations, estimate_types, measured, table

_ROWS = (*FACTORS, "concurrent", "energy_source")

ENERGY: Schema = {
    **FACTOR_TYPES,
    **{"concurrent": bool, "energy_source": str, "runs": np.int64, "iterations": np.int64},
    **estimate_types("joules", "samples_per_joule", "watts"),
}
"""Columns of `energy`."""


def energy(campaign: Campaign, *, seed: int) -> pd.DataFrame:
    """One row per configuration and source of the joules, columns `ENERGY`; none where no run has energy.

    - `iterations`: those in which every rank told its energy.
    - `joules`: arithmetic mean of the energy of an iteration, all GPUs, with what lies between it and the one before.
    - `samples_per_joule`: local batch × replicas / `joules`; NaN where no counter moved.
    - `watts`: sum of the energy / sum over the GPUs of the time between the readings: mean power of one GPU.
    """
    told = measured(campaign.iterations)[["run", "iteration", "joules", "gpu_seconds"]].dropna()
    rows = []
    for configuration in configurations(campaign.runs, told, _ROWS):
        joules = mean(configuration.samples("joules"), seed)
        samples = campaign.runs["samples"].loc[configuration.runs].iloc[0]
        watts = ratio_of_sums(configuration.samples("joules"), configuration.samples("gpu_seconds"), seed)
        rows.append(
            {
                **configuration.factors,
                **configuration.counts(),
                **joules.columns("joules"),
                **_rate(samples, joules).columns("samples_per_joule"),
                **watts.columns("watts"),
            }
        )
    return table(rows, ENERGY)


def _rate(samples: int, joules: Estimate) -> Estimate:
    """Samples per joule; the lower end belongs to the higher energy. No interval where that has 0 in it."""
    if not joules.value:
        return Estimate(math.nan)
    if not joules.low:
        return Estimate(samples / joules.value)
    return Estimate(samples / joules.value, samples / joules.high, samples / joules.low)
