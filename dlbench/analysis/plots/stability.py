"""Runtime of the slowest rank over the iterations, run by run: whether the machine is stable enough to compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from dlbench.analysis.campaign import FACTORS, Campaign
from dlbench.analysis.plots.clipping import clipped, upper_limit
from dlbench.analysis.plots.drawing import Drawing, LeftOut
from dlbench.analysis.plots.panels import Family, Panel, Sheet, lay_out, panels, unbroken
from dlbench.analysis.plots.style import GREY, LIGHT_GREY, LOOKS, MEASURED, time_unit
from dlbench.quantities import duration
from dlbench.statistics import summarise

NAME = "stability"
_MEDIAN = LOOKS[3]
_LEAST_SPAN = 0.2
"""Height of the axis as a share of the median: noise of a percent shall not look like instability."""
_MOST_MARKERS = 400
_MOST_LABELS = 20
_MOST_NARROW = 80
"""Panels of more iterations get the full width."""


def draw(campaign: Campaign) -> Drawing:
    """A panel per configuration, its runs one after the other in the order in which they began."""
    if not len(campaign.iterations):
        return Drawing(left_out=[LeftOut(NAME, "no run has an iteration")])
    runs = campaign.runs[[*FACTORS, "concurrent", "begin"]]
    rows = campaign.iterations[["run", "iteration", "warmup", "seconds"]].join(runs, on="run")
    found = panels(rows, by=("system", "strategy", "gpus", "placement"), within=())
    family = Family(
        name=NAME,
        title="Runtime over the iterations",
        caption="Runtime of the slowest rank in each iteration of each run, runs of a configuration in the order in "
        "which they began. Warm-up iterations are grey and never counted. Line and band: median of a run's measured "
        "iterations and its 95 % interval from order statistics, which takes 6 iterations. ▲: measured iterations "
        "above the axis; a band that reaches its end ends at one of these. △: warm-up iterations above it. The axis "
        "does not begin at 0. "
        f"In all, {_counted(rows)}.",
        sheet=Sheet(
            columns=2 if max(len(panel.rows) for panel in found) <= _MOST_NARROW else 1, rows=5, heights=(1.75,)
        ),
        draw=_draw,
        legend=_legend,
    )
    return lay_out(family, found)


def _counted(rows: pd.DataFrame) -> str:
    measured, runs = int((~rows["warmup"]).sum()), rows["run"].nunique()
    return f"n = {measured} iterations of {runs} run{'' if runs == 1 else 's'}"


def _draw(axes: Sequence[Axes], panel: Panel) -> str:
    (ax,) = axes
    rows = panel.rows.sort_values(["begin", "run", "iteration"], ignore_index=True)
    measured = rows.loc[~rows["warmup"], "seconds"].to_numpy()
    factor, unit = time_unit(float(np.median(measured)))
    low, high = _range(
        measured,
        fastest=float(rows["seconds"].min()),
        slowest=float(rows[~rows["warmup"]].groupby("run")["seconds"].median().max()),
    )
    inside = rows["seconds"] <= high
    counted = rows.assign(place=np.arange(len(rows)), value=rows["seconds"].where(inside) * factor)
    runs = [run for _, run in counted.groupby("run", sort=False)]
    for run in runs:
        _draw_run(ax, run, "." if len(rows) <= _MOST_MARKERS else "", factor)
    for run in runs[1:]:
        ax.axvline(run["place"].iloc[0] - 0.5, color=LIGHT_GREY, linewidth=0.6, zorder=0)
    _mark_beyond(ax, counted[~inside])
    _label_runs(ax, runs)
    ax.set_ylim(low * factor, high * factor)
    ax.set_xlim(-0.8, len(rows) - 0.2)
    ax.set_ylabel(f"slowest rank [{unit}]")
    return _counted(rows) + _above(rows, high)


def _draw_run(ax: Axes, run: pd.DataFrame, marker: str, factor: float) -> None:
    warm, measured = run[run["warmup"]], run[~run["warmup"]]
    hollow: dict[str, Any] = {"color": GREY, "marker": "o", "markersize": 3, "markerfacecolor": "white"}
    # The axis is that of what counts, and a warm-up iteration may lie at its very end: no edge shall cut its mark.
    ax.plot(warm["place"], warm["value"], linewidth=0.6, **hollow, clip_on=False, in_layout=False)
    ax.plot(measured["place"], measured["value"], color=MEASURED.color, marker=marker, linewidth=0.7, zorder=3)
    summary = summarise(measured["seconds"].to_numpy())
    ends = [measured["place"].iloc[0] - 0.4, measured["place"].iloc[-1] + 0.4]
    ax.plot(ends, [summary.median * factor] * 2, color=_MEDIAN.color, linewidth=1.2, zorder=2)
    if summary.interval is not None:
        low, high = summary.interval.low * factor, summary.interval.high * factor
        ax.fill_between(ends, low, high, color=_MEDIAN.color, alpha=0.25, linewidth=0, zorder=1)


def _mark_beyond(ax: Axes, beyond: pd.DataFrame) -> None:
    """Triangles at the end of the axis for what lies above it; grey and empty for warm-up."""
    for _, points in beyond.groupby("warmup"):
        edge, face = (GREY, "white") if points["warmup"].iloc[0] else ("black", "black")
        style: dict[str, Any] = {"marker": "^", "markersize": 3, "markeredgecolor": edge, "markerfacecolor": face}
        at_the_end = np.full(len(points), 0.97)
        ax.plot(points["place"], at_the_end, linestyle="", transform=ax.get_xaxis_transform(), zorder=4, **style)


def _label_runs(ax: Axes, runs: Sequence[pd.DataFrame]) -> None:
    """Number the runs below their middle; a single run has its iterations numbered instead."""
    if len(runs) == 1:
        ax.xaxis.set_major_locator(MaxNLocator(nbins=12, integer=True, min_n_ticks=1))
        ax.set_xlabel("iteration")
        return
    step = -(-len(runs) // _MOST_LABELS)
    labelled = [(number, run) for number, run in enumerate(runs, start=1) if (number - 1) % step == 0]
    ax.set_xticks([run["place"].mean() for _, run in labelled], [str(number) for number, _ in labelled])
    ax.set_xlabel("run, its iterations from left to right")


def _range(measured: NDArray[np.float64], *, fastest: float, slowest: float) -> tuple[float, float]:
    """Seconds at the ends of the axis: from the fastest iteration to what is not far out and the slowest run's median.

    It is not shorter than a fixed share of the median.
    """
    low, high = fastest, max(upper_limit([measured]), slowest)
    missing = max(0.0, _LEAST_SPAN * float(np.median(measured)) - (high - low))
    margin = 0.06 * (high - low) + missing / 2
    return low - margin, high + margin


def _above(rows: pd.DataFrame, limit: float) -> str:
    """How many measured and warm-up iterations are marked at the end of the axis."""
    kinds = (("▲ {}", rows[~rows["warmup"]]), ("△ {} of warm-up", rows[rows["warmup"]]))
    found = ((words, clipped(some["seconds"].to_numpy(), limit)) for words, some in kinds)
    return "".join(
        f"; {unbroken(words.format(above.count))} above the axis, {unbroken(f'up to {duration(above.maximum)}')}"
        for words, above in found
        if above
    )


def _legend(_: Sequence[Panel]) -> list[Any]:
    triangle: dict[str, Any] = {"marker": "^", "markersize": 3, "linestyle": ""}
    return [
        Line2D([], [], color=GREY, marker="o", markersize=3, markerfacecolor="white", linewidth=0.6, label="warm-up"),
        Line2D([], [], color=MEASURED.color, marker=".", linewidth=0.7, label="measured"),
        Line2D([], [], color=_MEDIAN.color, linewidth=1.2, label="median of a run"),
        Patch(facecolor=_MEDIAN.color, alpha=0.25, linewidth=0, label="its 95 % interval"),
        Line2D([], [], color="black", **triangle, label="above the axis"),
        Line2D([], [], color=GREY, **triangle, markerfacecolor="white", label="warm-up above it"),
    ]
