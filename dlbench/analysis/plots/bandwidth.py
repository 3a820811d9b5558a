"""The bandwidth law: B* against the domain and against FLOPS, with and without the tax."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from dlbench.analysis.bandwidth import NO_TAX, Collective
from dlbench.analysis.columns import counted
from dlbench.analysis.extremes import GEV, GUMBEL
from dlbench.analysis.growth import COLLECTIVE, Growth, named, scaled
from dlbench.analysis.plots import style
from dlbench.analysis.plots.drawing import Drawing, LeftOut, Plot
from dlbench.analysis.plots.style import DOUBLE_COLUMN, SINGLE_COLUMN, Look, label_decades, styled
from dlbench.quantities import duration, si

NAME = "bandwidth"
_LOOKS = {NO_TAX: style.REFERENCE, GUMBEL: style.GUMBEL, GEV: style.GEV}
_GIGA = 1e-9
_MOST_TICKS = 8


@dataclass(frozen=True, slots=True)
class _Kind:
    """A figure of one of the tables."""

    name: str
    title: str
    caption: str
    against: str
    """Column of the horizontal axis."""
    label: str


_KINDS = MappingProxyType(
    {
        "bandwidth": _Kind(
            NAME,
            "Bandwidth that is still worth buying",
            "B*, at which the elasticity of a collective has fallen to its target, against the ranks of the domain.",
            "domain",
            "ranks of the domain",
        ),
        "flops": _Kind(
            f"{NAME}-flops",
            "Bandwidth for faster computation",
            "B*(x), which keeps the end-to-end elasticity of today while FLOPS grow by x and the mean wait stays, in "
            "the largest domain.",
            "flops_factor",
            "growth x of the FLOPS",
        ),
    }
)
"""By the name of the table."""


def draw(frames: Mapping[str, pd.DataFrame], collective: Collective, notes: Sequence[str] = ()) -> Drawing:
    """A figure per table of `dlbench.analysis.bandwidth`, made for this collective, with a panel per topology.

    Captions end with the notes.
    """
    drawing = Drawing()
    with styled():
        for name, frame in frames.items():
            kind = _KINDS[name]
            given = _given(kind, collective)
            caption = (
                f"{kind.caption} All-reduces of {given}. Lines: without a tax, and with the mean wait by the named "
                "fits; shaded: 95 % interval of the wait, where it has one. Axes are logarithmic."
                f"{''.join(f' Note: {note}.' for note in notes)}"
            )
            drawing.plots.append(Plot(kind.name, kind.title, caption, _figure(kind, frame, given)))
    return drawing


def _given(kind: _Kind, collective: Collective) -> str:
    """The parameters; with faster computation, the elasticity is today's, not one that is asked for."""
    target = f", elasticity |ε| = {collective.elasticity:g}" if kind.against == "domain" else ""
    return f"message size S = {si(collective.message, 'B')}, latency α = {duration(collective.alpha)}{target}"


def draw_growth(growth: Growth) -> Drawing:
    """The law with the waits of a campaign's runs, or why there is none."""
    if growth.law.empty:
        return Drawing(left_out=[LeftOut(NAME, growth.why_no_law)])
    (plot,) = draw({NAME: growth.law}, COLLECTIVE).plots
    times = growth.found[0].times
    caption = f"{plot.caption} Waits of {named(times)}, n = {counted(len(times), 'block')}.{scaled(times)}"
    return Drawing(plots=[replace(plot, caption=caption)])


def _figure(kind: _Kind, frame: pd.DataFrame, given: str) -> Figure:
    if kind.against != "domain":
        frame = frame[frame["domain"] == frame["domain"].max()]
    panels = list(frame.groupby("topology", sort=False))
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(DOUBLE_COLUMN if columns > 1 else SINGLE_COLUMN, 2.2 * rows + 0.2))
    axes = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    styles = {name: _LOOKS[name] for name in frame["tax"].unique()}
    for ax, (topology, part) in zip(axes, panels, strict=False):
        _panel(ax, kind, part, styles)
        domain = "" if kind.against == "domain" else f", {part['domain'].iloc[0]} ranks"
        ax.set_title(f"{topology}{domain}")
    for ax in axes[len(panels) :]:
        ax.remove()
    handles = [
        Line2D([], [], color=look.color, marker=look.marker, linestyle=look.line, label=f"tax: {name}")
        for name, look in styles.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    figure.suptitle(given)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def _panel(ax: Axes, kind: _Kind, part: pd.DataFrame, styles: Mapping[str, Look]) -> None:
    for tax, rows in part.sort_values(kind.against).groupby("tax", sort=False):
        look = styles[str(tax)]
        places = rows[kind.against].to_numpy(dtype=float)
        low, value, high = (rows[f"bandwidth{end}"].to_numpy() * _GIGA for end in ("_low", "", "_high"))
        ax.plot(places, value, color=look.color, marker=look.marker, linestyle=look.line)
        ax.fill_between(places, low, high, color=look.color, alpha=0.2, linewidth=0)
    ticks = np.unique(part[kind.against].to_numpy(dtype=float))
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    label_decades(ax.yaxis)
    ax.xaxis.set_major_locator(FixedLocator(ticks[:: math.ceil(len(ticks) / _MOST_TICKS)].tolist()))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_xlabel(kind.label)
    ax.set_ylabel("B* [GB/s]")
