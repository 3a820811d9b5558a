"""Bars of the communication fraction: heights, intervals, and how they are grouped."""

from __future__ import annotations

from pathlib import Path

import pytest
from builder import write_run
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patches import Rectangle
from plot_reader import axes_of, constant_run, drawing_of, legend_of, only_axes, plot_of, tick_labels, title

from dlbench.analysis.metrics import SUMMARY
from dlbench.analysis.plots import communication
from dlbench.analysis.samples import table


def bars(ax: Axes) -> list[Rectangle]:
    """From left to right."""
    found = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    return sorted(found, key=lambda bar: bar.get_x())


def heights(ax: Axes) -> list[float]:
    return [round(bar.get_height(), 6) for bar in bars(ax)]


def centres(ax: Axes) -> list[float]:
    return [round(bar.get_x() + bar.get_width() / 2, 6) for bar in bars(ax)]


def intervals(ax: Axes) -> list[tuple[float, float]]:
    segments = [
        segment for lines in ax.collections if isinstance(lines, LineCollection) for segment in lines.get_segments()
    ]
    return [(round(float(low), 6), round(float(high), 6)) for (_, low), (_, high) in segments]


def test_a_bar_is_the_mean_over_iterations_of_the_largest_share_of_a_rank(tmp_path: Path) -> None:
    # Shares of the ranks: 0.5 and 0.2, then 0.1 and 0.3.
    write_run(tmp_path, "a", [[1.0, 2.0], [2.0, 1.0]], [[0.5, 0.4], [0.2, 0.3]])
    ax = only_axes(tmp_path, "communication")
    assert heights(ax) == [40.0]
    assert title(ax) == ["leonardo", "n = 2 iterations of 1 run each"]


def test_warm_up_iterations_are_in_no_bar(tmp_path: Path) -> None:
    write_run(tmp_path, "a", [[1.0, 1.0]] * 3, [[0.9, 0.9], [0.2, 0.2], [0.2, 0.2]], measured_as={"warmups": 1})
    assert heights(only_axes(tmp_path, "communication")) == [20.0]


def test_below_six_iterations_a_bar_has_no_interval_and_the_caption_says_so(tmp_path: Path) -> None:
    constant_run(tmp_path, "five", 1.0, 5)
    constant_run(tmp_path, "six", 1.0, 6, ranks=4)
    plot = plot_of(tmp_path, "communication")
    (ax,) = plot.figure.axes
    assert heights(ax) == [20.0, 20.0]
    assert intervals(ax) == [(20.0, 20.0)]
    assert "a bar from fewer than 6 iterations has none" in plot.caption
    assert "n = 5 to 6 iterations of 1 run each" in plot.caption


def test_the_interval_reaches_to_the_bounds_of_the_table() -> None:
    row = {"strategy": "dp", "gpus": 4, "runs": 2, "iterations": 12, "communication": 0.4}
    row |= {"communication_low": 0.35, "communication_high": 0.5}
    frame = table([dict.fromkeys(SUMMARY, 0) | {"system": "s", "placement": "p"} | row], SUMMARY)
    (ax,) = communication.draw(frame).plots[0].figure.axes
    assert intervals(ax) == [(35.0, 50.0)]
    assert ax.get_ylim() == (0, 60)


