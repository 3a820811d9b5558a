"""Tables as they are read: columns, factors that are said once, intervals, panels of a terminal's width."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbench.analysis.columns import column, number, plain
from dlbench.analysis.statements import state
from dlbench.analysis.tables import Cell, Layout, build
from dlbench.analysis.terminal import comment, text_lines

NAN = math.nan
LAYOUT = Layout(
    name="times",
    title="Times",
    about="Medians.",
    measures=("runs", "iterations", "seconds", "throughput"),
    empty="no run",
)


def row(**changes: Any) -> dict[str, Any]:
    """A row of a table of times; `changes` replace or add columns."""
    return {
        **{"system": "leonardo", "strategy": "dp", "model": "vit-h", "gpus": 8, "placement": "intra-l1"},
        **{"dtype": "bf16", "pp": 1, "simulated": False, "runs": 2, "iterations": 12},
        **{"seconds": 0.0125, "seconds_low": 0.0124, "seconds_high": 0.0127, "throughput": 1280.0},
    } | changes


def lines(*rows: dict[str, Any], layout: Layout = LAYOUT, width: int = 120) -> list[str]:
    """The terminal's lines of the rows."""
    return list(text_lines(build(layout, pd.DataFrame(rows)), width))


def body(printed: list[str]) -> list[list[str]]:
    """Cells of the lines that are no header."""
    return [line.split() for line in printed if not line.startswith("#")]


@pytest.mark.parametrize(
    ("value", "text"),
    [(12.3456789, "12.346"), (123456.7, "123457"), (0.0051234, "0.00512"), (0.0, "0.0000"), (1e-9, "0.00000")],
)
def test_numbers_have_five_significant_digits_down_to_a_hundred_thousandth(value: float, text: str) -> None:
    assert number(value)[: len(text)] == text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("seconds", 0.0125, "12.500"),
        ("skew", 3.25e-6, "3.2"),
        ("communication", 0.4567, "45.7"),
        ("impact", 12.34, "12.3"),
        ("sigma", 1.23456, "1.235"),
        ("gpus", 1024, "1024"),
    ],
)
def test_a_column_writes_its_values_in_its_unit(name: str, value: float, text: str) -> None:
    assert column(name).write(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [("", "-"), ("a\nb", "a\\nb"), (True, "yes"), (False, "no"), (0.5, "0.5"), (1.0, "1"), (7, "7")],
)
def test_factors_are_one_line_of_text(value: object, text: str) -> None:
    assert plain(value) == text


def test_a_column_without_an_entry_is_called_by_its_name() -> None:
    assert column("baseline_reach").heading == "baseline reach"


def test_a_table_has_headings_units_and_intervals_beside_their_numbers() -> None:
    assert lines(row(), row(gpus=16, seconds=0.025, seconds_low=0.02, seconds_high=0.03)) == [
        "# Times",
        "# Medians.",
        "# in all rows: system leonardo, strategy dp, model vit-h, placement intra-l1, dtype bf16, simulated no",
        "#",
        "# GPUs  runs  iter.  median time    low   high   throughput",
        "#                           [ms]                [samples/s]",
        "     8     2     12       12.500 12.400 12.700       1280.0",
        "    16     2     12       25.000 20.000 30.000       1280.0",
    ]


def test_a_table_without_rows_says_why() -> None:
    printed = list(text_lines(build(LAYOUT, pd.DataFrame([row()]).iloc[:0])))
    assert printed == ["# Times", "# no run"]


def test_an_absent_interval_is_a_dash_with_its_reason() -> None:
    printed = lines(row(), row(gpus=16, iterations=5, seconds_low=NAN, seconds_high=NAN))
    assert body(printed)[1] == ["16", "2", "5", "12.500", "-", "-", "1280.0"]
    assert printed[-1] == "# - no 95 % interval below 6 iterations, of a ratio on either side"


def test_an_absent_ideal_time_is_a_dash_with_its_reason() -> None:
    layout = replace(LAYOUT, measures=("ideal_seconds",))
    reason = "- no ideal time where the records of a configuration name none, or not the same"
    some, none = row(ideal_seconds=0.5), row(ideal_seconds=NAN)
    assert build(layout, pd.DataFrame([some, none])).remarks == (reason,)
    assert build(layout, pd.DataFrame([some])).remarks == ()


def test_nothing_is_said_of_intervals_that_are_all_there() -> None:
    assert not any("interval" in line for line in lines(row(), row(gpus=16)))


