"""How waits grow with the group in a campaign: what is fitted, what is left out, and what the report shows of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builder import write_run
from ops_builder import collective, write_ops
from plot_reader import drawing_of, results_of

from dlbench.analysis import growth as module
from dlbench.analysis.bandwidth import DOMAINS
from dlbench.analysis.block_times import with_ops
from dlbench.analysis.campaign import Campaign
from dlbench.analysis.extremes import extremes
from dlbench.analysis.growth import Growth, growth, law_layout, named
from dlbench.analysis.load import load
from dlbench.analysis.results import Results
from dlbench.cli import bandwidth as command

COMPUTED = {"op": "compute", "name": "forward", "seconds": 1.0}


def write(
    folder: Path, name: str = "run", *, ranks: int = 4, iterations: int = 20, seed: int = 1, **changes: Any
) -> None:
    """A run whose ranks compute for 1 ± 0.1 s before each of two collectives, which take 0.5 s."""
    program = [COMPUTED, collective("a"), COMPUTED, collective("b")]
    tables = [{"ranks": list(range(ranks)), "ops": program}]
    write_run(folder, name, [[4.0] * ranks] * iterations, op_tables=tables, **changes)
    own = np.random.default_rng(seed).normal(1.0, 0.1, size=(iterations, 2, ranks))
    write_ops(folder / f"{name}.jsonl", [times(first, second) for first, second in own.tolist()])


def times(first: Sequence[float], second: Sequence[float]) -> list[list[tuple[float, float]]]:
    one = max(first) + 0.5
    two = one + max(second) + 0.5
    return [[(0, a), (a, one), (one, one + b), (one + b, two)] for a, b in zip(first, second, strict=True)]


def growth_of(folder: Path) -> Growth:
    return growth(load([folder]), seed=0)


def test_groups_are_predicted_up_to_the_domains_of_the_law_and_what_is_far_is_warned_of(tmp_path: Path) -> None:
    write(tmp_path, ranks=6)
    (found,) = growth_of(tmp_path).found
    assert sorted({each.ranks for each in found.predictions}) == [4, 6, 8, 64, 512, 4096]
    far = {each.ranks for each in found.predictions if "extrapolation" in each.reason}
    assert far == {512, 4096}  # k = 64 / 4 = 16 is the farthest that is none
    assert all(each.tau.low <= each.tau.value <= each.tau.high for each in found.predictions)


def test_the_law_has_the_waits_and_intervals_of_the_predictions(tmp_path: Path) -> None:
    write(tmp_path)
    found = growth_of(tmp_path)
    (fit,) = found.found
    rows = found.law[(found.law["topology"] == "connected") & (found.law["tax"] == "GEV")]
    (law,) = rows[rows["domain"] == 64].to_dict("records")
    (tau,) = (each.tau for each in fit.predictions if (each.distribution, each.ranks) == ("GEV", 64))
    assert [law[name] for name in ("tau", "tau_low", "tau_high")] == list(tau)
    # Two messages of 5 µs, and 2^28 bytes times 2 · 63/64, at |ε| = 1/2.
    assert law["bandwidth"] == pytest.approx(2 * 63 / 64 * 2**28 / (10e-6 + tau.value))
    assert sorted(set(found.law["domain"])) == [8, 64, 512, 4096]
    assert set(found.law["topology"]) == {"ring", "torus", "connected"}


def test_the_law_is_that_of_the_command_where_nobody_asks_for_more() -> None:
    defaults = command._parser().parse_args([])
    law = module.COLLECTIVE
    assert (law.alpha, law.message, law.elasticity) == (defaults.alpha, defaults.message, defaults.elasticity)
    assert command.DOMAINS == DOMAINS


def test_the_group_of_most_ranks_comes_first_and_the_law_takes_its_waits(tmp_path: Path) -> None:
    write(tmp_path, "few", ranks=4)
    write(tmp_path, "many", ranks=8)
    found = growth_of(tmp_path)
    assert [each.times.ranks for each in found.found] == [8, 4]
    assert "Waits of dp vit-h on 8 GPUs, world; all-reduces of 268.4 MB" in law_layout(found.found[0]).about
    assert "latency 5.000 µs, elasticity 0.5" in law_layout(found.found[0]).about


def test_the_law_of_scaled_runs_says_so(tmp_path: Path) -> None:
    write(tmp_path, time_scale=0.02)
    (found,) = growth_of(tmp_path).found
    assert law_layout(found).about.endswith(
        "Times are those of scaled runs (time scale 0.02), and so are waits and B*."
    )


def test_only_the_largest_configurations_are_fitted_and_the_others_counted(tmp_path: Path) -> None:
    for ranks in range(4, 10):
        write(tmp_path, f"run{ranks}", ranks=ranks, iterations=15)
    found = growth_of(tmp_path)
    assert [each.times.ranks for each in found.found] == [9, 8, 7, 6]
    (note,) = (note for note in found.notes if note.startswith("not fitted"))
    assert note == "not fitted, since those of more GPUs come first: 2 configurations; dlbench extremes fits all"


def test_of_many_iterations_some_are_read_evenly_over_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ITERATIONS", 20)
    write(tmp_path, "one", iterations=40)
    write(tmp_path, "two", iterations=20, seed=2)
    found = growth_of(tmp_path)
    (fit,) = found.found
    assert len(fit.times) == 2 * 20
    assert (
        "dp vit-h on 4 GPUs: 20 of 60 iterations were read, evenly over all runs: dlbench extremes reads all"
        in found.notes
    )
    kept = module._some_iterations(with_ops(load([tmp_path]))[0], [])
    assert kept.lengths in {(13, 7), (14, 6)}  # in proportion to 40 and 20, both ends being there


def test_of_many_blocks_some_are_fitted_but_never_too_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_MAXIMA", 64)
    write(tmp_path, ranks=8, iterations=40)  # two maxima in each of 80 blocks
    found = growth_of(tmp_path)
    (fit,) = found.found
    assert (len(fit.times), len(fit.maxima)) == (32, 64)
    assert "dp vit-h on 8 GPUs, world: 32 of 80 blocks, drawn at random, were fitted" in found.notes
    monkeypatch.setattr(module, "MOST_MAXIMA", 1)
    assert len(growth_of(tmp_path).found[0].times) == 30


def test_too_few_blocks_are_a_reason_and_no_error(tmp_path: Path) -> None:
    write(tmp_path, iterations=10)
    found = growth_of(tmp_path)
    assert not found.found
    (reason,) = found.reasons
    assert reason == "dp vit-h on 4 GPUs: world: 20 blocks were measured; a tail takes 30 or more"
    assert list(found.tables(set())) == []
    assert found.why_no_law == "no group of ranks has a fit of its block times"


def test_few_ranks_damaged_ops_and_one_rank_are_reasons_beside_what_can_be_fitted(tmp_path: Path) -> None:
    write(tmp_path, "good", ranks=5)
    write(tmp_path, "pair", ranks=2)
    write(tmp_path, "damaged", ranks=6)
    write(tmp_path, "single", ranks=1)
    (tmp_path / "damaged.ops.npy").write_bytes(b"no arrays" * 100)
    found = growth_of(tmp_path)
    assert [named(each.times) for each in found.found] == ["dp vit-h on 5 GPUs, world"]
    damaged, pair, single = found.reasons
    assert damaged.endswith("damaged.ops.npy: holds no arrays of numpy.save")
    assert "groups of 4 ranks cannot be made of 2" in pair
    assert single == "single: one rank waits for nobody"


def test_of_many_reasons_three_are_told(tmp_path: Path) -> None:
    for ranks in range(4, 9):
        write(tmp_path, f"run{ranks}", ranks=ranks, iterations=2)
    reasons = growth_of(tmp_path).reasons
    assert len(reasons) == 4
    assert reasons[-1] == "2 more, which dlbench extremes names"


def test_a_law_that_nothing_follows_for_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    monkeypatch.setattr(module, "DOMAINS", (2,))  # smaller than the groups that are fitted
    monkeypatch.setattr(module, "_fitted", lambda times, seed: extremes(times, seed=seed))
    found = growth_of(tmp_path)
    assert found.law.empty
    assert found.why_no_law.startswith("dp vit-h on 4 GPUs, world: a domain of 2 ranks is smaller than the groups of 4")


def test_both_figures_are_drawn_and_name_whose_waits_they_show(tmp_path: Path) -> None:
    write(tmp_path)
    assert [plot.name for plot in drawing_of(tmp_path, "extremes").plots] == ["extremes"]
    (law,) = drawing_of(tmp_path, "bandwidth").plots
    assert law.caption.endswith("Waits of dp vit-h on 4 GPUs, world, n = 40 blocks.")


def test_without_ops_neither_is_drawn_and_the_reason_is_a_line(tmp_path: Path) -> None:
    write_run(tmp_path, "bare", [[1.0, 1.0]] * 6)
    assert [str(each) for each in drawing_of(tmp_path, "extremes").left_out] == [
        "extremes: no run recorded ops (--record-ops), so block times are unknown"
    ]
    assert [str(each) for each in drawing_of(tmp_path, "bandwidth").left_out] == [
        "bandwidth: no group of ranks has a fit of its block times"
    ]


def test_the_fits_are_made_when_they_are_first_asked_for_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def counted(campaign: Campaign, *, seed: int) -> Growth:
        asked.append(seed)
        return Growth()

    monkeypatch.setattr(module, "growth", counted)
    write(tmp_path)
    results: Results = results_of(tmp_path)
    assert len(list(results.tables())) == 4
    assert asked == []
    assert results.growth is results.growth
    assert asked == [0]
