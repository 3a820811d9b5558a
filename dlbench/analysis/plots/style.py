"""The look of the figures: one style file, and a colour, marker and hatch for everything that is told apart.

The colours are those of Okabe and Ito, "Color Universal Design" (2008), which colour-blind readers can tell apart;
markers and hatches repeat the distinction for print in black and white.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

_STYLE = Path(__file__).with_name("dlbench.mplstyle")

SINGLE_COLUMN = 3.4
DOUBLE_COLUMN = 7.0
"""Widths of a figure in a two-column paper, inches."""

STRATEGIES = ("dp", "fsdp", "dp_pp", "dp_pp_tp", "dp_pp_ep")
"""The order in which strategies appear; others follow."""

_BLUE, _ORANGE, _GREEN, _VERMILLION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
_PURPLE, _SKY, _YELLOW, _BLACK = "#CC79A7", "#56B4E9", "#F0E442", "#000000"
GREY, LIGHT_GREY = "#7F7F7F", "#D9D9D9"


@dataclass(frozen=True, slots=True)
class Look:
    """How a series is told apart."""

    color: str
    marker: str
    hatch: str
    line: str | tuple[int, tuple[int, ...]]
    """Line style."""


LOOKS = (
    Look(_BLUE, "o", "", "-"),
    Look(_ORANGE, "s", "////", (0, (5, 1))),
    Look(_GREEN, "^", "....", (0, (3, 1, 1, 1))),
    Look(_VERMILLION, "D", "xxxx", (0, (1, 1))),
    Look(_PURPLE, "v", "\\\\\\\\", (0, (6, 1, 1, 1, 1, 1))),
    Look(_SKY, "P", "----", "-"),
    Look(_YELLOW, "X", "++++", (0, (5, 1))),
    Look(_BLACK, "*", "oooo", (0, (1, 1))),
)


def looks(names: Iterable[str], known: tuple[str, ...] = ()) -> dict[str, Look]:
    """A look per name. `known` names always have the same one; looks repeat where there are more names than looks."""
    others = sorted(set(names) - set(known))
    return {name: LOOKS[index % len(LOOKS)] for index, name in enumerate([*known, *others])}


@contextmanager
def styled() -> Iterator[None]:
    """Draw and save with the style file on top of Matplotlib's defaults: no setting of the user's own has a say."""
    parameters: dict[str, Any] = dict(matplotlib.rc_params_from_file(_STYLE, use_default_template=True))
    parameters.pop("backend")
    with matplotlib.rc_context(parameters):
        yield


def time_unit(seconds: float) -> tuple[float, str]:
    """Unit for an axis that reaches to `seconds`, and how many of it are a second: 0.02 is shown in (1000, "ms")."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= 1:
            return factor, unit
    return 1e9, "ns"
