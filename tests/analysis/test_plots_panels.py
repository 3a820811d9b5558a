"""What figures have in common: facets, looks, units, and axes that a few samples do not stretch."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbench.analysis.plots.clipping import clipped, upper_limit
from dlbench.analysis.plots.panels import (
    Family,
    Panel,
    Sheet,
    facet_title,
    largest,
    lay_out,
    missing,
    ordered,
    panels,
    samples,
    unbroken,
    wrapped,
)
from dlbench.analysis.plots.style import LOOKS, STRATEGIES, looks, styled, time_unit


def table(*rows: dict[str, Any]) -> pd.DataFrame:
    common = {"system": "s", "strategy": "dp", "gpus": 4, "placement": "intra-l1", "dtype": "bf16", "pp": 1}
    return pd.DataFrame([common | row for row in rows])


def titles(frame: pd.DataFrame) -> list[str]:
    return [panel.title for panel in panels(frame, by=("system",), within=("strategy", "gpus"))]


def test_placement_classes_are_ordered_from_close_to_far_and_unknown_ones_come_last() -> None:
    names = ["z", "inter-group", "a", "intra-group", "intra-group-same-l1-2", "intra-l1", "intra-node"]
    found = ordered(table(*({"placement": name} for name in names)))["placement"]
    expected = ["intra-node", "intra-l1", "intra-group-same-l1-2", "intra-group", "inter-group", "a", "z"]
    assert list(found) == expected


def test_strategies_are_ordered_from_simple_to_hybrid_and_gpus_by_number() -> None:
    rows = [{"strategy": name, "gpus": gpus} for name in ("dp_pp_tp", "new", "fsdp", "dp") for gpus in (16, 8)]
    found = ordered(table(*rows))
    assert list(found["strategy"].unique()) == ["dp", "fsdp", "dp_pp_tp", "new"]
    assert list(found["gpus"])[:2] == [8, 16]


def test_a_factor_that_differs_at_equal_gpus_splits_panels() -> None:
    assert titles(table({"pp": 1}, {"pp": 2})) == ["s · pp 1", "s · pp 2"]


def test_a_factor_that_differs_with_the_gpus_only_does_not() -> None:
    assert titles(table({"pp": 1}, {"pp": 2, "gpus": 8})) == ["s"]


def test_a_factor_that_differs_between_strategies_only_does_not() -> None:
    assert titles(table({"pp": 1}, {"pp": 2, "strategy": "dp_pp"})) == ["s"]


def test_every_row_is_in_one_panel() -> None:
    frame = table(*({"system": name, "gpus": gpus} for name in "ba" for gpus in (4, 8)))
    found = panels(frame, by=("system",), within=("gpus",))
    assert [(panel.title, list(panel.rows["gpus"])) for panel in found] == [("a", [4, 8]), ("b", [4, 8])]


@pytest.mark.parametrize(
    ("facets", "words"),
    [
        ({"system": "leonardo", "gpus": 64, "placement": "inter-group"}, "leonardo · 64 GPUs · inter-group"),
        ({"gpus": 1}, "1 GPU"),
        ({"system": "", "strategy": "dp"}, "dp"),
        ({"scale": 0.01, "local_batch": 16}, "scale 0.01 · batch 16"),
        (
            {"simulated": True, "persistent": False, "concurrent": True},
            "simulated · not persistent · beside other jobs",
        ),
        ({"system": "two\nlines"}, "two\\nlines"),
    ],
)
def test_factors_of_a_panel_in_words(facets: dict[str, Any], words: str) -> None:
    assert facet_title(facets) == words


@pytest.mark.parametrize(
    ("iterations", "runs", "text"),
    [
        ([6], [1], "n = 6 iterations of 1 run each"),
        ([6, 10], [2, 2], "n = 6 to 10 iterations of 2 runs each"),
        ([6, 60], [1, 3], "n = 6 to 60 iterations of 1 to 3 runs each"),
    ],
)
def test_sample_counts_are_a_number_or_a_range(iterations: list[int], runs: list[int], text: str) -> None:
    assert samples(pd.DataFrame({"iterations": iterations, "runs": runs})) == text


def test_the_first_of_the_missing_panels_is_named_and_the_others_are_counted() -> None:
    assert str(missing("scaling", ["a"], "too few")) == "scaling: too few (a)"
    assert str(missing("scaling", ["a", "b", "c"], "too few")) == "scaling: too few (a and 2 others)"
    # A panel has no title where it shows all that the runs have in common.
    assert str(missing("scaling", ["", "b"], "too few")) == "scaling: too few (b and 1 other)"
    assert str(missing("scaling", ["", ""], "too few")) == "scaling: too few"


def test_the_largest_number_is_found_beside_absent_ones() -> None:
    assert largest(pd.DataFrame({"a": [1.0, 3.0], "b": [np.nan, 2.0]}), "a", "b") == 3.0


def test_titles_are_broken_at_words_and_never_between_a_number_and_its_unit() -> None:
    text = wrapped(f"{'word ' * 12}{unbroken('12.5 ms')}\nsecond", 3.4)
    assert text.split("\n") == ["word " * 9 + "word", "word word 12.5\N{NO-BREAK SPACE}ms", "second"]


def test_no_line_of_a_title_begins_with_the_dot_between_factors() -> None:
    # 51 characters fit: the dot would be the 52nd, so the word before it goes with it.
    text = wrapped(f"{'w' * 45} · {'x' * 3} · {'y' * 3}", 3.45)
    assert text.split("\n") == ["w" * 45 + "\N{NO-BREAK SPACE}·", "xxx\N{NO-BREAK SPACE}· yyy"]


@pytest.mark.parametrize(
    ("count", "dealt"), [(1, [1]), (4, [4]), (5, [3, 2]), (9, [3, 3, 3]), (10, [4, 3, 3]), (16, [4, 4, 4, 4])]
)
def test_panels_are_dealt_evenly_over_as_few_pages_as_they_take(count: int, dealt: list[int]) -> None:
    family = Family(
        name="f",
        title="t",
        caption="c.",
        sheet=Sheet(columns=2, rows=2),
        draw=lambda axes, panel: "",
        legend=lambda page: [],
    )
    found = [Panel(f"{number}", table({})) for number in range(count)]
    with styled():
        plots = lay_out(family, found).plots
    assert [len(plot.figure.axes) for plot in plots] == dealt
    named = [ax.get_title(loc="left") for plot in plots for ax in plot.figure.axes]
    assert named == [panel.title for panel in found]


def test_empty_lines_of_a_title_are_left_out() -> None:
    assert wrapped("\nn = 3", 3.4) == "n = 3"


def test_known_names_have_the_same_look_whatever_is_there() -> None:
    assert looks(["fsdp"], STRATEGIES)["fsdp"] == looks(["dp", "fsdp", "other"], STRATEGIES)["fsdp"] == LOOKS[1]


def test_looks_come_in_the_order_of_the_known_names() -> None:
    assert list(looks(["zeta", "dp_pp", "dp", "alpha"], STRATEGIES)) == ["dp", "dp_pp", "alpha", "zeta"]


@given(st.sets(st.text(max_size=5), min_size=1, max_size=60))
def test_up_to_sixty_names_are_told_apart(names: set[str]) -> None:
    found = looks(names)
    assert set(found) == names
    assert len({(look.color, look.hatch) for look in found.values()}) == len(names)


def test_neighbouring_looks_differ_in_colour_marker_hatch_and_line() -> None:
    for one, other in zip(LOOKS, LOOKS[1:], strict=False):
        assert one.color != other.color
        assert one.marker != other.marker
        assert one.hatch != other.hatch
        assert one.line != other.line


@pytest.mark.parametrize(
    ("seconds", "unit"),
    [(90.0, (1, "s")), (1.0, (1, "s")), (0.02, (1e3, "ms")), (2e-5, (1e6, "µs")), (2e-8, (1e9, "ns"))],
)
def test_an_axis_of_time_has_the_unit_that_suits_it(seconds: float, unit: tuple[float, str]) -> None:
    assert time_unit(seconds) == unit


def test_no_setting_of_the_user_reaches_a_figure_and_none_of_it_is_left_behind() -> None:
    with matplotlib.rc_context({"font.size": 30, "pdf.fonttype": 3}):
        with styled():
            assert matplotlib.rcParams["font.size"] == 7.5
            assert matplotlib.rcParams["pdf.fonttype"] == 42
        assert matplotlib.rcParams["font.size"] == 30


def test_the_style_has_no_font_below_seven_points() -> None:
    names: tuple[Any, ...] = (
        "font.size",
        "axes.titlesize",
        "axes.labelsize",
        "xtick.labelsize",
        "ytick.labelsize",
        "legend.fontsize",
    )
    with styled():
        assert min(matplotlib.rcParams[name] for name in names) == 7


def test_the_axis_ends_at_the_largest_sample_that_is_not_far_out() -> None:
    # Quartiles 2 and 4: beyond 4 + 3 × 2 = 10 a sample is far out.
    group = np.array([1.0, 2.0, 3.0, 4.0, 10.0])
    assert upper_limit([group]) == 10
    assert upper_limit([np.array([1.0, 2.0, 3.0, 4.0, 100.0])]) == 4


def test_each_group_is_judged_by_its_own_spread() -> None:
    calm, wild = np.full(9, 1.0), np.array([1.0, 5.0, 9.0])
    assert upper_limit([calm, wild]) == 9


def test_samples_within_a_tenth_of_the_median_are_no_outliers() -> None:
    assert upper_limit([np.array([1.0] * 9 + [1.09])]) == 1.09


def test_what_would_hardly_stretch_the_axis_is_not_cut() -> None:
    outlier, neighbour = np.array([1.0] * 9 + [1.9]), np.array([1.0, 1.8, 1.8])
    assert upper_limit([outlier, neighbour]) == 1.9


def test_what_is_above_the_limit_is_counted_with_its_maximum() -> None:
    found = clipped(np.array([1.0, 5.0, 9.0]), 4.0)
    assert found is not None
    assert (found.count, found.maximum) == (2, 9)
    assert clipped(np.array([1.0, 4.0]), 4.0) is None


@given(st.lists(st.floats(min_value=0.001, max_value=1e6), min_size=1, max_size=50))
def test_the_limit_is_a_sample_and_at_least_the_median(values: list[float]) -> None:
    group = np.array(values)
    limit = upper_limit([group])
    assert limit in values
    assert limit >= np.quantile(group, 0.5, method="lower")
