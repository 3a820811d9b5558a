"""Fits of extreme values: density, quantiles, prediction against measurement, and the wait against the group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from dlbench.analysis.campaign import KEY
from dlbench.analysis.columns import column, counted
from dlbench.analysis.extremes import GEV, GUMBEL, Extremes, Fit, Prediction
from dlbench.analysis.growth import Growth
from dlbench.analysis.plots import style
from dlbench.analysis.plots.clipping import clipped, upper_limit
from dlbench.analysis.plots.drawing import Drawing, LeftOut, Plot
from dlbench.analysis.plots.panels import MOST_FIGURES, facet_title
from dlbench.analysis.plots.style import DOUBLE_COLUMN, GREY, LIGHT_GREY, MEASURED, decimal, styled, time_unit
from dlbench.analysis.tails import FARTHEST, plotting_positions

NAME = "extremes"

_LOOKS = {GUMBEL: style.GUMBEL, GEV: style.GEV}
_BEYOND: dict[str, Any] = {"marker": "D", "markersize": 3.5, "linestyle": ""}
"""What lies beyond the axes: a marker that no distribution has, and ◆ in words."""
_MOST_POINTS = 500
"""Points of a quantile plot: more lie on each other."""
_MOST_LABELS = 9


def draw(found: Sequence[Extremes]) -> Drawing:
    """A figure of four panels per group, at most as many as a family has."""
    drawing = Drawing()
    with styled():
        for number, each in enumerate(found[:MOST_FIGURES], start=1):
            name = NAME if number == 1 else f"{NAME}-{number}"
            drawing.plots.append(Plot(name, "How waits grow with the group", _caption(each), _figure(each)))
    if len(found) > MOST_FIGURES:
        drawing.left_out.append(LeftOut(NAME, f"{MOST_FIGURES} of {len(found)} groups are drawn"))
    return drawing


def draw_growth(growth: Growth) -> Drawing:
    """The figures of what a campaign's runs allow, and why groups have none."""
    drawing = draw(growth.found)
    drawing.left_out.extend(LeftOut(NAME, reason) for reason in growth.reasons)
    return drawing


def _caption(found: Extremes) -> str:
    return (
        f"{_title(found)}: maxima of groups of {found.group_size} ranks as z-scores of their block times "
        f"(centring: {found.centring}), n = {len(found.maxima):,} of {counted(len(found.times), 'block')} on "
        f"{found.times.ranks} ranks. Above, density and quantiles of the fits by L-moments, with the p-value of each; "
        "maxima far beyond the rest are counted, and ◆ stands at the end of the axes for quantiles there. Below, "
        "predicted against measured mean waits in groups of more ranks, and the mean wait against the ranks of the "
        f"group; shaded: more than {FARTHEST} times the fitted groups, where it is an extrapolation. Bars are 95 % "
        "bootstrap intervals."
    )


def _title(found: Extremes) -> str:
    """Whose block times they are: `leonardo · dp · 64 GPUs · scale 0.01 · world`, and of traces the group."""
    whole = found.times.factors
    factors = {name: whole[name] for name in KEY if name in whole}
    factors |= {name: whole[name] for name in ("scale", "time_scale") if whole.get(name, 1) != 1}
    return " · ".join(filter(None, (facet_title(factors), found.times.source)))


def _figure(found: Extremes) -> Figure:
    figure = Figure(figsize=(DOUBLE_COLUMN, 4.6))
    (density, quantiles), (against, growth) = figure.subplots(2, 2)
    _density(density, found)
    cut = _quantiles(quantiles, found)
    _against(against, found)
    _growth(growth, found)
    handles: list[Artist] = [
        *(
            Line2D([], [], color=look.color, marker=look.marker, linestyle=look.line, label=name)
            for name, look in _LOOKS.items()
        ),
        Line2D([], [], color=MEASURED.color, marker=MEASURED.marker, linestyle="", label="measured"),
    ]
    if cut:
        handles.append(Line2D([], [], color="white", markeredgecolor="black", **_BEYOND, label="beyond the axes"))
    if _extrapolated(found):
        handles.append(Patch(color=LIGHT_GREY, label="extrapolated"))
    figure.suptitle(_title(found), parse_math=False)
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def _density(ax: Axes, found: Extremes) -> None:
    limit = upper_limit([found.maxima])
    shown = found.maxima[found.maxima <= limit]
    edges = np.histogram_bin_edges(shown, "rice")
    share = np.full(len(shown), 1 / (len(found.maxima) * (edges[1] - edges[0])))
    ax.hist(shown, edges.tolist(), weights=share, color=LIGHT_GREY, edgecolor=GREY, linewidth=0.3)
    values = np.linspace(edges[0], edges[-1], 300)
    for name, fit in found.fits.items():
        look = _LOOKS[name]
        ax.plot(values, fit.tail.density(values), color=look.color, linestyle=look.line)
    shape = found.fits[GEV].shape
    beyond = clipped(found.maxima, limit)
    cut = f"; {beyond.count:,} beyond, up to {beyond.maximum:.1f}" if beyond else ""
    ax.set_title(f"ξ = {decimal(shape.value)} ({decimal(shape.low)} to {decimal(shape.high)}){cut}")
    ax.set_xlabel("group maximum [z-score]")
    ax.set_ylabel("density")


