"""How much of an iteration the other jobs of the experiment were running, on wall-clock time.

A job is running from the begin of the first iteration to the end of the last of each of its runs (a job that ends is
started again), so gaps between its runs count as not running. Each of the other jobs counts once. A job that the
experiment announces (`concurrent_jobs`) but that left no record counts as never running.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dlbench.analysis.campaign import EXPERIMENT, Campaign
from dlbench.analysis.samples import measured
from dlbench.errors import OptionError

MIN_OVERLAP = 0.8
"""An iteration counts where at least this share of the other jobs was running."""

_ROUNDING = 1e-9
_RESOLUTION = 1e-6
"""Seconds; a Unix time in float64 resolves a quarter of it, so no iteration is taken to be shorter."""


@dataclass(frozen=True, slots=True)
class Activity:
    """Which jobs of one experiment were running when."""

    jobs: pd.Index[str]
    edges: NDArray[np.float64]
    """Unix times at which a run begins or ends, ascending."""
    running: NDArray[np.bool_]
    """Shape (jobs, edges − 1): whether the job was running between two edges."""

    def others(self, job: str, announced: int) -> int:
        """Jobs beside this one, at least one: as many as have iterations, or more where more are announced."""
        return max(announced, len(self.jobs.union([job])), 2) - 1

    def running_beside(self, job: str) -> NDArray[np.int64]:
        """Other jobs that were running between each two edges."""
        return np.asarray(self.running[self.jobs != job].sum(axis=0))

    def share(
        self, weight: NDArray[Any], starts: NDArray[np.float64], ends: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Average over each interval of a weight that is given between the edges, and 0 outside of them."""
        if len(self.edges) == 0:
            return np.zeros_like(starts)
        origin = self.edges[0]
        edges = self.edges - origin
        integral = np.r_[0.0, np.cumsum(weight * np.diff(edges))]
        starts = starts - origin
        ends = np.maximum(ends - origin, starts + _RESOLUTION)
        found = np.interp(ends, edges, integral) - np.interp(starts, edges, integral)
        return np.asarray(np.clip(found / (ends - starts), 0.0, 1.0))


def activity(windows: pd.DataFrame) -> Activity:
    """Activity of one experiment from its windows: columns `job`, `begin`, `end`."""
    job, jobs = pd.factorize(windows["job"], sort=True)
    edges = np.unique(windows[["begin", "end"]])
    change = np.zeros((len(jobs), len(edges)), dtype=np.int64)
    np.add.at(change, (job, np.searchsorted(edges, windows["begin"])), 1)
    np.add.at(change, (job, np.searchsorted(edges, windows["end"])), -1)
    return Activity(pd.Index(jobs), edges, change.cumsum(axis=1)[:, :-1] > 0)


def concurrent_iterations(campaign: Campaign, min_overlap: float = MIN_OVERLAP) -> pd.DataFrame:
    """Measured iterations of concurrent runs, with their `seconds` and `throughput`, and what ran beside them.

    - `overlap`: share of the experiment's other jobs that were running, averaged over the iteration;
    - `all_running`: share of the iteration in which all of them were;
    - `others`, `unseen`: number of other jobs, and how many of them left no iteration in any record;
    - `counted`: whether `overlap` is at least `min_overlap`.

    Numbers are 0 for a run that names no experiment or no job: what ran beside it is not known. Raises `OptionError`
    for a `min_overlap` outside 0 … 1.
    """
    if not 0 <= min_overlap <= 1:
        raise OptionError(f"min-overlap {min_overlap:g} is no share; use a number from 0 to 1, e.g. {MIN_OVERLAP}")
    runs = campaign.runs[campaign.runs["concurrent"]]
    iterations = measured(campaign.iterations)[["run", "iteration", "start", "end", "seconds", "throughput"]]
    iterations = iterations[iterations["run"].isin(runs.index)].reset_index(drop=True)
    found = np.zeros((4, len(iterations)))
    rows = iterations.groupby("run").indices
    for members, active in _experiments(runs, campaign.windows):
        pairs: Any = members.groupby(["job", "concurrent_jobs"])
        for (job, announced), group in pairs:
            chosen = np.concatenate([rows[run] for run in group.index])
            part = iterations.iloc[chosen]
            times = part["start"].to_numpy(), part["end"].to_numpy()
            beside, others = active.running_beside(str(job)), active.others(str(job), int(announced))
            found[:2, chosen] = active.share(beside / others, *times), active.share(beside == others, *times)
            found[2:, chosen] = [[others], [others - len(active.jobs.difference([job]))]]
    names = ("overlap", "all_running", "others", "unseen")
    columns = dict(zip(names, found, strict=True))
    return iterations.drop(columns=["start", "end"]).assign(
        **columns, counted=columns["overlap"] >= min_overlap - _ROUNDING
    )


def _experiments(runs: pd.DataFrame, windows: pd.DataFrame) -> Iterator[tuple[pd.DataFrame, Activity]]:
    """The runs of each experiment that name their job, and when its jobs were running."""
    names = list(EXPERIMENT)
    there = {key: frame for key, frame in windows.groupby(names)}
    for key, members in runs[(runs["experiment"] != "") & (runs["job"] != "")].groupby(names):
        yield members, activity(there.get(key, windows.iloc[:0]))
