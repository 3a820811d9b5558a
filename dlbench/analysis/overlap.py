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

    jobs: NDArray[np.int64]
    """Numbers of the jobs, ascending."""
    edges: NDArray[np.float64]
    """Unix times at which a run begins or ends, ascending."""
    running: NDArray[np.bool_]
    """Shape (jobs, edges − 1): whether the job was running between two edges."""

    def beside(self, job: int) -> tuple[NDArray[np.int64], int]:
        """How many other jobs were running between each two edges, and how many there are."""
        others = self.jobs != job
        return np.asarray(self.running[others].sum(axis=0)), int(others.sum())

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


def activity(job: NDArray[np.int64], begin: NDArray[np.float64], end: NDArray[np.float64]) -> Activity:
    """Activity of one experiment from the job, begin and end of each of its runs."""
    jobs, row = np.unique(job, return_inverse=True)
    edges = np.unique(np.concatenate((begin, end)))
    change = np.zeros((len(jobs), len(edges)), dtype=np.int64)
    np.add.at(change, (row, np.searchsorted(edges, begin)), 1)
    np.add.at(change, (row, np.searchsorted(edges, end)), -1)
    return Activity(jobs, edges, change.cumsum(axis=1)[:, :-1] > 0)


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
    iterations = measured(campaign.iterations)
    iterations = iterations[iterations["run"].isin(runs.index)].reset_index(drop=True)
    named = runs[(runs["experiment"] != "") & (runs["job"] != "")]
    found = np.zeros((4, len(iterations)))
    times = iterations["start"].to_numpy(), iterations["end"].to_numpy()
    for rows, job, announced, active in _jobs(named, iterations["run"], campaign.windows):
        running, recorded = active.beside(job)
        count = max(announced - 1, recorded, 1)
        part = [time[rows] for time in times]
        found[:2, rows] = active.share(running / count, *part), active.share(running == count, *part)
        found[2:, rows] = [[count], [count - recorded]]
    overlap, all_running = found[:2]
    others, unseen = found[2:].astype(np.int64)
    return iterations[["run", "iteration", "seconds", "throughput"]].assign(
        overlap=overlap,
        all_running=all_running,
        others=others,
        unseen=unseen,
        counted=overlap >= min_overlap - _ROUNDING,
    )


def _jobs(
    runs: pd.DataFrame, run: pd.Series[int], windows: pd.DataFrame
) -> Iterator[tuple[NDArray[np.int64], int, int, Activity]]:
    """Per job: which iterations are of it, its number, how many jobs its runs announce, and its experiment's activity.

    `run` is the run of each iteration.
    """
    count = len(runs)
    both = pd.concat([runs[[*EXPERIMENT, "job"]], windows[[*EXPERIMENT, "job"]]])
    experiment, window_experiment = np.split(both.groupby(list(EXPERIMENT), sort=False).ngroup().to_numpy(), [count])
    job, window_job = np.split(pd.factorize(both["job"])[0], [count])
    begin, end = windows["begin"].to_numpy(), windows["end"].to_numpy()
    members = _positions(window_experiment)
    activities = {}
    for number in np.unique(experiment).tolist():
        rows = members.get(number, np.array([], dtype=np.int64))
        activities[number] = activity(window_job[rows], begin[rows], end[rows])
    groups, group = np.unique(np.column_stack((experiment, job, runs["concurrent_jobs"])), axis=0, return_inverse=True)
    place = runs.index.get_indexer(pd.Index(run))
    chosen = np.flatnonzero(place >= 0)
    for number, rows in _positions(group.ravel()[place[chosen]]).items():
        of, own, announced = groups[number].tolist()
        yield chosen[rows], own, announced, activities[of]


def _positions(numbers: NDArray[Any]) -> dict[int, NDArray[np.int64]]:
    """Where each number stands."""
    order = np.argsort(numbers, kind="stable")
    found, starts = np.unique(numbers[order], return_index=True)
    return dict(zip(found.tolist(), np.split(order, starts[1:]), strict=True)) if len(found) else {}