def test_the_reference_of_an_efficiency_is_no_matter_of_too_few_samples() -> None:
    layout = Layout(name="scaling", title="Scaling", about="", key=("gpus",), measures=("efficiency",))
    efficient = {"smallest": 8, "efficiency": 1.0, "efficiency_low": NAN, "efficiency_high": NAN}
    printed = lines(row(**efficient), layout=layout)
    assert body(printed) == [["8", "100.0", "-", "-"]]
    assert printed[-1] == "# - at the smallest number of GPUs, which is the reference: 100 % by definition"
    assert not any("below 6" in line for line in printed)


def test_reasons_are_numbered_and_stand_below() -> None:
    printed = lines(
        row(reason="no baseline"),
        row(gpus=16, reason=""),
        row(gpus=32, reason="no\noverlap"),
        row(reason="no baseline"),
    )
    assert [cells[-1] for cells in body(printed)] == ["[1]", "1280.0", "[2]", "[1]"]
    assert printed[-2:] == ["# [1] no baseline", "# [2] no\\noverlap"]


def test_there_is_no_column_of_notes_without_reasons() -> None:
    assert not any("note" in line for line in lines(row(reason=""), row(gpus=16, reason="")))


def test_a_factor_that_follows_from_the_strategy_is_said_once_for_each() -> None:
    printed = lines(row(), row(strategy="dp_pp", pp=8), row(strategy="dp_pp", gpus=16, pp=8))
    assert "# strategy dp_pp: pp 8" in printed
    assert "# strategy  GPUs  runs  iter.  median time    low   high   throughput" in printed


def test_a_degree_that_a_strategy_lacks_is_not_worth_a_line() -> None:
    assert not any("strategy dp:" in line for line in lines(row(), row(strategy="dp_pp", pp=8)))


def test_a_factor_that_differs_within_a_strategy_is_a_column() -> None:
    printed = lines(row(), row(dtype="fp16"))
    assert "# dtype  runs  iter.  median time    low   high   throughput" in printed
    assert [cells[0] for cells in body(printed)] == ["bf16", "fp16"]


def test_a_long_value_is_a_mark_with_a_legend() -> None:
    long = "Open MPI v5.0.8, package: Open MPI builder@host Distribution"
    printed = lines(row(library=long), row(library="MPICH 5.0.2"))
    assert [cells[0] for cells in body(printed)] == ["#1", "#2"]
    assert printed[-2:] == [f"# library #1: {long}", "# library #2: MPICH 5.0.2"]


def test_what_the_whole_campaign_has_in_common_is_not_repeated() -> None:
    table = build(LAYOUT, pd.DataFrame([row(), row(gpus=16)]), known={"dtype", "system", "simulated"})
    assert [str(statement) for statement in table.statements] == [
        "in all rows: strategy dp, model vit-h, placement intra-l1"
    ]


def test_a_wide_table_is_cut_into_panels_that_repeat_the_key() -> None:
    rows = [row(gpus=8), row(gpus=16)]
    layout = Layout(name="t", title="T", about="", measures=("runs", "iterations", "seconds", "throughput") * 3)
    printed = lines(*rows, layout=layout, width=60)
    heads = [line for line in printed if line.startswith("# GPUs")]
    assert len(heads) > 1
    assert max(map(len, printed)) <= 60
    assert [cells[0] for cells in body(printed)] == ["8", "16"] * len(heads)


WIDE = {"placement": "inter-group", "dtype": "fp16"}


def heads_of(*rows: dict[str, Any], layout: Layout, width: int) -> list[list[str]]:
    """Headings of each part of the table."""
    table = build(layout, pd.DataFrame(list(rows)))
    parts = table.panels(width, lambda strip: max(len(strip.heading), *(len(cell.text) for cell in strip.cells)))
    return [[strip.heading for strip in part] for part in parts]


def test_only_what_tells_rows_apart_is_repeated() -> None:
    # All three factors differ, but the GPUs alone tell the three rows apart.
    rows = [row(), row(**WIDE, gpus=16), row(**WIDE, gpus=32)]
    layout = Layout(name="t", title="T", about="", measures=("runs", "iterations", "seconds", "throughput") * 3)
    first, *others = heads_of(*rows, layout=layout, width=100)
    assert first[:3] == ["GPUs", "placement", "dtype"]
    assert others
    assert all(head[:2] in (["GPUs", "runs"], ["GPUs", "iter."], ["GPUs", "throughput"]) for head in others)


def test_of_columns_that_tell_rows_apart_alike_the_narrow_one_is_repeated() -> None:
    rows = [row(), row(**WIDE)]
    layout = Layout(name="t", title="T", about="", measures=("seconds", "throughput") * 9)
    first, *others = heads_of(*rows, layout=layout, width=100)
    assert first[:2] == ["placement", "dtype"]
    assert {head[0] for head in others} == {"dtype"}


