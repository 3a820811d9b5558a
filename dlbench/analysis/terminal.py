"""Tables as aligned text: `#` header lines with headings and units, then rows, as `dlbench run` prints them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from dlbench.analysis.campaign import Campaign
from dlbench.analysis.columns import counted
from dlbench.analysis.tables import GAP, Strip, Table

WIDTH = 120
"""Characters of a line that a table tries to fit."""
_MOST_EXCLUDED = 20
_MARGIN = " " * GAP


def loaded_lines(campaign: Campaign) -> Iterator[str]:
    """What was read, what was left out and why, and what a reader must know."""
    runs, excluded = campaign.runs, campaign.excluded
    measured = counted(int(runs["measured"].sum()), "measured iteration")
    yield f"# read       {counted(campaign.files, 'file')}: {counted(len(runs), 'run')} with {measured}"
    yield f"# excluded   {len(excluded)}"
    yield from (f"#   {row.path}: {row.reason}" for row in excluded.head(_MOST_EXCLUDED).itertuples())
    if len(excluded) > _MOST_EXCLUDED:
        yield f"#   and {len(excluded) - _MOST_EXCLUDED} more, which --json lists"
    yield from (f"# note       {note}" for note in campaign.notes)


def text_lines(table: Table, width: int = WIDTH) -> Iterator[str]:
    """Title, what is equal in all rows, the rows, and why cells are absent.

    A table wider than `width` is cut into panels, each with the key.
    """
    yield f"# {table.layout.title}"
    if table.frame.empty:
        yield from comment(table.layout.empty, width)
        return
    yield from comment(table.layout.about, width)
    for statement in table.statements:
        yield from comment(str(statement), width)
    for panel in table.panels(width, lambda strip: len(_column(strip)[0])):
        yield "#"
        yield from _panel_lines(panel)
    for remark in table.remarks:
        yield from comment(remark, width)


def comment(text: str, width: int = WIDTH) -> Iterator[str]:
    """Header lines of the text, wrapped."""
    lines = wrap(text, width - GAP, subsequent_indent=_MARGIN, break_on_hyphens=False, break_long_words=False)
    return (f"# {line}" for line in lines)


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


def _padded(cells: Sequence[str], numeric: bool) -> list[str]:
    width = max(map(len, cells))
    return [f"{cell:>{width}}" if numeric else f"{cell:<{width}}" for cell in cells]
