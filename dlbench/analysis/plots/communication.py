"""Communication fraction by system and strategy, a group of bars per GPU count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from numpy.typing import NDArray

from dlbench.analysis.plots.drawing import Drawing, LeftOut
from dlbench.analysis.plots.panels import Family, Panel, Sheet, largest, lay_out, panels, placement_lines, samples
from dlbench.analysis.plots.style import STRATEGIES, looks

NAME = "communication"
_PERCENT = 100
_MOST_GROUPS = 9
_NARROW = {"bars": 30, "groups": 9, "named groups": 4}
"""What fits into half the width: a group with the name of its placement class takes more room."""
_WIDEST_BAR = 0.25
_FEWEST_PLACES = 3
"""Panels of fewer groups of bars keep this room, lest a bar becomes a block."""


def draw(summary: pd.DataFrame) -> Drawing:
    """Bars of `metrics.summary`: its columns `communication`, `communication_low`, `communication_high`.

    A panel per system, and per value of what else differs at equal GPUs and placement class; where these are many, a
    panel per placement class as well.
    """
    if summary.empty:
        return Drawing(left_out=[LeftOut(NAME, "no run has a measured iteration")])
    found = panels(summary, by=("system",), within=("strategy", "gpus", "placement"))
    if max(len(_groups(panel.rows)) for panel in found) > _MOST_GROUPS:
        found = panels(summary, by=("system", "placement"), within=("strategy", "gpus"))
    wide = max(_crowding(panel.rows) for panel in found) > 1
    family = Family(
        name=NAME,
        title="Communication fraction",
        caption="Communication fraction, the maximum over ranks of sync time / runtime, by strategy and GPUs: "
        f"arithmetic mean over iterations, {samples(summary)}. Error bars are 95 % bootstrap intervals; a bar from "
        "fewer than 6 iterations has none. Where there is no bar, nothing was measured.",
        sheet=Sheet(columns=1 if wide else 2, rows=4, heights=(2.0,)),
        draw=_Bars(_top(summary)),
        legend=_legend,
    )
    return lay_out(family, found)


def _groups(rows: pd.DataFrame) -> list[tuple[int, str]]:
    """GPUs and placement class of each group of bars, in order."""
    found = rows[["gpus", "placement"]].drop_duplicates().sort_values("gpus", kind="stable")
    return list(found.itertuples(index=False, name=None))


def _crowding(rows: pd.DataFrame) -> float:
    """How much of the room that a narrow panel has is needed."""
    groups = _groups(rows)
    named = rows["placement"].nunique() > 1
    bars = len(groups) * rows["strategy"].nunique()
    return max(bars / _NARROW["bars"], len(groups) / _NARROW["named groups" if named else "groups"])


def _top(summary: pd.DataFrame) -> float:
    """Upper end of the axis, the same in all panels: a multiple of 10 %, and at most 100 %."""
    highest = largest(summary, "communication", "communication_high")
    return min(_PERCENT, math.ceil(highest * 10 + 0.2) * 10)


class _Bars:
    """Draws the bars of a panel on an axis up to `top` percent."""

    def __init__(self, top: float) -> None:
        self._top = top

    def __call__(self, axes: Sequence[Axes], panel: Panel) -> str:
        rows, (ax,) = panel.rows, axes
        groups = _groups(rows)
        styles = looks(rows["strategy"], STRATEGIES)
        width = min(_WIDEST_BAR, 0.8 / len(styles))
        centres = _places(rows, groups, list(styles), width)
        for name, look in styles.items():
            own = rows[rows["strategy"] == name]
            places = centres[rows["strategy"] == name]
            heights = own["communication"].to_numpy() * _PERCENT
            bounds = own[["communication_low", "communication_high"]].to_numpy() * _PERCENT
            ax.bar(places, heights, width, color=look.color, hatch=look.hatch, edgecolor="black", label=name)
            sure = np.isfinite(bounds).all(axis=1)
            reach = np.abs(bounds[sure] - heights[sure, np.newaxis]).T
            ax.errorbar(places[sure], heights[sure], reach, fmt="none", ecolor="black", elinewidth=0.8)
        named = rows["placement"].nunique() > 1
        labels = [f"{gpus}\n{placement_lines(placement)}" if named else str(gpus) for gpus, placement in groups]
        ax.set_xticks(range(len(groups)), labels, parse_math=False)
        margin = max(0.6, (_FEWEST_PLACES - len(groups) + 1) / 2)
        ax.set_xlim(-margin, len(groups) - 1 + margin)
        ax.set_ylim(0, self._top)
        ax.set_xlabel("GPUs and placement class" if named else "GPUs")
        ax.set_ylabel("communication [%]")
        return samples(rows)


def _places(rows: pd.DataFrame, groups: list[tuple[int, str]], names: list[str], width: float) -> NDArray[np.float64]:
    """Centre of each row's bar: those of a group stand beside each other, around its position."""
    group = pd.Series([groups.index(key) for key in zip(rows["gpus"], rows["placement"], strict=True)], rows.index)
    order = rows["strategy"].map(names.index).groupby(group)
    beside = order.rank() - (order.transform("size") + 1) / 2
    return (group + beside * width).to_numpy(dtype=float)


def _legend(page: Sequence[Panel]) -> list[Any]:
    there = (name for panel in page for name in panel.rows["strategy"])
    return [
        Patch(facecolor=look.color, hatch=look.hatch, edgecolor="black", label=name)
        for name, look in looks(there, STRATEGIES).items()
    ]
