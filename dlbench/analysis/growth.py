"""How waits grow with the group, in the runs of a campaign or the traces of a job, as far as the report shows it.

It takes bounded time: `dlbench extremes` fits every group of every configuration with all of its iterations. Here, the
largest come first, and what is left out is said.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from dlbench.analysis.bandwidth import BANDWIDTH, DOMAINS, TOPOLOGIES, Collective, bandwidths
from dlbench.analysis.block_times import BlockTimes, of_collectives, of_configuration, with_ops
from dlbench.analysis.campaign import Campaign
from dlbench.analysis.columns import counted, plain
from dlbench.analysis.extremes import FEWEST_BLOCKS, GROUP_SIZE, Extremes, extremes
from dlbench.analysis.model_tables import BANDWIDTHS, FITS, PREDICTIONS, fits, predictions, scaled_waits, taxes
from dlbench.analysis.samples import Configuration, table
from dlbench.analysis.tables import Layout, Table, build
from dlbench.analysis.traces.collectives import Collectives
from dlbench.errors import UserError
from dlbench.quantities import duration, si

MOST_GROUPS = 4
"""Groups that are fitted: as many as there are figures."""
MOST_ITERATIONS = 200
"""Iterations of a configuration that are read."""
MOST_MAXIMA = 20_000
"""Group maxima that are fitted, unless the fewest blocks that allow a fit have more."""
_MOST_REASONS = 3
_NO_FIT = "no group of ranks has a fit of its block times"
COLLECTIVE = Collective()
"""What the law is shown for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Fits of block times, what they predict, and the bandwidth law that follows."""

    found: Sequence[Extremes] = ()
    """Those of the most ranks come first."""
    law: pd.DataFrame = field(default_factory=lambda: table([], BANDWIDTH))
    """B* with the waits of the first fit, as `dlbench.analysis.bandwidth.bandwidths` makes it."""
    reasons: Sequence[str] = ()
    """Why groups have no fit."""
    why_no_law: str = _NO_FIT
    notes: Sequence[str] = ()
    """What a reader of the fits must know."""

    def tables(self, known: Collection[str] = ()) -> Iterator[Table]:
        """Tables of the fits, without the factors in `known`; none where there is no fit."""
        if self.found:
            fitted = build(FITS, fits(self.found), known)
            yield replace(fitted, remarks=(*fitted.remarks, *self.notes))
            yield build(PREDICTIONS, predictions(self.found), known)
        if len(self.law):
            yield build(law_layout(self.found[0]), self.law)


def law_layout(found: Extremes) -> Layout:
    """The table of the bandwidth law, which says by which parameters and whose waits it is made."""
    given = (
        f"all-reduces of {si(COLLECTIVE.message, 'B')}, latency {duration(COLLECTIVE.alpha)}, elasticity "
        f"{COLLECTIVE.elasticity:g}; dlbench bandwidth takes others"
    )
    return replace(BANDWIDTHS, about=f"{BANDWIDTHS.about} Waits of {named(found.times)}; {given}.{scaled(found.times)}")


def scaled(times: BlockTimes) -> str:
    """A sentence, after a blank, on what to know of waits in scaled runs; empty where runs were not scaled."""
    said = scaled_waits(times.factors.get("scale", 1), times.factors.get("time_scale", 1))
    return f" {said[0].upper()}{said[1:]}." if said else ""


def growth(campaign: Campaign, *, seed: int) -> Growth:
    """Fit the runs that recorded ops, whose arrays are read."""
    recorded = sorted(with_ops(campaign), key=lambda each: -int(each.factors["gpus"]))
    if not recorded:
        return Growth(reasons=["no run recorded ops (--record-ops), so block times are unknown"])
    found: list[Extremes] = []
    notes: list[str] = []
    refused: list[str] = []
    for number, configuration in enumerate(recorded):
        if len(found) >= MOST_GROUPS:
            rest = counted(len(recorded) - number, "configuration")
            notes.append(f"not fitted, since those of more GPUs come first: {rest}; dlbench extremes fits all")
            break
        for times in of_configuration(campaign, _some_iterations(configuration, notes), refused):
            found += _tried(times, seed, notes, refused)
    return _grown(found, notes, refused)


def growth_of_traces(groups: Sequence[Collectives], *, seed: int) -> Growth:
    """Fit the groups of a job's traces."""
    found: list[Extremes] = []
    notes: list[str] = []
    refused: list[str] = []
    largest = sorted(of_collectives(groups), key=lambda times: (times.ranks, len(times)), reverse=True)
    for number, times in enumerate(largest):
        if len(found) >= MOST_GROUPS:
            rest = counted(len(largest) - number, "group")
            notes.append(f"not fitted, since those of more ranks come first: {rest}; dlbench extremes fits all")
            break
        found += _tried(times, seed, notes, refused)
    return _grown(found, notes, refused)


