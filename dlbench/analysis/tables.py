"""The tables of the analysis as people read them: headings with units, intervals, and reasons for what is absent.

A `Table` is a data frame with what it takes to show it. `text_lines` writes it for a terminal; the report writes `head`
and `rows` as HTML; `analysis.export` writes the frame as it is, in SI units.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, NamedTuple

import pandas as pd

from dlbench.analysis.campaign import FACTORS, KEY
from dlbench.errors import one_line
from dlbench.quantities import significant
from dlbench.statistics import FEWEST_SAMPLES

WIDTH = 120
"""Columns of a terminal that a table tries to fit."""
ABSENT = "-"
_MARGIN = "  "
_LONGEST_CELL = 24
"""Longer texts stand in a legend below the table."""
_LEAST_ROOM = 50
"""Columns for measures beside a key, however wide: panels of one measure would be unreadable."""
_NOTHING: dict[str, object] = {"pp": 1, "tp": 1, "ep": 1, "sharding": 1, "buckets": 0, "units": 0, "persistent": False}
"""Values by which a factor says that a configuration lacks the thing."""
_CAUSES = ("strategy", "system", "model")
"""Factors that others follow from: degrees from the strategy, the GPU from the system."""


def number(value: float) -> str:
    """Five significant digits, as `dlbench run` prints them: 0.0051234, 12.345, 123457."""
    return significant(value, digits=5, smallest=-5)


def _scaled(factor: float) -> Callable[[float], str]:
    return lambda value: number(value * factor)


def _fixed(digits: int, factor: float = 1.0) -> Callable[[float], str]:
    return lambda value: f"{value * factor:.{digits}f}"


def plain(value: Any) -> str:
    """A factor, count or text as a cell: one line, whatever a record holds; - for the empty text."""
    if isinstance(value, str):
        return one_line(value) or ABSENT
    if pd.api.types.is_bool(value):
        return "yes" if value else "no"
    return f"{value:g}" if pd.api.types.is_float(value) else str(value)


@dataclass(frozen=True, slots=True)
class Column:
    """How a column of a frame is shown."""

    heading: str
    unit: str = ""
    write: Callable[[Any], str] = plain


_MILLISECONDS = ("ms", _scaled(1e3))
_PERCENT = ("%", _fixed(1, 100))
_SAMPLES = ("samples/s", number)

COLUMNS: dict[str, Column] = {
    "gpus": Column("GPUs"),
    "local_batch": Column("batch"),
    "sequence_length": Column("sequence"),
    "time_scale": Column("time scale"),
    "gpu": Column("GPU"),
    "iterations": Column("iter."),
    "name": Column("class"),
    "seconds": Column("time", *_MILLISECONDS),
    "minimum": Column("minimum", *_MILLISECONDS),
    "maximum": Column("maximum", *_MILLISECONDS),
    "ideal_seconds": Column("ideal", *_MILLISECONDS),
    "isolated_seconds": Column("alone", *_MILLISECONDS),
    "concurrent_seconds": Column("beside", *_MILLISECONDS),
    "baseline_mode": Column("base mode"),
    "throughput": Column("throughput", *_SAMPLES),
    "per_gpu": Column("per GPU", *_SAMPLES),
    "communication": Column("comm.", *_PERCENT),
    "hidden": Column("hidden", *_PERCENT),
    "share": Column("of runtime", *_PERCENT),
    "roofline": Column("of ideal", *_PERCENT),
    "efficiency": Column("efficiency", *_PERCENT),
    "loss_per_doubling": Column("loss/doubling", *_PERCENT),
    "skew": Column("skew", "µs", _fixed(1, 1e6)),
    "left_out": Column("left out"),
    "overlap": Column("overlap", *_PERCENT),
    "all_running": Column("all running", *_PERCENT),
    "baseline_runs": Column("base runs"),
    "baseline_iterations": Column("base iter."),
    "sigma": Column("σ", "", _fixed(3)),
    "impact": Column("impact", "%", _fixed(1)),
    "run_id": Column("run"),
    "concurrent_runs": Column("concurrent"),
    "concurrent_jobs": Column("jobs"),
    "warmups": Column("warm-ups"),
    "reason_text": Column("reason"),
    "note": Column("note", "", str),
    "ratio": Column("B/A", "", _fixed(3)),
}
"""Columns whose heading is not their name, or that have a unit."""


def column(name: str) -> Column:
    """How the column of this name is shown."""
    return COLUMNS.get(name, Column(name.replace("_", " ")))


class Cell(NamedTuple):
    """A cell and, for an estimate, the ends of its interval: - where it has none, None where it could not have one."""

    text: str
    low: str | None = None
    high: str | None = None


class Heading(NamedTuple):
    """Head of a column."""

    text: str
    unit: str
    numeric: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """What a table shows, before there are numbers."""

    name: str
    """Key of the JSON document and name of the files."""
    title: str
    about: str
    """How its numbers are made, in one sentence or two."""
    measures: tuple[str, ...]
    first: tuple[str, ...] = ()
    """Columns before the factors, shown even where rows do not differ in them."""
    key: tuple[str, ...] = ()
    """Columns after the factors, which tell rows of one configuration from each other."""
    empty: str = "no rows"
    """Why there are no rows, where there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A frame and how it is shown."""

    layout: Layout
    frame: pd.DataFrame
    key: tuple[str, ...]
    """Columns that say which configuration a row is: those in which rows differ."""
    stated: tuple[Statement, ...]
    """Factors that need no column."""
    measures: tuple[str, ...]
    remarks: tuple[str, ...]
    """Why cells are absent."""

    def columns(self) -> tuple[str, ...]:
        """Columns in the order in which they are shown."""
        return self.key + self.measures

    def statements(self) -> list[Statement]:
        """Those of the statements that say something."""
        return [statement for statement in self.stated if statement.values]

    def head(self) -> list[Heading]:
        """Heading of each column."""
        return [self._heading(name) for name in self.columns()]

    def rows(self, limit: int | None = None) -> Iterator[list[Cell]]:
        """Cells of each row, at most `limit` rows."""
        shown = {name: self.cells(name, limit) for name in self.columns()}
        return (list(row) for row in zip(*shown.values(), strict=True))

    def cells(self, name: str, limit: int | None = None) -> list[Cell]:
        """Cells of one column."""
        write = column(name).write
        ends = [f"{name}_low", f"{name}_high"]
        parts = [name, *ends] if ends[0] in self.frame else [name]
        texts = ([_text(value, write) for value in self.frame[part].iloc[:limit]] for part in parts)
        return [Cell(*row) for row in zip(*texts, strict=True)]

    def _heading(self, name: str) -> Heading:
        shown = column(name)
        return Heading(shown.heading, shown.unit, pd.api.types.is_numeric_dtype(self.frame[name]))


def build(layout: Layout, frame: pd.DataFrame, known: Collection[str] = ()) -> Table:
    """The table of a frame; `known` are factors that were stated for the whole campaign and need no repetition."""
    shown = (*layout.first, *layout.key)
    factors = [name for name in (*FACTORS, "concurrent") if name in frame and name not in (*known, *shown)]
    statements = list(state(frame, factors))
    stated = {name for statement in statements for name in statement.factors}
    frame, notes = _numbered_reasons(frame)
    measures = tuple(name for name in layout.measures if name in frame)
    return Table(
        layout=layout,
        frame=frame,
        key=(*layout.first, *(name for name in factors if name not in stated), *layout.key),
        stated=tuple(statements),
        measures=(*measures, "note") if notes else measures,
        remarks=(*_absent_intervals(frame, measures), *notes),
    )


@dataclass(frozen=True, slots=True)
class Statement:
    """Factors that have one value in all rows, or in all rows of one system, strategy or model."""

    where: str
    """E.g. `in all rows` or `strategy fsdp`."""
    factors: tuple[str, ...]
    values: tuple[tuple[str, str], ...]
    """Heading and value, those aside that say that there is nothing to say."""

    def __str__(self) -> str:
        return f"{self.where}: {', '.join(map(' '.join, self.values))}"


def state(frame: pd.DataFrame, factors: Sequence[str], everywhere: str = "in all rows") -> Iterator[Statement]:
    """What can be said of factors once instead of in every row; the others need a column.

    The factors of `KEY` are stated only where they are equal in all rows.
    """
    if frame.empty:
        return
    equal = tuple(name for name in factors if _single(frame[name]))
    if equal:
        yield _statement(everywhere, frame, equal)
    left = [name for name in factors if name not in (*equal, *KEY)]
    for cause in _CAUSES:
        following = tuple(name for name in left if cause not in equal and _follows(frame, name, cause))
        left = [name for name in left if name not in following]
        groups = frame.groupby(cause, dropna=False) if following else ()
        for value, rows in groups:
            yield _statement(f"{column(cause).heading} {plain(value)}", rows, following)


def _statement(where: str, frame: pd.DataFrame, factors: tuple[str, ...]) -> Statement:
    values = {name: frame[name].iloc[0] for name in factors}
    said = {name: value for name, value in values.items() if value != _NOTHING.get(name, "")}
    return Statement(where, factors, tuple((column(name).heading, plain(value)) for name, value in said.items()))


def _single(values: pd.Series[Any]) -> bool:
    return values.nunique(dropna=False) == 1


def _follows(frame: pd.DataFrame, factor: str, cause: str) -> bool:
    """Whether the factor has one value for each of the cause."""
    return cause in frame and bool((frame.groupby(cause, dropna=False)[factor].nunique(dropna=False) == 1).all())


def _numbered_reasons(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The frame with a column `note` that numbers its reasons, and a line per number."""
    if "reason" not in frame:
        return frame, []
    reasons = [reason for reason in frame["reason"].unique() if isinstance(reason, str) and reason]
    numbers = {reason: f"[{index}]" for index, reason in enumerate(reasons, start=1)}
    notes = frame["reason"].map(numbers).fillna("")
    return frame.assign(note=notes), [f"{mark} {one_line(reason)}" for reason, mark in numbers.items()]