def _quantiles(ax: Axes, found: Extremes) -> bool:
    """Draw quantiles against maxima; whether some of them are beyond the axes."""
    shown = np.unique(np.linspace(0, len(found.maxima) - 1, _MOST_POINTS).astype(int))
    positions, maxima = plotting_positions(len(found.maxima))[shown], found.maxima[shown]
    expected = {name: fit.tail.quantile(positions) for name, fit in found.fits.items()}
    limit = upper_limit([maxima, *expected.values()])
    for name, quantiles in expected.items():
        look = _LOOKS[name]
        inside = np.maximum(quantiles, maxima) <= limit
        ax.plot(quantiles[inside], maxima[inside], color=look.color, marker=look.marker, linestyle="", markersize=2)
        ends = np.minimum((quantiles[~inside], maxima[~inside]), limit)
        ax.plot(*ends, color=look.color, markeredgecolor="black", **_BEYOND)
    ax.axline((0, 0), slope=1, color=GREY, linestyle=":", linewidth=0.8)
    beyond = clipped(np.concatenate([np.maximum(quantiles, maxima) for quantiles in expected.values()]), limit)
    if beyond:
        cut = f"◆ {beyond.count} beyond, up to {beyond.maximum:.1f}"
        ax.text(0.98, 0.04, cut, transform=ax.transAxes, horizontalalignment="right")
    ax.set_title(", ".join(f"{name} {_p_value(fit)}" for name, fit in found.fits.items()))
    ax.set_xlabel("quantile of the fit [z-score]")
    ax.set_ylabel("group maximum [z-score]")
    return beyond is not None


def _p_value(fit: Fit) -> str:
    text = column("p_value").write(fit.goodness.p_value)
    return f"p {text}" if text.startswith("≤") else f"p = {text}"


def _against(ax: Axes, found: Extremes) -> None:
    checked = [prediction for prediction in found.predictions if not np.isnan(prediction.measured.value)]
    factor, unit = _unit(found.predictions)
    for prediction in checked:
        look = _LOOKS[prediction.distribution]
        measured, tau = prediction.measured, prediction.tau
        ax.errorbar(
            measured.value * factor,
            tau.value * factor,
            xerr=_reach(measured.value, measured.low, measured.high, factor),
            yerr=_reach(tau.value, tau.low, tau.high, factor),
            color=look.color,
            marker=look.marker,
            elinewidth=0.7,
        )
    ax.axline((0, 0), slope=1, color=GREY, linestyle=":", linewidth=0.8)
    worst = {
        name: max((abs(each.error.value) for each in checked if each.distribution == name), default=np.nan)
        for name in found.fits
    }
    ax.set_title("largest error: " + ", ".join(f"{name} {100 * error:.1f} %" for name, error in worst.items()))
    ax.set_xlabel(f"measured mean wait [{unit}]")
    ax.set_ylabel(f"predicted mean wait [{unit}]")


def _growth(ax: Axes, found: Extremes) -> None:
    factor, unit = _unit(found.predictions)
    for name, look in _LOOKS.items():
        those = [prediction for prediction in found.predictions if prediction.distribution == name]
        ranks = [prediction.ranks for prediction in those]
        tau = np.array([prediction.tau for prediction in those]) * factor
        ax.plot(ranks, tau[:, 0], color=look.color, marker=look.marker, linestyle=look.line)
        ax.fill_between(ranks, tau[:, 1], tau[:, 2], color=look.color, alpha=0.2, linewidth=0)
    checked = [each for each in those if not np.isnan(each.measured.value)]
    ax.plot(
        [each.ranks for each in checked],
        [each.measured.value * factor for each in checked],
        color=MEASURED.color,
        marker=MEASURED.marker,
        linestyle="",
        zorder=3,
    )
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(
        FixedLocator(ranks if len(ranks) <= _MOST_LABELS else ranks[:: len(ranks) // _MOST_LABELS])
    )
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_ylim(bottom=0)
    if _extrapolated(found):
        ax.axvspan(FARTHEST * found.group_size, ranks[-1], color=LIGHT_GREY, linewidth=0, zorder=0)
    ax.set_title(f"fitted to groups of {found.group_size}")
    ax.set_xlabel("ranks")
    ax.set_ylabel(f"mean wait [{unit}]")


def _extrapolated(found: Extremes) -> bool:
    return any(prediction.k > FARTHEST for prediction in found.predictions)


def _unit(predictions: Sequence[Prediction]) -> tuple[float, str]:
    return time_unit(max(prediction.tau.value for prediction in predictions))


def _reach(value: float, low: float, high: float, factor: float) -> list[list[float]]:
    """How far an error bar reaches down and up; not at all where there is no interval."""
    return np.nan_to_num(np.array([[value - low], [high - value]]) * factor).tolist()  # type: ignore[no-any-return]
