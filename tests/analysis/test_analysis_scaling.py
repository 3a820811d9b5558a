"""Throughput and efficiency against the number of GPUs, worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from builder import write_run

from dlbench.analysis.load import load
from dlbench.analysis.scaling import SCALING, scaling


def write_points(folder: Path, times: dict[int, list[float]], name: str = "run", **changes: Any) -> None:
    """A run per number of GPUs: 16 samples per GPU and iteration, which takes as long as given on the slowest rank."""
    for gpus, seconds in times.items():
        runtime = [[time] + [time / 2] * (gpus - 1) for time in seconds]
        write_run(folder, f"{name}-{gpus}", [[99.0] * gpus, *runtime], measured_as={"warmups": 1}, **changes)


def scaled(folder: Path) -> pd.DataFrame:
    return scaling(load([folder]), seed=0)


def test_throughput_efficiency_and_loss_are_those_of_the_definitions(tmp_path: Path) -> None:
    write_points(tmp_path, {2: [1.0, 4.0, 2.0], 4: [2.5, 2.5, 2.5], 16: [10.0, 10.0, 10.0]})
    frame = scaled(tmp_path).set_index("gpus")
    # Geometric-mean times 2, 2.5 and 10 s: 32/2, 64/2.5 and 256/10 samples/s
    assert frame["throughput"].to_dict() == pytest.approx({2: 16, 4: 25.6, 16: 25.6})
    assert frame["per_gpu"].to_dict() == pytest.approx({2: 8, 4: 6.4, 16: 1.6})
    assert frame["efficiency"].to_dict() == pytest.approx({2: 1, 4: 0.8, 16: 0.2})
    assert set(frame["smallest"]) == {2}
    # One doubling from 2 to 4 keeps 0.8; two from 4 to 16 keep 1/4, each of them 1/2.
    assert frame["loss_per_doubling"].loc[[4, 16]].to_dict() == pytest.approx({4: 0.2, 16: 0.5})
    assert math.isnan(frame.loc[2, "loss_per_doubling"])


def test_the_smallest_count_has_efficiency_1_exactly_and_no_interval(tmp_path: Path) -> None:
    write_points(tmp_path, {2: [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], 4: [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]})
    first, second = (row for _, row in scaled(tmp_path).iterrows())
    assert first["efficiency"] == 1
    assert math.isnan(first["efficiency_low"])
    assert first["throughput_low"] < first["throughput"] < first["throughput_high"]
    assert second["efficiency_low"] < second["efficiency"] < second["efficiency_high"]
    assert second["loss_per_doubling_low"] < second["loss_per_doubling"] < second["loss_per_doubling_high"]


def test_the_interval_of_the_efficiency_holds_the_noise_of_both_counts(tmp_path: Path) -> None:
    noisy, quiet = [1.0, 4.0, 2.0, 1.0, 4.0, 2.0], [2.0] * 6
    write_points(tmp_path / "reference", {2: noisy, 4: quiet})
    write_points(tmp_path / "point", {2: quiet, 4: noisy})
    for folder in ("reference", "point"):
        row = scaled(tmp_path / folder).iloc[1]
        assert row["efficiency"] == pytest.approx(1)
        assert row["efficiency_low"] < 0.7
        assert row["efficiency_high"] > 1.4


def test_five_iterations_at_one_of_the_counts_leave_no_interval(tmp_path: Path) -> None:
    write_points(tmp_path, {2: [1.0] * 5, 4: [1.0] * 6})
    row = scaled(tmp_path).iloc[1]
    assert row["throughput_low"] == row["throughput"]
    assert math.isnan(row["efficiency_low"])


def test_series_are_apart_where_another_factor_differs(tmp_path: Path) -> None:
    write_points(tmp_path, {2: [1.0], 4: [2.0]})
    write_points(tmp_path, {4: [1.0], 8: [2.0]}, "far", placement="inter-group")
    write_points(tmp_path, {8: [1.0], 16: [2.0]}, "deep", strategy="dp_pp", degrees={"pp": 2})
    write_points(tmp_path, {16: [1.0], 32: [2.0]}, "deeper", strategy="dp_pp", degrees={"pp": 8})
    frame = scaled(tmp_path)
    assert frame["efficiency"].to_list() == [1, 0.5] * 4
    assert frame["smallest"].to_list() == [4, 4, 2, 2, 8, 8, 16, 16]


def test_runs_beside_other_jobs_do_not_scale(tmp_path: Path) -> None:
    write_points(tmp_path, {2: [1.0], 4: [2.0]})
    write_points(tmp_path, {1: [1.0], 4: [9.0]}, "beside", experiment="e", job="1", concurrent_jobs=2)
    frame = scaled(tmp_path)
    assert frame["gpus"].to_list() == [2, 4]
    assert frame["runs"].to_list() == [1, 1]


def test_a_faster_run_on_more_gpus_than_linear_has_a_negative_loss(tmp_path: Path) -> None:
    write_points(tmp_path, {2: [2.0], 4: [1.6]})
    row = scaled(tmp_path).iloc[1]
    assert row["efficiency"] == pytest.approx(1.25)
    assert row["loss_per_doubling"] == pytest.approx(-0.25)


def test_without_baselines_there_are_no_rows_but_all_columns(tmp_path: Path) -> None:
    write_points(tmp_path, {2: [1.0]}, experiment="e", job="1", concurrent_jobs=2)
    frame = scaled(tmp_path)
    assert frame.empty
    assert list(frame) == list(SCALING)
