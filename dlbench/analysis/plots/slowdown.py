"""Distributions of the slowdown σ by placement class, runs of each mode (reserved, queue) side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from dlbench.analysis.campaign import FACTORS
from dlbench.analysis.plots.clipping import clipped, upper_limit
from dlbench.analysis.plots.drawing import Drawing, LeftOut
from dlbench.analysis.plots.panels import (
    Family,
    Panel,
    Sheet,
    facet_title,
    largest,
    lay_out,
    missing,
    panels,
    placement_lines,
    smallest,
)
from dlbench.analysis.plots.style import GREY, Look, looks
from dlbench.analysis.slowdown import Slowdown
from dlbench.quantities import duration, significant
from dlbench.statistics import FEWEST_SAMPLES

NAME = "slowdown"
_PANEL = ("system", "strategy", "gpus")
_MODES = ("reserved", "queue")
_FEWEST_OF_VIOLIN = 20
"""Below, a density says more about its bandwidth than about the samples."""
_MOST_POINTS = 60
"""Larger groups are shown without their points, outliers aside."""
_MOST_NARROW_BOXES = 4
_MOST_BOXES = 10
_LEAST_SPAN = 0.1
_WIDEST = 0.4
"""Of a box and what is drawn around it, where 1 is the distance of placement classes."""
_GOLDEN = 0.618034
"""Multiples of it, modulo 1, spread evenly however many there are."""

Samples = Mapping[tuple[Any, ...], NDArray[np.float64]]
"""σ of the counted iterations of a configuration, by its factors."""


def draw(slowdown: Slowdown) -> Drawing:
    """A panel per system, strategy and GPUs, with the counted iterations of each placement class and mode."""
    known = slowdown.table[slowdown.table["sigma"].notna()]
    left_out = list(_reasons(slowdown.table[slowdown.table["sigma"].isna()]))
    if known.empty:
        nothing = LeftOut(NAME, "no concurrent run: nothing ran beside other jobs of its experiment")
        return Drawing(left_out=left_out or [nothing])
    counted = slowdown.iterations[slowdown.iterations["counted"]]
    boxes = _Boxes({key: part.to_numpy() for key, part in counted.groupby(list(FACTORS))["sigma"]})
    found = [part for panel in panels(known, by=_PANEL, within=("placement", "mode")) for part in _parts(panel)]
    wide = max(len(panel.rows) for panel in found) > _MOST_NARROW_BOXES
    family = Family(
        name=NAME,
        title="Slowdown beside other jobs",
        caption="Slowdown σ, throughput alone (geometric mean) over throughput beside the other jobs of the "
        f"experiment, of each of n = {known['iterations'].sum()} iterations that these overlapped. Below each box: its "
        "iterations n, and the isolated time of an iteration, the median of the baseline. Box: quartiles and median, "
        f"whiskers to 1.5 interquartile ranges, from {FEWEST_SAMPLES} iterations on; violin: density, from "
        f"{_FEWEST_OF_VIOLIN} on; points: iterations, beyond {_MOST_POINTS} the outliers only. Diamond: σ of the "
        "geometric means with its 95 % bootstrap interval, absent below 6 iterations. ▲: iterations above the axis and "
        "the largest; an axis ends at what is three interquartile ranges above its box. Axes of panels differ.",
        sheet=Sheet(columns=1 if wide else 2, rows=3, heights=(2.7,)),
        draw=boxes.draw,
        legend=_legend,
    )
    drawing = lay_out(family, found)
    return Drawing(drawing.plots, [*left_out, *drawing.left_out])


def _reasons(unknown: pd.DataFrame) -> Iterator[LeftOut]:
    """Why configurations have no σ, each reason once."""
    for reason, rows in unknown.groupby("reason", sort=False):
        columns = [*_PANEL, "placement", "mode"]
        cells = rows[columns].itertuples(index=False, name=None)
        titles = [facet_title(dict(zip(columns, row, strict=True))) for row in cells]
        yield missing(NAME, titles, str(reason))


def _parts(panel: Panel) -> Iterator[Panel]:
    """The panel, or several of whole placement classes where it has too many boxes to label them."""
    number = panel.rows.groupby("placement", sort=False).ngroup()
    boxes = len(panel.rows) / (number.max() + 1)
    for _, rows in panel.rows.groupby(number // max(1, int(_MOST_BOXES / boxes))):
        yield Panel(panel.title, rows)


def _looks(rows: pd.DataFrame) -> dict[str, Look]:
    """A look per mode, in order."""
    return looks(rows["mode"], _MODES if rows["mode"].any() else ())


class _Boxes:
    """Draws the boxes of a panel from the σ of the iterations."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def draw(self, axes: Sequence[Axes], panel: Panel) -> str:
        (ax,), rows = axes, panel.rows
        groups = [self._samples[key] for key in rows[list(FACTORS)].itertuples(index=False, name=None)]
        limit = upper_limit(groups)
        top = max(limit, largest(rows, "sigma", "sigma_high"))
        bottom = min(1.0, smallest(rows, "sigma", "sigma_low"), *(float(group.min()) for group in groups))
        span = max(top - bottom, _LEAST_SPAN)
        cut = [clipped(group, limit) for group in groups]
        ax.set_ylim(bottom - 0.06 * span, bottom + span * (1.25 if any(cut) else 1.06))
        styles, places = _looks(rows), _label(ax, rows)
        width = min(_WIDEST, 0.8 / len(styles))
        for place, sigma, above, row in zip(places, groups, cut, rows.itertuples(), strict=True):
            _box(ax, place, width, sigma, limit, styles[str(row.mode)])
            _mean(ax, place + 0.3 * width, row)
            if above:
                text = f"▲ {above.count}\nmax {significant(above.maximum, 3)}"
                ax.text(place, bottom + span * 1.24, text, ha="center", va="top", fontsize=7)
        ax.axhline(1, color=GREY, linestyle=":", linewidth=0.8, zorder=1)
        ax.set_ylabel("slowdown σ")
        left_out = rows["left_out"].sum()
        return f"n = {rows['iterations'].sum()} iterations" + (
            f"; {left_out} left out, not overlapped" if left_out else ""
        )


