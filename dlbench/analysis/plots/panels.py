"""Facets: a table is cut into panels of equal factors, and the panels are laid out on as many figures as it takes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dlbench.analysis.campaign import FACTORS
from dlbench.analysis.columns import ABSENT, column, counted, plain
from dlbench.analysis.plots.drawing import Drawing, LeftOut, Plot
from dlbench.analysis.plots.style import DOUBLE_COLUMN, SINGLE_COLUMN, STRATEGIES

PLACEMENTS = (
    "intra-node",
    "intra-l1",
    "intra-group-same-l1-4",
    "intra-group-same-l1-2",
    "intra-group",
    "inter-group-same-l1-4",
    "inter-group-same-l1-2",
    "inter-group",
)
"""Placement classes from the closest to the farthest, the order in which they appear; others follow."""

MOST_FIGURES = 4
"""Figures of a family; further panels are left out, which the caption says."""

_ORDERS = {"strategy": STRATEGIES, "placement": PLACEMENTS, "mode": ("reserved", "queue")}
_FLAGS = {
    "concurrent": ("alone", "beside other jobs"),
    "simulated": ("live", "simulated"),
    "persistent": ("not persistent", "persistent"),
}
_BARE = {"system", "strategy", "model", "placement", "mode", "dtype", "gpu", "backend", "library"}
"""Factors whose value says which factor it is."""
_LONGEST_NAME = 40
"""Characters of a name in a legend or on an axis."""


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """Rows of a table that are drawn into the same axes."""

    title: str
    rows: pd.DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """How panels lie on a figure. A panel is a stack of one or more axes above each other."""

    columns: int = 2
    rows: int = 4
    """Most panels beside and above each other."""
    heights: tuple[float, ...] = (1.9,)
    """Of the axes of a panel with what belongs to them, inches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A kind of figure."""

    name: str
    title: str
    caption: str
    """What is shown, as sentences."""
    sheet: Sheet
    draw: Callable[[Sequence[Axes], Panel], str]
    """Draws a panel into its axes; returns what stands beneath its title."""
    legend: Callable[[Sequence[Panel]], list[Any]]
    """Handles for what these panels show."""


def ordered(table: pd.DataFrame) -> pd.DataFrame:
    """Rows in the order in which a reader expects them: by the factors, placements from close to far."""
    columns = [name for name in ("concurrent", *FACTORS) if name in table]
    return table.sort_values(columns, key=_sort_key, kind="stable", ignore_index=True)


def _sort_key(column: pd.Series[Any]) -> pd.Series[Any]:
    known = _ORDERS.get(str(column.name))
    if known is None:
        return column
    return column.map(lambda name: (f"{known.index(name):02d}" if name in known else "99") + name)


def panels(table: pd.DataFrame, *, by: Sequence[str], within: Sequence[str]) -> list[Panel]:
    """Panels of a table with factors as columns, in order.

    Every value of the factors `by` has panels of its own. So has every further factor of which the table has several
    values at equal factors `by` and `within`: what a panel shows differs in the factors `within` only.
    """
    groups = [*by, *within]
    free = [name for name in (*FACTORS, "concurrent") if name in table and name not in groups]
    facets = [*by, *(name for name in free if (table.groupby(groups)[name].nunique() > 1).any())]
    rows = ordered(table)
    return [
        Panel(facet_title(dict(zip(facets, values, strict=True))), part.reset_index(drop=True))
        for values, part in rows.groupby(facets, sort=False)
    ]


def facet_title(facets: dict[str, Any]) -> str:
    """Factors of a panel in words: `leonardo · dp · 64 GPUs · inter-group`."""
    return " · ".join(word for name, value in facets.items() if (word := _word(name, value)))


def _word(name: str, value: Any) -> str:
    if name in _FLAGS:
        return _FLAGS[name][bool(value)]
    text = plain(value)
    if name == "gpus":
        return f"{text} GPU{'' if value == 1 else 's'}"
    if name in _BARE:
        return "" if text == ABSENT else text
    return f"{column(name).heading} {text}"


def placement_lines(placement: str) -> str:
    """A placement class as a label, on two lines where it is long."""
    return shortened(placement).replace("-same", "\nsame")


def shortened(name: str) -> str:
    """A name that leaves room for the axes: those of a record have any length."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"


def largest(rows: pd.DataFrame, *columns: str) -> float:
    """Largest number in the columns."""
    return float(np.nanmax(rows[list(columns)].to_numpy()))


def smallest(rows: pd.DataFrame, *columns: str) -> float:
    """Smallest number in the columns."""
    return float(np.nanmin(rows[list(columns)].to_numpy()))


