"""What the key figures of a report say of a slowdown that may be none, and how wide its tables are."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from builder import write_run
from plot_reader import ALONE, constant_run, pair

from dlbench.analysis import report
from dlbench.analysis.load import load
from dlbench.analysis.results import Results, evaluate
from dlbench.analysis.tables import GAP


def results_of(folder: Path) -> Results:
    return evaluate(load([folder]), seed=0, min_overlap=0.8)


def interval_of_slowdown(folder: Path) -> str:
    (slowest,) = [merit for merit in report.merits(results_of(folder)) if "slowdown" in merit.label]
    return slowest.interval


def test_a_slowdown_whose_interval_holds_one_is_not_distinguishable_from_none(tmp_path: Path) -> None:
    # Two runs alone that differ by a factor of four: the iterations beside lie between them.
    constant_run(tmp_path, "slow", 2.0, 6, **ALONE)
    constant_run(tmp_path, "fast", 0.5, 6, **ALONE)
    pair(tmp_path, "e", [1.0] * 6)
    assert interval_of_slowdown(tmp_path).endswith(": not distinguishable from none, 1")


@pytest.mark.parametrize(("beside", "interval"), [([1.5] * 6, "95 % interval 1.500 – 1.500"), ([1.5], "no 95 %")])
def test_a_slowdown_above_one_or_without_an_interval_is_not_called_none(
    tmp_path: Path, beside: list[float], interval: str
) -> None:
    constant_run(tmp_path, "base", 1.0, 6, **ALONE)
    pair(tmp_path, "e", beside)
    assert interval_of_slowdown(tmp_path).startswith(interval)
    assert "none" not in interval_of_slowdown(tmp_path)


def test_tables_of_many_factors_fit_the_page(tmp_path: Path) -> None:
    choices = itertools.product(
        ("leonardo", "alps"), ("intra-l1", "inter-group"), ("bf16", "fp16"), (8, 16), (0.5, 1.0)
    )
    for number, (system, placement, dtype, batch, scale) in enumerate(choices):
        factors: dict[str, Any] = {
            "system": system,
            "placement": placement,
            "dtype": dtype,
            "local_batch": batch,
            "scale": scale,
        }
        factors["labels"] = {"mode": "reserved" if number % 3 else "queue"}
        write_run(tmp_path, f"run-{number}", [[1.0, 1.1]] * 6, **factors)
    for table in results_of(tmp_path).tables():
        parts = list(table.panels(report.WIDTH, report._width))
        widths = [sum(report._width(strip) + GAP for strip in part) for part in parts]
        assert all(width <= report.WIDTH for width in widths), (table.layout.name, widths)
