"""The tables of the analysis as people read them: headings with units, intervals, and reasons for what is absent.

A `Table` is a data frame and what it takes to show it; `dlbench.analysis.terminal` and the report's template show it,
panel by panel. `dlbench.analysis.export` writes the frame as it is, in SI units.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pandas as pd

from dlbench.analysis.campaign import FACTORS
from dlbench.analysis.columns import ABSENT, column, plain
from dlbench.analysis.statements import Statement, state
from dlbench.errors import one_line
from dlbench.statistics import FEWEST_SAMPLES

_DESCRIBING = (*FACTORS, "concurrent", "experiment", "library_a", "library_b")
"""Columns that say what a row is about, as far as a table has them."""
_LONGEST_CELL = 24
"""Longer values of a factor stand in a legend below the table."""
_LONGEST_IN_NEED = 12
"""Where there is not even room for one measure, so do those that are longer than this."""
_LEAST_ROOM = 50
"""Characters for measures beside a key, however wide: parts of one measure would be unreadable."""
GAP = 2
"""Characters between columns."""


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
    command: str = "analyze"
    """Command whose `--csv` writes all of its rows."""
    file: str = ""
    """Name of the file of these, where it is not `name`."""
    samples: str = "iterations"
    """What its estimates are over."""
    together: tuple[str, ...] = ()
    """Measures that a part of the table has all or none of."""
    headings: tuple[tuple[str, str], ...] = ()
    """Headings of columns that are another statistic here than elsewhere."""

    @property
    def whole(self) -> tuple[str, str]:
        """File that has all rows, and the command that writes it."""
        return f"{self.file or self.name}.csv", f"dlbench {self.command} --csv DIR"


class Cell(NamedTuple):
    """A cell and, for an estimate, the ends of its interval: - where it has none, None where it could not have one."""

    text: str
    low: str | None = None
    high: str | None = None


class Strip(NamedTuple):
    """A column as it is shown."""

    heading: str
    unit: str
    numeric: bool
    """Whether it is set flush right."""
    cells: list[Cell]
    key: bool = False
    """Whether it says what a row is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A frame and how it is shown."""

    layout: Layout
    frame: pd.DataFrame
    key: tuple[str, ...]
    """Columns that say what a row is about: those in which rows differ."""
    measures: tuple[str, ...]
    statements: tuple[Statement, ...]
    """Factors that need no column, those aside that say nothing."""
    remarks: tuple[str, ...]
    """Why cells are absent, and what marks stand for."""

    def panels(self, width: int, width_of: Callable[[Strip], int], limit: int | None = None) -> Iterator[list[Strip]]:
        """The table, or its first `limit` rows, cut into parts of about `width` characters.

        The first part has the whole key where that leaves room; every part has what tells the rows apart. An estimate
        is never parted from its interval, nor what the layout holds together.
        """
        strips = self._strips(limit)
        wide = _widths(strips, width_of)
        telling = _telling(self.frame.iloc[:limit], self.key, wide)
        fits = sum(wide[name] for name in self.key) + _LEAST_ROOM <= width
        aside = [] if fits else [name for name in self.key if name not in telling]
        units = list(self._units([*aside, *self.measures]))
        widest = max((sum(wide[name] for name in unit) for unit in units), default=0)
        width = max(width, sum(wide[name] for name in telling) + min(_LEAST_ROOM, widest))
        panel = list(self.key if fits else telling)
        fresh = True
        for unit in units:
            if not fresh and sum(wide[name] for name in (*panel, *unit)) > width:
                yield [strips[name] for name in panel]
                panel = list(telling)
            panel += unit
            fresh = False
        yield [strips[name] for name in panel]

    def narrowed(self, width: int, width_of: Callable[[Strip], int]) -> Table:
        """The table with marks for long values of its key where no measure has room beside them; remarks explain them.

        Columns of few values are marked first, since a legend is read more easily the shorter it is.
        """
        wide = _widths(self._strips(), width_of)
        long = [name for name in self.key if wide[name] - GAP > _LONGEST_IN_NEED]
        marked: list[str] = []
        for name in sorted(long, key=lambda name: self.frame[name].nunique()):
            if self._needed(wide) <= width:
                break
            marked.append(name)
            wide[name] = GAP + max(len(column(name).heading), len(f"#{self.frame[name].nunique()}"))
        frame, legend = _marked(self.frame, marked)
        return replace(self, frame=frame, remarks=(*self.remarks, *legend)) if marked else self

    def _needed(self, wide: Mapping[str, int]) -> int:
        """Width of the columns that tell the rows apart and the widest that can stand beside them."""
        telling = _telling(self.frame, self.key, wide)
        units = self._units([*(name for name in self.key if name not in telling), *self.measures])
        return sum(wide[name] for name in telling) + max(sum(wide[name] for name in unit) for unit in units)

    def _strips(self, limit: int | None = None) -> dict[str, Strip]:
        return {name: self.strip(name, limit) for name in (*self.key, *self.measures)}

    def _units(self, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """The names, those that the layout holds together in one."""
        together = [name for name in self.layout.together if name in names]
        for name in names:
            if name not in together:
                yield (name,)
            elif name == together[0]:
                yield tuple(together)

    def strip(self, name: str, limit: int | None = None) -> Strip:
        """The column of that name, with the interval of an estimate."""
        shown, values = column(name), self.frame[name]
        parts = [name, *(end for end in (f"{name}_low", f"{name}_high") if end in self.frame)]
        texts = ([_text(value, shown.write) for value in self.frame[part].iloc[:limit]] for part in parts)
        numeric = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
        heading = dict(self.layout.headings).get(name, shown.heading)
        cells = [Cell(*cell) for cell in zip(*texts, strict=True)]
        return Strip(heading, shown.unit, numeric, cells, key=name in self.key)


def build(layout: Layout, frame: pd.DataFrame, known: Collection[str] = (), most: int | None = None) -> Table:
    """The table of a frame; `known` are factors that were stated for the whole campaign and need no repetition.

    Of more than `most` rows, these are shown and a remark says where all are.
    """
    cut = _cut(layout, len(frame), most)
    frame = frame.head(len(frame) if most is None else most)
    elsewhere = {*known, *layout.first, *layout.key, *layout.measures}
    factors = [name for name in _DESCRIBING if name in frame and name not in elsewhere]
    statements = list(state(frame, factors))
    stated = {name for statement in statements for name in statement.factors}
    varying = tuple(name for name in factors if name not in stated)
    frame, legend = _with_legend(frame, varying)
    frame, notes = _with_notes(frame)
    measures = tuple(name for name in (*layout.measures, "note") if name in frame)
    return Table(
        layout=layout,
        frame=frame,
        key=(*layout.first, *varying, *layout.key),
        measures=measures,
        statements=tuple(statement for statement in statements if statement.values),
        remarks=(*cut, *_absences(frame, measures, layout.samples), *notes, *legend),
    )


def _widths(strips: Mapping[str, Strip], width_of: Callable[[Strip], int]) -> dict[str, int]:
    return {name: width_of(strip) + GAP for name, strip in strips.items()}


def _telling(frame: pd.DataFrame, key: Sequence[str], wide: Mapping[str, int]) -> tuple[str, ...]:
    """Few columns of the key that tell as many rows apart as all of them do; of equals the narrower."""

    def apart(names: Sequence[str]) -> int:
        return frame.groupby(list(names), dropna=False).ngroups if names else min(1, len(frame))

    chosen: list[str] = []
    while apart(chosen) < apart(key):
        left = (name for name in key if name not in chosen)
        chosen.append(max(left, key=lambda name: (apart([*chosen, name]), -wide[name])))
    return tuple(name for name in key if name in chosen)


def _cut(layout: Layout, rows: int, most: int | None) -> Iterator[str]:
    if most is not None and rows > most:
        file, command = layout.whole
        yield f"{most} of {rows:,} rows are shown; all are in {file} of {command}"


def _absences(frame: pd.DataFrame, measures: Sequence[str], samples: str) -> Iterator[str]:
    """Why numbers and intervals are absent."""
    reference = frame["gpus"] == frame["smallest"] if "smallest" in frame else pd.Series(False, index=frame.index)
    lacking = [
        frame[name].notna() & frame[f"{name}_low"].isna() & ~(reference if name == "efficiency" else False)
        for name in measures
        if f"{name}_low" in frame
    ]
    if any(column.any() for column in lacking):
        yield f"{ABSENT} no 95 % interval below {FEWEST_SAMPLES} {samples}, of a ratio on either side"
    if reference.any():
        yield f"{ABSENT} at the smallest number of GPUs, which is the reference: 100 % by definition"
    if "ideal_seconds" in measures and frame["ideal_seconds"].isna().any():
        yield f"{ABSENT} no ideal time where the records of a configuration name none, or not the same"


def _with_legend(frame: pd.DataFrame, factors: Sequence[str]) -> tuple[pd.DataFrame, list[str]]:
    """The frame with marks for the values of factors that are too long for a column, and what these stand for."""
    return _marked(
        frame, [name for name in factors if max(map(len, map(plain, frame[name])), default=0) > _LONGEST_CELL]
    )


def _marked(frame: pd.DataFrame, names: Sequence[str]) -> tuple[pd.DataFrame, list[str]]:
    """The frame with marks for the values of these columns, and what the marks stand for."""
    legend: list[str] = []
    for name in names:
        texts = [plain(value) for value in frame[name]]
        marks = {text: f"#{number}" for number, text in enumerate(dict.fromkeys(texts), start=1)}
        frame = frame.assign(**{name: [marks[text] for text in texts]})
        legend += [f"{column(name).heading} {mark}: {text}" for text, mark in marks.items()]
    return frame, legend


def _with_notes(frame: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The frame with a column `note` that numbers its reasons, and a line per number."""
    reasons = [reason for reason in frame["reason"].unique() if reason] if "reason" in frame else []
    if not reasons:
        return frame, []
    marks = {reason: f"[{number}]" for number, reason in enumerate(reasons, start=1)}
    noted = frame.assign(note=frame["reason"].map(marks).fillna(""))
    return noted, [f"{mark} {one_line(reason)}" for reason, mark in marks.items()]


def _text(value: Any, write: Callable[[Any], str]) -> str:
    return ABSENT if pd.isna(value) else write(value)
