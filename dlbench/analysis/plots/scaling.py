"""Throughput and parallel efficiency against GPUs, with the ideal line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from numpy.typing import NDArray

from dlbench.analysis.plots.drawing import Drawing, LeftOut
from dlbench.analysis.plots.panels import Family, Panel, Sheet, largest, lay_out, missing, panels, samples
from dlbench.analysis.plots.style import GREY, STRATEGIES, Look, label_decades, looks
from dlbench.analysis.scaling import SERIES

NAME = "scaling"
_PERCENT = 100
_OCTAVES_APART = 0.05
"""Distance of strategies measured on the same GPUs: their intervals would lie on each other."""
_MOST_TICKS = 8


def draw(scaling: pd.DataFrame) -> Drawing:
    """Lines of `scaling.scaling`: `throughput` and `efficiency`, with `_low` and `_high`, against `gpus`.

    A panel per system and placement class, and per value of what else differs at equal GPUs.
    """
    if scaling.empty:
        return Drawing(left_out=[LeftOut(NAME, "no run was alone on the machine; only baselines scale")])
    found = panels(scaling, by=("system", "placement"), within=("strategy", "gpus"))
    scaled = [panel for panel in found if panel.rows.duplicated(list(SERIES)).any()]
    others = [panel.title for panel in found if panel not in scaled]
    left_out = [missing(NAME, others, "no configuration ran on two counts of GPUs")] if others else []
    drawing = Drawing(left_out=left_out)
    if scaled:
        drawing.add(lay_out(_family(pd.concat([panel.rows for panel in scaled])), scaled))
    return drawing


def _family(rows: pd.DataFrame) -> Family:
    return Family(
        name=NAME,
        title="Throughput and parallel efficiency",
        caption="Above, throughput of baselines, geometric mean over iterations, against GPUs on logarithmic axes; "
        "dotted lines are ideal, in proportion to the GPUs from the smallest count of each strategy. Below, parallel "
        "efficiency, the throughput per GPU as a share of that at the smallest count. Error bars are 95 % bootstrap "
        f"intervals, {samples(rows)}; a point from fewer than 6 iterations has none, nor has the smallest count's "
        "efficiency, which is 100 % by definition. A line breaks where the degrees of parallelism change: that is "
        "another configuration, with a smallest count of its own. Strategies are drawn slightly beside each other.",
        sheet=Sheet(columns=2, rows=2, heights=(2.0, 1.5)),
        draw=_draw,
        legend=_legend,
    )


def _draw(axes: Sequence[Axes], panel: Panel) -> str:
    above, below = axes
    rows = panel.rows
    styles = looks(rows["strategy"], STRATEGIES)
    for index, (name, look) in enumerate(styles.items()):
        aside = 2 ** ((index - (len(styles) - 1) / 2) * _OCTAVES_APART)
        for _, series in rows[rows["strategy"] == name].groupby(list(SERIES), sort=False):
            points = series.sort_values("gpus")
            gpus, throughput = points["gpus"].to_numpy(dtype=float), points["throughput"].to_numpy()
            above.plot(gpus * aside, throughput[0] * gpus / gpus[0], color=GREY, linestyle=":", linewidth=0.8, zorder=1)
            _points(above, gpus * aside, points, "throughput", look, 1)
            _points(below, gpus * aside, points, "efficiency", look, _PERCENT)
    below.axhline(_PERCENT, color=GREY, linestyle=":", linewidth=0.8, zorder=1)
    _axis_of_gpus(axes, sorted(rows["gpus"].unique()))
    above.set_yscale("log")
    label_decades(above.yaxis)
    above.set_ylabel("throughput [samples/s]")
    below.set_ylabel("efficiency [%]")
    below.set_xlabel("GPUs")
    below.set_ylim(0, 1.08 * _PERCENT * max(1.0, largest(rows, "efficiency", "efficiency_high")))
    return samples(rows)


def _points(ax: Axes, places: NDArray[np.float64], rows: pd.DataFrame, column: str, look: Look, factor: float) -> None:
    """A line through the estimates, with a marker each, and their intervals where there are some."""
    values = rows[column].to_numpy() * factor
    bounds = rows[[f"{column}_low", f"{column}_high"]].to_numpy() * factor
    reach = np.nan_to_num(np.abs(bounds - values[:, np.newaxis])).T
    ax.errorbar(
        *(places, values, reach),
        color=look.color,
        marker=look.marker,
        linestyle=look.line,
        markeredgecolor="black",
        ecolor="black",
        elinewidth=0.7,
    )


def _axis_of_gpus(axes: Sequence[Axes], counts: Sequence[int]) -> None:
    """Logarithmic axis to base 2, with the counts as labels: every one, or powers of two where they are many."""
    labelled = counts if len(counts) <= _MOST_TICKS else [count for count in counts if count & (count - 1) == 0]
    for ax in axes:
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_locator(FixedLocator([float(count) for count in labelled]))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.set_xlim(counts[0] * 2**-0.3, counts[-1] * 2**0.3)


def _legend(page: Sequence[Panel]) -> list[Any]:
    there = (name for panel in page for name in panel.rows["strategy"])
    handles = [
        Line2D([], [], color=look.color, marker=look.marker, linestyle=look.line, markeredgecolor="black", label=name)
        for name, look in looks(there, STRATEGIES).items()
    ]
    return [*handles, Line2D([], [], color=GREY, linestyle=":", linewidth=0.8, label="ideal")]
