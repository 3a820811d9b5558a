"""The figures of the synchronisation tax: distributions, and waits by rank and collective."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builder import write_run as write_record
from kineto_writer import Collective, Group, run, write_run
from matplotlib.axes import Axes
from numpy.typing import NDArray
from ops_builder import Times, arrivals, clock, collective, table_of, write_taxed
from plot_reader import (
    axes_of,
    drawing_of,
    legend_of,
    note,
    only_axes,
    plot_of,
    results_of,
    tick_labels,
    title,
    x_data,
    y_data,
)

from dlbench.analysis.plots.style import styled
from dlbench.analysis.plots.tax import draw, draw_map, steps, waits_of
from dlbench.analysis.tax_sources import tax_of_traces

ONE = table_of(range(4), collective("gradient"))
GROUPS: dict[str, Any] = {"world": {"size": 4, "stride": 1}, "tensor": {"size": 2, "stride": 1}}


def late(rank: int, delay: float) -> Times:
    return arrivals(*(delay if each == rank else 0.0 for each in range(4)))


def drawn(ax: Axes) -> NDArray[np.float64]:
    """What the heat map shows, by rank and collective."""
    (image,) = ax.images
    return np.ma.filled(np.ma.asarray(image.get_array(), dtype=np.float64), np.nan)


def maps_of(folder: Path) -> list[Axes]:
    return [ax for ax in axes_of(folder, "tax-map") if ax.get_label() != "<colorbar>"]


def test_the_distribution_rises_by_the_share_of_each_collective(tmp_path: Path) -> None:
    write_taxed(tmp_path, [late(1, delay) for delay in (0.3, 0.1, 0.2, 0.4)], ONE)
    ax = only_axes(tmp_path, "tax")
    (line,) = ax.lines
    assert x_data(line) == pytest.approx([100, 100, 200, 300, 400])
    assert y_data(line) == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_xscale()) == ("tau range [ms]", "share of collectives", "log")
    assert title(ax)[0] == "leonardo · dp · 4 GPUs · intra-l1"
    assert note(ax) == "n = 4 collectives; largest 400.0 ms"


def test_each_class_has_a_line_and_all_runs_of_a_configuration_are_in_it(tmp_path: Path) -> None:
    program = table_of(range(4), collective("x"), collective("y", scope="tensor"))
    for name in ("a", "b"):
        times = [[(0.0, 1.0), (1.0, 2.0)], [(0.1, 1.0), (1.1, 2.0)]] * 2
        write_taxed(tmp_path, [times], program, groups=GROUPS, name=name)
    plot = plot_of(tmp_path, "tax")
    (ax,) = plot.figure.axes
    assert {str(line.get_label()): len(x_data(line)) - 1 for line in ax.lines} == {
        "allreduce/world": 2,
        "allreduce/tensor": 4,
    }
    assert legend_of(plot) == ["allreduce/world", "allreduce/tensor", "below the clocks' error"]
    assert "n = 6 collectives" in plot.caption


def test_what_the_clocks_cannot_tell_is_shaded(tmp_path: Path) -> None:
    write_taxed(tmp_path, [late(1, delay) for delay in (0.01, 0.1, 0.2)], ONE, clock=clock(4, 0.02))
    (span,) = only_axes(tmp_path, "tax").patches
    low, high = span.get_extents().transformed(only_axes(tmp_path, "tax").transData.inverted()).intervalx
    assert span.get_facecolor()[:3] == pytest.approx((0xE4 / 255,) * 3)
    assert low < high


@pytest.mark.parametrize(
    ("delays", "labels"),
    [
        ((0.016, 0.88), ["20", "50", "100", "200", "500"]),
        ((0.0015, 0.88), ["10", "100"]),
    ],
)
def test_labels_of_the_logarithm_do_not_lie_on_each_other(
    tmp_path: Path, delays: tuple[float, ...], labels: list[str]
) -> None:
    write_taxed(tmp_path, [late(1, delay) for delay in delays], ONE)
    ax = only_axes(tmp_path, "tax")
    low, high = ax.get_xlim()
    assert ax.get_xticks(minor=True).tolist() == []
    shown = zip(ax.get_xticks(), tick_labels(ax), strict=True)
    assert [text for place, text in shown if low <= place <= high] == labels


def test_ranks_that_never_wait_do_not_break_the_logarithm(tmp_path: Path) -> None:
    write_taxed(tmp_path, [late(1, 0.0), late(1, 0.1)], ONE)
    (line,) = only_axes(tmp_path, "tax").lines
    assert x_data(line)[-1] == pytest.approx(100)
    assert min(x_data(line)) > 0


def test_many_collectives_are_drawn_with_as_many_steps_as_one_can_see() -> None:
    seconds, share = steps(np.arange(1, 100_001, dtype=np.float64))
    assert len(seconds) == len(share) == 501
    assert (seconds[0], share[0], seconds[-1], share[-1]) == (1, 0, 100_000, 1)
    assert share[1:] == pytest.approx(seconds[1:] / 100_000)


def test_the_map_shows_the_median_wait_of_each_rank_in_each_collective(tmp_path: Path) -> None:
    program = table_of(range(4), collective("first"), collective("second"))

    def iteration(delay: float) -> Times:
        return [[(0.0, 1.0), (2.0, 3.0)]] * 3 + [[(delay, 1.0), (2.0, 3.0)]]

    write_taxed(tmp_path, [iteration(delay) for delay in (0.1, 0.2, 0.6)], program)
    (ax,) = maps_of(tmp_path)
    assert drawn(ax) == pytest.approx(np.array([[200, 0]] * 3 + [[0, 0]]))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("collective of the iteration", "rank")
    assert " ".join(title(ax)) == "leonardo · dp · 4 GPUs · intra-l1 · allreduce/world run 4 ranks, 2 collectives"


def test_one_long_wait_does_not_leave_the_others_dark(tmp_path: Path) -> None:
    program = table_of(range(4), *(collective(f"x{number}") for number in range(6)))

    def performed(*delays: float) -> list[tuple[float, float]]:
        return [(number + delay, number + 0.95) for number, delay in enumerate(delays)]

    # Rank 3 is the last of all: by 10 to 50 ms, and once by 900 ms.
    times = [performed(*[0.0] * 6)] * 3 + [performed(0.01, 0.02, 0.03, 0.04, 0.05, 0.9)]
    write_taxed(tmp_path, [times], program)
    (image,) = maps_of(tmp_path)[0].images
    assert image.get_clim() == pytest.approx((0, 50))
    assert image.colorbar is not None
    assert (image.colorbar.ax.get_ylabel(), image.colorbar.extend) == ("wait [ms]\n▲ 3 up to 900.0 ms", "max")
    assert "▲: waits far above the others, which have the brightest colour" in plot_of(tmp_path, "tax-map").caption


def test_waits_that_differ_little_have_colours_up_to_the_longest(tmp_path: Path) -> None:
    write_taxed(tmp_path, [arrivals(0.0, 0.1, 0.2, 0.3)], ONE)
    (image,) = maps_of(tmp_path)[0].images
    assert image.get_clim() == pytest.approx((0, 300))
    assert image.colorbar is not None
    assert (image.colorbar.ax.get_ylabel(), image.colorbar.extend) == ("wait [ms]", "neither")


def test_a_class_in_which_nobody_waits_is_dark(tmp_path: Path) -> None:
    write_taxed(tmp_path, [arrivals(0.0, 0.0, 0.0, 0.0)], ONE)
    assert drawn(maps_of(tmp_path)[0]).max() == 0


def test_a_rank_that_takes_no_part_is_left_blank(tmp_path: Path) -> None:
    tables = [
        {"ranks": [0, 1], "ops": [collective("x", scope="tensor"), collective("y", scope="tensor")]},
        {"ranks": [2, 3], "ops": [collective("x", scope="tensor")]},
    ]
    times = [[(0.0, 1.0), (1.0, 2.0)]] * 2 + [[(0.0, 1.0)], [(0.1, 1.0)]]
    write_taxed(tmp_path, [times], tables, groups=GROUPS)
    expected = [[0, 0], [0, 0], [100, np.nan], [0, np.nan]]
    assert drawn(maps_of(tmp_path)[0]) == pytest.approx(np.array(expected), nan_ok=True)


def test_of_several_runs_the_map_shows_the_one_with_the_median_tax(tmp_path: Path) -> None:
    for name, delay in (("a", 0.3), ("b", 0.1), ("c", 0.2), ("d", 0.9)):
        write_taxed(tmp_path, [late(0, delay)], ONE, name=name)
    (ax,) = maps_of(tmp_path)
    assert title(ax)[-2] == "c"  # of 0.1, 0.2, 0.3 and 0.9 the lower in the middle
    assert drawn(ax).max() == pytest.approx(200)


def test_classes_have_maps_of_their_own(tmp_path: Path) -> None:
    program = table_of(range(4), collective("x"), collective("y", op="allgather"))
    write_taxed(tmp_path, [[[(0.0, 1.0), (1.0, 2.0)]] * 4], program)
    names = [" ".join(title(ax)).split(" · ")[-1].split()[0] for ax in maps_of(tmp_path)]
    assert names == ["allgather/world", "allreduce/world"]


def test_runs_without_ops_have_neither_figure(tmp_path: Path) -> None:
    write_record(tmp_path, "bare", [[1.0] * 4])
    for family in ("tax", "tax-map"):
        drawing = drawing_of(tmp_path, family)
        assert drawing.plots == []
        assert [str(left_out) for left_out in drawing.left_out] == [
            f"{family}: no run has collectives with recorded ops (--record-ops)"
        ]


def test_why_damaged_ops_are_not_drawn_is_said(tmp_path: Path) -> None:
    ops = write_taxed(tmp_path, [late(0, 0.1)], ONE).with_suffix(".ops.npy")
    ops.write_bytes(b"no arrays" * 100)
    (left_out,) = drawing_of(tmp_path, "tax").left_out
    assert left_out.reason.endswith(f"; left out of the tax: {ops}: holds no arrays of numpy.save")


def test_traces_are_drawn_collective_by_collective(tmp_path: Path) -> None:
    program = [Collective("allreduce", Group("0", (0, 1), "mesh_dp"))] * 3
    kernels = run(program, [{0: 1_000, 1: 1_000}] * 3, {(1, 2): 30_000})
    taxes = tax_of_traces(write_run(tmp_path, kernels), seed=0)
    with styled():
        (distribution,), (waits,) = draw(taxes).plots, draw_map(taxes).plots
    assert title(distribution.figure.axes[0])[0] == "traces of 2 ranks"
    ax = waits.figure.axes[0]
    assert title(ax)[0] == "traces of 2 ranks · allreduce/mesh_dp"
    assert ax.get_xlabel() == "collective"
    assert drawn(ax) == pytest.approx(np.array([[0, 0, 30], [0, 0, 0]]), abs=1e-6)


def test_the_waits_of_a_class_are_those_of_its_groups(tmp_path: Path) -> None:
    program = table_of(range(4), collective("y", scope="tensor"))
    write_taxed(tmp_path, [arrivals(0.0, 0.1, 0.4, 0.0)], program, groups=GROUPS)
    found = waits_of(results_of(tmp_path).taxes.groups, "allreduce/tensor")
    assert found == pytest.approx(np.array([[0.1], [0.0], [0.0], [0.4]]))


def test_what_paths_predict_is_drawn_against_the_tax_with_and_without_idle_time(tmp_path: Path) -> None:
    program = table_of(range(2), {"op": "compute", "name": "forward"}, collective("gradient"))
    # Rank 1 computes for 0.2 s and 0.4 s longer; in the second iteration, 0.3 s of it are before the op.
    arrays: list[Times] = [
        [[(100.0, 100.1), (100.1, 100.9)], [(100.0, 100.3), (100.3, 100.9)]],
        [[(101.0, 101.1), (101.1, 101.9)], [(101.3, 101.5), (101.5, 101.9)]],
    ]
    write_taxed(tmp_path, arrays, program)
    ax = only_axes(tmp_path, "tax-paths")
    hollow, filled, diagonal = ax.lines
    assert (x_data(filled), y_data(filled)) == (pytest.approx([200, 400]), pytest.approx([200, 400]))
    assert (x_data(hollow), y_data(hollow)) == (pytest.approx([200, 400]), pytest.approx([200, 100]))
    assert x_data(diagonal) == pytest.approx([0, 400])
    # R² = 1 − 0.3² / (2 · 0.1²) without idle time.
    assert note(ax).replace("\n", " ") == "n = 2 collectives; R² 1.000, without idle time −3.500"


def test_without_paths_there_is_no_such_figure(tmp_path: Path) -> None:
    write_record(tmp_path, "bare", [[1.0] * 4])
    drawing = drawing_of(tmp_path, "tax-paths")
    assert [str(left_out) for left_out in drawing.left_out] == [
        "tax-paths: no collective has critical paths (of records, --record-ops)"
    ]
