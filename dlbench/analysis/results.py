"""Everything that the analysis says of a campaign in numbers: its tables, with the options that they were made with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import pandas as pd

from dlbench.analysis.campaign import FACTORS, Campaign
from dlbench.analysis.energy import energy
from dlbench.analysis.metrics import relevance, summary
from dlbench.analysis.scaling import scaling
from dlbench.analysis.slowdown import Slowdown, slowdown
from dlbench.analysis.statements import Statement, state
from dlbench.analysis.tables import Layout, Table, build
from dlbench.analysis.tax_sources import tax_of_runs
from dlbench.analysis.taxes import Taxes

if TYPE_CHECKING:
    from dlbench.analysis.growth import Growth

_COUNTS = ("runs", "iterations")
TAXED = 20
"""Groups, stragglers and collectives of the largest tax that a report shows."""

SUMMARY = Layout(
    name="summary",
    title="Summary",
    about="Per configuration, concurrent runs apart: time of an iteration (its slowest rank) and skew as medians, "
    "throughput as geometric mean, communication fraction and hidden part as arithmetic means over iterations. ideal: "
    "by the roofline, with free communication; of ideal: ideal / time.",
    measures=(
        *_COUNTS,
        *("seconds", "minimum", "maximum", "ideal_seconds", "roofline"),
        *("throughput", "communication", "hidden", "skew"),
    ),
    empty="no measured iteration",
)
RELEVANCE = Layout(
    name="relevance",
    title="Communication relevance",
    about="Per configuration, concurrent runs apart, and communication class: median time on the rank that spent most "
    "in it, and the mean of its largest share of a rank's runtime. total: sync_time and the communication fraction.",
    key=("name",),
    measures=(*_COUNTS, "seconds", "share"),
    empty="no run communicated",
)
SCALING = Layout(
    name="scaling",
    title="Scaling",
    about="Baselines: throughput as geometric mean; efficiency is the throughput per GPU over that at the smallest GPU "
    "count of the same configuration; loss/doubling is the part of it that each doubling since the next smaller count "
    "cost.",
    key=("gpus",),
    measures=(*_COUNTS, "throughput", "per_gpu", "efficiency", "loss_per_doubling"),
    empty="no baseline: every run had other jobs beside it",
)
SLOWDOWN = Layout(
    name="slowdown",
    title="Slowdown by other jobs",
    about="Concurrent runs: σ is the geometric mean throughput of the same configuration alone over that beside the "
    "other jobs of the experiment; impact is (σ − 1) × 100 %. The times alone and beside are medians, whose ratio is "
    "another than σ where iterations are skewed. Where the interval of σ contains 1, the slowdown cannot be told from "
    "none. Only iterations count that the other jobs overlapped.",
    measures=(
        *_COUNTS,
        *("left_out", "overlap", "all_running", "baseline_runs", "baseline_iterations", "baseline_mode"),
        *("isolated_seconds", "concurrent_seconds", "sigma", "impact"),
    ),
    empty="no concurrent run: nothing ran beside other jobs of its experiment",
)
ENERGY = Layout(
    name="energy",
    title="Energy",
    about="Per configuration, concurrent runs apart: energy of an iteration, all GPUs, as arithmetic mean; local batch "
    "× replicas over it; mean power of a GPU. From reading to reading, so what lies between two iterations is in it.",
    key=("energy_source",),
    measures=(*_COUNTS, "joules", "samples_per_joule", "watts"),
)

COMPARISON = Layout(
    name="comparison",
    title="Comparison",
    about="Configurations in both sets: geometric mean times of an iteration, and their ratio, on whose interval the "
    "verdict rests.",
    measures=(
        *("verdict", "ratio", "seconds_a", "seconds_b", "runs_a", "iterations_a", "left_out_a"),
        *("runs_b", "iterations_b", "left_out_b"),
    ),
    empty="no configuration is in both sets",
)
ONLY_A, ONLY_B = (
    Layout(
        name=f"only_{name.lower()}",
        title=f"Only in {name}",
        about="Configurations that the other set lacks, with their geometric mean time.",
        headings=(("seconds", "geo. mean"),),
        measures=(*_COUNTS, "left_out", "seconds"),
    )
    for name in "AB"
)


class Waits(Protocol):
    """Who waits for whom in the runs of a campaign or the traces of a job, and how that grows with the group."""

    @property
    def taxes(self) -> Taxes:
        """The synchronisation tax."""

    @property
    def growth(self) -> Growth:
        """How waits grow with the group."""


@dataclass(frozen=True, kw_only=True)
class Results:
    """The tables of a campaign."""

    campaign: Campaign
    summary: pd.DataFrame
    relevance: pd.DataFrame
    scaling: pd.DataFrame
    slowdown: Slowdown
    energy: pd.DataFrame
    seed: int
    min_overlap: float
    critical_path: bool
    """Whether to look for what made ranks late."""

    @cached_property
    def taxes(self) -> Taxes:
        """The synchronisation tax of the runs that recorded ops, whose arrays are read when it is first asked for."""
        return tax_of_runs(self.campaign, seed=self.seed, paths=self.critical_path)

    @cached_property
    def growth(self) -> Growth:
        """How waits grow with the group, from the same runs' arrays; fitted when it is first asked for."""
        from dlbench.analysis.growth import growth  # noqa: PLC0415 - SciPy takes its time

        return growth(self.campaign, seed=self.seed)

    def frames(self) -> dict[str, pd.DataFrame]:
        """The frame of each table by its name, in the order in which they are shown; energy where a run has any."""
        return {
            SUMMARY.name: self.summary,
            RELEVANCE.name: self.relevance,
            SCALING.name: self.scaling,
            SLOWDOWN.name: self.slowdown.table,
            **({} if self.energy.empty else {ENERGY.name: self.energy}),
        }

    def statements(self) -> list[Statement]:
        """Factors that need no column in any table; some of the statements have nothing to say of them."""
        return list(state(self.campaign.runs, FACTORS, "in all runs"))

    def known(self) -> set[str]:
        """The factors of `statements`."""
        return {name for statement in self.statements() for name in statement.factors}

    def tables(self) -> Iterator[Table]:
        """The tables, without what `statements` says."""
        known, frames = self.known(), self.frames()
        for layout in (SUMMARY, RELEVANCE, SCALING, SLOWDOWN, ENERGY):
            if layout.name in frames:
                yield build(layout, frames[layout.name], known)

    def tax_tables(self) -> Iterator[Table]:
        """Tables of the synchronisation tax, without what `statements` says; none where no run recorded ops."""
        if self.taxes.groups:
            yield from self.taxes.tables(TAXED, self.known())

    def growth_tables(self) -> Iterator[Table]:
        """Tables of how waits grow with the group, without what `statements` says; none where no fit is possible."""
        yield from self.growth.tables(self.known())


def evaluate(campaign: Campaign, *, seed: int, min_overlap: float, critical_path: bool = True) -> Results:
    """All tables of the campaign, which must have a run; arguments as of `Results`."""
    return Results(
        campaign=campaign,
        summary=summary(campaign, seed=seed),
        relevance=relevance(campaign, seed=seed),
        scaling=scaling(campaign, seed=seed),
        slowdown=slowdown(campaign, seed=seed, min_overlap=min_overlap),
        energy=energy(campaign, seed=seed),
        seed=seed,
        min_overlap=min_overlap,
        critical_path=critical_path,
    )
