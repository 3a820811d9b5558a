"""Boxes of the slowdown: which iterations, what stands below, and what is cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from plot_reader import (
    ALONE,
    axes_of,
    constant_run,
    drawing_of,
    heights_of,
    legend_of,
    only_axes,
    pair,
    plot_of,
    texts,
    tick_labels,
    title,
    x_data,
    y_data,
)

from dlbench.analysis.load import load
from dlbench.analysis.slowdown import slowdown


def boxes(ax: Axes) -> list[PathPatch]:
    return [patch for patch in ax.patches if isinstance(patch, PathPatch)]


def quartiles(box: PathPatch) -> tuple[float, float]:
    """Lower and upper edge."""
    return heights_of(box.get_path())


def points(ax: Axes) -> list[float]:
    return [value for line in ax.lines if line.get_marker() == "." for value in y_data(line)]


def means(ax: Axes) -> list[Line2D]:
    return [line for line in ax.lines if line.get_marker() == "D"]


def violins(ax: Axes) -> list[PolyCollection]:
    return [found for found in ax.collections if isinstance(found, PolyCollection)]


def below(ax: Axes) -> list[str]:
    """What stands below each box."""
    return tick_labels(ax)


def classes(ax: Axes) -> list[str]:
    """Placement classes below these."""
    return [label.get_text() for label in ax.get_xticklabels(minor=True)]


def test_a_point_is_the_isolated_throughput_over_that_of_the_iteration(tmp_path: Path) -> None:
    constant_run(tmp_path, "base", 1.0, **ALONE)
    pair(tmp_path, "e", [1.5, 1.25, 2.0])
    ax = only_axes(tmp_path, "slowdown")
    assert sorted(points(ax)) == pytest.approx([1.25, 1.5, 2.0])
    assert title(ax) == ["leonardo · dp · 2 GPUs", "n = 3 iterations"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("placement class", "slowdown σ")


def test_the_isolated_time_and_the_count_stand_below_each_box(tmp_path: Path) -> None:
    constant_run(tmp_path, "base", 0.0125, **ALONE)
    pair(tmp_path, "e", [0.025] * 7)
    ax = only_axes(tmp_path, "slowdown")
    assert below(ax) == ["n = 7\nalone\n12.50 ms"]
    assert classes(ax) == ["intra-l1"]


def test_the_diamond_is_the_ratio_of_geometric_means(tmp_path: Path) -> None:
    constant_run(tmp_path, "base", 1.0, **ALONE)
    pair(tmp_path, "e", [1.0, 4.0])
    (mean,) = means(only_axes(tmp_path, "slowdown"))
    assert y_data(mean) == pytest.approx([2.0])  # the geometric mean of 1 and 4


def test_few_samples_are_points_more_a_box_and_many_a_violin(tmp_path: Path) -> None:
    constant_run(tmp_path, "base", 1.0, **ALONE)
    for placement, count in (("intra-l1", 5), ("intra-group", 6), ("inter-group", 20)):
        constant_run(tmp_path, f"base-{placement}", 1.0, placement=placement, **ALONE)
        pair(tmp_path, placement, [1 + index / 20 for index in range(count)], placement=placement)
    ax = only_axes(tmp_path, "slowdown")
    assert classes(ax) == ["intra-l1", "intra-group", "inter-group"]
    assert len(boxes(ax)) == 2
    assert len(violins(ax)) == 1
    assert len(points(ax)) == 31


def test_a_box_ends_at_the_quartiles(tmp_path: Path) -> None:
    constant_run(tmp_path, "base", 1.0, **ALONE)
    pair(tmp_path, "e", [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8])
    (box,) = boxes(only_axes(tmp_path, "slowdown"))
    assert quartiles(box) == pytest.approx((1.2, 1.6))


def test_of_many_samples_only_the_outliers_are_points(tmp_path: Path) -> None:
    constant_run(tmp_path, "base", 1.0, **ALONE)
    # Quartiles 1.1 and 1.3: whiskers end at 0.8 and 1.6; 1.7 lies beyond, but is not far out (1.9).
    pair(tmp_path, "e", [1.1, 1.2, 1.3] * 24 + [1.7])
    assert points(only_axes(tmp_path, "slowdown")) == pytest.approx([1.7])


def test_what_is_far_out_is_cut_counted_and_named(tmp_path: Path) -> None:
    constant_run(tmp_path, "base", 1.0, **ALONE)
    pair(tmp_path, "e", [1.0, 1.1, 1.2, 1.3, 1.4] * 4 + [30.0, 40.0])
    ax = only_axes(tmp_path, "slowdown")
    assert texts(ax) == ["▲ 2\nmax 40.0"]
    assert max(points(ax)) == pytest.approx(1.4)
    assert ax.get_ylim()[1] < 5


def test_without_outliers_nothing_is_annotated(tmp_path: Path) -> None:
    constant_run(tmp_path, "base", 1.0, **ALONE)
    pair(tmp_path, "e", [1.0, 1.1, 1.2, 1.3, 1.4, 1.5])
    assert texts(only_axes(tmp_path, "slowdown")) == []


def test_modes_stand_side_by_side_and_differ_in_hatch(tmp_path: Path) -> None:
    for mode in ("queue", "reserved"):
        constant_run(tmp_path, f"base-{mode}", 1.0, labels={"mode": mode}, **ALONE)
        pair(tmp_path, mode, [1.1, 1.2, 1.3, 1.4, 1.5, 1.6], labels={"mode": mode})
    plot = plot_of(tmp_path, "slowdown")
    (ax,) = plot.figure.axes
    reserved, queue = boxes(ax)
    assert reserved.get_hatch() != queue.get_hatch()
    assert [round(float(tick), 6) for tick in ax.get_xticks()] == [-0.2, 0.2]
    assert classes(ax) == ["intra-l1"]
    assert legend_of(plot) == ["reserved", "queue", "σ", "as fast as alone"]


def test_a_diamond_stands_beside_its_box(tmp_path: Path) -> None:
    constant_run(tmp_path, "base", 1.0, **ALONE)
    pair(tmp_path, "e", [1.0, 1.1, 1.2, 1.3, 1.4, 1.5])
    (mean,) = means(only_axes(tmp_path, "slowdown"))
    assert x_data(mean) == pytest.approx([0.12])


def test_runs_without_a_mode_need_no_legend_for_it(tmp_path: Path) -> None:
    constant_run(tmp_path, "base", 1.0, **ALONE)
    pair(tmp_path, "e", [1.1])
    assert legend_of(plot_of(tmp_path, "slowdown")) == ["σ", "as fast as alone"]


def test_iterations_that_nothing_overlapped_are_counted_in_the_title_only(tmp_path: Path) -> None:
    constant_run(tmp_path, "base", 1.0, **ALONE)
    both: dict[str, Any] = {"experiment": "e", "concurrent_jobs": 2}
    constant_run(tmp_path, "a", 2.0, 8, job="a", **both)
    constant_run(tmp_path, "b", 6.0, 1, job="b", strategy="fsdp", **both)  # beside the first three of eight
    ax = only_axes(tmp_path, "slowdown")
    assert title(ax)[1] == "n = 3 iterations; 5 left out, not overlapped"
    assert points(ax) == pytest.approx([2.0] * 3)


def test_the_reference_line_is_at_one_and_always_in_sight(tmp_path: Path) -> None:
    constant_run(tmp_path, "base", 1.0, **ALONE)
    pair(tmp_path, "e", [3.0, 3.1])
    ax = only_axes(tmp_path, "slowdown")
    assert [y_data(line) for line in ax.lines if line.get_linestyle() == ":"] == [[1, 1]]
    low, high = ax.get_ylim()
    assert low < 1
    assert high > 3.1


def test_an_axis_holds_the_interval_of_sigma_at_both_ends(tmp_path: Path) -> None:
    # Two runs alone that differ by a factor of four: σ is known no better than that, the iterations beside are equal.
    constant_run(tmp_path, "slow", 2.0, 6, **ALONE)
    constant_run(tmp_path, "fast", 0.5, 6, **ALONE)
    pair(tmp_path, "e", [1.0] * 6)
    ax = only_axes(tmp_path, "slowdown")
    row = slowdown(load([tmp_path]), seed=0).table.iloc[0]
    low, high = ax.get_ylim()
    assert row["sigma_low"] <= 0.5
    assert low < row["sigma_low"] < 1 < row["sigma_high"] < high


def test_an_axis_of_hardly_any_slowdown_is_not_stretched_to_look_like_much(tmp_path: Path) -> None:
    constant_run(tmp_path, "base", 1.0, **ALONE)
    pair(tmp_path, "e", [1.0, 1.001])
    low, high = only_axes(tmp_path, "slowdown").get_ylim()
    assert high - low > 0.1


def test_many_boxes_are_parted_between_placement_classes(tmp_path: Path) -> None:
    for number in range(12):
        placement = f"p{number:02}"
        constant_run(tmp_path, f"base-{placement}", 1.0, 1, placement=placement, **ALONE)
        pair(tmp_path, placement, [1.5], placement=placement)
    first, second = axes_of(tmp_path, "slowdown")
    assert classes(first) == [f"p{number:02}" for number in range(10)]
    assert classes(second) == ["p10", "p11"]


def test_a_configuration_without_baseline_is_not_drawn_and_named(tmp_path: Path) -> None:
    constant_run(tmp_path, "base", 1.0, **ALONE)
    pair(tmp_path, "e", [1.5])
    (left_out,) = drawing_of(tmp_path, "slowdown").left_out
    assert str(left_out).startswith("slowdown: no baseline: no run of strategy fsdp, ")
    assert str(left_out).endswith(" (leonardo · fsdp · 2 GPUs · intra-l1)")


def test_without_concurrent_runs_there_is_a_reason_instead_of_a_figure(tmp_path: Path) -> None:
    constant_run(tmp_path, "base", 1.0, **ALONE)
    drawing = drawing_of(tmp_path, "slowdown")
    assert drawing.plots == []
    assert [str(reason) for reason in drawing.left_out] == [
        "slowdown: no concurrent run: nothing ran beside other jobs of its experiment"
    ]
