"""Figures of a campaign, for print and for the screen: drawn with Matplotlib's objects, without pyplot's global state.

One module draws one family of figures. The same runs and the same Matplotlib give the same files, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from difflib import get_close_matches
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any

from matplotlib.figure import Figure

from dlbench.analysis.plots import (
    bandwidth,
    breakdown,
    communication,
    extremes,
    paths,
    scaling,
    slowdown,
    stability,
    tax,
)
from dlbench.analysis.plots.drawing import Drawing, LeftOut, Plot
from dlbench.analysis.plots.style import styled
from dlbench.analysis.results import Results, Waits
from dlbench.analysis.writing import make_folder, new_file
from dlbench.errors import OptionError

__all__ = [
    "FAMILIES",
    "FORMATS",
    "Drawing",
    "LeftOut",
    "Plot",
    "check_figures",
    "check_formats",
    "encode",
    "figures",
    "save",
    "wait_figures",
]

_WAITS: dict[str, Callable[[Waits], Drawing]] = {
    tax.NAME: lambda waits: tax.draw(waits.taxes),
    tax.MAP: lambda waits: tax.draw_map(waits.taxes),
    paths.NAME: lambda waits: paths.draw(waits.taxes),
    extremes.NAME: lambda waits: extremes.draw_growth(waits.growth),
    bandwidth.NAME: lambda waits: bandwidth.draw_growth(waits.growth),
}
"""Families that traces have, too."""

FAMILIES: MappingProxyType[str, Callable[[Results], Drawing]] = MappingProxyType(
    {
        communication.NAME: lambda results: communication.draw(results.summary),
        scaling.NAME: lambda results: scaling.draw(results.scaling),
        slowdown.NAME: lambda results: slowdown.draw(results.slowdown),
        stability.NAME: lambda results: stability.draw(results.campaign),
        breakdown.NAME: lambda results: breakdown.draw(results.campaign),
        **_WAITS,
    }
)
"""What draws a family of figures, by its name."""

# Whatever changes from one call to the next would make equal figures differ.
_METADATA: dict[str, dict[str, Any]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}

FORMATS = tuple(_METADATA)
"""Endings of the files that figures are saved as."""


def figures(results: Results, *, only: Sequence[str] = ()) -> Drawing:
    """The figures that the campaign's runs allow, and why the others are missing; `only` families, or all.

    Raises `OptionError` for an unknown family and `RecordError` where a record changed since it was loaded.
    """
    check_figures(only)
    drawing = Drawing()
    with styled():
        for name, draw in FAMILIES.items():
            if not only or name in only:
                drawing.add(draw(results))
    return drawing


def wait_figures(waits: Waits) -> Drawing:
    """The figures of the synchronisation tax and of how it grows with the group, and why others are missing."""
    drawing = Drawing()
    with styled():
        for draw in _WAITS.values():
            drawing.add(draw(waits))
    return drawing


def save(plots: Iterable[Plot], folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write each figure as `folder/NAME.FORMAT`, and its caption as `folder/NAME.txt`; returns the files.

    Files that are there are replaced. Raises `OptionError` for an unknown format, and where one cannot be written.
    """
    check_formats(formats)
    make_folder(folder)
    files = []
    for plot in plots:
        contents = {name: encode(plot.figure, name) for name in formats}
        contents["txt"] = f"{plot.title}. {plot.caption}\n".encode()
        for ending, content in contents.items():
            files.append(folder / f"{plot.name}.{ending}")
            with new_file(files[-1]) as file:
                file.write(content)
    return files


def encode(figure: Figure, name: str, dpi: float | None = None) -> bytes:
    """The figure as a file of the format `name`; `dpi` instead of the style's resolution for pixels."""
    buffer = BytesIO()
    with styled():
        figure.savefig(buffer, format=name, metadata=_METADATA[name], dpi=dpi or "figure")
    return buffer.getvalue()


def check_figures(names: Sequence[str]) -> None:
    """Raise `OptionError` where one of the names is no family of figures."""
    _check("figure", names, FAMILIES)


def check_formats(names: Sequence[str]) -> None:
    """Raise `OptionError` where one of the names is no format."""
    _check("format", names, FORMATS)


def _check(kind: str, names: Sequence[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            raise OptionError(f"unknown {kind} {name!r}; {hint}")
