"""Figures of a campaign, for print and for the screen: drawn with Matplotlib's objects, without pyplot's global state.

One module draws one family of figures. The same runs and the same Matplotlib give the same files, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any

from matplotlib.figure import Figure

from dlbench.analysis.plots import breakdown, communication, scaling, slowdown, stability
from dlbench.analysis.plots.drawing import Drawing, LeftOut, Plot
from dlbench.analysis.plots.style import styled
from dlbench.analysis.results import Results
from dlbench.errors import OptionError

__all__ = ["FAMILIES", "FORMATS", "Drawing", "LeftOut", "Plot", "encode", "figures", "save"]

FAMILIES: MappingProxyType[str, Callable[[Results], Drawing]] = MappingProxyType(
    {
        communication.NAME: lambda results: communication.draw(results.summary),
        scaling.NAME: lambda results: scaling.draw(results.scaling),
        slowdown.NAME: lambda results: slowdown.draw(results.slowdown),
        stability.NAME: lambda results: stability.draw(results.campaign),
        breakdown.NAME: lambda results: breakdown.draw(results.campaign),
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
    for name in only:
        if name not in FAMILIES:
            raise OptionError(f"unknown figure {name!r}; {_hint(name, FAMILIES)}")
    drawing = Drawing()
    with styled():
        for name, draw in FAMILIES.items():
            if not only or name in only:
                drawing.add(draw(results))
    return drawing


def save(plots: Iterable[Plot], folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write each figure as `folder/NAME.FORMAT`, over what is there; returns the files.

    Raises `OptionError` for an unknown format and `OSError` where a file cannot be written.
    """
    for name in formats:
        if name not in FORMATS:
            raise OptionError(f"unknown format {name!r}; {_hint(name, FORMATS)}")
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for plot in plots:
        for name in formats:
            file = folder / f"{plot.name}.{name}"
            file.write_bytes(encode(plot.figure, name))
            files.append(file)
    return files


def encode(figure: Figure, name: str, dpi: float | None = None) -> bytes:
    """The figure as a file of the format `name`; `dpi` instead of the style's resolution for pixels."""
    buffer = BytesIO()
    with styled():
        figure.savefig(buffer, format=name, metadata=_METADATA[name], dpi=dpi or "figure")
    return buffer.getvalue()


def _hint(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
