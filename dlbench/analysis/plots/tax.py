"""The synchronisation tax: how it is distributed, and which ranks pay it in which collectives."""

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

from dlbench.analysis.campaign import FACTORS
from dlbench.analysis.columns import counted
from dlbench.analysis.plots.clipping import clipped, upper_limit
from dlbench.analysis.plots.drawing import Drawing, LeftOut
from dlbench.analysis.plots.panels import Family, Panel, Sheet, lay_out, panels, unbroken
from dlbench.analysis.plots.style import CLASSES, LIGHT_GREY, label_decades, looks, time_unit
from dlbench.analysis.sync_tax import GroupTax
from dlbench.analysis.taxes import Taxes
from dlbench.quantities import duration

NAME = "tax"
MAP = "tax-map"

_NO_OPS = "no run has collectives with recorded ops (--record-ops)"
_BY = ("system", "strategy", "gpus", "placement")
_SHORTEST = 1e-8
"""Seconds at the least on a logarithmic axis: what is shorter is drawn there."""
_MOST_STEPS = 500
_MOST_NARROW = 32
"""Maps of more collectives get the full width."""


def draw(taxes: Taxes) -> Drawing:
    """A panel per configuration with the distribution of tau_range in each communication class."""
    if not len(taxes.collectives):
        return Drawing(left_out=[LeftOut(NAME, _why_not(taxes))])
    rows = [
        {"run": run, "name": name, "seconds": part["tau_range"].to_numpy(), "error": part["uncertainty"].to_numpy()}
        for (run, name), part in taxes.collectives.groupby(["run", "name"], sort=False)
    ]
    distributions = _Distributions(sorted({str(row["name"]) for row in rows}))
    family = Family(
        name=NAME,
        title="Distribution of the synchronisation tax",
        caption="Share of the collectives of a class (operation/scope) in which the first rank to come waited for the "
        "last at most that long (tau_range). Time is logarithmic; grey: below the median error of the times, where the "
        f"clocks cannot tell a wait. Warm-ups are left out. In all, n = {len(taxes.collectives)} collectives.",
        sheet=Sheet(columns=2, rows=4, heights=(1.9,)),
        draw=distributions.draw,
        legend=distributions.legend,
    )
    return lay_out(family, by_configuration(taxes, pd.DataFrame(rows), within=("name",)))


def draw_map(taxes: Taxes) -> Drawing:
    """A panel per configuration and class: the wait of each rank in each collective."""
    if not len(taxes.collectives):
        return Drawing(left_out=[LeftOut(MAP, _why_not(taxes))])
    maps = _Maps(taxes)
    chosen = maps.chosen()
    family = Family(
        name=MAP,
        title="Waits of each rank in each collective",
        caption="How long each rank waited in the collectives of a class (operation/scope) for the last rank of its "
        "group: the last has the least. Of runs, the median over the iterations of the run that has the median tax, by "
        "the collective's number in an iteration; of traces, each collective. White: the rank takes no part. ▲: waits "
        "far above the others, which have the brightest colour; their number and the longest. In all, "
        f"n = {len(taxes.collectives)} collectives.",
        sheet=Sheet(columns=1 if chosen["columns"].max() > _MOST_NARROW else 2, rows=4, heights=(2.0,)),
        draw=maps.draw,
        legend=lambda _: [],
    )
    by_class = [
        panel for _, rows in chosen.groupby("name", sort=False) for panel in by_configuration(taxes, rows, within=())
    ]
    titled = [
        Panel(f"{panel.title} · {panel.rows['name'].iloc[0]}".removeprefix(" · "), panel.rows) for panel in by_class
    ]
    return lay_out(family, titled)


def _why_not(taxes: Taxes) -> str:
    """Why there are no collectives: runs that recorded ops have told."""
    return "; ".join([_NO_OPS, *(taxes.notes if len(taxes.runs) else ())])


def by_configuration(taxes: Taxes, rows: pd.DataFrame, within: Sequence[str]) -> list[Panel]:
    """The rows, which have a column `run`, by configuration; those of traces are one panel."""
    if taxes.recorded:
        return panels(rows.join(taxes.runs[[*FACTORS, "concurrent"]], on="run"), by=_BY, within=within)
    ranks = sorted({rank for tax in taxes.groups for rank in tax.collectives.ranks})
    return [Panel(f"traces of {counted(len(ranks), 'rank')}", rows.assign(gpus=len(ranks)))]


