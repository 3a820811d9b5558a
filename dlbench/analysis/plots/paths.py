"""How well critical paths explain the synchronisation tax: predicted against measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from dlbench.analysis.columns import counted
from dlbench.analysis.critical_path import determination
from dlbench.analysis.plots.drawing import Drawing, LeftOut
from dlbench.analysis.plots.panels import Family, Panel, Sheet, lay_out
from dlbench.analysis.plots.style import CLASSES, GREY, decimal, looks, time_unit
from dlbench.analysis.plots.tax import by_configuration
from dlbench.analysis.taxes import Taxes

NAME = "tax-paths"

_MOST_POINTS = 2000
"""Of a class; of more, equally many are left out everywhere in time."""
_SHORTEST = 1e-8
"""Seconds at the least that the axes show."""
_IDLE = "without idle time"


def draw(taxes: Taxes) -> Drawing:
    """A panel per configuration: the difference in length of two critical paths against tau_range."""
    rows = taxes.collectives[taxes.collectives["predicted"].notna()]
    if rows.empty:
        return Drawing(left_out=[LeftOut(NAME, "no collective has critical paths (of records, --record-ops)")])
    points = _Points(sorted(rows["name"].unique()))
    family = Family(
        name=NAME,
        title="Tax by critical paths against the tax",
        caption="Each point is a collective: by how much the critical path of the last rank is longer than that of the "
        "first, against the tax (tau_range). A filled point counts all of the paths, and lies on the line by "
        "construction where ranks leave the collective before together. A hollow one leaves out idle time, which no op "
        f"or event covers: its distance from the line is not explained. In all, n = {len(rows)} collectives.",
        sheet=Sheet(columns=2, rows=3, heights=(2.6,)),
        draw=points.draw,
        legend=points.legend,
    )
    return lay_out(family, by_configuration(taxes, rows[["run", "name", "tau_range", "predicted", "gap"]], ("name",)))


class _Points:
    """Draws the collectives of a panel."""

    def __init__(self, names: Sequence[str]) -> None:
        self._looks = looks(names, CLASSES)

    def draw(self, axes: Sequence[Axes], panel: Panel) -> str:
        (ax,) = axes
        rows = panel.rows
        largest = max(float(rows[["tau_range", "predicted"]].to_numpy().max()), _SHORTEST)
        factor, unit = time_unit(largest)
        for name, every in rows.groupby("name"):
            look = self._looks[str(name)]
            shown = every.iloc[:: 1 + (len(every) - 1) // _MOST_POINTS]
            measured, predicted = (shown[column].to_numpy() * factor for column in ("tau_range", "predicted"))
            busy = predicted - shown["gap"].to_numpy() * factor
            style: dict[str, Any] = {"linestyle": "none", "marker": look.marker, "markersize": 3.5, "color": look.color}
            ax.plot(measured, busy, **style, markerfacecolor="none", alpha=0.7, label="")
            ax.plot(measured, predicted, **style, markeredgewidth=0, alpha=0.7, label=str(name))
        ends = np.array([0.0, largest * factor])
        ax.plot(ends, ends, color=GREY, linestyle=":", linewidth=0.8, zorder=1)
        ax.set_xlabel(f"tau range [{unit}]")
        ax.set_ylabel(f"predicted [{unit}]")
        return f"n = {counted(len(rows), 'collective')}; {_fits(rows)}"

    def legend(self, page: Sequence[Panel]) -> list[Any]:
        there = {str(name) for panel in page for name in panel.rows["name"]}
        marks = [
            Line2D([], [], color=look.color, marker=look.marker, linestyle="none", markersize=4, label=name)
            for name, look in self._looks.items()
            if name in there
        ]
        hollow: dict[str, Any] = {"marker": "o", "markerfacecolor": "none", "markersize": 4}
        return [*marks, Line2D([], [], color=GREY, linestyle="none", label=_IDLE, **hollow)]


def _fits(rows: Any) -> str:
    """R² of both kinds of points, as far as there is one."""
    measured, predicted, gap = (rows[column].to_numpy() for column in ("tau_range", "predicted", "gap"))
    fits = determination(measured, predicted), determination(measured, predicted - gap)
    return "R² unknown" if np.isnan(fits[0]) else f"R² {decimal(fits[0])}, {_IDLE} {decimal(fits[1])}"
