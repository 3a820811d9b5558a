"""Iterations of the runs of a configuration, one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builder import write_run
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from plot_reader import (
    axes_of,
    constant_run,
    drawing_of,
    heights_of,
    legend_of,
    note,
    only_axes,
    plot_of,
    tick_labels,
    title,
    x_data,
    y_data,
)

from dlbench.analysis.plots.style import GREY, LOOKS

MEASURED, MEDIAN = LOOKS[0].color, LOOKS[3].color


def run(folder: Path, name: str, seconds: list[float], warmups: int = 0, start: float = 100.0, **changes: Any) -> None:
    """Two ranks, the second of which is the slowest."""
    rows = [[time / 2, time] for time in seconds]
    write_run(folder, name, rows, measured_as={"warmups": warmups, "start": start}, **changes)


def lines(ax: Axes, color: str) -> list[tuple[list[float], list[float]]]:
    """Places and values of the lines of this colour."""
    return [(x_data(line), y_data(line)) for line in ax.lines if line.get_color() == color and x_data(line)]


def bands(ax: Axes) -> list[tuple[float, float]]:
    """Lower and upper end of each filled band."""
    return [heights_of(band.get_paths()[0]) for band in ax.collections if isinstance(band, PolyCollection)]


def triangles(ax: Axes) -> list[tuple[list[float], str]]:
    """Places and fill of the marks above the axis."""
    return [(x_data(line), str(line.get_markerfacecolor())) for line in ax.lines if line.get_marker() == "^"]


def test_the_slowest_rank_is_drawn_over_the_iterations(tmp_path: Path) -> None:
    run(tmp_path, "a", [1.0, 1.1, 1.2])
    ax = only_axes(tmp_path, "stability")
    assert lines(ax, MEASURED) == [([0, 1, 2], [1.0, 1.1, 1.2])]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("iteration", "slowest rank [s]")
    assert title(ax) == ["leonardo · dp · 2 GPUs · intra-l1", "n = 3 iterations of 1 run"]


def test_times_are_in_the_unit_that_suits_them(tmp_path: Path) -> None:
    run(tmp_path, "a", [0.002, 0.003])
    ax = only_axes(tmp_path, "stability")
    assert ax.get_ylabel() == "slowest rank [ms]"
    assert lines(ax, MEASURED) == [([0, 1], [2, 3])]


def test_warm_up_is_grey_and_not_in_the_median(tmp_path: Path) -> None:
    run(tmp_path, "a", [1.15, 1.0, 1.1, 1.2], warmups=1)
    ax = only_axes(tmp_path, "stability")
    assert lines(ax, GREY) == [([0], [1.15])]
    assert lines(ax, MEASURED) == [([1, 2, 3], [1.0, 1.1, 1.2])]
    assert lines(ax, MEDIAN) == [([0.6, 3.4], [1.1, 1.1])]


def test_the_band_is_the_interval_of_the_median_from_order_statistics(tmp_path: Path) -> None:
    run(tmp_path, "a", [1.6, 1.1, 1.2, 1.5, 1.4, 1.3])  # of six samples: from the smallest to the largest
    assert bands(only_axes(tmp_path, "stability")) == [pytest.approx((1.1, 1.6))]


def test_below_six_iterations_there_is_no_band(tmp_path: Path) -> None:
    run(tmp_path, "a", [1.1, 1.2, 1.3, 1.4, 1.5])
    plot = plot_of(tmp_path, "stability")
    assert bands(plot.figure.axes[0]) == []
    assert "which takes 6 iterations" in plot.caption


def test_runs_follow_each_other_in_the_order_in_which_they_began(tmp_path: Path) -> None:
    run(tmp_path, "a", [1.3, 1.4], start=900.0)
    run(tmp_path, "b", [1.1, 1.2], start=100.0)
    ax = only_axes(tmp_path, "stability")
    assert lines(ax, MEASURED) == [([0, 1], [1.1, 1.2]), ([2, 3], [1.3, 1.4])]
    assert [values[0] for _, values in lines(ax, MEDIAN)] == pytest.approx([1.15, 1.35])
    assert tick_labels(ax) == ["1", "2"]
    assert list(ax.get_xticks()) == [0.5, 2.5]
    assert ax.get_xlabel() == "run, its iterations from left to right"
    assert note(ax) == "n = 4 iterations of 2 runs"


def test_of_many_runs_some_are_numbered(tmp_path: Path) -> None:
    for number in range(41):
        run(tmp_path, f"{number:02}", [1.0, 1.0], start=100.0 * number)
    assert tick_labels(only_axes(tmp_path, "stability")) == [str(number) for number in range(1, 42, 3)]


def test_what_is_far_above_is_marked_counted_and_named(tmp_path: Path) -> None:
    run(tmp_path, "a", [1.0] * 9 + [10.0])
    ax = only_axes(tmp_path, "stability")
    assert triangles(ax) == [([9.0], "black")]
    assert note(ax) == "n = 10 iterations of 1 run; ▲ 1 above the axis, up to 10.00 s"
    assert ax.get_ylim() == pytest.approx((0.9, 1.1))


def test_the_median_of_a_slow_run_stays_on_the_axis(tmp_path: Path) -> None:
    for number in range(9):
        run(tmp_path, f"{number}", [1.0, 1.01] * 3, start=100.0 * number)
    run(tmp_path, "slow", [5.0, 5.1, 5.2], start=900.0)
    plot = plot_of(tmp_path, "stability")
    ax = plot.figure.axes[0]
    assert max(values[0] for _, values in lines(ax, MEDIAN)) == pytest.approx(5.1)
    assert ax.get_ylim()[1] > 5.1
    assert "a band that reaches its end ends at one of these" in plot.caption


def test_a_slow_warm_up_is_marked_apart_and_not_counted(tmp_path: Path) -> None:
    run(tmp_path, "a", [5.0] + [1.0] * 6, warmups=1)
    ax = only_axes(tmp_path, "stability")
    assert triangles(ax) == [([0.0], "white")]
    assert note(ax) == "n = 6 iterations of 1 run; △ 1 of warm-up above the axis, up to 5.000 s"


def test_slow_iterations_of_both_kinds_are_counted_apart(tmp_path: Path) -> None:
    run(tmp_path, "a", [5.0, 7.0] + [1.0] * 9 + [10.0], warmups=2)
    plot = plot_of(tmp_path, "stability")
    (ax,) = plot.figure.axes
    assert sorted(triangles(ax)) == [([0.0, 1.0], "white"), ([11.0], "black")]
    assert note(ax) == (
        "n = 10 iterations of 1 run; ▲ 1 above the axis, up to 10.00 s; △ 2 of warm-up above the axis, up to 7.000 s"
    )
    assert "△: warm-up iterations above it" in plot.caption


def test_a_warm_up_at_the_end_of_the_axis_is_drawn_whole(tmp_path: Path) -> None:
    run(tmp_path, "a", [1.1, 1.0, 1.0], warmups=1)  # an axis of a fifth of the median, around it: 0.9 to 1.1
    ax = only_axes(tmp_path, "stability")
    assert ax.get_ylim() == pytest.approx((0.9, 1.1))
    (warm,) = (line for line in ax.lines if line.get_color() == GREY)
    assert y_data(warm) == [1.1]
    assert not warm.get_clip_on()


def test_a_fast_warm_up_is_on_the_axis(tmp_path: Path) -> None:
    run(tmp_path, "a", [0.5, 1.0, 1.0], warmups=1)
    ax = only_axes(tmp_path, "stability")
    # From 0.5 to 1.0, with 6 % of that on either side.
    assert ax.get_ylim() == pytest.approx((0.47, 1.03))
    assert lines(ax, GREY) == [([0], [0.5])]


def test_noise_of_a_percent_does_not_fill_the_axis(tmp_path: Path) -> None:
    run(tmp_path, "a", [1.0, 1.01, 0.99, 1.0])
    low, high = only_axes(tmp_path, "stability").get_ylim()
    assert high - low == pytest.approx(0.2, rel=0.02)


def test_configurations_have_panels_and_neighbours_are_told_from_baselines(tmp_path: Path) -> None:
    run(tmp_path, "a", [1.0], concurrent_jobs=1)
    run(tmp_path, "b", [1.0], concurrent_jobs=2, experiment="e")
    alone, beside = axes_of(tmp_path, "stability")
    assert title(alone)[0] == "leonardo · dp · 2 GPUs · intra-l1 · alone"
    assert title(beside)[:2] == ["leonardo · dp · 2 GPUs · intra-l1 · beside other", "jobs"]


def test_short_runs_lie_side_by_side_and_long_ones_take_the_width(tmp_path: Path) -> None:
    for strategy in ("dp", "fsdp"):
        constant_run(tmp_path / "short", strategy, 1.0, 80, strategy=strategy)
        constant_run(tmp_path / "long", strategy, 1.0, 81, strategy=strategy)
    left, right = axes_of(tmp_path / "short", "stability")
    assert left.get_subplotspec().colspan != right.get_subplotspec().colspan  # type: ignore[union-attr]
    upper, lower = axes_of(tmp_path / "long", "stability")
    assert upper.get_subplotspec().colspan == lower.get_subplotspec().colspan  # type: ignore[union-attr]


def test_the_legend_names_what_is_drawn(tmp_path: Path) -> None:
    run(tmp_path, "a", [1.0])
    names = ["warm-up", "measured", "median of a run", "its 95 % interval", "above the axis", "warm-up above it"]
    assert legend_of(plot_of(tmp_path, "stability")) == names


def test_without_a_run_there_is_a_reason_instead_of_a_figure(tmp_path: Path) -> None:
    run(tmp_path, "a", [1.0], warmups=1)
    drawing = drawing_of(tmp_path, "stability")
    assert drawing.plots == []
    assert [str(reason) for reason in drawing.left_out] == ["stability: no run has an iteration"]