class _Distributions:
    """Draws cumulative distributions, one per class."""

    def __init__(self, names: Sequence[str]) -> None:
        self._looks = looks(names, CLASSES)

    def draw(self, axes: Sequence[Axes], panel: Panel) -> str:
        (ax,) = axes
        largest = max(float(seconds.max()) for seconds in panel.rows["seconds"])
        factor, unit = time_unit(max(largest, _SHORTEST))
        for name, rows in panel.rows.groupby("name"):
            look = self._looks[str(name)]
            seconds, share = steps(np.concatenate(list(rows["seconds"])))
            ax.step(seconds * factor, share, where="post", color=look.color, linestyle=look.line, label=str(name))
        error = float(np.median(np.concatenate(list(panel.rows["error"]))))
        ax.set_xscale("log")
        ax.margins(x=0.02)
        low = ax.get_xlim()[0]
        if error * factor > low:
            ax.axvspan(low, error * factor, color=LIGHT_GREY, linewidth=0, zorder=0)
            ax.set_xlim(left=low)
        label_decades(ax.xaxis)
        ax.set_ylim(0, 1.02)
        ax.set_xlabel(f"tau range [{unit}]")
        ax.set_ylabel("share of collectives")
        count = sum(map(len, panel.rows["seconds"]))
        return f"n = {counted(count, 'collective')}; {unbroken(f'largest {duration(largest)}')}"

    def legend(self, page: Sequence[Panel]) -> list[Any]:
        there = {str(name) for panel in page for name in panel.rows["name"]}
        lines = [
            Line2D([], [], color=look.color, linestyle=look.line, label=name)
            for name, look in self._looks.items()
            if name in there
        ]
        return [*lines, Patch(facecolor=LIGHT_GREY, linewidth=0, label="below the clocks' error")]


def steps(seconds: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Ends of the steps of a cumulative distribution, and the share at or below each, from 0 on.

    Of many samples, as many quantiles as a reader can see.
    """
    ordered = np.maximum(np.sort(seconds), _SHORTEST)
    kept = np.unique(np.linspace(0, len(ordered) - 1, min(len(ordered), _MOST_STEPS)).round().astype(np.int64))
    return np.r_[ordered[0], ordered[kept]], np.r_[0.0, (kept + 1) / len(ordered)]


class _Maps:
    """Draws the waits of the ranks of a run in a class."""

    def __init__(self, taxes: Taxes) -> None:
        self._taxes = taxes
        self._numbers = {run: number for number, run in enumerate(taxes.runs.index)}

    def chosen(self) -> pd.DataFrame:
        """Per configuration and class, the run that has the median of their median tau_range, of two the lower."""
        collectives = self._taxes.collectives
        medians = collectives.groupby(["run", "name"], sort=False)["tau_range"].median().reset_index()
        widths = collectives.groupby(["run", "name"], sort=False)["place"].max().add(1).rename("columns").reset_index()
        table = medians.merge(widths, on=["run", "name"])
        factors = [*FACTORS, "concurrent"] if self._taxes.recorded else []
        by = [*factors, "name"]
        ordered = table.join(self._taxes.runs[factors], on="run").sort_values("tau_range", kind="stable")
        grouped = ordered.groupby(by, sort=False)["tau_range"]
        middle = ordered[grouped.cumcount() == (grouped.transform("size") - 1) // 2]
        return middle[["run", "name", "columns"]].sort_values(["run", "name"], ignore_index=True)

    def draw(self, axes: Sequence[Axes], panel: Panel) -> str:
        (ax,), (run, name) = axes, panel.rows[["run", "name"]].iloc[0]
        waits = waits_of([tax for tax in self._taxes.groups if tax.run == run and name in tax.names], str(name))
        limit = _limit(waits)
        factor, unit = time_unit(limit)
        image = ax.imshow(
            waits * factor,
            aspect="auto",
            interpolation="nearest",
            cmap="cividis",
            vmin=0,
            vmax=limit * factor,
            origin="lower",
        )
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(nbins=10, integer=True, min_n_ticks=1))
        ax.set_xlabel("collective of the iteration" if self._taxes.recorded else "collective")
        ax.set_ylabel("rank")
        ax.grid(visible=False)
        above = clipped(waits, limit)
        more = f"\n▲ {above.count} up to {duration(above.maximum)}" if above else ""
        ax.figure.colorbar(image, ax=ax, label=f"wait [{unit}]{more}", pad=0.02, extend="max" if above else "neither")
        rows, columns = waits.shape
        return f"{self._taxes.runs['run_id'][run]}\n{counted(rows, 'rank')}, {counted(columns, 'collective')}".strip()


def _limit(waits: NDArray[np.float64]) -> float:
    """Seconds at the end of the colours: one rank that was late for once would leave all others dark."""
    positive = waits[waits > 0]
    return max(upper_limit([positive]), _SHORTEST) if len(positive) else _SHORTEST


def waits_of(taxes: Sequence[GroupTax], name: str) -> NDArray[np.float64]:
    """Median wait in seconds over the iterations, shape (ranks, collectives of an iteration), of the class `name`.

    NaN where a rank, of those up to the highest, takes no part.
    """
    ranks = 1 + max(max(tax.collectives.ranks) for tax in taxes)
    members = [(tax, np.array(tax.names) == name) for tax in taxes]
    columns = 1 + max(int(tax.place[of_class].max()) for tax, of_class in members)
    found = np.full((ranks, columns), np.nan)
    for tax, of_class in members:
        place = tax.place
        for column in np.unique(place[of_class]):
            found[list(tax.collectives.ranks), column] = np.median(tax.waits[of_class & (place == column)], axis=0)
    return found
