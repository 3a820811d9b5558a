"""Draw the records of a folder, and read back from the artists what a reader of the figure sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from builder import write_run
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.path import Path as Shape

from dlbench.analysis.load import load
from dlbench.analysis.plots import Drawing, Plot, figures
from dlbench.analysis.results import Results, evaluate

ALONE: dict[str, Any] = {"concurrent_jobs": 1}


def results_of(folder: Path) -> Results:
    return evaluate(load([folder]), seed=0, min_overlap=0.8)


def drawing_of(folder: Path, family: str) -> Drawing:
    return figures(results_of(folder), only=[family])


def plot_of(folder: Path, family: str) -> Plot:
    """The only figure of the family."""
    (plot,) = drawing_of(folder, family).plots
    return plot


def axes_of(folder: Path, family: str) -> list[Axes]:
    return list(plot_of(folder, family).figure.axes)


def only_axes(folder: Path, family: str) -> Axes:
    (ax,) = axes_of(folder, family)
    return ax


def constant_run(folder: Path, name: str, seconds: float, count: int = 6, *, ranks: int = 2, **changes: Any) -> Path:
    """A run whose every iteration takes `seconds` on every rank."""
    return write_run(folder, name, [[seconds] * ranks] * count, **changes)


def pair(folder: Path, experiment: str, seconds: list[float], **changes: Any) -> None:
    """Job `a` of the experiment with iterations of these seconds, and a job `b` of FSDP that runs as long."""
    both: dict[str, Any] = {"experiment": experiment, "concurrent_jobs": 2}
    write_run(folder, f"{experiment}-a", [[time, time] for time in seconds], job="a", **both, **changes)
    length = sum(seconds)
    write_run(folder, f"{experiment}-b", [[length, length]] * 2, strategy="fsdp", job="b", **both)


def title(ax: Axes) -> list[str]:
    """Lines of the title."""
    return ax.get_title(loc="left").replace("\N{NO-BREAK SPACE}", " ").split("\n")


def note(ax: Axes) -> str:
    """What stands beneath the first line of the title."""
    return " ".join(title(ax)[1:])


def tick_labels(ax: Axes) -> list[str]:
    return [label.get_text() for label in ax.get_xticklabels()]


def y_data(line: Line2D) -> list[float]:
    return [float(value) for value in np.asarray(line.get_ydata())]


def x_data(line: Line2D) -> list[float]:
    return [float(value) for value in np.asarray(line.get_xdata())]


def heights_of(path: Shape) -> tuple[float, float]:
    """Lowest and highest point of a drawn shape."""
    ys = np.asarray(path.vertices)[:, 1]
    return float(ys.min()), float(ys.max())


def texts(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def legend_of(plot: Plot) -> list[str]:
    return [text.get_text() for legend in plot.figure.legends for text in legend.get_texts()]