def test_a_key_that_does_not_fit_stands_once_beside_what_tells_rows_apart() -> None:
    rows = [row(gpus=count, placement=text * 20, model=text * 22) for count, text in ((8, "a"), (16, "b"))]
    layout = Layout(name="t", title="T", about="", measures=("runs", "iterations", "seconds", "throughput") * 3)
    heads = heads_of(*rows, layout=layout, width=80)
    assert heads[0][:3] == ["GPUs", "model", "placement"]
    assert [sum(name in head for head in heads) for name in ("GPUs", "model", "placement")] == [len(heads), 1, 1]


def test_measures_that_belong_together_are_in_one_part() -> None:
    layout = Layout(
        name="t",
        title="T",
        about="",
        measures=(*("seconds",) * 6, "runs", "iterations"),
        together=("runs", "iterations"),
    )
    for width in range(56, 120):
        heads = heads_of(row(gpus=8), row(gpus=16), layout=layout, width=width)
        assert [head for head in heads if "runs" in head] == [head for head in heads if "iter." in head]


def test_a_layout_can_name_another_statistic() -> None:
    layout = Layout(name="t", title="T", about="", measures=("seconds",), headings=(("seconds", "geo. mean"),))
    assert heads_of(row(gpus=8), row(gpus=16), layout=layout, width=80) == [["GPUs", "geo. mean"]]


def test_sizes_are_read_in_units_of_their_own() -> None:
    assert [column("bytes").write(size) for size in (-1, 2, 33_554_432)] == ["-", "2 B", "33.55 MB"]


def test_an_estimate_is_never_parted_from_its_interval() -> None:
    layout = Layout(name="t", title="T", about="", measures=("seconds",) * 9)
    heads = [line for line in lines(row(), row(gpus=16), layout=layout, width=50) if line.startswith("# GPUs")]
    assert all(head.count("time") == head.count("low") == head.count("high") for head in heads)


def test_a_key_that_leaves_no_room_for_a_measure_gets_marks_and_a_legend() -> None:
    rows = [row(placement=place * 20, dtype=dtype * 20) for place in "xy" for dtype in "ab"]
    printed = lines(*rows, width=40)
    # Both columns of 22 and the widest estimate of 27 take 71: with one column marked still 60, above 40.
    assert f"# placement #2: {'y' * 20}" in printed
    assert f"# dtype #1: {'a' * 20}" in printed
    assert [line.split()[:2] for line in printed if line.startswith("  ")][:4] == [
        ["#1", "#1"],
        ["#1", "#2"],
        ["#2", "#1"],
        ["#2", "#2"],
    ]


def test_a_key_stays_where_one_measure_has_room_beside_it() -> None:
    rows = [row(placement=place * 20, dtype=dtype * 20) for place in "xy" for dtype in "ab"]
    printed = lines(*rows, width=80)
    assert [line.split()[1:3] for line in printed if line.startswith("# placement")][0] == ["placement", "dtype"]
    assert not any("#1" in line for line in printed)
    assert max(map(len, printed)) <= 80


def test_comments_wrap_below_themselves() -> None:
    assert list(comment("one two three four", 12)) == ["# one two", "#   three", "#   four"]


def test_a_strip_says_which_columns_are_numbers() -> None:
    table = build(LAYOUT, pd.DataFrame([row(concurrent=True), row(concurrent=False, dtype="fp32")]))
    flush_right = {name: table.strip(name).numeric for name in ("dtype", "concurrent", "runs", "seconds")}
    assert flush_right == {"dtype": False, "concurrent": False, "runs": True, "seconds": True}


def test_a_limit_shows_the_first_rows() -> None:
    table = build(LAYOUT, pd.DataFrame([row(gpus=count) for count in range(1, 100)]))
    (panel,) = table.panels(120, lambda strip: 8, limit=3)
    assert panel[0].cells == [Cell("1"), Cell("2"), Cell("3")]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.integers(0, 2)), min_size=1))
def test_statements_and_columns_together_tell_every_factor_of_every_row(rows: list[tuple[str, str, int]]) -> None:
    frame = pd.DataFrame(rows, columns=["strategy", "dtype", "buckets"]).assign(system="s")
    statements = list(state(frame, ["system", "strategy", "dtype", "buckets"]))
    for statement in statements:
        kind, _, value = statement.where.partition(" ")
        where = frame if kind == "in" else frame[frame[kind] == value]
        for name in statement.factors:
            assert where[name].nunique() == 1
    assert len({name for statement in statements for name in statement.factors} & {"system"}) == 1
