"""Communication fraction by system and strategy, a group of bars per GPU count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from dlbench.analysis.plots.drawing import Drawing, LeftOut
from dlbench.analysis.plots.panels import Family, Panel, Sheet, lay_out, panels, samples
from dlbench.analysis.plots.style import STRATEGIES, looks

NAME = "communication"
_PERCENT = 100
_MOST_NARROW_BARS = 30
"""A panel with more bars gets the full width."""


def draw(summary: pd.DataFrame) -> Drawing:
    """Bars of `metrics.summary`: its columns `communication`, `communication_low`, `communication_high`.

    A panel per system and placement class, and per value of what else differs at equal GPUs.
    """
    if summary.empty:
        return Drawing(left_out=[LeftOut(NAME, "no run has a measured iteration")])
    found = panels(summary, by=("system",), within=("strategy", "gpus"))
    wide = max(_bars(panel) for panel in found) > _MOST_NARROW_BARS
    family = Family(
        name=NAME,
        title="Communication fraction",
        caption="Communication fraction, the maximum over ranks of sync time / runtime, by strategy and GPUs: arithmetic "
        f"mean over iterations, {samples(summary)}. Error bars are 95 % bootstrap intervals; a bar from fewer than 6 "
        "iterations has none. Where there is no bar, nothing was measured.",
        sheet=Sheet(columns=1 if wide else 2),
        draw=_Bars(_top(summary)),
        legend=_legend,
    )
    return lay_out(family, found)


def _bars(panel: Panel) -> int:
    return panel.rows["gpus"].nunique() * panel.rows["strategy"].nunique()


def _top(summary: pd.DataFrame) -> float:
    """Upper end of the axis, the same in all panels: a multiple of 10 %, and at most 100 %."""
    highest = float(summary[["communication", "communication_high"]].max(axis=None))
    return min(_PERCENT, math.ceil(highest * 10 + 0.2) * 10)


class _Bars:
    """Draws the bars of a panel on an axis up to `top` percent."""

    def __init__(self, top: float) -> None:
        self._top = top

    def __call__(self, axes: Sequence[Axes], panel: Panel) -> str:
        rows, (ax,) = panel.rows, axes
        counts = sorted(rows["gpus"].unique())
        styles = looks(rows["strategy"], STRATEGIES)
        names = [name for name in styles if name in set(rows["strategy"])]
        width = 0.8 / len(names)
        for index, name in enumerate(names):
            own = rows[rows["strategy"] == name]
            places = np.array([counts.index(gpus) for gpus in own["gpus"]]) + (index - (len(names) - 1) / 2) * width
            heights = own["communication"].to_numpy() * _PERCENT
            bounds = own[["communication_low", "communication_high"]].to_numpy() * _PERCENT
            look = styles[name]
            ax.bar(places, heights, width, color=look.color, hatch=look.hatch, edgecolor="black", label=name)
            sure = np.isfinite(bounds).all(axis=1)
            reach = np.abs(bounds[sure] - heights[sure, np.newaxis]).T
            ax.errorbar(places[sure], heights[sure], reach, fmt="none", ecolor="black", elinewidth=0.8)
        ax.set_xticks(range(len(counts)), [str(count) for count in counts])
        ax.set_xlim(-0.6, len(counts) - 0.4)
        ax.set_ylim(0, self._top)
        ax.set_xlabel("GPUs")
        ax.set_ylabel("communication [% of runtime]")
        return samples(rows)


def _legend(page: Sequence[Panel]) -> list[Any]:
    there = {name for panel in page for name in panel.rows["strategy"]}
    return [
        Patch(facecolor=look.color, hatch=look.hatch, edgecolor="black", label=name)
        for name, look in looks(there, STRATEGIES).items()
        if name in there
    ]
