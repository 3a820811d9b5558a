"""The tables of the synchronisation tax, from records and traces."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from builder import write_run as write_record
from kineto_writer import Collective, Group, run, write_run
from ops_builder import Times, arrivals, clock, collective, table_of, write_taxed
from shared_data import shared_file

from dlbench.analysis.bootstrap import ratio_of_sums
from dlbench.analysis.load import load
from dlbench.analysis.persistence import Verdict
from dlbench.analysis.samples import Samples
from dlbench.analysis.sync_tax import COLLECTIVES
from dlbench.analysis.tables import Table
from dlbench.analysis.tax_sources import require_tax, tax_of_runs, tax_of_traces
from dlbench.analysis.taxes import GROUPS, ITERATIONS, MEASURES, STRAGGLERS, Taxes
from dlbench.errors import OptionError, RecordError

GOLDEN_TAX = [7625, 1100, 169, 126, 221, 535, 582, 883]
ONE = table_of(range(4), collective("gradient"))
TWO = table_of(range(4), collective("first"), collective("second"))


def taxes_of(folder: Path) -> Taxes:
    return tax_of_runs(load([folder]), seed=0)


def late(rank: int, delay: float) -> Times:
    """One collective of four ranks, which all enter at 0 but for one; all leave at 1 s."""
    return arrivals(*(delay if each == rank else 0.0 for each in range(4)))


def two(first: float, second: float) -> Times:
    """Two collectives: rank 1 is late for the first and rank 3 for the second, by these seconds."""
    return [
        [(0.0, 1.0), (2.0, 3.0)],
        [(first, 1.0), (2.0, 3.0)],
        [(0.0, 1.0), (2.0, 3.0)],
        [(0.0, 1.0), (2.0 + second, 3.0)],
    ]


def test_a_class_has_the_median_of_its_iterations_with_an_interval(tmp_path: Path) -> None:
    write_taxed(tmp_path, [late(2, delay) for delay in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)], ONE)
    (row,) = taxes_of(tmp_path).classes.itertuples()
    assert (row.name, row.runs, row.iterations, row.groups, row.collectives, row.resolved) == (
        *("allreduce/world", 1, 6, 1),
        *(6, 6),
    )
    assert (row.strategy, row.gpus, row.concurrent) == ("dp", 4, False)
    assert row.tau_range == pytest.approx(0.35)
    assert (row.tau_range_low, row.tau_range_high) == pytest.approx((0.1, 0.6))  # order statistics of six
    assert row.tau_range_p95 == pytest.approx(0.575)  # three quarters of the way from the fifth to the sixth
    assert row.tau_med == pytest.approx(0.35)
    assert row.tau_mean == pytest.approx(0.35 * 3 / 4)
    assert row.transfer == pytest.approx(0.65)
    assert row.exposed == pytest.approx(0.35)
    assert row.share_first == pytest.approx(0.35)  # 2.1 s of 6 s
    assert row.share_first_low < 0.35 < row.share_first_high
    assert row.reason == ""


def test_an_iteration_counts_once_however_many_collectives_it_has(tmp_path: Path) -> None:
    write_taxed(tmp_path, [two(0.1, 0.3), two(0.2, 0.8), two(0.3, 0.9)], TWO)
    (row,) = taxes_of(tmp_path).classes.itertuples()
    assert (row.iterations, row.collectives) == (3, 6)
    assert row.tau_range == pytest.approx(0.5)  # of 0.2, 0.5 and 0.6
    assert np.isnan(row.tau_range_low)  # three iterations have no interval


def test_warm_ups_are_in_no_table(tmp_path: Path) -> None:
    write_taxed(tmp_path, [late(0, 0.9), late(2, 0.1)], ONE, warmups=1)
    taxes = taxes_of(tmp_path)
    assert taxes.collectives["straggler"].tolist() == [2]
    assert taxes.by_iteration["iteration"].tolist() == [1]


def test_a_group_tells_its_straggler_and_whether_it_persists(tmp_path: Path) -> None:
    write_taxed(tmp_path, [late(2, 0.1)] * 9 + [late(0, 0.1)], ONE)
    (row,) = taxes_of(tmp_path).by_group.itertuples()
    assert (row.group, row.ranks, row.known, row.straggler) == ("world 0-3", 4, 10, 2)
    assert (row.straggler_share, row.stretches) == (0.9, 2)
    assert (row.verdict, row.persistence) == (
        Verdict.PERSISTS,
        "rank 2 is last in 9 of 10 (p = 0.005): it persists",  # 4 × (7 × 3 + 1) / 4^7: 2 stretches for 2.8
    )


def test_groups_stand_in_the_order_of_their_tax(tmp_path: Path) -> None:
    groups = {"tensor": {"size": 2, "stride": 1}}
    program = table_of(range(4), collective("partial", scope="tensor"))
    write_taxed(tmp_path, [arrivals(0.0, 0.1, 0.0, 0.4)] * 2, program, groups=groups)
    taxes = taxes_of(tmp_path)
    assert taxes.by_group["group"].tolist() == ["tensor 2-3", "tensor 0-1"]
    (row,) = taxes.classes.itertuples()
    assert (row.groups, row.collectives, row.tau_range) == (2, 4, pytest.approx(0.25))


def test_what_the_clocks_cannot_tell_is_no_finding(tmp_path: Path) -> None:
    write_taxed(tmp_path, [late(2, 0.015)] * 8, ONE, clock=clock(4, 0.01))
    taxes = taxes_of(tmp_path)
    (row,) = taxes.by_group.itertuples()
    assert (row.collectives, row.resolved, row.known, row.straggler) == (8, 0, 0, -1)
    assert row.verdict == Verdict.UNKNOWN
    assert row.reason == "unresolved: the median tau range does not exceed the error of its times"
    assert row.uncertainty == pytest.approx(0.02)
    assert (len(taxes.largest(10)), len(taxes.stragglers)) == (0, 0)


def test_only_resolved_collectives_tell_whether_a_straggler_persists(tmp_path: Path) -> None:
    write_taxed(tmp_path, [late(2, 0.1)] * 7 + [late(0, 0.001)] * 20, ONE, clock=clock(4, 0.01))
    (row,) = taxes_of(tmp_path).by_group.itertuples()
    assert (row.known, row.straggler, row.straggler_share) == (7, 2, 1.0)


def test_a_straggler_has_caused_the_waits_of_all_others(tmp_path: Path) -> None:
    write_taxed(tmp_path, [two(0.1, 0.5), two(0.3, 0.5)], TWO)
    stragglers = taxes_of(tmp_path).stragglers
    assert list(stragglers) == list(STRAGGLERS)
    assert stragglers["rank"].tolist() == [3, 1]
    assert stragglers["times"].tolist() == stragglers["known"].floordiv(2).tolist() == [2, 2]
    assert stragglers["straggler_share"].tolist() == [0.5, 0.5]
    assert stragglers["caused"].tolist() == pytest.approx([3.0, 1.2])  # three ranks wait for it
    assert stragglers["tau_range"].tolist() == pytest.approx([0.5, 0.2])


def test_an_iteration_has_its_own_row(tmp_path: Path) -> None:
    write_taxed(tmp_path, [two(0.1, 0.3), two(0.4, 0.0)], TWO)
    rows = taxes_of(tmp_path).by_iteration
    assert list(rows) == list(ITERATIONS)
    assert rows["tau_range"].tolist() == pytest.approx([0.2, 0.2])
    assert rows["tau_range_max"].tolist() == pytest.approx([0.3, 0.4])
    assert rows["tau_mean"].tolist() == pytest.approx([0.15, 0.15])
    assert rows["share_first"].tolist() == pytest.approx([0.2, 0.2])
    assert rows["resolved"].tolist() == [2, 1]
    assert rows["straggler"].tolist() == [1, 1]


def test_an_iteration_without_a_resolved_straggler_names_none(tmp_path: Path) -> None:
    write_taxed(tmp_path, [late(1, 0.0), late(1, 0.1)], ONE)
    assert taxes_of(tmp_path).by_iteration["straggler"].tolist() == [-1, 1]


def test_runs_of_a_configuration_are_pooled_by_class_and_apart_by_run(tmp_path: Path) -> None:
    write_taxed(tmp_path, [late(0, 0.1)] * 3, ONE, name="a")
    write_taxed(tmp_path, [late(1, 0.3)] * 3, ONE, name="b")
    write_taxed(tmp_path, [late(1, 0.5)] * 3, ONE, name="c", dtype="fp32")
    taxes = taxes_of(tmp_path)
    assert [(row.dtype, row.runs, row.iterations) for row in taxes.classes.itertuples()] == [
        ("bf16", 2, 6),
        ("fp32", 1, 3),
    ]
    assert taxes.classes["tau_range"].tolist() == pytest.approx([0.2, 0.5])
    assert taxes.by_run[["run_id", "tau_range"]].to_numpy().tolist() == [
        ["a", pytest.approx(0.1)],
        ["b", pytest.approx(0.3)],
        ["c", pytest.approx(0.5)],
    ]
    assert set(MEASURES) <= set(taxes.by_run)


def test_the_largest_collectives_come_first(tmp_path: Path) -> None:
    write_taxed(tmp_path, [two(0.1, 0.3), two(0.4, 0.2)], TWO)
    largest = taxes_of(tmp_path).largest(3)
    assert largest["tau_range"].tolist() == pytest.approx([0.4, 0.3, 0.2])
    assert largest[["iteration", "place", "buffer", "straggler"]].to_numpy().tolist() == [
        [1, 0, "first", 1],
        [0, 1, "second", 3],
        [1, 1, "second", 3],
    ]


def test_what_a_late_rank_makes_of_an_iteration_is_one_event(tmp_path: Path) -> None:
    # Rank 1 is late for both collectives of iteration 0; in iteration 1 it is late for one, and rank 3 for the other.
    times = [(0.0, 1.0), (2.0, 3.0)]
    write_taxed(tmp_path, [[times, [(0.1, 1.0), (2.4, 3.0)], times, times], two(0.3, 0.2)], TWO)
    events = taxes_of(tmp_path).events()
    assert events[["iteration", "place", "straggler", "more"]].to_numpy().tolist() == [
        [0, 1, 1, 1],
        [1, 0, 1, 0],
        [1, 1, 3, 0],
    ]


def table_named(taxes: Taxes, name: str) -> Table:
    return next(table for table in taxes.tables(10) if table.layout.name == name)


def test_the_largest_collectives_and_why_are_one_table(tmp_path: Path) -> None:
    write_taxed(tmp_path, [two(0.1, 0.3), two(0.4, 0.2)], TWO)
    alone = table_named(tax_of_runs(load([tmp_path]), seed=0, paths=False), "largest")
    assert "predicted" not in alone.measures
    assert "more: how many others there are" in alone.layout.about
    explained = table_named(taxes_of(tmp_path), "largest")
    assert {"tau_range", "predicted", "culprit", "more"} <= set(explained.measures)
    assert "predicted: by how much" in explained.layout.about


def test_a_verdict_stands_beside_the_tests_that_it_follows_from(tmp_path: Path) -> None:
    write_taxed(tmp_path, [two(0.1, 0.3), two(0.4, 0.2)], TWO)
    groups = table_named(taxes_of(tmp_path), "groups")
    assert groups.measures[-3:] == ("straggler_p", "stretches_p", "verdict")
    for width in range(60, 140):
        parts = [[strip.heading for strip in part] for part in groups.panels(width, lambda strip: len(strip.heading))]
        (beside,) = [part for part in parts if "verdict" in part]
        assert beside[beside.index("verdict") - 2 :][:2] == ["p last", "p stretches"]


def test_groups_are_chosen_by_class_operation_scope_or_name(tmp_path: Path) -> None:
    program = table_of(range(4), collective("x"), collective("y", op="allgather", scope="tensor"))
    groups = {"world": {"size": 4, "stride": 1}, "tensor": {"size": 2, "stride": 1}}
    write_taxed(tmp_path, [[[(0.0, 1.0), (1.0, 2.0)]] * 4], program, groups=groups)
    taxes = taxes_of(tmp_path)
    for name, groups_left in (
        ("allreduce/world", ["world 0-3"]),
        ("allgather", ["tensor 0-1", "tensor 2-3"]),
        ("tensor", ["tensor 0-1", "tensor 2-3"]),
        ("tensor 2-3", ["tensor 2-3"]),
    ):
        assert [tax.collectives.group for tax in taxes.only([name]).groups] == groups_left
    with pytest.raises(OptionError, match="no group is named 'tensr'; did you mean 'tensor'"):
        taxes.only(["world", "tensr"])
    with pytest.raises(
        OptionError, match="no group is named '§'; there are 'world 0-3', 'allreduce/world', 'allreduce'"
    ):
        taxes.only(["§"])


def test_runs_without_ops_and_damaged_ops_cost_the_others_nothing(tmp_path: Path) -> None:
    write_taxed(tmp_path, [late(0, 0.1)], ONE, name="good")
    write_record(tmp_path, "bare", [[1.0] * 4])
    lost = write_taxed(tmp_path, [late(0, 0.1)], ONE, name="lost").with_suffix(".ops.npy")
    lost.unlink()
    bad = write_taxed(tmp_path, [late(0, 0.1)], ONE, name="bad").with_suffix(".ops.npy")
    bad.write_bytes(b"no arrays" * 100)
    taxes = require_tax(taxes_of(tmp_path))
    assert taxes.collectives["run_id"].tolist() == ["good"]
    assert taxes.notes == [
        f"left out of the tax: {bad}: holds no arrays of numpy.save",
        f"left out of the tax: {lost}: does not exist; it belongs beside lost.jsonl",
        "1 of 4 runs recorded no ops; dlbench run --record-ops records them",
    ]


def test_without_any_ops_it_is_said_how_to_record_them(tmp_path: Path) -> None:
    write_record(tmp_path, "bare", [[1.0] * 4])
    with pytest.raises(RecordError, match="^no collectives to compare: 1 of 1 run recorded no ops; .* --record-ops .*"):
        require_tax(taxes_of(tmp_path))


def test_what_else_was_left_out_comes_after_the_cause_and_most_of_it_as_a_count(tmp_path: Path) -> None:
    write_record(tmp_path, "bare", [[1.0] * 4])
    with pytest.raises(RecordError, match="--record-ops records them; a; b; and 3 more$"):
        require_tax(taxes_of(tmp_path), ["a", "b", "c", "d", "e"])


def test_progress_counts_the_iterations_of_all_runs(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_taxed(tmp_path, [late(0, 0.1)] * 2, ONE, name=name)
    seen: list[tuple[int, int]] = []
    tax_of_runs(load([tmp_path]), seed=0, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_traces_have_the_tax_and_the_stragglers_that_were_written(tmp_path: Path) -> None:
    program = [Collective("allreduce", Group("0", (0, 1, 2, 3), "mesh_dp"))] * 8
    compute = [dict.fromkeys(range(4), 300_000)] * 8
    paths = write_run(tmp_path, run(program, compute, {(2, index): 40_000 for index in range(8)}))
    seen: list[tuple[int, int]] = []
    taxes = tax_of_traces(paths, seed=0, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    (row,) = taxes.by_group.itertuples()
    assert (row.name, row.group, row.iterations, row.straggler, row.known) == (
        *("allreduce/mesh_dp", "mesh_dp (0-3)"),
        *(8, 2, 8),
    )
    assert (row.tau_range, row.tau_range_low, row.tau_range_high) == pytest.approx((40e-6,) * 3)
    assert (row.tau_mean, row.transfer) == pytest.approx((30e-6, 50e-6))
    assert row.verdict == Verdict.PERSISTS
    assert list(taxes.classes["name"]) == ["allreduce/mesh_dp"]
    assert "strategy" not in taxes.classes
    assert list(taxes.by_group) == list(GROUPS)
    assert taxes.uncertainty < 10e-9


def test_the_real_trace_set_has_the_known_tax() -> None:
    taxes = tax_of_traces([shared_file(f"traces/dlrm8/rank{rank}.pt.trace.json.gz") for rank in range(8)], seed=0)
    ordered = taxes.collectives.sort_values("begin")
    assert (ordered["tau_range"] * 1e6).tolist() == pytest.approx(GOLDEN_TAX)
    assert ordered["resolved"].all()
    assert ordered["straggler"].tolist() == [7, 7, 7, 7, 7, 5, 5, 4]
    assert taxes.classes["name"].tolist() == ["sendrecv", "allreduce"]


def test_a_ratio_of_sums_is_weighed_by_the_whole() -> None:
    part, whole = Samples(np.array([1.0, 0.0]), (2,)), Samples(np.array([1.0, 3.0]), (2,))
    assert ratio_of_sums(part, whole, seed=0)[0] == 0.25
    assert np.isnan(ratio_of_sums(part, whole, seed=0).low)


def test_a_ratio_that_is_the_same_in_all_iterations_has_no_width() -> None:
    whole = np.arange(1.0, 9.0)
    found = ratio_of_sums(Samples(whole / 4, (8,)), Samples(whole, (8,)), seed=0)
    assert found == pytest.approx((0.25, 0.25, 0.25))
    assert np.isnan(ratio_of_sums(Samples(whole * 0, (8,)), Samples(whole * 0, (8,)), seed=0).value)


def test_a_ratio_whose_whole_can_be_nothing_has_no_interval() -> None:
    whole = np.array([1.0, 0, 0, 0, 0, 0, 0])
    found = ratio_of_sums(Samples(whole / 2, (7,)), Samples(whole, (7,)), seed=0)
    assert found.value == 0.5
    assert np.isnan(found.low)


def test_the_interval_of_a_ratio_holds_what_resamples_of_the_pairs_give() -> None:
    generator = np.random.default_rng(0)
    whole = generator.uniform(1, 2, 40)
    part = whole * generator.uniform(0.2, 0.4, 40)
    value, low, high = ratio_of_sums(Samples(part, (40,)), Samples(whole, (40,)), seed=0)
    drawn = generator.integers(40, size=(4000, 40))
    ends = np.quantile(part[drawn].sum(axis=1) / whole[drawn].sum(axis=1), [0.025, 0.975])
    assert (low, high) == pytest.approx(ends, abs=0.003)
    assert low < value < high


def test_every_column_is_described_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tax.md").read_text(encoding="utf-8")
    columns = {*GROUPS, *ITERATIONS, *STRAGGLERS, *COLLECTIVES, *MEASURES}
    described = set(re.findall(r"`([^`\n]+)`", page))
    assert {name for name in columns if not name.endswith(("_low", "_high"))} - described == set()
    assert all(f"\n| {verdict} |" in page for verdict in Verdict)