def test_strategies_stand_beside_each_other_around_their_gpus(tmp_path: Path) -> None:
    constant_run(tmp_path, "dp-2", 1.0)
    constant_run(tmp_path, "fsdp-2", 1.0, strategy="fsdp")
    constant_run(tmp_path, "dp-4", 1.0, ranks=4)
    plot = plot_of(tmp_path, "communication")
    (ax,) = plot.figure.axes
    assert centres(ax) == [-0.125, 0.125, 1.0]  # bars are a quarter wide
    assert tick_labels(ax) == ["2", "4"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("GPUs", "communication [%]")
    assert legend_of(plot) == ["dp", "fsdp"]


def test_bars_of_strategies_differ_in_colour_and_in_hatch(tmp_path: Path) -> None:
    for strategy in ("dp", "fsdp", "dp_pp"):
        constant_run(tmp_path, strategy, 1.0, strategy=strategy)
    drawn = bars(only_axes(tmp_path, "communication"))
    assert len({bar.get_facecolor() for bar in drawn}) == 3
    assert len({bar.get_hatch() for bar in drawn}) == 3


def test_a_strategy_looks_the_same_whatever_else_is_drawn(tmp_path: Path) -> None:
    constant_run(tmp_path / "alone", "a", 1.0, strategy="dp_pp")
    for strategy in ("dp", "dp_pp"):
        constant_run(tmp_path / "both", strategy, 1.0, strategy=strategy)
    (alone,) = bars(only_axes(tmp_path / "alone", "communication"))
    _, beside = bars(only_axes(tmp_path / "both", "communication"))
    assert alone.get_facecolor() == beside.get_facecolor()
    assert alone.get_hatch() == beside.get_hatch()


def test_each_system_has_a_panel_and_all_have_the_same_axis(tmp_path: Path) -> None:
    write_run(tmp_path, "a", [[1.0, 1.0]], [[0.72, 0.1]], system="leonardo")
    write_run(tmp_path, "b", [[1.0, 1.0]], [[0.05, 0.1]], system="alps")
    alps, leonardo = axes_of(tmp_path, "communication")
    assert (title(alps)[0], title(leonardo)[0]) == ("alps", "leonardo")
    assert alps.get_ylim() == leonardo.get_ylim() == (0, 80)


def test_the_axis_never_exceeds_all_of_the_runtime(tmp_path: Path) -> None:
    write_run(tmp_path, "a", [[1.0, 1.0]], [[1.0, 1.0]])
    assert only_axes(tmp_path, "communication").get_ylim() == (0, 100)


def test_placement_classes_are_groups_of_bars_from_close_to_far(tmp_path: Path) -> None:
    for placement in ("inter-group", "intra-l1", "intra-group-same-l1-2"):
        constant_run(tmp_path, placement, 1.0, placement=placement)
    ax = only_axes(tmp_path, "communication")
    assert tick_labels(ax) == ["2\nintra-l1", "2\nintra-group\nsame-l1-2", "2\ninter-group"]


def test_many_groups_become_panels_of_their_placement_class(tmp_path: Path) -> None:
    for ranks in (1, 2, 3, 4, 5):
        for placement in ("intra-l1", "inter-group"):
            constant_run(tmp_path, f"{placement}-{ranks}", 1.0, 1, ranks=ranks, placement=placement)
    near, far = axes_of(tmp_path, "communication")
    assert (title(near)[0], title(far)[0]) == ("leonardo · intra-l1", "leonardo · inter-group")
    assert tick_labels(near) == ["1", "2", "3", "4", "5"]


def test_what_differs_at_equal_gpus_has_panels_of_its_own(tmp_path: Path) -> None:
    constant_run(tmp_path, "bf16", 1.0)
    constant_run(tmp_path, "fp8", 1.0, dtype="fp8")
    first, second = axes_of(tmp_path, "communication")
    assert [title(first)[0], title(second)[0]] == ["leonardo · bf16", "leonardo · fp8"]


def test_degrees_that_follow_from_the_gpus_do_not_split_a_panel(tmp_path: Path) -> None:
    constant_run(tmp_path, "8", 1.0, 1, ranks=8, strategy="dp_pp", degrees={"pp": 2}, replicas=4)
    constant_run(tmp_path, "16", 1.0, 1, ranks=16, strategy="dp_pp", degrees={"pp": 8}, replicas=2)
    assert len(heights(only_axes(tmp_path, "communication"))) == 2


def test_runs_beside_other_jobs_have_a_panel_of_their_own(tmp_path: Path) -> None:
    constant_run(tmp_path, "alone", 1.0, concurrent_jobs=1)
    constant_run(tmp_path, "beside", 1.0, concurrent_jobs=2, experiment="e")
    alone, beside = axes_of(tmp_path, "communication")
    assert (title(alone)[0], title(beside)[0]) == ("leonardo · alone", "leonardo · beside other jobs")


def test_nothing_comes_from_an_empty_table() -> None:
    drawing = communication.draw(table([], SUMMARY))
    assert drawing.plots == []
    assert [str(reason) for reason in drawing.left_out] == ["communication: no run has a measured iteration"]


@pytest.mark.parametrize(("systems", "inches"), [(1, 3.4), (2, 7.0)])
def test_one_panel_fills_a_column_and_more_the_page(tmp_path: Path, systems: int, inches: float) -> None:
    for number in range(systems):
        constant_run(tmp_path, str(number), 1.0, 1, system=f"s{number}")
    assert plot_of(tmp_path, "communication").figure.get_size_inches()[0] == inches


def test_many_panels_go_on_to_further_figures_and_what_is_beyond_is_said(tmp_path: Path) -> None:
    for number in range(34):
        constant_run(tmp_path, str(number), 1.0, 1, ranks=1 if number < 2 else 2, system=f"s{number:02}")
    drawing = drawing_of(tmp_path, "communication")
    assert [plot.name for plot in drawing.plots] == [
        *("communication", "communication-2", "communication-3", "communication-4")
    ]
    assert [len(plot.figure.axes) for plot in drawing.plots] == [8, 8, 8, 8]
    assert title(drawing.plots[0].figure.axes[0])[0] == "s02"
    limit = "32 of 34 panels are drawn, those of most GPUs; choose with --strategy, --system or --where"
    assert [str(reason) for reason in drawing.left_out] == [f"communication: {limit}"]
    assert all(limit in plot.caption for plot in drawing.plots)
