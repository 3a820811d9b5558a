"""Slowdown by other jobs: σ, what it is measured against, and which iterations count."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from builder import end, header, write_lines, write_run

from dlbench.analysis.campaign import FACTORS, Campaign
from dlbench.analysis.load import load
from dlbench.analysis.overlap import concurrent_iterations
from dlbench.analysis.slowdown import ITERATIONS, SLOWDOWN, slowdown
from dlbench.errors import OptionError


def write_job(
    folder: Path, run_id: str, seconds: list[float], *, warmups: int = 0, start: float = 100.0, **changes: Any
) -> None:
    """A run of 2 ranks, of which the second is faster, back to back from global time `start` on."""
    runtime = [[time, time / 2] for time in seconds]
    write_run(folder, run_id, runtime, measured_as={"warmups": warmups, "start": start}, **changes)


def job(name: str, jobs: int = 2, **changes: Any) -> dict[str, Any]:
    """Header of a job of the experiment."""
    return {"experiment": "e", "job": name, "concurrent_jobs": jobs, **changes}


def write_neighbour(folder: Path, seconds: float = 1000.0, *, start: float = 100.0, jobs: int = 2) -> None:
    """Another job of the experiment, of another strategy, that runs one long iteration."""
    write_job(folder, "neighbour", [seconds], start=start, **job("neighbour", jobs, strategy="fsdp"))


SHARES = ["overlap", "all_running"]


def row_of(campaign: Campaign, strategy: str = "dp", **options: Any) -> pd.Series[Any]:
    table = slowdown(campaign, seed=0, **options).table
    rows = table[table["strategy"] == strategy]
    assert len(rows) == 1
    return rows.iloc[0]


def test_sigma_is_the_ratio_of_geometric_mean_throughputs(tmp_path: Path) -> None:
    write_job(tmp_path, "alone", [1.0, 4.0, 2.0])
    write_job(tmp_path, "beside", [2.0, 8.0, 8.0, 2.0], **job("a"))
    write_neighbour(tmp_path)
    row = row_of(load([tmp_path]))
    # Geometric-mean times: 2 s alone, 4 s beside; a mean of ratios would be 2.7
    assert row["sigma"] == pytest.approx(2)
    assert row["impact"] == pytest.approx(100)
    assert (row["isolated_seconds"], row["concurrent_seconds"]) == (2, 5)
    assert (row["runs"], row["iterations"], row["left_out"]) == (1, 4, 0)
    assert (row["baseline_runs"], row["baseline_iterations"]) == (1, 3)
    assert (row["overlap"], row["all_running"], row["reason"]) == (1, 1, "")


def test_the_sigma_of_each_iteration_is_that_against_the_whole_baseline(tmp_path: Path) -> None:
    write_job(tmp_path, "alone", [1.0, 4.0, 2.0])
    write_job(tmp_path, "beside", [99.0, 2.0, 8.0, 3.0], warmups=1, **job("a"))
    write_neighbour(tmp_path)
    found = slowdown(load([tmp_path]), seed=0).iterations
    found = found[found["strategy"] == "dp"]
    assert found["iteration"].to_list() == [1, 2, 3]
    assert found["sigma"].to_list() == pytest.approx([1, 4, 1.5])
    assert found["counted"].all()


def test_warmups_count_neither_alone_nor_beside_nor_as_left_out(tmp_path: Path) -> None:
    write_job(tmp_path, "alone", [50.0, 1.0, 1.0], warmups=1)
    write_job(tmp_path, "beside", [70.0, 80.0, 2.0, 2.0], warmups=2, **job("a"))
    write_neighbour(tmp_path)
    row = row_of(load([tmp_path]))
    assert row["sigma"] == pytest.approx(2)
    assert (row["iterations"], row["left_out"], row["baseline_iterations"]) == (2, 0, 2)


def test_enough_iterations_on_both_sides_give_an_interval(tmp_path: Path) -> None:
    write_job(tmp_path, "alone", [1.0, 1.1, 0.9, 1.0, 1.1, 0.9])
    write_job(tmp_path, "beside", [2.0, 2.2, 1.8, 2.0, 2.2, 1.8], **job("a"))
    write_neighbour(tmp_path)
    row = row_of(load([tmp_path]))
    assert 1.6 < row["sigma_low"] < row["sigma"] < row["sigma_high"] < 2.5
    assert row["impact_low"] == pytest.approx((row["sigma_low"] - 1) * 100)
    assert (row["isolated_seconds_low"], row["isolated_seconds_high"]) == (0.9, 1.1)
    assert (row["concurrent_seconds_low"], row["concurrent_seconds_high"]) == (1.8, 2.2)


@pytest.mark.parametrize(("alone", "beside"), [(5, 6), (6, 5)])
def test_five_iterations_on_one_side_give_no_interval(tmp_path: Path, alone: int, beside: int) -> None:
    write_job(tmp_path, "alone", [1.0] * alone)
    write_job(tmp_path, "beside", [2.0] * beside, **job("a"))
    write_neighbour(tmp_path)
    row = row_of(load([tmp_path]))
    assert row["sigma"] == pytest.approx(2)
    assert math.isnan(row["sigma_low"])
    assert math.isnan(row["impact_high"])


def write_three_jobs(folder: Path, announced: int = 3) -> None:
    """Job a in [0, 30], job b in [0, 10] and again in [15, 30], job c in [0, 25]."""
    write_job(folder, "alone", [10.0])
    write_job(folder, "a", [10.0] * 3, start=0, **job("a", announced))
    write_job(folder, "b-1", [10.0], start=0, **job("b", announced, strategy="fsdp"))
    write_job(folder, "b-2", [15.0], start=15, **job("b", announced, strategy="fsdp"))
    write_job(folder, "c", [25.0], start=0, **job("c", announced, strategy="fsdp"))


def shares(campaign: Campaign, strategy: str = "dp") -> list[tuple[float, float]]:
    """Overlap and all_running of each iteration."""
    found = slowdown(campaign, seed=0).iterations
    found = found[found["strategy"] == strategy]
    return [(round(overlap, 9), round(all_running, 9)) for overlap, all_running in found[SHARES].to_numpy()]


def test_the_overlap_is_the_share_of_other_jobs_averaged_over_the_iteration(tmp_path: Path) -> None:
    write_three_jobs(tmp_path)
    campaign = load([tmp_path])
    # [10, 20]: b for 5 s of 10, c for all of them; [20, 30]: b for all, c for 5 s
    assert shares(campaign) == [(1, 1), (0.75, 0.5), (0.75, 0.5)]
    row = row_of(campaign)
    assert (row["overlap"], row["all_running"]) == pytest.approx((2.5 / 3, 2 / 3))
    assert (row["iterations"], row["left_out"]) == (1, 2)


def test_a_lower_bound_lets_more_iterations_count(tmp_path: Path) -> None:
    write_three_jobs(tmp_path)
    campaign = load([tmp_path])
    assert row_of(campaign, min_overlap=0.75)["iterations"] == 3
    assert row_of(campaign, min_overlap=0.76)["iterations"] == 1
    assert row_of(campaign, min_overlap=1.0)["iterations"] == 1


def test_an_announced_job_without_a_record_counts_as_never_running(tmp_path: Path) -> None:
    write_three_jobs(tmp_path, announced=5)
    campaign = load([tmp_path])
    assert shares(campaign) == [(0.5, 0), (0.375, 0), (0.375, 0)]
    row = row_of(campaign)
    assert math.isnan(row["sigma"])
    assert row["reason"] == (
        "no iteration had 80 % of the other jobs beside it; the highest overlap is 50.0 %; "
        "2 of 4 other jobs left no iteration in any record"
    )


def test_without_an_announcement_the_jobs_of_the_experiment_that_left_records_count(tmp_path: Path) -> None:
    write_three_jobs(tmp_path, announced=0)
    assert shares(load([tmp_path])) == [(1, 1), (0.75, 0.5), (0.75, 0.5)]


def test_more_jobs_with_records_than_announced_all_count(tmp_path: Path) -> None:
    write_three_jobs(tmp_path, announced=2)
    assert shares(load([tmp_path]))[1] == (0.75, 0.5)


def test_overlapping_runs_of_one_job_count_once(tmp_path: Path) -> None:
    write_job(tmp_path, "a", [10.0], start=0, **job("a", 3))
    for number in (1, 2):
        write_job(tmp_path, f"b-{number}", [10.0], start=0, **job("b", 3, strategy="fsdp"))
    assert shares(load([tmp_path])) == [(0.5, 0)]


def test_jobs_of_another_experiment_or_system_are_not_beside(tmp_path: Path) -> None:
    write_job(tmp_path, "a", [10.0], start=0, **job("a"))
    write_job(tmp_path, "b", [10.0], start=0, **job("b", experiment="f", strategy="fsdp"))
    write_job(tmp_path, "c", [10.0], start=0, **job("b", system="alps", strategy="fsdp"))
    assert shares(load([tmp_path])) == [(0, 0)]


def test_a_failed_neighbour_was_there_until_it_failed(tmp_path: Path) -> None:
    write_job(tmp_path, "a", [10.0, 10.0], start=0, **job("a"))
    runtime = {"runtime": [10.0], "sync_time": [1.0], "compute": [0.0], "overrun": [0.0], "issue": [0.0]}
    iteration = {"kind": "iteration", "index": 0, "warmup": False, "start": 0.0, "skew": [0.0], **runtime}
    lines = (header("b", 1, **job("b")), iteration | {"communication": {}}, end(1, "failed", "rank 0: no route"))
    write_lines(tmp_path / "b.jsonl", *lines)
    campaign = load([tmp_path])
    assert len(campaign.excluded) == 1
    assert shares(campaign) == [(1, 1), (0, 0)]


def test_filters_change_neither_overlap_nor_sigma(tmp_path: Path) -> None:
    write_three_jobs(tmp_path)
    campaign = load([tmp_path])
    pd.testing.assert_series_equal(
        row_of(campaign.select(strategy=["dp"])), row_of(campaign), check_names=False, check_index=False
    )


def test_the_own_warmup_is_no_iteration_but_that_of_a_neighbour_loads_the_network(tmp_path: Path) -> None:
    write_job(tmp_path, "a", [10.0, 10.0], start=0, warmups=1, **job("a"))
    write_job(tmp_path, "b", [20.0, 1.0], start=0, warmups=1, **job("b", strategy="fsdp"))
    assert shares(load([tmp_path])) == [(1, 1)]


def test_short_iterations_at_unix_times_overlap_wholly(tmp_path: Path) -> None:
    write_job(tmp_path, "a", [1e-4] * 50, start=1.0, **job("a"))
    write_neighbour(tmp_path, 10.0, start=0.0)
    assert row_of(load([tmp_path]), min_overlap=1.0)["iterations"] == 50


def test_four_of_five_other_jobs_are_80_percent_whatever_the_rounding(tmp_path: Path) -> None:
    write_job(tmp_path, "a", [0.1, 0.3, 0.7] * 10, start=1.1, **job("a", 6))
    for name in "bcde":
        write_job(tmp_path, name, [100.0], start=0.3, **job(name, 6, strategy="fsdp"))
    row = row_of(load([tmp_path]))
    assert (row["iterations"], row["left_out"]) == (30, 0)


def test_an_iteration_shorter_than_the_clock_resolves_has_an_overlap(tmp_path: Path) -> None:
    write_job(tmp_path, "a", [1e-8], start=1.0, **job("a"))
    write_neighbour(tmp_path, 10.0, start=0.0)
    assert shares(load([tmp_path])) == [(1, 1)]


@pytest.mark.parametrize("missing", ["experiment", "job"])
def test_a_run_that_names_no_experiment_or_no_job_has_unknown_neighbours(tmp_path: Path, missing: str) -> None:
    write_job(tmp_path, "alone", [1.0])
    write_job(tmp_path, "beside", [2.0], **(job("a") | {missing: ""}))
    write_neighbour(tmp_path)
    row = row_of(load([tmp_path]))
    assert math.isnan(row["sigma"])
    assert row["reason"] == f"the runs name no {missing}, so what ran beside them is not known"
    assert (row["iterations"], row["left_out"], row["isolated_seconds"]) == (0, 1, 1)


def reason(folder: Path) -> str:
    row = row_of(load([folder]))
    assert math.isnan(row["sigma"])
    assert (row["baseline_runs"], row["baseline_iterations"]) == (0, 0)
    assert math.isnan(row["isolated_seconds"])
    return str(row["reason"])


def test_without_any_run_alone_the_reason_names_the_workload(tmp_path: Path) -> None:
    write_job(tmp_path, "beside", [2.0], **job("a"))
    write_job(tmp_path, "other", [2.0], system="alps")
    write_neighbour(tmp_path)
    assert reason(tmp_path) == "no baseline: no run of strategy dp, model vit-h, system leonardo was alone"


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"dtype": "fp16"}, "dtype fp16 instead of bf16"),
        ({"scale": 0.5}, "scale 0.5 instead of 1"),
        ({"placement": "inter-group"}, "placement inter-group instead of intra-l1"),
        (
            {"placement": "", "options": {"sync": "none", "progress": "poll"}},
            "placement none instead of intra-l1, sync none instead of barrier",
        ),
        (
            {"backend": {"name": "mpi", "library": "Open MPI 5", "carrier": "x"}},
            "library Open MPI 5 instead of MPICH 5.0.2",
        ),
    ],
)
def test_a_baseline_with_another_factor_never_serves(tmp_path: Path, other: dict[str, Any], expected: str) -> None:
    write_job(tmp_path, "alone", [1.0], **other)
    write_job(tmp_path, "beside", [2.0], **job("a"))
    write_neighbour(tmp_path)
    assert reason(tmp_path) == f"no baseline: the nearest runs alone have {expected}"


def test_the_reason_speaks_of_the_nearest_baselines_and_their_values(tmp_path: Path) -> None:
    write_job(tmp_path, "fp16", [1.0], dtype="fp16")
    write_job(tmp_path, "fp32", [1.0], dtype="fp32")
    write_job(tmp_path, "far", [1.0], dtype="fp64", placement="inter-group")
    write_job(tmp_path, "beside", [2.0], **job("a"))
    write_neighbour(tmp_path)
    assert reason(tmp_path) == "no baseline: the nearest runs alone have dtype fp16 or fp32 instead of bf16"


def test_both_reasons_are_given_where_both_hold(tmp_path: Path) -> None:
    write_job(tmp_path, "beside", [2.0], **job("a"))
    write_neighbour(tmp_path, start=500.0)
    assert reason(tmp_path) == (
        "no baseline: no run of strategy dp, model vit-h, system leonardo was alone; "
        "no iteration had 80 % of the other jobs beside it; the highest overlap is 0.0 %"
    )


def test_a_run_beside_other_jobs_is_no_baseline(tmp_path: Path) -> None:
    write_job(tmp_path, "elsewhere", [1.0], **job("a", experiment="f"))
    write_job(tmp_path, "beside", [2.0], **job("a"))
    write_neighbour(tmp_path)
    assert reason(tmp_path).startswith("no baseline: no run of strategy dp")


def test_a_baseline_of_the_same_mode_is_preferred(tmp_path: Path) -> None:
    write_job(tmp_path, "alone-queue", [1.0], labels={"mode": "queue"})
    write_job(tmp_path, "alone-reserved", [4.0], labels={"mode": "reserved"})
    write_job(tmp_path, "beside", [8.0], **job("a", labels={"mode": "queue"}))
    write_neighbour(tmp_path)
    row = row_of(load([tmp_path]))
    assert (row["mode"], row["baseline_mode"], row["baseline_runs"]) == ("queue", "queue", 1)
    assert row["sigma"] == pytest.approx(8)


def test_without_one_the_baselines_of_all_other_modes_serve(tmp_path: Path) -> None:
    write_job(tmp_path, "alone", [1.0])
    write_job(tmp_path, "alone-reserved", [4.0], labels={"mode": "reserved"})
    write_job(tmp_path, "beside", [8.0], **job("a", labels={"mode": "queue"}))
    write_neighbour(tmp_path)
    row = row_of(load([tmp_path]))
    assert (row["baseline_mode"], row["baseline_runs"]) == ("none, reserved", 2)
    assert row["sigma"] == pytest.approx(4)


def test_modes_have_rows_of_their_own(tmp_path: Path) -> None:
    write_job(tmp_path, "alone", [1.0])
    for mode, seconds in (("queue", 3.0), ("reserved", 2.0)):
        write_job(tmp_path, mode, [seconds], **job(mode, labels={"mode": mode}))
    found = slowdown(load([tmp_path]), seed=0, min_overlap=0.5)
    assert found.table.set_index("mode")["sigma"].to_dict() == pytest.approx({"queue": 3, "reserved": 2})
    assert found.iterations.set_index("mode")["sigma"].to_dict() == pytest.approx({"queue": 3, "reserved": 2})


def test_the_iterations_carry_all_factors(tmp_path: Path) -> None:
    write_job(tmp_path, "beside", [2.0], dtype="fp16", **job("a"))
    write_neighbour(tmp_path)
    found = slowdown(load([tmp_path]), seed=0).iterations
    assert found.set_index("strategy")["dtype"].to_dict() == {"dp": "fp16", "fsdp": "bf16"}
    assert set(FACTORS) <= set(found)


def test_without_concurrent_runs_both_tables_are_empty_and_have_their_columns(tmp_path: Path) -> None:
    write_job(tmp_path, "alone", [1.0])
    found = slowdown(load([tmp_path]), seed=0)
    assert found.table.empty
    assert list(found.table) == list(SLOWDOWN)
    assert found.iterations.empty
    assert list(found.iterations) == list(ITERATIONS)


def test_iterations_without_a_baseline_have_no_sigma(tmp_path: Path) -> None:
    write_job(tmp_path, "beside", [2.0], **job("a"))
    write_neighbour(tmp_path)
    assert slowdown(load([tmp_path]), seed=0).iterations["sigma"].isna().all()


def test_the_number_of_other_jobs_and_of_those_without_records_is_known(tmp_path: Path) -> None:
    write_three_jobs(tmp_path, announced=4)
    found = concurrent_iterations(load([tmp_path]))
    assert set(found["others"]) == {3}
    assert set(found["unseen"]) == {1}


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_an_impossible_overlap_is_refused(tmp_path: Path, share: float) -> None:
    write_job(tmp_path, "alone", [1.0])
    with pytest.raises(OptionError, match=rf"^min-overlap {share:g} is no share; use a number from 0 to 1, e.g. 0.8$"):
        slowdown(load([tmp_path]), seed=0, min_overlap=share)
