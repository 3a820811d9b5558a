"""Tables of fits and predictions, and the document that hands a fit on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dlbench.analysis.bandwidth import Collective, Tax, bandwidths, given_topology
from dlbench.analysis.block_times import BlockTimes
from dlbench.analysis.campaign import FACTORS
from dlbench.analysis.export import json_text
from dlbench.analysis.extremes import Extremes, extremes
from dlbench.analysis.model_tables import (
    FIT_COLUMNS,
    FITS,
    PREDICTION_COLUMNS,
    PREDICTIONS,
    document,
    fits,
    predictions,
    read_fit,
    taxes,
    with_intervals,
)
from dlbench.analysis.samples import Estimate
from dlbench.analysis.tables import build
from dlbench.analysis.tails import Tail
from dlbench.errors import OptionError


@pytest.fixture(scope="module")
def found() -> Extremes:
    cube = np.random.default_rng(1).normal(1.0, 0.1, size=(2, 30, 8))
    return extremes(BlockTimes.of_array(cube, "world"), predict=[4, 8, 128])


def of_run(found: Extremes, **changes: Any) -> Extremes:
    """The same fit, as one of runs of a configuration."""
    texts = {
        "system": "leonardo",
        "strategy": "dp",
        "model": "vit-h",
        "placement": "intra-l1",
        "mode": "",
        "dtype": "bf16",
    }
    factors: dict[str, Any] = {**dict.fromkeys(FACTORS, 1), **texts, "gpus": 8, **changes}
    return replace(found, times=replace(found.times, factors=factors))


def test_a_row_per_distribution_has_the_estimates_with_their_intervals(found: Extremes) -> None:
    frame = fits([found])
    assert list(frame) == list(FIT_COLUMNS)
    assert list(frame["distribution"]) == ["Gumbel", "GEV"]
    gev = frame.iloc[1]
    assert (gev["blocks"], gev["instances"], gev["ranks"], gev["group_size"], gev["maxima"]) == (2, 60, 8, 4, 120)
    shape = found.fits["GEV"].shape
    assert (gev["tail_shape"], gev["tail_shape_low"], gev["tail_shape_high"]) == tuple(shape)
    assert gev["likelihood_scale"] == pytest.approx(float(found.fits["GEV"].likelihood.scale))
    assert frame["tail_shape"].iloc[0] == 0


def test_a_row_per_number_of_ranks_and_distribution_has_the_prediction(found: Extremes) -> None:
    frame = predictions([found])
    assert list(frame) == list(PREDICTION_COLUMNS)
    assert list(frame["predicted_ranks"]) == [4, 4, 8, 8, 128, 128]
    assert list(frame["k"]) == [1, 1, 2, 2, 32, 32]
    assert list(frame["measured_seconds"].isna()) == [False] * 4 + [True] * 2
    assert frame["tau"].is_monotonic_increasing or frame["tau"].iloc[-1] < frame["tau"].iloc[-2]


def test_runs_bring_their_factors_and_traces_none(found: Extremes) -> None:
    frame = fits([of_run(found), of_run(found, strategy="fsdp")])
    assert list(frame)[: len(FACTORS)] == list(FACTORS)
    assert list(frame["strategy"]) == ["dp", "dp", "fsdp", "fsdp"]
    assert not set(FACTORS) & set(fits([found]))


def test_tables_show_the_group_first_and_the_reasons_as_notes(found: Extremes) -> None:
    table = build(PREDICTIONS, predictions([of_run(found)]))
    assert table.key == ("source", "predicted_ranks", "distribution")
    assert any("extrapolation beyond k = 16" in remark for remark in table.remarks)
    headings = {strip.heading for panel in table.panels(120, lambda _: 8) for strip in panel}
    assert {"ranks", "wait", "measured", "error", "note"} <= headings
    assert {"μ", "σ", "ξ", "A²"} <= {build(FITS, fits([found])).strip(name).heading for name in FITS.measures}


def test_the_document_gives_back_the_fit_that_made_it(found: Extremes, tmp_path: Path) -> None:
    path = tmp_path / "fit.json"
    path.write_text(json_text(document([found], 0, ["a note"])))
    fitted = read_fit(path)
    assert fitted.domains == [4, 8, 128]
    assert fitted.block == pytest.approx(found.block_seconds.value)
    for tax in fitted.taxes:
        for each in (each for each in found.predictions if each.distribution == tax.name):
            assert np.array(tax.tau(each.ranks)) == pytest.approx(np.array(each.tau))
        # For other domains, the parameters give the value without an interval.
        fit = found.fits[tax.name]
        assert tax.tau(64).value == pytest.approx(found.spread.value * float(fit.tail.mean(16)))
        assert np.isnan(tax.tau(64).low)


def test_the_document_says_by_what_it_was_made(found: Extremes) -> None:
    parsed = json.loads(json_text(document([found], 7, ["a note"])))
    assert (parsed["seed"], parsed["notes"]) == (7, ["a note"])
    assert set(parsed) == {"dlbench", "seed", "notes", "fits", "predictions"}
    assert parsed["predictions"][-1]["measured_seconds"] is None


def test_a_shape_of_1_or_more_in_a_file_is_refused(found: Extremes, tmp_path: Path) -> None:
    parsed = json.loads(json_text(document([found], 0, [])))
    parsed["fits"][1]["tail_shape"] = 1.5
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(parsed))
    with pytest.raises(OptionError, match=r"^a tail of shape 1.5 has no mean"):
        read_fit(path)


def test_a_fit_of_two_configurations_cannot_be_told_apart(found: Extremes, tmp_path: Path) -> None:
    path = tmp_path / "fit.json"
    path.write_text(json_text(document([of_run(found), of_run(found, strategy="fsdp")], 0, [])))
    with pytest.raises(OptionError, match="not one fit of 'world'; world is of several configurations;"):
        read_fit(path, "world")


def frame_of(*taxes: Tax) -> pd.DataFrame:
    return bandwidths(Collective(alpha=1e-6, message=1e6, elasticity=0.5), [given_topology(2, 2)], [8], taxes)


def test_intervals_are_shown_where_every_wait_has_one() -> None:
    given = Tax(name="Gumbel", tail=Tail.of(1e-3, 1e-3))
    fitted = replace(given, intervals={8: Estimate(3e-3, 2e-3, 4e-3)})
    shown = [
        [name for name in with_intervals(frame_of(*waits)) if name.endswith(("_low", "_high"))]
        for waits in ([], [given], [given, fitted], [fitted])
    ]
    assert [len(names) for names in shown] == [0, 0, 0, 6]


def test_the_smallest_p_value_that_samples_can_give_is_a_bound_and_their_number_is_told(found: Extremes) -> None:
    frame = fits([found])
    assert list(frame["p_samples"]) == [200, 200]
    smallest = frame.assign(p_value=[1 / 201, 2 / 201])
    assert [cell.text for cell in build(FITS, smallest).strip("p_value").cells] == ["≤ 0.005", "0.010"]


def test_what_a_fit_says_of_its_waits_is_said_by_the_law_too(found: Extremes, tmp_path: Path) -> None:
    path = tmp_path / "fit.json"
    path.write_text(json_text(document([found], 0, [])))
    for gumbel, gev in (taxes(found), read_fit(path).taxes):
        assert gumbel.reason(8).startswith("Gumbel ")
        assert gumbel.reason(8) == found.fits["Gumbel"].reason
        assert gev.reason(8) == ""
    said = [remark for remark in build(FITS, fits([found])).remarks if remark.startswith("[1] Gumbel ")]
    assert len(said) == 1


def test_a_fit_of_an_older_file_says_nothing_of_its_waits(found: Extremes, tmp_path: Path) -> None:
    parsed = json.loads(json_text(document([found], 0, [])))
    for row in parsed["fits"]:
        del row["reason"]
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(parsed))
    assert [tax.reason(8) for tax in read_fit(path).taxes] == ["", ""]