def _grown(found: list[Extremes], notes: list[str], refused: list[str]) -> Growth:
    """What the fits say, those of the most ranks first."""
    found.sort(key=lambda each: (each.times.ranks, len(each.maxima)), reverse=True)
    law, why_not = _law(found)
    return Growth(found=found, law=law, reasons=_few(refused), why_no_law=why_not, notes=notes)


def _tried(times: BlockTimes, seed: int, notes: list[str], refused: list[str]) -> list[Extremes]:
    """The fit, if there is one. Adds to `notes` what there is to know of it, and to `refused` why there is none."""
    whose = f"{_configuration(times.factors)}: " if times.factors else ""
    try:
        fit = _fitted(_some_instances(times, seed, notes), seed)
    except UserError as error:
        refused.append(f"{whose}{error}")
        return []
    notes += [f"{whose}{note}" for note in fit.notes]
    return [fit]


def _fitted(times: BlockTimes, seed: int) -> Extremes:
    return extremes(times, predict=[GROUP_SIZE, *DOMAINS, times.ranks], seed=seed)


def _law(found: Sequence[Extremes]) -> tuple[pd.DataFrame, str]:
    """B* with the waits of the first fit, or why there is none."""
    if not found:
        return table([], BANDWIDTH), _NO_FIT
    try:
        return bandwidths(COLLECTIVE, list(TOPOLOGIES.values()), DOMAINS, taxes(found[0])), ""
    except UserError as error:
        return table([], BANDWIDTH), f"{named(found[0].times)}: {error}"


def _some_iterations(configuration: Configuration, notes: list[str]) -> Configuration:
    """At most as many iterations as are read, evenly over all runs."""
    count = sum(configuration.lengths)
    if count <= MOST_ITERATIONS:
        return configuration
    kept = np.zeros(count, dtype=bool)
    kept[np.linspace(0, count - 1, MOST_ITERATIONS).round().astype(int)] = True
    notes.append(
        f"{_configuration(configuration.factors)}: {MOST_ITERATIONS} of {count:,} iterations were read, evenly over "
        "all runs: dlbench extremes reads all"
    )
    return configuration.where(kept)


def _some_instances(times: BlockTimes, seed: int, notes: list[str]) -> BlockTimes:
    """As many instances, drawn at random, as have no more group maxima than are fitted."""
    most = max(FEWEST_BLOCKS, MOST_MAXIMA // max(1, times.ranks // GROUP_SIZE))
    if len(times) <= most:
        return times
    kept = np.zeros(len(times), dtype=bool)
    kept[np.random.default_rng((seed, len(times))).choice(len(times), most, replace=False)] = True
    notes.append(f"{named(times)}: {most:,} of {len(times):,} blocks, drawn at random, were fitted")
    return times.only(kept)


def _few(reasons: Sequence[str]) -> list[str]:
    more = len(reasons) - _MOST_REASONS
    return [*reasons[:_MOST_REASONS], *([f"{more} more, which dlbench extremes names"] if more > 0 else [])]


def named(times: BlockTimes) -> str:
    """Whose block times they are, e.g. `fsdp llama3-8b on 64 GPUs, shard`, or `traces, dp (0-7)`."""
    return f"{_configuration(times.factors)}, {times.source}"


def _configuration(factors: dict[str, Any]) -> str:
    if not factors:
        return "traces"
    strategy, model, gpus = (plain(factors[name]) for name in ("strategy", "model", "gpus"))
    return f"{strategy} {model} on {gpus} GPU{'' if factors['gpus'] == 1 else 's'}"
