"""The look of the figures: one style file, and a colour, marker and hatch for everything that is told apart.

The colours are those of Okabe and Ito, "Color Universal Design" (2008), which colour-blind readers can tell apart, and
a pale grey and the wine red of Tol, "Colour Schemes" (2021), so that every class of communication has its own; markers
and hatches repeat the distinction for print in black and white.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

_STYLE = Path(__file__).with_name("dlbench.mplstyle")

SINGLE_COLUMN = 3.4
DOUBLE_COLUMN = 7.0
"""Widths of a figure in a two-column paper, inches."""

STRATEGIES = ("dp", "fsdp", "dp_pp", "dp_pp_tp", "dp_pp_ep")
"""The order in which strategies appear; others follow."""
CLASSES = (
    *("allreduce/world", "allgather/shard", "reduce_scatter/shard", "recv/pipeline", "send/pipeline"),
    *("allreduce/replica", "allreduce/tensor", "alltoall/expert", "allreduce/expert"),
)
"""The order of communication classes, operation/scope, in figures of all kinds."""

_ROOM_FOR_FIVES = 300
"""Ratio of the ends of an axis up to which its labels fit with those between powers of ten."""
_SHORT_IN_DIGITS = 1e-3
"""What is smaller is better read as a power of ten."""

_BLUE, _ORANGE, _GREEN, _VERMILLION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
_PURPLE, _SKY, _YELLOW, _WINE = "#CC79A7", "#56B4E9", "#F0E442", "#882255"
GREY, PALE_GREY, LIGHT_GREY = "#7F7F7F", "#B8B8B8", "#E4E4E4"


SOLID: tuple[float, tuple[float, ...]] = (0, ())


@dataclass(frozen=True, slots=True)
class Look:
    """How a series is told apart."""

    color: str
    marker: str
    hatch: str
    line: tuple[float, tuple[float, ...]]
    """Line style: offset, and lengths of dashes and gaps in points."""


LOOKS = (
    Look(_BLUE, "o", "", SOLID),
    Look(_ORANGE, "s", "////", (0, (5, 1))),
    Look(_GREEN, "^", "....", (0, (3, 1, 1, 1))),
    Look(_VERMILLION, "D", "xxxx", (0, (1, 1))),
    Look(_PURPLE, "v", "\\\\\\\\", (0, (6, 1, 1, 1, 1, 1))),
    Look(_SKY, "P", "----", SOLID),
    Look(_YELLOW, "X", "++++", (0, (5, 1))),
    Look(PALE_GREY, "*", "oooo", (0, (1, 1))),
    Look(_WINE, "h", "||||", (0, (3, 1, 1, 1))),
)
MEASURED, GUMBEL, GEV = LOOKS[:3]
"""What was measured, and what the distributions of that name predict."""
REFERENCE = Look(GREY, "", "", (0, (1, 1.65)))
"""What would be in an ideal world: dotted."""


def looks(names: Iterable[str], known: tuple[str, ...] = ()) -> dict[str, Look]:
    """A look for each of the names, in order: `known` names first, which always have the same one."""
    there = set(names)
    every = [*known, *sorted(there - set(known))]
    return {name: _look(index) for index, name in enumerate(every) if name in there}


def _look(index: int) -> Look:
    """Where there are more names than looks, colours come again with the hatch and marker of their neighbour."""
    round_, place = divmod(index, len(LOOKS))
    other = LOOKS[(place + round_) % len(LOOKS)]
    return replace(other, color=LOOKS[place].color)


@contextmanager
def styled() -> Iterator[None]:
    """Draw and save with the style file on top of Matplotlib's defaults: no setting of the user's own has a say."""
    parameters: Any = matplotlib.rc_params_from_file(_STYLE, use_default_template=True)
    settings = {name: parameters[name] for name in parameters if name != "backend"}
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # What the font lacks is drawn as a box; tables and captions have the name of the run.
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        yield


def time_unit(seconds: float) -> tuple[float, str]:
    """Unit for an axis that reaches to `seconds`, and how many of it are a second: 0.02 is shown in (1000, "ms")."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 1:
            return factor, unit
    return 1e9, "ns"


def decimal(value: float, digits: int = 3) -> str:
    """A number beside axes, with the minus sign that their labels have."""
    return f"{value:.{digits}f}".replace("-", "\N{MINUS SIGN}")


def label_decades(axis: Axis) -> None:
    """Label a logarithmic axis at every power of ten, and at 2 and 5 times it where there is room."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < _ROOM_FOR_FIVES else (1,), numticks=12))
    axis.set_minor_locator(NullLocator())
    if low >= _SHORT_IN_DIGITS:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