def samples(rows: pd.DataFrame) -> str:
    """Counts behind the estimates of a panel: `n = 40 to 120 iterations of 5 runs each`."""
    iterations, runs = _span(rows["iterations"]), _span(rows["runs"])
    return f"n = {iterations} iterations of {runs} run{'' if runs == '1' else 's'} each"


def _span(counts: pd.Series[Any]) -> str:
    low, high = int(counts.min()), int(counts.max())
    return f"{low}" if low == high else f"{low} to {high}"


def missing(name: str, titles: Sequence[str], reason: str) -> LeftOut:
    """Why panels of these titles are not drawn: the first that has one is named, the others are counted."""
    named = [title for title in titles if title]
    if not named:
        return LeftOut(name, reason)
    others = f" and {counted(len(titles) - 1, 'other')}" if len(titles) > 1 else ""
    return LeftOut(name, f"{reason} ({named[0]}{others})")


def lay_out(family: Family, found: Sequence[Panel]) -> Drawing:
    """The panels on figures, at most `MOST_FIGURES`."""
    size = family.sheet.columns * family.sheet.rows
    most = size * MOST_FIGURES
    shown = _largest(found, most)
    caption, left_out = family.caption, []
    if len(found) > most:
        limit = (
            f"{most} of {len(found)} panels are drawn, those of most GPUs; choose with --strategy, --system or --where"
        )
        caption, left_out = f"{caption} Of such panels, {limit}.", [LeftOut(family.name, limit)]
    plots = []
    for number, page in enumerate(_dealt(shown, size), start=1):
        name = family.name if number == 1 else f"{family.name}-{number}"
        plots.append(Plot(name, family.title, caption, _figure(family, page)))
    return Drawing(plots, left_out)


def _largest(found: Sequence[Panel], most: int) -> Sequence[Panel]:
    """The panels of most GPUs, in their order."""
    ranked = sorted(range(len(found)), key=lambda index: -int(found[index].rows["gpus"].max()))
    return [found[index] for index in sorted(ranked[:most])]


def _dealt(shown: Sequence[Panel], size: int) -> Iterator[Sequence[Panel]]:
    """The panels on as few pages of `size` as it takes, about equally many on each: none stands alone on the last."""
    pages = math.ceil(len(shown) / size)
    ends = [math.ceil(len(shown) * number / pages) for number in range(pages + 1)]
    return (shown[start:end] for start, end in pairwise(ends))


def _figure(family: Family, page: Sequence[Panel]) -> Figure:
    sheet = family.sheet
    columns = min(sheet.columns, len(page))
    rows = math.ceil(len(page) / columns)
    width = SINGLE_COLUMN if columns < sheet.columns else DOUBLE_COLUMN
    handles = family.legend(page)
    for handle in handles:
        handle.set_label(shortened(str(handle.get_label())))
    legend_rows, legend_columns = _legend_shape(handles, width)
    figure = Figure(figsize=(width, rows * sum(sheet.heights) + 0.16 * legend_rows))
    stack = len(sheet.heights)
    axes = figure.subplots(rows * stack, columns, squeeze=False, height_ratios=sheet.heights * rows)
    for place in range(rows * columns):
        row, column = divmod(place, columns)
        own = list(axes[row * stack : (row + 1) * stack, column])
        if place >= len(page):
            for empty in own:
                empty.remove()
            continue
        beneath = family.draw(own, page[place])
        # Names come from records: a pair of dollars in one is no formula.
        own[0].set_title(wrapped(f"{page[place].title}\n{beneath}", width / columns), parse_math=False)
    if handles:
        legend = figure.legend(handles=handles, loc="outside upper center", ncols=legend_columns)
        for text in legend.get_texts():
            text.set_parse_math(False)
    # The layout starts from where it left off: settled once, a file does not depend on what was saved before.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def unbroken(text: str) -> str:
    """The text with spaces at which no line of a title is broken."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def wrapped(text: str, width: float) -> str:
    """Lines of a title above axes that are `width` inches wide with their labels; empty lines are left out.

    A part of the text, which a line feed ends, has three lines at most. No line begins with the dot between factors.
    """
    text = text.replace(" · ", "\N{NO-BREAK SPACE}· ")
    wrap = textwrap.TextWrapper(int((width - 0.45) * 17), max_lines=3, placeholder="…")
    return "\n".join(line for part in text.split("\n") for line in wrap.wrap(part))


def _legend_shape(handles: Sequence[Artist], width: float) -> tuple[int, int]:
    """Rows and columns of a legend that is not wider than the figure, in inches."""
    if not handles:
        return 0, 1
    widths = [0.45 + 0.06 * len(str(handle.get_label())) for handle in handles]
    columns = len(handles) if sum(widths) < width else max(1, int(width / max(widths)))
    return math.ceil(len(handles) / columns), columns
