"""Tables as aligned text: `#` header lines with headings and units, then rows, as `dlbench run` prints them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dlbench.analysis.campaign import Campaign
from dlbench.analysis.columns import counted
from dlbench.analysis.screen import broken, fitted, line_width
from dlbench.analysis.tables import GAP, Strip, Table

_MOST_EXCLUDED = 20
_MARGIN = " " * GAP


def loaded_lines(campaign: Campaign) -> Iterator[str]:
    """What was read, what was left out and why, and what a reader must know."""
    runs, excluded = campaign.runs, campaign.excluded
    measured = counted(int(runs["measured"].sum()), "measured iteration")
    yield f"# read       {counted(campaign.files, 'file')}: {counted(len(runs), 'run')} with {measured}"
    yield f"# excluded   {len(excluded)}"
    yield from (fact(f"  {row.path}: {row.reason}") for row in excluded.head(_MOST_EXCLUDED).itertuples())
    if len(excluded) > _MOST_EXCLUDED:
        yield f"#   and {len(excluded) - _MOST_EXCLUDED} more, which --json lists"
    yield from (fact(f"note       {note}") for note in campaign.notes)


def text_lines(table: Table, width: int | None = None) -> Iterator[str]:
    """Title, what is equal in all rows, the rows, and why cells are absent.

    A table wider than `width`, or else than lines may be, is cut into panels, each with the key.
    """
    width = width or line_width()
    yield from comment(table.layout.title, width)
    if table.frame.empty:
        yield from comment(table.layout.empty, width)
        return
    yield from comment(table.layout.about, width)
    for statement in table.statements:
        yield from comment(str(statement), width)
    table = table.narrowed(width, _width_of)
    for panel in table.panels(width, _width_of):
        yield "#"
        yield from _panel_lines(panel)
    for remark in table.remarks:
        yield from comment(remark, width)


def comment(text: str, width: int | None = None) -> Iterator[str]:
    """Header lines of the text, wrapped at `width`, or else at that of lines."""
    return (f"# {line}" for line in broken(text, (width or line_width()) - GAP, _MARGIN))


def fact(text: str) -> str:
    """A header line that is one where a program reads it; a terminal gets as many as it takes."""
    return fitted(f"# {text}", f"# {_MARGIN}")


def _panel_lines(panel: Sequence[Strip]) -> Iterator[str]:
    lines = zip(*map(_column, panel), strict=True)
    heading, units, *rows = (_MARGIN.join(line).rstrip() for line in lines)
    yield f"# {heading}"
    if units:
        yield f"# {units}"
    yield from (f"{_MARGIN}{row}" for row in rows)


def _column(strip: Strip) -> list[str]:
    """Heading, unit and cells, all of one width; those of an estimate with its interval beside them."""
    parts = zip(*([part for part in cell if part is not None] for cell in strip.cells), strict=True)
    heads = ((strip.heading, f"[{strip.unit}]" if strip.unit else ""), ("low", ""), ("high", ""))
    padded = (_padded([*head, *cells], strip.numeric) for head, cells in zip(heads, parts, strict=False))
    return [" ".join(line) for line in zip(*padded, strict=True)]


def _width_of(strip: Strip) -> int:
    return len(_column(strip)[0])


def _padded(cells: Sequence[str], numeric: bool) -> list[str]:
    width = max(map(len, cells))
    return [f"{cell:>{width}}" if numeric else f"{cell:<{width}}" for cell in cells]
