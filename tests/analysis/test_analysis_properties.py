"""What must hold of the numbers whatever the times are."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from builder import Table, write_run
from hypothesis import given, settings
from hypothesis import strategies as st

from dlbench.analysis.bootstrap import geometric_mean, mean, ratio
from dlbench.analysis.campaign import Campaign
from dlbench.analysis.compare import compare
from dlbench.analysis.load import load
from dlbench.analysis.metrics import relevance, summary
from dlbench.analysis.samples import Samples
from dlbench.analysis.scaling import scaling
from dlbench.analysis.slowdown import slowdown

few = settings(max_examples=10, deadline=None)
times = st.lists(st.lists(st.floats(0.5, 20.0), min_size=3, max_size=3), min_size=1, max_size=7)
shares = st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3)


class Times(NamedTuple):
    """Runtimes, and what share of them each rank spent in communication."""

    runtime: Table
    share: Sequence[float]

    def sync(self) -> Table:
        return [[time * share for time, share in zip(row, self.share, strict=True)] for row in self.runtime]


runs = st.builds(Times, times, shares)


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


def write(place: Path, run_id: str, given_times: Times, factor: float = 1.0, **changes: Any) -> None:
    """A run whose times, and those of the clock, are multiplied by a factor."""
    runtime, sync = (
        [[factor * time for time in row] for row in rows] for rows in (given_times.runtime, given_times.sync())
    )
    write_run(place, run_id, runtime, sync, measured_as={"start": 100.0 * factor}, **changes)


def write_experiment(place: Path, alone: Times, beside: Times, more: Times, factor: float = 1.0) -> None:
    """A baseline, the same configuration beside another job, and a baseline on twice as many ranks."""
    together = {"experiment": "e", "concurrent_jobs": 2}
    write(place, "alone", alone, factor, ideal_seconds=0.1 * factor)
    write(place, "beside", beside, factor, job="a", ideal_seconds=0.1 * factor, **together)
    write(place, "other", Times([[9.0] * 3] * 4, (0.5, 0.5, 0.5)), factor, job="b", strategy="fsdp", **together)
    twice = Times([[*row, *row] for row in more.runtime], [*more.share, *more.share])
    write(place, "more", twice, factor, ideal_seconds=0.1 * factor)


def tables(campaign: Campaign) -> dict[str, pd.DataFrame]:
    return {
        "summary": summary(campaign, seed=1),
        "relevance": relevance(campaign, seed=1),
        "scaling": scaling(campaign, seed=1),
        "slowdown": slowdown(campaign, seed=1, min_overlap=0.31415).table,
    }


GROWS_WITH_TIME = ("seconds", "minimum", "maximum", "skew", "ideal_seconds", "isolated_seconds", "concurrent_seconds")
FALLS_WITH_TIME = ("throughput", "per_gpu")


def rescaled(frame: pd.DataFrame, factor: float) -> pd.DataFrame:
    """What the table should be after all times are multiplied by a factor: everything else stays."""
    expected = frame.copy()
    for column in frame.columns:
        name = str(column).removesuffix("_low").removesuffix("_high")
        if name in GROWS_WITH_TIME:
            expected[column] = frame[column] * factor
        if name in FALLS_WITH_TIME:
            expected[column] = frame[column] / factor
    return expected


@few
@given(runs, runs, runs, st.sampled_from([0.25, 3.0, 50.0]))
def test_times_all_multiplied_scale_times_and_rates_and_leave_every_ratio(
    alone: Times, beside: Times, more: Times, factor: float
) -> None:
    with folder() as place:
        write_experiment(place / "before", alone, beside, more)
        write_experiment(place / "after", alone, beside, more, factor)
        before, after = (tables(load([place / name])) for name in ("before", "after"))
    for name, frame in before.items():
        # Unix times resolve 0.24 µs, which is 2 millionths of the overlap of an iteration of 0.125 s.
        pd.testing.assert_frame_equal(rescaled(frame, factor), after[name], rtol=1e-9, atol=5e-6)


@few
@given(runs, runs, runs, st.permutations(range(3)))
def test_the_numbering_of_the_ranks_changes_nothing(
    alone: Times, beside: Times, more: Times, order: Sequence[int]
) -> None:
    def permuted(one: Times) -> Times:
        return Times([[row[rank] for rank in order] for row in one.runtime], [one.share[rank] for rank in order])

    with folder() as place:
        write_experiment(place / "before", alone, beside, more)
        write_experiment(place / "after", *map(permuted, (alone, beside, more)))
        before, after = (tables(load([place / name])) for name in ("before", "after"))
    for name, frame in before.items():
        pd.testing.assert_frame_equal(frame, after[name])


@few
@given(runs, runs, runs)
def test_a_copy_of_a_record_changes_no_number(alone: Times, beside: Times, more: Times) -> None:
    with folder() as place:
        write_experiment(place, alone, beside, more)
        before = tables(load([place]))
        (place / "copies").mkdir()
        for name in ("alone", "beside", "other"):
            (place / "copies" / f"{name}-copy.jsonl").write_bytes((place / f"{name}.jsonl").read_bytes())
        copied = load([place])
        assert len(copied.excluded) == 3
        after = tables(copied)
    for name, frame in before.items():
        pd.testing.assert_frame_equal(frame, after[name])


@few
@given(runs, runs, runs)
def test_a_baseline_that_was_run_twice_with_the_same_times_changes_no_sigma(
    alone: Times, beside: Times, more: Times
) -> None:
    with folder() as place:
        write_experiment(place, alone, beside, more)
        before = slowdown(load([place]), seed=1)
        write(place, "alone-again", alone)
        after = slowdown(load([place]), seed=1)
    assert after.table["baseline_runs"].sum() == before.table["baseline_runs"].sum() + 1
    for frame, other in ((before.table, after.table), (before.iterations, after.iterations)):
        np.testing.assert_allclose(frame["sigma"], other["sigma"], rtol=1e-12)


@few
@given(runs, runs, st.lists(st.floats(50.0, 90.0), min_size=3, max_size=3))
def test_a_warmup_in_front_changes_no_number(alone: Times, more: Times, warmup: list[float]) -> None:
    with folder() as place:
        write(place / "before", "alone", alone)
        begin = Times([warmup, *alone.runtime], alone.share)
        write_run(place / "after", "alone", begin.runtime, begin.sync(), measured_as={"warmups": 1})
        for name in ("before", "after"):
            write(place / name, "more", more, dtype="fp16")
        before, after = (tables(load([place / name])) for name in ("before", "after"))
    for name, frame in before.items():
        pd.testing.assert_frame_equal(frame, after[name])


@few
@given(runs, runs)
def test_the_comparison_the_other_way_round_is_the_reciprocal(first: Times, second: Times) -> None:
    with folder() as place:
        write(place / "a", "a", first)
        write(place / "b", "b", second)
        a, b = load([place / "a"]), load([place / "b"])
    forth, back = (compare(*sets, seed=1).table.iloc[0] for sets in ((a, b), (b, a)))
    assert forth["ratio"] * back["ratio"] == pytest.approx(1)
    verdicts = {forth["verdict"], back["verdict"]}
    # The intervals are resampled anew, so next to an edge one of them can be ambiguous.
    assert "AMBIGUOUS" in verdicts or verdicts in ({"SAME"}, {"SLOWER", "FASTER"})


@few
@given(runs)
def test_a_set_is_never_slower_or_faster_than_itself(one: Times) -> None:
    with folder() as place:
        write(place, "a", one)
        campaign = load([place])
    row = compare(campaign, campaign, seed=1).table.iloc[0]
    assert row["ratio"] == 1
    assert row["verdict"] in {"SAME", "AMBIGUOUS"}


@few
@given(runs, runs)
def test_every_number_lies_within_its_interval_and_its_bounds(alone: Times, beside: Times) -> None:
    with folder() as place:
        write_experiment(place, alone, beside, alone)
        found = tables(load([place]))
    for frame in found.values():
        for low in (str(column) for column in frame.columns if str(column).endswith("_low")):
            name = low.removesuffix("_low")
            there = frame[frame[low].notna()]
            assert (there[low] <= there[name] * (1 + 1e-12) + 1e-12).all()
            assert (there[name] <= there[f"{name}_high"] * (1 + 1e-12) + 1e-12).all()
    row = found["summary"].iloc[0]
    assert 0 <= row["communication"] <= 1 + 1e-9
    assert row["minimum"] <= row["seconds"] <= row["maximum"]
    assert found["slowdown"]["overlap"].between(0, 1).all()
    assert (found["slowdown"]["all_running"] <= found["slowdown"]["overlap"] + 1e-9).all()


def test_a_table_is_the_same_after_a_second_reading(tmp_path: Path) -> None:
    write_experiment(tmp_path, *[Times([[1.0, 2.0, 3.0], [2.0, 1.0, 1.0]] * 3, (0.1, 0.2, 0.3))] * 3)
    first, second = (
        json.dumps({name: frame.to_json() for name, frame in tables(load([tmp_path])).items()}) for _ in "12"
    )
    assert first == second


values = st.lists(st.floats(1e-3, 1e3), min_size=6, max_size=30)


@few
@given(values, st.floats(1e-3, 1e3))
def test_intervals_of_means_scale_with_the_samples(numbers: list[float], factor: float) -> None:
    lengths = (len(numbers),)
    samples, scaled = (Samples(np.array(numbers) * by, lengths) for by in (1.0, factor))
    for function in (mean, geometric_mean):
        np.testing.assert_allclose(np.array(function(samples, 2)) * factor, function(scaled, 2), rtol=1e-9)
    reference = Samples(np.arange(1.0, 9.0), (8,))
    np.testing.assert_allclose(np.array(ratio(samples, reference, 2)) * factor, ratio(scaled, reference, 2), rtol=1e-9)
