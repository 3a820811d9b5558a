"""Throughput and efficiency against GPUs: the points, the ideal line, and the axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from plot_reader import ALONE, axes_of, constant_run, drawing_of, legend_of, plot_of, tick_labels, title, x_data, y_data

from dlbench.analysis.plots import scaling
from dlbench.analysis.samples import table
from dlbench.analysis.scaling import SCALING

BATCH = 16
"""Samples per replica and iteration of the records by hand."""


def run(folder: Path, gpus: int, seconds: float, **changes: Any) -> None:
    constant_run(folder, f"{changes.get('strategy', 'dp')}-{gpus}", seconds, ranks=gpus, **ALONE, **changes)


def points(ax: Axes) -> list[list[float]]:
    """Values of each line with markers."""
    return [y_data(line) for line in ax.lines if line.get_marker() not in ("None", "", None, "_", "|")]


def ideals(ax: Axes) -> list[list[float]]:
    """Values of each dotted line without markers."""
    return [y_data(line) for line in ax.lines if line.get_linestyle() == ":"]


def test_throughput_is_drawn_above_efficiency_with_the_ideal_line(tmp_path: Path) -> None:
    run(tmp_path, 2, 1.0)  # 32 samples/s
    run(tmp_path, 4, 2.0)  # 32 samples/s again: half the efficiency
    run(tmp_path, 8, 1.0)  # 128 samples/s
    above, below = axes_of(tmp_path, "scaling")
    assert points(above) == [pytest.approx([32, 32, 128])]
    assert ideals(above) == [pytest.approx([32, 64, 128])]
    assert points(below) == [pytest.approx([100, 50, 100])]
    assert ideals(below) == [[100, 100]]
    assert title(above) == ["leonardo · intra-l1", "n = 6 iterations of 1 run each"]


def test_axes_are_logarithmic_in_gpus_and_say_their_units(tmp_path: Path) -> None:
    run(tmp_path, 2, 1.0)
    run(tmp_path, 6, 1.0)
    above, below = axes_of(tmp_path, "scaling")
    assert (above.get_xscale(), above.get_yscale()) == ("log", "log")
    assert (below.get_xscale(), below.get_yscale()) == ("log", "linear")
    above.figure.canvas.draw()
    assert tick_labels(above) == tick_labels(below) == ["2", "6"]
    assert above.get_ylabel() == "throughput [samples/s]"
    assert below.get_ylabel() == "efficiency [%]"
    assert below.get_xlabel() == "GPUs"
    assert below.get_ylim()[0] == 0


def test_of_many_counts_the_powers_of_two_are_labelled(tmp_path: Path) -> None:
    for gpus in (1, 2, 3, 4, 5, 6, 7, 8, 9):
        run(tmp_path, gpus, 1.0)
    above, _ = axes_of(tmp_path, "scaling")
    above.figure.canvas.draw()
    assert tick_labels(above) == ["1", "2", "4", "8"]


def test_strategies_are_drawn_beside_each_other_so_that_intervals_do_not_hide(tmp_path: Path) -> None:
    for strategy in ("dp", "fsdp"):
        run(tmp_path, 2, 1.0, strategy=strategy)
        run(tmp_path, 4, 1.0, strategy=strategy)
    plot = plot_of(tmp_path, "scaling")
    above = plot.figure.axes[0]
    dp, fsdp = (x_data(line) for line in above.lines if line.get_marker() in ("o", "s"))
    assert dp == pytest.approx([2 * 2**-0.025, 4 * 2**-0.025])
    assert fsdp == pytest.approx([2 * 2**0.025, 4 * 2**0.025])
    assert legend_of(plot) == ["dp", "fsdp", "ideal"]


def test_a_line_breaks_where_the_degrees_of_parallelism_change(tmp_path: Path) -> None:
    for gpus, pp in ((4, 2), (8, 2), (16, 8), (32, 8)):
        run(tmp_path, gpus, 1.0, strategy="dp_pp", degrees={"pp": pp}, replicas=gpus // pp)
    above, below = axes_of(tmp_path, "scaling")
    assert points(above) == [pytest.approx([32, 64]), pytest.approx([32, 64])]
    assert points(below) == [pytest.approx([100, 100]), pytest.approx([100, 100])]
    assert len(ideals(above)) == 2


def test_intervals_are_those_of_the_table_and_absent_where_it_has_none() -> None:
    first = {"gpus": 2, "smallest": 2, "throughput": 10.0, "throughput_low": 9.0, "throughput_high": 12.0}
    first |= {"efficiency": 1.0, "efficiency_low": float("nan"), "efficiency_high": float("nan")}
    second = {"gpus": 4, "smallest": 2, "throughput": 16.0, "throughput_low": 15.0, "throughput_high": 18.0}
    second |= {"efficiency": 0.8, "efficiency_low": 0.7, "efficiency_high": 1.3}
    common = dict.fromkeys(SCALING, 0) | {"system": "s", "strategy": "dp", "runs": 2, "iterations": 12}
    frame = table([common | first, common | second], SCALING)
    above, below = scaling.draw(frame).plots[0].figure.axes
    assert bounds(above) == [pytest.approx((9, 12)), pytest.approx((15, 18))]
    assert bounds(below) == [pytest.approx((100, 100)), pytest.approx((70, 130))]
    assert below.get_ylim()[1] == pytest.approx(1.08 * 130)


def bounds(ax: Axes) -> list[tuple[float, float]]:
    segments = [part for lines in ax.collections if isinstance(lines, LineCollection) for part in lines.get_segments()]
    return [(float(low), float(high)) for (_, low), (_, high) in segments]


def test_one_count_of_gpus_is_no_scaling(tmp_path: Path) -> None:
    run(tmp_path, 2, 1.0)
    run(tmp_path, 4, 1.0, placement="inter-group")
    drawing = drawing_of(tmp_path, "scaling")
    assert drawing.plots == []
    assert [str(reason) for reason in drawing.left_out] == [
        "scaling: no configuration ran on two counts of GPUs (leonardo · intra-l1 and 1 other)"
    ]


def test_runs_beside_other_jobs_do_not_scale(tmp_path: Path) -> None:
    for gpus in (2, 4):
        constant_run(tmp_path, str(gpus), 1.0, ranks=gpus, concurrent_jobs=2, experiment=f"e{gpus}")
    drawing = drawing_of(tmp_path, "scaling")
    assert [str(reason) for reason in drawing.left_out] == [
        "scaling: no run was alone on the machine; only baselines scale"
    ]


def test_placement_classes_have_panels_of_their_own(tmp_path: Path) -> None:
    for placement in ("inter-group", "intra-l1"):
        for gpus in (2, 4):
            constant_run(tmp_path, f"{placement}-{gpus}", 1.0, ranks=gpus, placement=placement, **ALONE)
    above, other, *_ = axes_of(tmp_path, "scaling")
    assert (title(above)[0], title(other)[0]) == ("leonardo · intra-l1", "leonardo · inter-group")


@pytest.mark.parametrize(("seconds", "ticks"), [(1.0, [50, 100, 200]), (0.001, [100, 1000, 10000, 100000])])
def test_ticks_between_powers_of_ten_are_drawn_where_there_is_room(
    tmp_path: Path, seconds: float, ticks: list[float]
) -> None:
    run(tmp_path, 2, 1.0)  # 32 samples/s
    run(tmp_path, 16, seconds)  # 256 or 256,000 samples/s
    above, _ = axes_of(tmp_path, "scaling")
    assert [tick for tick in above.get_yticks() if 32 < tick < 256 / seconds] == pytest.approx(ticks)
