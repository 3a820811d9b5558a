"""Two sets of runs against each other."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from builder import write_run

from dlbench.analysis.compare import (
    AMBIGUOUS,
    COMPARISON,
    FASTER,
    SAME,
    SLOWER,
    UNMATCHED,
    Comparison,
    classify,
    compare,
)
from dlbench.analysis.load import load
from dlbench.analysis.samples import Estimate
from dlbench.errors import OptionError

NOISY = [1.0, 1.3, 0.9, 1.2, 0.8, 1.1]
OLD = {"backend": {"name": "mpi", "library": "MPICH 4.0", "carrier": "MPI_UINT16_T"}}


def write(folder: Path, run_id: str, seconds: list[float], *, start: float = 0.0, **changes: Any) -> None:
    """A run of 2 ranks with a slow warm-up in front."""
    runtime = [[77.0, 77.0], *([time, time / 2] for time in seconds)]
    write_run(folder, run_id, runtime, measured_as={"warmups": 1, "start": start - 77.0}, **changes)


def compared(folder: Path, **options: Any) -> Comparison:
    return compare(load([folder / "a"]), load([folder / "b"]), seed=0, **options)


def row_of(folder: Path, **options: Any) -> pd.Series[Any]:
    table = compared(folder, **options).table
    assert len(table) == 1
    return table.iloc[0]


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.99, 1.01, SAME),
        (1 / 1.02, 1.02, SAME),
        (1.021, 1.5, SLOWER),
        (1.02, 1.5, AMBIGUOUS),
        (0.5, 0.98, FASTER),
        (0.5, 1 / 1.02, AMBIGUOUS),
        (1.01, 1.03, AMBIGUOUS),
        (0.9, 1.1, AMBIGUOUS),
        (math.nan, math.nan, AMBIGUOUS),
    ],
)
def test_the_verdict_follows_from_the_interval(low: float, high: float, verdict: str) -> None:
    assert classify(Estimate(1.0, low, high), 0.02) == verdict


@pytest.mark.parametrize(("seconds", "verdict"), [(1.5, SLOWER), (1.01, SAME), (0.5, FASTER)])
def test_the_ratio_is_the_time_of_b_over_that_of_a(tmp_path: Path, seconds: float, verdict: str) -> None:
    write(tmp_path / "a", "before", [1.0] * 6)
    write(tmp_path / "b", "after", [seconds] * 6)
    row = row_of(tmp_path)
    assert [row["ratio_low"], row["ratio"], row["ratio_high"]] == pytest.approx([seconds] * 3)
    assert (row["verdict"], row["reason"]) == (verdict, "")
    assert (row["seconds_a"], row["seconds_b"]) == pytest.approx((1, seconds))
    assert (row["runs_a"], row["iterations_a"], row["runs_b"], row["iterations_b"]) == (1, 6, 1, 6)


def test_times_are_geometric_means(tmp_path: Path) -> None:
    write(tmp_path / "a", "before", [1.0, 4.0])
    write(tmp_path / "b", "after", [2.0, 8.0, 4.0])
    row = row_of(tmp_path)
    assert [row["seconds_a"], row["seconds_b"], row["ratio"]] == pytest.approx([2, 4, 2])


def test_the_threshold_decides_what_is_the_same(tmp_path: Path) -> None:
    write(tmp_path / "a", "before", [1.0] * 6)
    write(tmp_path / "b", "after", [1.1] * 6)
    assert row_of(tmp_path, threshold=0.2)["verdict"] == SAME
    assert row_of(tmp_path, threshold=0.05)["verdict"] == SLOWER
    assert row_of(tmp_path, threshold=0)["verdict"] == SLOWER


def test_what_the_samples_cannot_tell_is_ambiguous_and_says_why(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / name, name, NOISY)
    row = row_of(tmp_path)
    assert row["ratio"] == 1
    assert row["ratio_low"] < 0.98
    assert row["verdict"] == AMBIGUOUS
    assert row["reason"] == "the interval contains 0.9804 and 1.02: more runs would narrow it"
    assert row_of(tmp_path, threshold=2)["verdict"] == SAME


def test_below_six_iterations_the_verdict_is_ambiguous_whatever_the_ratio(tmp_path: Path) -> None:
    write(tmp_path / "a", "before", [1.0] * 6)
    write(tmp_path / "b", "after", [9.0] * 5)
    row = row_of(tmp_path)
    assert row["ratio"] == pytest.approx(9)
    assert math.isnan(row["ratio_low"])
    assert (row["verdict"], row["reason"]) == (AMBIGUOUS, "no interval below 6 iterations: B has 5")


def test_the_library_may_differ_and_is_shown(tmp_path: Path) -> None:
    write(tmp_path / "a", "before", [1.0] * 6, **OLD)
    write(tmp_path / "a", "again", [1.0] * 6)
    write(tmp_path / "b", "after", [1.0] * 6)
    row = row_of(tmp_path)
    assert (row["library_a"], row["library_b"]) == ("MPICH 4.0 | MPICH 5.0.2", "MPICH 5.0.2")
    assert (row["runs_a"], row["verdict"]) == (2, SAME)


def test_configurations_in_one_set_only_are_listed_with_what_comes_nearest(tmp_path: Path) -> None:
    write(tmp_path / "a", "half", [1.0, 4.0], scale=0.5)
    write(tmp_path / "a", "both-a", [1.0])
    write(tmp_path / "b", "both-b", [1.0])
    write(tmp_path / "b", "fp16", [1.0], dtype="fp16")
    found = compared(tmp_path)
    assert len(found.table) == 1
    (only_a,), (only_b,) = (frame.to_dict("records") for frame in (found.only_a, found.only_b))
    assert (only_a["scale"], only_a["iterations"]) == (0.5, 2)
    assert only_a["seconds"] == pytest.approx(2)
    assert only_a["reason"] == "the nearest runs in B have scale 1 instead of 0.5"
    assert only_b["reason"] == "the nearest runs in A have dtype bf16 instead of fp16"


def test_reasons_are_in_the_words_of_the_tables(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "a", [[1.0, 1.0]], local_batch=8, system="")
    beside = {"concurrent_jobs": 2, "experiment": "e", "job": "1"}
    write_run(tmp_path / "b", "b", [[1.0, 1.0]], local_batch=8, system="", **beside)
    found = compare(load([tmp_path / "a"]), load([tmp_path / "b"]), threshold=0.02, seed=0)
    assert found.only_a["reason"].to_list() == [
        "the nearest runs in B have concurrent yes instead of no, experiment e instead of none"
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"local_batch": 16, "system": "local"}, "the nearest runs in B have system local instead of none, "),
        ({"local_batch": 16, "system": "local", "dtype": "fp16"}, ""),
    ],
)
def test_runs_that_differ_in_three_factors_are_not_near(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    write_run(tmp_path / "a", "a", [[1.0, 1.0]], local_batch=8, system="")
    write_run(tmp_path / "b", "b", [[1.0, 1.0]], **changes)
    found = compare(load([tmp_path / "a"]), load([tmp_path / "b"]), threshold=0.02, seed=0)
    assert found.only_a["reason"].to_list() == [f"{reason}batch 16 instead of 8" if reason else ""]


def test_against_an_empty_set_there_is_nothing_to_compare(tmp_path: Path) -> None:
    write(tmp_path / "a", "before", [1.0])
    campaign = load([tmp_path])
    found = compare(campaign, campaign.select(where="gpus > 2"), seed=0)
    assert found.only_a["reason"].to_list() == ["B has no run"]
    assert (list(found.table), list(found.only_b)) == (list(COMPARISON), list(UNMATCHED))
    assert (len(found.table), len(found.only_b), found.slower) == (0, 0, 0)


def test_slower_configurations_are_counted(tmp_path: Path) -> None:
    for number, seconds in enumerate((0.5, 1.0, 2.0, 3.0)):
        placement = f"class-{number}"
        write(tmp_path / "a", f"before-{number}", [1.0] * 6, placement=placement)
        write(tmp_path / "b", f"after-{number}", [seconds] * 6, placement=placement)
    found = compared(tmp_path)
    assert found.table["verdict"].to_list() == [FASTER, SAME, SLOWER, SLOWER]
    assert found.slower == 2


def write_pair(folder: Path, seconds: float, experiment: str = "e", neighbour: float = 100.0) -> None:
    """An iteration of a job every `seconds`, beside another job that runs for a while."""
    together = {"experiment": experiment, "concurrent_jobs": 2}
    write(folder, "a", [seconds] * 6, job="a", **together)
    write(folder, "b", [neighbour], job="b", strategy="fsdp", **together)


def verdicts(found: Comparison) -> dict[str, str]:
    return dict(zip(found.table["strategy"], found.table["verdict"], strict=True))


def test_runs_beside_other_jobs_are_compared_within_their_experiment(tmp_path: Path) -> None:
    write_pair(tmp_path / "a", 1.0)
    write_pair(tmp_path / "b", 2.0)
    found = compared(tmp_path)
    assert verdicts(found) == {"dp": SLOWER, "fsdp": AMBIGUOUS}
    assert found.table["concurrent"].all()
    assert set(found.table["experiment"]) == {"e"}


def test_other_neighbours_are_no_comparison(tmp_path: Path) -> None:
    write_pair(tmp_path / "a", 1.0)
    write_pair(tmp_path / "b", 2.0, experiment="f")
    found = compared(tmp_path)
    assert found.table.empty
    assert found.only_a["reason"].to_list() == ["the nearest runs in B have experiment f instead of e"] * 2


def test_runs_alone_are_compared_whatever_their_experiment_and_never_with_concurrent_ones(tmp_path: Path) -> None:
    write(tmp_path / "a", "alone-a", [1.0] * 6, experiment="e", concurrent_jobs=1)
    write(tmp_path / "b", "alone-b", [1.0] * 6, experiment="f", concurrent_jobs=1)
    write_pair(tmp_path / "b", 9.0)
    found = compared(tmp_path)
    assert verdicts(found) == {"dp": SAME}
    assert found.only_b["concurrent"].to_list() == [True, True]


def test_iterations_without_the_other_jobs_are_left_out_and_counted(tmp_path: Path) -> None:
    write_pair(tmp_path / "a", 1.0)
    write_pair(tmp_path / "b", 1.0, neighbour=2.0)
    table = compared(tmp_path).table
    row = table[table["strategy"] == "dp"].iloc[0]
    assert (row["iterations_a"], row["left_out_a"]) == (6, 0)
    assert (row["iterations_b"], row["left_out_b"]) == (2, 4)
    assert row["reason"] == "no interval below 6 iterations: B has 2 and 4 without the other jobs beside them"


def test_a_set_without_any_overlap_has_no_ratio(tmp_path: Path) -> None:
    write_pair(tmp_path / "a", 1.0)
    write(tmp_path / "b", "a", [5.0] * 6, experiment="e", job="a", concurrent_jobs=2)
    row = compared(tmp_path).table.iloc[0]
    assert (row["runs_b"], row["iterations_b"], row["left_out_b"]) == (0, 0, 6)
    assert math.isnan(row["ratio"])
    assert row["verdict"] == AMBIGUOUS


@pytest.mark.parametrize("threshold", [-0.01, math.nan, math.inf])
def test_an_impossible_threshold_is_refused(tmp_path: Path, threshold: float) -> None:
    write(tmp_path, "run", [1.0])
    campaign = load([tmp_path])
    expected = f"^threshold {threshold:g} is impossible; use a share of the time of 0 or more, e.g. 0.02$"
    with pytest.raises(OptionError, match=expected):
        compare(campaign, campaign, threshold=threshold, seed=0)