def _absent_intervals(frame: pd.DataFrame, measures: Sequence[str]) -> Iterator[str]:
    estimates = [name for name in measures if f"{name}_low" in frame]
    lacking = pd.DataFrame({name: frame[name].notna() & frame[f"{name}_low"].isna() for name in estimates})
    few = frame["iterations"] < FEWEST_SAMPLES if "iterations" in frame else pd.Series(False, index=frame.index)
    if lacking.loc[few].to_numpy().any():
        yield f"{ABSENT} no 95 % interval below {FEWEST_SAMPLES} iterations"
    if "smallest" in frame and (frame["gpus"] == frame["smallest"]).any():
        yield f"{ABSENT} at the smallest GPU count, which is the reference: its efficiency is 100 % by definition"


def _text(value: Any, write: Callable[[Any], str]) -> str:
    return ABSENT if pd.isna(value) else write(value)


def text_lines(table: Table, width: int = WIDTH) -> Iterator[str]:
    """The table for a terminal: `#` header lines, then rows.

    A table wider than `width` is cut into panels, each with the key.
    """
    yield f"# {table.layout.title}"
    if table.frame.empty:
        yield f"# {table.layout.empty}"
        return
    yield from commented(table.layout.about, width)
    for statement in table.statements():
        yield from commented(str(statement), width)
    key, legend = _with_legend([_strip(table, name) for name in table.key])
    for strips in _panels(key, [_strip(table, name) for name in table.measures], width):
        yield "#"
        yield from _panel_lines(strips)
    for remark in (*table.remarks, *legend):
        yield from commented(remark, width)


