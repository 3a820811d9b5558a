"""Where the time of an iteration went, rank by rank: compute, each communication class, and what is neither."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MultipleLocator
from numpy.typing import NDArray

from dlbench.analysis.campaign import FACTORS, Campaign
from dlbench.analysis.plots.drawing import Drawing, LeftOut
from dlbench.analysis.plots.panels import Family, Panel, Sheet, lay_out, panels, unbroken
from dlbench.analysis.plots.style import CLASSES, GREY, LIGHT_GREY, SOLID, Look, looks, time_unit
from dlbench.errors import RecordError, one_line
from dlbench.quantities import duration
from dlbench.records.reader import iterate
from dlbench.records.schema import Iteration

NAME = "breakdown"
_COMPUTE, _ISSUE, _OVERRUN, _REST = "compute", "issue", "overrun", "rest"
_FIXED = {
    _COMPUTE: Look(LIGHT_GREY, "", "", SOLID),
    _ISSUE: Look(GREY, "", "", SOLID),
    _OVERRUN: Look("black", "", "", SOLID),
    _REST: Look("white", "", "", SOLID),
}
_MOST_TICKS = 16
_MOST_NARROW = 64
"""Panels of more ranks get the full width."""
_MOST_OUTLINED = 64
"""Where ranks are more, the lines between them would be all that one sees."""


def draw(campaign: Campaign) -> Drawing:
    """A panel per configuration: the median iteration of its median run, read from the run's record.

    Raises `RecordError` where a record is no longer what it was when it was loaded.
    """
    chosen = median_iterations(campaign)
    if chosen.empty:
        return Drawing(left_out=[LeftOut(NAME, "no run has a measured iteration")])
    stacks = _Stacks(campaign)
    family = Family(
        name=NAME,
        title="Where the time of an iteration goes",
        caption="Runtime of each rank in one iteration, from the bottom: compute, each communication class "
        "(operation/scope; together they are the sync time), starting non-blocking communications (issue), what timed "
        "compute took beyond its time (overrun), and the benchmark's own loop (rest). Per configuration n = 1: the "
        "iteration of median runtime, in the run that has the median of these. Ranks are drawn as if all began at 0.",
        sheet=Sheet(columns=1 if chosen["gpus"].max() > _MOST_NARROW else 2, rows=4, heights=(2.0,)),
        draw=stacks.draw,
        legend=stacks.legend,
    )
    return lay_out(family, panels(chosen, by=("system", "strategy", "gpus", "placement"), within=()))


def median_iterations(campaign: Campaign) -> pd.DataFrame:
    """Per configuration the iteration that stands for it, with its factors, `run`, `run_id`, `iteration`, `measured`.

    In each run it is the measured iteration of median `seconds`, and of these the median over the runs; of an even
    number the lower of both in the middle.
    """
    measured = campaign.iterations[~campaign.iterations["warmup"]]
    of_runs = _middle_rows(measured[["run", "iteration", "seconds"]], ["run"])
    factors = [*FACTORS, "concurrent"]
    joined = of_runs.join(campaign.runs[[*factors, "run_id", "measured"]], on="run")
    return _middle_rows(joined, factors)


def _middle_rows(table: pd.DataFrame, groups: list[str]) -> pd.DataFrame:
    """Of each group the row of median `seconds`."""
    ordered = table.sort_values("seconds", kind="stable")
    grouped = ordered.groupby(groups, sort=False)["seconds"]
    middle = grouped.cumcount() == (grouped.transform("size") - 1) // 2
    return ordered[middle].reset_index(drop=True)


def parts_of(iteration: Iteration) -> dict[str, NDArray[np.float64]]:
    """Seconds of each rank by what it did, in the order in which they are stacked; they add up to the runtime."""
    parts = {
        _COMPUTE: np.array(iteration.compute),
        **{one_line(name): np.array(seconds) for name, seconds in sorted(iteration.communication.items())},
        _ISSUE: np.array(iteration.issue),
        _OVERRUN: np.array(iteration.overrun),
    }
    parts[_REST] = np.maximum(np.array(iteration.runtime) - np.sum(list(parts.values()), axis=0), 0)
    return parts


def _read(path: Path, index: int) -> Iteration:
    for line in iterate(path):
        if isinstance(line, Iteration) and line.index == index:
            return line
    raise RecordError(f"{path}: iteration {index} is no longer there; the record changed since it was loaded")


def _tick_distance(ranks: int) -> int:
    """Power of two, as nodes have ranks, that leaves room for the labels."""
    return 1 << max(0, (ranks - 1) // _MOST_TICKS).bit_length()


class _Stacks:
    """Draws iterations of the campaign's records as stacks."""

    def __init__(self, campaign: Campaign) -> None:
        self._paths = campaign.paths
        self._classes = campaign.classes
        self._looks = _FIXED | looks(campaign.classes["name"], CLASSES)

    def draw(self, axes: Sequence[Axes], panel: Panel) -> str:
        (ax,), chosen = axes, panel.rows.iloc[0]
        iteration = _read(self._paths[chosen["run"]], chosen["iteration"])
        runtime = np.array(iteration.runtime)
        ranks, slowest = len(runtime), int(runtime.argmax())
        factor, unit = time_unit(float(runtime.max()))
        edges = np.arange(ranks + 1) - 0.5
        bottom = np.zeros(ranks)
        for name, seconds in parts_of(iteration).items():
            look = self._looks[name]
            top = bottom + seconds * factor
            ax.stairs(
                *(top, edges),
                baseline=bottom,
                fill=True,
                facecolor=look.color,
                hatch=look.hatch,
                edgecolor="black",
                linewidth=0.3 if ranks <= _MOST_OUTLINED else 0,
                label=name,
            )
            bottom = top
        if ranks <= _MOST_OUTLINED:
            ax.vlines(edges, 0, np.maximum(np.r_[0, bottom], np.r_[bottom, 0]), color="black", linewidth=0.3)
        ax.xaxis.set_major_locator(MultipleLocator(_tick_distance(ranks)))
        ax.set_xlim(edges[0], edges[-1])
        ax.set_ylim(0, bottom.max() * 1.04)
        ax.set_xlabel("rank")
        ax.set_ylabel(f"time [{unit}]")
        return (
            f"iteration {chosen['iteration']}, the median of {chosen['measured']} of {chosen['run_id']}; "
            + unbroken(f"slowest rank {slowest}: {duration(float(runtime.max()))}")
        )

    def legend(self, page: Sequence[Panel]) -> list[Any]:
        runs = [int(panel.rows["run"].iloc[0]) for panel in page]
        classes = sorted(self._classes.loc[self._classes["run"].isin(runs), "name"].unique())
        names = [_COMPUTE, *classes, _ISSUE, _OVERRUN, _REST]
        return [
            Patch(facecolor=look.color, hatch=look.hatch, edgecolor="black", label=name)
            for name, look in ((name, self._looks[name]) for name in names)
        ]