def _label(ax: Axes, rows: pd.DataFrame) -> list[float]:
    """Name what stands at each place, and return the places: modes side by side within their placement class."""
    classes, modes = list(rows["placement"].unique()), list(_looks(rows))
    width = 0.8 / len(modes)
    middle = (len(modes) - 1) / 2
    places = [
        classes.index(placement) + (modes.index(mode) - middle) * width
        for placement, mode in zip(rows["placement"], rows["mode"], strict=True)
    ]
    isolated = [duration(float(seconds)) for seconds in rows["isolated_seconds"]]
    ax.set_xticks(places, [f"n = {n}\nalone\n{time}" for n, time in zip(rows["iterations"], isolated, strict=True)])
    ax.xaxis.remove_overlapping_locs = False
    ax.set_xticks(range(len(classes)), [placement_lines(name) for name in classes], minor=True, parse_math=False)
    ax.tick_params(axis="x", which="minor", length=0, pad=36)
    ax.set_xlim(-0.55, len(classes) - 0.45)
    ax.set_xlabel("placement class")
    return places


def _box(ax: Axes, place: float, width: float, sigma: NDArray[np.float64], limit: float, look: Look) -> None:
    shown = sigma[sigma <= limit]
    if len(shown) >= _FEWEST_OF_VIOLIN and np.ptp(shown) > 0:
        violin = ax.violinplot(shown, [place], widths=0.9 * width, showextrema=False)
        bodies: Any = violin["bodies"]
        for body in bodies:
            body.set(facecolor=look.color, edgecolor=look.color, alpha=0.35, zorder=1)
    if len(sigma) >= FEWEST_SAMPLES:
        drawn = ax.boxplot(
            sigma,
            positions=[place],
            widths=0.3 * width,
            showfliers=False,
            manage_ticks=False,
            patch_artist=True,
            medianprops={"color": "black", "linewidth": 1.2},
        )
        for patch in drawn["boxes"]:
            patch.set(facecolor=look.color, hatch=look.hatch)
    points = shown if len(sigma) <= _MOST_POINTS else _outliers(sigma, shown)
    aside = (np.arange(len(points)) * _GOLDEN % 1 - 0.5) * 0.25 * width
    ax.plot(place + aside, points, linestyle="", marker=".", markersize=2, color="black", zorder=3)


def _outliers(sigma: NDArray[np.float64], shown: NDArray[np.float64]) -> NDArray[np.float64]:
    """What is shown beyond the whiskers."""
    lower, upper = np.quantile(sigma, [0.25, 0.75])
    reach = 1.5 * (upper - lower)
    beyond: NDArray[np.float64] = shown[(shown < lower - reach) | (shown > upper + reach)]
    return beyond


def _mean(ax: Axes, place: float, row: Any) -> None:
    reach = np.nan_to_num(np.abs([[row.sigma - row.sigma_low], [row.sigma_high - row.sigma]]))
    style: dict[str, Any] = {"marker": "D", "markersize": 3.5, "markerfacecolor": "white", "markeredgecolor": "black"}
    ax.errorbar([place], [row.sigma], reach, ecolor="black", elinewidth=0.8, zorder=5, **style)


def _legend(page: Sequence[Panel]) -> list[Any]:
    rows = pd.concat([panel.rows for panel in page])
    styles = _looks(rows)
    handles = [
        Patch(facecolor=look.color, hatch=look.hatch, edgecolor="black", label=mode or "mode not recorded")
        for mode, look in styles.items()
    ]
    mean = Line2D([], [], color="black", marker="D", markersize=3.5, markerfacecolor="white", linestyle="", label="σ")
    alone = Line2D([], [], color=GREY, linestyle=":", linewidth=0.8, label="as fast as alone")
    return [*(handles if list(styles) != [""] else []), mean, alone]