def commented(text: str, width: int = WIDTH) -> Iterator[str]:
    """Header lines of the text, wrapped."""
    lines = wrap(text, width - len(_MARGIN), subsequent_indent=_MARGIN, break_on_hyphens=False, break_long_words=False)
    return (f"# {line}" for line in lines)


class _Strip(NamedTuple):
    """A column of a terminal's table with the ends of its interval: texts of each line, all of one width."""

    lines: list[str]
    """Heading, unit, and one a row."""

    @property
    def width(self) -> int:
        return len(self.lines[0])


def _strip(table: Table, name: str) -> _Strip:
    text, unit, numeric = table._heading(name)
    parts = list(zip(*([part for part in cell if part is not None] for cell in table.cells(name)), strict=True))
    heads = ((text, f"[{unit}]" if unit else ""), ("low", ""), ("high", ""))
    padded = [_padded([*head, *cells], numeric) for head, cells in zip(heads, parts, strict=False)]
    return _Strip([" ".join(line) for line in zip(*padded, strict=True)])


def _padded(cells: Sequence[str], numeric: bool) -> list[str]:
    width = max(map(len, cells))
    return [f"{cell:>{width}}" if numeric else f"{cell:<{width}}" for cell in cells]


def _with_legend(strips: Sequence[_Strip]) -> tuple[list[_Strip], list[str]]:
    """The strips with numbers for texts that are too long, and what the numbers stand for."""
    shortened: list[_Strip] = []
    legend: list[str] = []
    for strip in strips:
        heading, unit, *cells = (line.strip() for line in strip.lines)
        if strip.width > _LONGEST_CELL:
            marks = {text: f"#{index}" for index, text in enumerate(dict.fromkeys(cells), start=1)}
            legend += [f"{heading} {mark}: {text}" for text, mark in marks.items()]
            strip = _Strip(_padded([heading, unit, *map(marks.__getitem__, cells)], numeric=False))  # noqa: PLW2901
        shortened.append(strip)
    return shortened, legend


def _panels(key: Sequence[_Strip], measures: Sequence[_Strip], width: int) -> Iterator[list[_Strip]]:
    """As many measures side by side as fit, each panel with the key; a measure is never parted from its interval."""
    room = max(width - _occupied(key), _LEAST_ROOM)
    panel: list[_Strip] = []
    for measure in measures:
        if panel and _occupied([*panel, measure]) > room:
            yield [*key, *panel]
            panel = []
        panel.append(measure)
    yield [*key, *panel]


def _occupied(strips: Sequence[_Strip]) -> int:
    return sum(len(_MARGIN) + strip.width for strip in strips)


def _panel_lines(strips: Sequence[_Strip]) -> Iterator[str]:
    heading, units, *rows = ("  ".join(line).rstrip() for line in zip(*(strip.lines for strip in strips), strict=True))
    yield f"# {heading}"
    if units:
        yield f"# {units}"
    yield from (f"{_MARGIN}{row}" for row in rows)
