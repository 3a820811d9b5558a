"""Stacks of an iteration's time per rank, and which iteration stands for a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builder import write_run
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.patches import StepPatch
from plot_reader import axes_of, drawing_of, legend_of, note, only_axes, plot_of, results_of, title

from dlbench.analysis.plots import breakdown, figures
from dlbench.analysis.plots.style import CLASSES
from dlbench.errors import RecordError
from dlbench.records.schema import Iteration

TWO_RANKS: dict[str, Any] = {
    "runtime": [[1.0, 0.9]],
    "sync_time": [[0.3, 0.4]],
    "measured_as": {
        "compute": [[0.5, 0.4]],
        "issue": [[0.1, 0.05]],
        "overrun": [[0.06, 0.03]],
        "communication": {"allreduce/replica": [[0.2, 0.1]], "send/pipeline": [[0.1, 0.3]]},
    },
}


def stacks(ax: Axes) -> dict[str, tuple[list[float], list[float]]]:
    """Lower and upper end of each part, per rank."""
    found = {}
    for patch in ax.patches:
        assert isinstance(patch, StepPatch)
        values, _, baseline = patch.get_data()
        found[str(patch.get_label())] = (list(np.asarray(baseline)), list(values))
    return found


def heights(ax: Axes) -> dict[str, list[float]]:
    return {name: [top - low for low, top in zip(*ends, strict=True)] for name, ends in stacks(ax).items()}


def test_parts_of_the_iteration_are_stacked_per_rank_and_add_up_to_the_runtime(tmp_path: Path) -> None:
    write_run(tmp_path, "a", **TWO_RANKS)
    ax = only_axes(tmp_path, "breakdown")
    drawn = heights(ax)
    assert list(drawn) == ["compute", "allreduce/replica", "send/pipeline", "issue", "overrun", "rest"]
    assert drawn["compute"] == pytest.approx([0.5, 0.4])
    assert drawn["allreduce/replica"] == pytest.approx([0.2, 0.1])
    assert drawn["send/pipeline"] == pytest.approx([0.1, 0.3])
    assert drawn["issue"] == pytest.approx([0.1, 0.05])
    assert drawn["overrun"] == pytest.approx([0.06, 0.03])
    assert drawn["rest"] == pytest.approx([0.04, 0.02])
    assert stacks(ax)["compute"][0] == [0, 0]
    assert stacks(ax)["rest"][1] == pytest.approx([1.0, 0.9])


def test_the_title_names_the_iteration_and_its_slowest_rank(tmp_path: Path) -> None:
    write_run(tmp_path, "a", **TWO_RANKS)
    ax = only_axes(tmp_path, "breakdown")
    assert title(ax)[0] == "leonardo · dp · 2 GPUs · intra-l1"
    assert note(ax) == "iteration 0, the median of 1 of a; slowest rank 0: 1.000 s"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("rank", "time [s]")


def test_the_iteration_of_median_runtime_is_drawn_and_warm_up_is_none(tmp_path: Path) -> None:
    write_run(tmp_path, "a", [[0.3, 0.3], [9.0, 9.0], [2.0, 1.0], [1.0, 4.0]], measured_as={"warmups": 1})
    ax = only_axes(tmp_path, "breakdown")  # the slowest ranks take 9, 2 and 4 s
    assert note(ax) == "iteration 3, the median of 3 of a; slowest rank 1: 4.000 s"
    assert stacks(ax)["rest"][1] == pytest.approx([1.0, 4.0])


def test_of_several_runs_that_of_median_runtime_is_drawn(tmp_path: Path) -> None:
    for name, seconds in (("a", 3.0), ("b", 1.0), ("c", 2.0)):
        write_run(tmp_path, name, [[seconds, seconds]] * 3)
    assert note(only_axes(tmp_path, "breakdown")).startswith("iteration 1, the median of 3 of c; ")


def test_of_two_runs_the_faster_one_is_drawn(tmp_path: Path) -> None:
    for name, seconds in (("slow", 2.0), ("fast", 1.0)):
        write_run(tmp_path, name, [[seconds, seconds]])
    assert note(only_axes(tmp_path, "breakdown")).startswith("iteration 0, the median of 1 of fast; ")


def test_the_legend_has_the_classes_of_the_page_and_every_part_a_look_of_its_own(tmp_path: Path) -> None:
    write_run(tmp_path, "a", **TWO_RANKS)
    plot = plot_of(tmp_path, "breakdown")
    assert legend_of(plot) == ["compute", "allreduce/replica", "send/pipeline", "issue", "overrun", "rest"]
    drawn = plot.figure.axes[0].patches
    assert len({(patch.get_facecolor(), patch.get_hatch()) for patch in drawn}) == 6


def test_every_class_of_the_strategies_has_a_colour_and_a_hatch_of_its_own(tmp_path: Path) -> None:
    communication = {name: [[0.01, 0.01]] for name in CLASSES}
    write_run(tmp_path, "a", [[1.0, 1.0]], [[0.09, 0.09]], measured_as={"communication": communication})
    plot = plot_of(tmp_path, "breakdown")
    drawn = {str(patch.get_label()): patch for patch in plot.figure.axes[0].patches}
    assert len({drawn[name].get_facecolor() for name in CLASSES}) == len(CLASSES) == 9
    assert len({drawn[name].get_hatch() for name in CLASSES}) == len(CLASSES)
    colours = {patch.get_facecolor() for patch in drawn.values()}
    assert len(colours) == len(drawn) == len(CLASSES) + 4  # compute, issue, overrun and rest are greys of their own


def test_a_class_looks_the_same_in_every_panel(tmp_path: Path) -> None:
    write_run(tmp_path, "a", **TWO_RANKS)
    write_run(tmp_path, "b", [[1.0] * 4], [[0.5] * 4], measured_as={"communication": {"send/pipeline": [[0.5] * 4]}})
    looks = [
        {str(patch.get_label()): (patch.get_facecolor(), patch.get_hatch()) for patch in ax.patches}["send/pipeline"]
        for ax in axes_of(tmp_path, "breakdown")
    ]
    assert looks[0] == looks[1]


@pytest.mark.parametrize(("ranks", "distance"), [(4, 1), (16, 1), (17, 2), (64, 4), (1024, 64)])
def test_ticks_stand_at_powers_of_two_as_nodes_have_ranks(tmp_path: Path, ranks: int, distance: int) -> None:
    write_run(tmp_path, "a", [[1.0] * ranks])
    inside = [int(tick) for tick in only_axes(tmp_path, "breakdown").get_xticks() if 0 <= tick < ranks]
    assert inside == list(range(0, ranks, distance))


def test_a_thousand_ranks_have_no_lines_between_them_and_take_the_width(tmp_path: Path) -> None:
    write_run(tmp_path, "a", [[1.0] * 1024])
    plot = plot_of(tmp_path, "breakdown")
    (ax,) = plot.figure.axes
    assert plot.figure.get_size_inches()[0] == 7.0
    assert [patch.get_linewidth() for patch in ax.patches] == [0] * 5
    assert len(ax.collections) == 0
    assert ax.get_xlim() == (-0.5, 1023.5)


def test_a_record_that_changed_since_it_was_loaded_is_an_error_of_one_line(tmp_path: Path) -> None:
    write_run(tmp_path, "a", [[1.0, 1.0]] * 3)
    results = results_of(tmp_path)
    write_run(tmp_path, "a", [[1.0, 1.0]])
    message = f"^{tmp_path}/a.jsonl: iteration 1 is no longer there; the record changed since it was loaded$"
    with pytest.raises(RecordError, match=message):
        figures(results, only=["breakdown"])


def test_without_measured_iterations_there_is_a_reason_instead_of_a_figure(tmp_path: Path) -> None:
    write_run(tmp_path, "a", [[1.0, 1.0]], measured_as={"warmups": 1})
    drawing = drawing_of(tmp_path, "breakdown")
    assert drawing.plots == []
    assert [str(reason) for reason in drawing.left_out] == ["breakdown: no run has a measured iteration"]


shares = st.lists(st.floats(min_value=0, max_value=1), min_size=5, max_size=5)


@given(st.lists(shares, min_size=1, max_size=5))
def test_parts_always_add_up_to_the_runtime(ranks: list[list[float]]) -> None:
    columns = [list(column) for column in zip(*ranks, strict=True)]
    runtime = [sum(rank) for rank in ranks]
    iteration = Iteration(
        index=0,
        warmup=False,
        start=0.0,
        skew=[0.0] * len(ranks),
        runtime=runtime,
        sync_time=columns[1],
        compute=columns[0],
        issue=columns[2],
        overrun=columns[3],
        communication={"allreduce/world": columns[1]},
    )
    parts = breakdown.parts_of(iteration)
    assert np.sum(list(parts.values()), axis=0) == pytest.approx(runtime)
    assert all((part >= 0).all() for part in parts.values())
