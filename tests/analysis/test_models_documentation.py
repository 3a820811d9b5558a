"""docs/models.md describes every column, and what it says of errors is what the fits do."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from dlbench.analysis.bandwidth import BANDWIDTH, FLOPS, TOPOLOGIES
from dlbench.analysis.block_times import BlockTimes
from dlbench.analysis.campaign import Schema
from dlbench.analysis.columns import COLUMNS, column
from dlbench.analysis.extremes import CENTRINGS, GEV, extremes
from dlbench.analysis.model_tables import BANDWIDTHS, FIT_COLUMNS, FITS, PREDICTION_COLUMNS, PREDICTIONS
from dlbench.analysis.model_tables import FLOPS as FLOPS_LAYOUT
from dlbench.analysis.tables import Layout

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
TABLES = [
    ("fits", FIT_COLUMNS, FITS),
    ("predictions", PREDICTION_COLUMNS, PREDICTIONS),
    ("bandwidth", BANDWIDTH, BANDWIDTHS),
    ("flops", FLOPS, FLOPS_LAYOUT),
]


def described(section: str) -> set[str]:
    found = re.search(rf"^### `{section}`$(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found
    return set(re.findall(r"`([^`\n]+)`", found[1]))


@pytest.mark.parametrize(("section", "columns"), [(name, columns) for name, columns, _ in TABLES])
def test_every_column_is_described_in_its_section(section: str, columns: Schema) -> None:
    assert {name for name in columns if not name.endswith(("_low", "_high"))} - described(section) == set()


@pytest.mark.parametrize(("columns", "layout"), [(columns, layout) for _, columns, layout in TABLES])
def test_every_column_that_is_shown_exists(columns: Schema, layout: Layout) -> None:
    assert {*layout.first, *layout.key, *layout.measures} <= set(columns)


@pytest.mark.parametrize("columns", [columns for _, columns, _ in TABLES])
def test_times_have_a_unit_in_their_heading(columns: Schema) -> None:
    times = {name for name in columns if name.endswith(("seconds", "tau"))}
    assert {COLUMNS[name].unit for name in times} <= {"ms"}


@pytest.mark.parametrize("columns", [columns for _, columns, _ in TABLES])
def test_the_headings_of_the_terminal_stand_beside_the_columns(columns: Schema) -> None:
    rows = re.findall(r"^\| (`[^|]+) \| ((?:[^|\\]|\\\|)+) \|", PAGE, re.MULTILINE)
    pairs = {
        (name.strip("`"), heading)
        for names, headings in rows
        for name, heading in zip(names.split(", "), headings.replace("\\|", "|").split(", "), strict=False)
    }
    shown = {name for name in columns if not name.endswith(("_low", "_high")) and name != "reason"}
    assert {(name, column(name).heading) for name in shown} - pairs == set()


def test_what_ranks_have_in_common_makes_pooled_predictions_too_high_as_the_page_says() -> None:
    assert "were 32 % too high with pooled centring, and 2 % too low with" in PAGE
    generator = np.random.default_rng(0)
    cube = generator.normal(1, 0.1, (1, 100, 1)) + generator.normal(0, 0.1, (4, 100, 32))
    pooled, instance = (
        extremes(BlockTimes.of_array(cube), centring=centring, predict=[32]).predictions[1] for centring in CENTRINGS
    )
    assert pooled.distribution == instance.distribution == GEV
    assert pooled.error.value == pytest.approx(0.32, abs=0.1)
    assert instance.error.value == pytest.approx(-0.02, abs=0.02)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_every_topology_has_its_p_and_q(topology: str) -> None:
    assert re.search(rf"^\| `{topology}`", PAGE, re.MULTILINE)
