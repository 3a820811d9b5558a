"""docs/analysis.md describes every column."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dlbench.analysis.campaign import FACTORS, Schema
from dlbench.analysis.compare import COMPARISON, VERDICTS
from dlbench.analysis.energy import ENERGY
from dlbench.analysis.metrics import RELEVANCE, SUMMARY
from dlbench.analysis.scaling import SCALING
from dlbench.analysis.slowdown import SLOWDOWN

PAGE = (Path(__file__).parents[2] / "docs" / "analysis.md").read_text(encoding="utf-8")


def described(text: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", text))


@pytest.mark.parametrize(
    ("section", "columns"),
    [
        ("summary", SUMMARY),
        ("relevance", RELEVANCE),
        ("scaling", SCALING),
        ("slowdown", SLOWDOWN),
        ("energy", ENERGY),
        ("compare", COMPARISON),
    ],
)
def test_every_column_of_a_table_is_described_in_its_section(section: str, columns: Schema) -> None:
    found = re.search(rf"^## `{section}`$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found
    everywhere = described(PAGE.split("\n## `")[0]) | {"concurrent", "experiment"}
    counts = {f"{name}_{side}" for name in ("runs", "iterations") for side in "ab"}
    estimates = {name for name in columns if not name.endswith(("_low", "_high"))}
    assert estimates - described(found[1]) - everywhere - counts == set()


def test_all_factors_and_verdicts_are_named() -> None:
    assert set(FACTORS) <= described(PAGE)
    assert all(f"| {verdict} |" in PAGE for verdict in VERDICTS)
