"""Summary and communication relevance, worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from builder import write_run

from dlbench.analysis.load import load
from dlbench.analysis.metrics import RELEVANCE, SUMMARY, relevance, summary

RUNTIME = [[9.0, 9.0], [2.0, 1.0], [2.0, 1.5], [4.0, 3.0]]
"""A warm-up of 9 s, then iterations of 2, 2 and 4 s."""
TENSOR = [[5.0, 5.0], [0.4, 0.4], [0.5, 0.6], [1.0, 0.5]]
PIPELINE = [[3.0, 3.0], [0.6, 0.4], [0.0, 0.6], [0.0, 1.0]]
SYNC = [[8.0, 8.0], [1.0, 0.8], [0.5, 1.2], [1.0, 1.5]]


def write_worked_run(folder: Path, run_id: str = "worked", **changes: Any) -> Path:
    """2 ranks, one warm-up and 3 iterations; 16 × 2 samples each."""
    return write_run(
        folder,
        run_id,
        RUNTIME,
        SYNC,
        measured_as={
            "warmups": 1,
            "overrun": [[0.5, 0.5], [0.1, 0.1], [0.0, 0.3], [0.4, 0.0]],
            "issue": [[0.5, 0.5], [0.1, 0.0], [0.0, 0.0], [0.0, 0.6]],
            "skew": [[0.0, 0.5], [0.0, 0.01], [0.03, 0.0], [0.0, 0.02]],
            "communication": {"allreduce/tensor": TENSOR, "send/pipeline": PIPELINE},
        },
        **({"ideal_seconds": 0.5} | changes),
    )


def only_row(frame: pd.DataFrame) -> pd.Series[Any]:
    assert len(frame) == 1
    return frame.iloc[0]


def test_the_summary_is_that_of_the_definitions(tmp_path: Path) -> None:
    write_worked_run(tmp_path)
    row = only_row(summary(load([tmp_path]), seed=0))
    assert (row["runs"], row["iterations"]) == (1, 3)
    assert (row["seconds"], row["minimum"], row["maximum"]) == (2, 2, 4)
    # 32 samples in 2, 2 and 4 s: 16, 16 and 8 samples/s
    assert row["throughput"] == pytest.approx((16 * 16 * 8) ** (1 / 3))
    # max (1/2, 0.8/1), max (0.5/2, 1.2/1.5), max (1/4, 1.5/3)
    assert row["communication"] == pytest.approx((0.8 + 0.8 + 0.5) / 3)
    # max (0.2/2, 0.1/1), max (0, 0.3/1.5), max (0.4/4, 0.6/3)
    assert row["hidden"] == pytest.approx((0.1 + 0.2 + 0.2) / 3)
    assert row["skew"] == pytest.approx(0.02)
    assert (row["ideal_seconds"], row["roofline"]) == (0.5, 0.25)


def test_three_iterations_have_no_intervals(tmp_path: Path) -> None:
    write_worked_run(tmp_path)
    row = only_row(summary(load([tmp_path]), seed=0))
    names = ("seconds", "throughput", "communication", "hidden", "skew", "roofline")
    assert all(math.isnan(row[f"{name}_{end}"]) for name in names for end in ("low", "high"))


def test_iterations_of_all_runs_of_a_configuration_are_pooled(tmp_path: Path) -> None:
    write_worked_run(tmp_path, "first")
    write_worked_run(tmp_path, "second")
    row = only_row(summary(load([tmp_path]), seed=0))
    assert (row["runs"], row["iterations"]) == (2, 6)
    # Of six samples, the smallest and the largest enclose the median.
    assert (row["seconds_low"], row["seconds"], row["seconds_high"]) == (2, 2, 4)
    assert (row["roofline_low"], row["roofline"], row["roofline_high"]) == (0.125, 0.25, 0.25)
    assert row["throughput_low"] < row["throughput"] < row["throughput_high"]


DELAY = {"rank": 1, "op": 8, "milliseconds": 40.0}


@pytest.mark.parametrize(
    ("factor", "other"),
    [
        ("dtype", {"dtype": "fp16"}),
        ("scale", {"scale": 0.5}),
        ("library", {"backend": {"name": "mpi", "library": "MPICH 4.0", "carrier": "MPI_UINT16_T"}}),
        ("mode", {"labels": {"mode": "queue"}}),
        ("sync", {"options": {"sync": "none", "progress": "poll"}}),
        ("buffers", {"options": {"sync": "barrier", "progress": "poll", "buffers": "gpu"}}),
        ("precision", {"options": {"sync": "barrier", "progress": "poll", "compute_precision": "tf32"}}),
        ("delay", {"options": {"sync": "barrier", "progress": "poll", "delay": [DELAY]}}),
        ("placement", {"placement": "inter-group"}),
        ("simulated", {"simulated": True}),
    ],
)
def test_runs_that_differ_in_a_factor_are_never_pooled(tmp_path: Path, factor: str, other: dict[str, Any]) -> None:
    write_worked_run(tmp_path, "first")
    write_worked_run(tmp_path, "second", **other)
    campaign = load([tmp_path])
    assert summary(campaign, seed=0)["runs"].to_list() == [1, 1]
    assert summary(campaign, seed=0)[factor].nunique() == 2
    assert len(relevance(campaign, seed=0)) == 6


def test_seeds_hosts_and_labels_are_no_factors(tmp_path: Path) -> None:
    write_worked_run(tmp_path, "first")
    write_worked_run(tmp_path, "second", seed=8, hosts=["other0", "other0"], labels={"driver": "570"})
    assert only_row(summary(load([tmp_path]), seed=0))["runs"] == 2


def test_runs_beside_other_jobs_stand_in_rows_of_their_own(tmp_path: Path) -> None:
    write_worked_run(tmp_path, "alone")
    write_worked_run(tmp_path, "beside", experiment="e", job="1", concurrent_jobs=2)
    for frame, rows in ((summary(load([tmp_path]), seed=0), 1), (relevance(load([tmp_path]), seed=0), 3)):
        assert frame["concurrent"].to_list() == [False] * rows + [True] * rows
        assert frame["runs"].to_list() == [1] * 2 * rows


@pytest.mark.parametrize("ideals", [(0.0, 0.0), (0.5, 0.6)], ids=["unknown", "not the same"])
def test_without_one_ideal_time_there_is_no_roofline(tmp_path: Path, ideals: tuple[float, float]) -> None:
    for number, ideal in enumerate(ideals):
        write_worked_run(tmp_path, f"run-{number}", ideal_seconds=ideal)
    row = only_row(summary(load([tmp_path]), seed=0))
    assert math.isnan(row["ideal_seconds"])
    assert math.isnan(row["roofline"])


@pytest.mark.parametrize("ideal", [0.0, 0.5], ids=["none", "the roofline's, as in older records"])
def test_what_computes_nothing_is_no_share_of_an_ideal_time(tmp_path: Path, ideal: float) -> None:
    write_worked_run(tmp_path, compute="none", ideal_seconds=ideal)
    row = only_row(summary(load([tmp_path]), seed=0))
    assert math.isnan(row["ideal_seconds"])
    assert math.isnan(row["roofline"])


def test_the_relevance_of_each_class_is_that_of_the_definitions(tmp_path: Path) -> None:
    write_worked_run(tmp_path)
    frame = relevance(load([tmp_path]), seed=0).set_index("name")
    assert frame["iterations"].to_list() == [3, 3, 3]
    # Largest times of a rank: 0.4, 0.6, 1.0; 0.6, 0.6, 1.0; of sync_time 1.0, 1.2, 1.5
    assert frame["seconds"].to_dict() == {"allreduce/tensor": 0.6, "send/pipeline": 0.6, "total": 1.2}
    # 0.4/1, 0.6/1.5, 1/4
    assert frame.loc["allreduce/tensor", "share"] == pytest.approx((0.4 + 0.4 + 0.25) / 3)
    # 0.4/1, 0.6/1.5, 1/3
    assert frame.loc["send/pipeline", "share"] == pytest.approx((0.4 + 0.4 + 1 / 3) / 3)
    assert frame.loc["total", "share"] == pytest.approx(0.7)


def test_the_most_relevant_class_comes_first_and_the_total_last(tmp_path: Path) -> None:
    write_worked_run(tmp_path)
    frame = relevance(load([tmp_path]), seed=0)
    assert frame["name"].to_list() == ["send/pipeline", "allreduce/tensor", "total"]


def test_the_total_agrees_with_the_summary(tmp_path: Path) -> None:
    write_worked_run(tmp_path, "first")
    write_worked_run(tmp_path, "second")
    campaign = load([tmp_path])
    total = relevance(campaign, seed=0).iloc[-1]
    row = only_row(summary(campaign, seed=0))
    for end in ("", "_low", "_high"):
        assert total[f"share{end}"] == row[f"communication{end}"]


def test_rows_are_in_the_order_of_the_factors(tmp_path: Path) -> None:
    for gpus, system in ((4, "leonardo"), (2, "leonardo"), (2, "alps")):
        write_run(tmp_path, f"{system}-{gpus}", [[1.0] * gpus], system=system)
    frame = summary(load([tmp_path]), seed=0)
    assert list(zip(frame["system"], frame["gpus"], strict=True)) == [("alps", 2), ("leonardo", 2), ("leonardo", 4)]


def test_a_number_does_not_depend_on_the_other_runs_of_the_campaign(tmp_path: Path) -> None:
    write_worked_run(tmp_path, "b-first")
    write_worked_run(tmp_path, "c-second")
    alone = summary(load([tmp_path]), seed=0)
    write_worked_run(tmp_path, "a-other", dtype="fp16")
    among = load([tmp_path])
    pd.testing.assert_frame_equal(summary(among.select(where="dtype == 'bf16'"), seed=0), alone)
    both = summary(among, seed=0)
    pd.testing.assert_frame_equal(both[both["dtype"] == "bf16"].reset_index(drop=True), alone)


def test_a_number_does_not_depend_on_the_order_of_the_files(tmp_path: Path) -> None:
    write_run(tmp_path / "x", "first", [[1.0], [2.0], [4.0], [3.0]])
    write_run(tmp_path / "y", "second", [[2.0], [5.0]])
    forth, back = ([tmp_path / name for name in names] for names in ("xy", "yx"))
    pd.testing.assert_frame_equal(summary(load(forth), seed=0), summary(load(back), seed=0))


def test_of_no_runs_there_are_no_rows_but_all_columns(tmp_path: Path) -> None:
    write_worked_run(tmp_path)
    nothing = load([tmp_path]).select(where="gpus > 2")
    assert (
        summary(nothing, seed=0).dtypes.to_dict()
        == pd.DataFrame(columns=list(SUMMARY)).astype(SUMMARY).dtypes.to_dict()
    )
    assert list(relevance(nothing, seed=0)) == list(RELEVANCE)
