"""The tables of the models: fits of extreme values, predicted waits, and the bandwidth law."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
import pandas as pd
from msgspec import Meta

from dlbench import __version__
from dlbench.analysis.bandwidth import NO_TAX, Tax
from dlbench.analysis.campaign import Schema
from dlbench.analysis.export import Document, rows
from dlbench.analysis.extremes import Extremes, Fit, Prediction
from dlbench.analysis.samples import FACTOR_TYPES, Estimate, estimate_types, table
from dlbench.analysis.tables import Layout
from dlbench.analysis.tails import Tail
from dlbench.errors import OptionError

FIT_COLUMNS: Schema = {
    "source": str,
    **dict.fromkeys(("blocks", "instances", "ranks", "group_size", "maxima"), np.int64),
    "centring": str,
    "distribution": str,
    **estimate_types("block_seconds", "spread_seconds", "tail_location", "tail_scale", "tail_shape"),
    **dict.fromkeys(("likelihood_location", "likelihood_scale", "likelihood_shape"), np.float64),
    **dict.fromkeys(("anderson_darling", "p_value"), np.float64),
    "p_samples": np.int64,
    "correlation": np.float64,
    "tail": str,
    "reason": str,
}
"""Columns of `fits`, after the factors of a configuration."""

PREDICTION_COLUMNS: Schema = {
    "source": str,
    "predicted_ranks": np.int64,
    "distribution": str,
    "k": np.float64,
    **estimate_types("tau"),
    "likelihood_tau": np.float64,
    **estimate_types("measured_seconds", "error"),
    "collective_seconds": np.float64,
    "reason": str,
}
"""Columns of `predictions`, after the factors of a configuration."""

FITS = Layout(
    name="fits",
    title="Fits of block times",
    about="Maxima of groups of ranks, as z-scores of block times, fitted by L-moments with bootstrap intervals, and by "
    "maximum likelihood (ML). Units are the spread b. A² and p: Anderson-Darling distance and its bootstrap p-value. "
    "tail: heavy or light where the interval of ξ lies above or below 0.",
    first=("source",),
    key=("distribution",),
    measures=(
        *("centring", "blocks", "instances", "ranks", "group_size", "maxima", "block_seconds", "spread_seconds"),
        *("tail_location", "tail_scale", "tail_shape", "likelihood_location", "likelihood_scale", "likelihood_shape"),
        *("anderson_darling", "p_value", "correlation", "tail"),
    ),
    command="extremes",
)
PREDICTIONS = Layout(
    name="predictions",
    title="Mean wait in groups of more ranks",
    about="tau(n) by the fits, beside the mean wait measured in groups of as many of the ranks, and in the collectives "
    "themselves. error: predicted / measured − 1.",
    first=("source",),
    key=("predicted_ranks", "distribution"),
    measures=("k", "tau", "likelihood_tau", "measured_seconds", "error", "collective_seconds"),
    command="extremes",
)
BANDWIDTHS = Layout(
    name="bandwidth",
    title="Bandwidth that is still worth buying",
    about="B*: where a relative gain of bandwidth gains that times the elasticity of the collective's time. lower by: "
    "what the wait takes off B*.",
    first=("topology", "domain", "tax"),
    measures=("p", "q", "tau", "bandwidth", "reduction"),
    command="bandwidth",
)
FLOPS = Layout(
    name="flops",
    title="Bandwidth for faster computation",
    about="B*(x): what keeps the elasticity of block and collective together when FLOPS grow by x and the wait stays. "
    "|ε|: that elasticity at today's bandwidth. lower by: against no tax.",
    first=("topology", "domain", "tax", "flops_factor"),
    measures=("elasticity", "bandwidth", "reduction"),
    command="bandwidth",
)


def fits(found: Sequence[Extremes]) -> pd.DataFrame:
    """A row per group and distribution: columns `FIT_COLUMNS`, times in seconds."""
    return _table(found, [_fit_row(each, fit) for each in found for fit in each.fits.values()], FIT_COLUMNS)


def predictions(found: Sequence[Extremes]) -> pd.DataFrame:
    """A row per group, number of ranks and distribution: columns `PREDICTION_COLUMNS`, times in seconds."""
    lines = [_prediction_row(each, prediction) for each in found for prediction in each.predictions]
    return _table(found, lines, PREDICTION_COLUMNS)


def _table(found: Sequence[Extremes], lines: Sequence[dict[str, Any]], types: Schema) -> pd.DataFrame:
    factors = FACTOR_TYPES if any(each.times.factors for each in found) else {}
    return table(lines, {**factors, **types})


def _fit_row(found: Extremes, fit: Fit) -> dict[str, Any]:
    estimates = {
        "block_seconds": found.block_seconds,
        "spread_seconds": found.spread,
        "tail_location": fit.location,
        "tail_scale": fit.scale,
        "tail_shape": fit.shape,
    }
    return {
        **found.times.factors,
        "source": found.times.source,
        "blocks": len(np.unique(found.times.block)),
        "instances": len(found.times),
        "ranks": found.times.ranks,
        "group_size": found.group_size,
        "maxima": len(found.maxima),
        "centring": found.centring,
        "distribution": fit.distribution,
        **_columns(estimates),
        "likelihood_location": float(fit.likelihood.location),
        "likelihood_scale": float(fit.likelihood.scale),
        "likelihood_shape": float(fit.likelihood.shape),
        **fit.goodness._asdict(),
        "tail": found.tail,
        "reason": fit.reason,
    }


def _prediction_row(found: Extremes, prediction: Prediction) -> dict[str, Any]:
    estimates = {"tau": prediction.tau, "measured_seconds": prediction.measured, "error": prediction.error}
    return {
        **found.times.factors,
        "source": found.times.source,
        "predicted_ranks": prediction.ranks,
        "distribution": prediction.distribution,
        "k": prediction.k,
        **_columns(estimates),
        "likelihood_tau": prediction.likelihood,
        "collective_seconds": prediction.waits,
        "reason": prediction.reason,
    }


def _columns(estimates: dict[str, Estimate]) -> dict[str, float]:
    return {name: value for key, estimate in estimates.items() for name, value in estimate.columns(key).items()}


def document(found: Sequence[Extremes], seed: int, notes: Sequence[str]) -> Document:
    """What `dlbench extremes --json` prints: dlbench (version), seed, notes, and rows of `fits` and `predictions`."""
    return {
        "dlbench": __version__,
        "seed": seed,
        "notes": list(notes),
        FITS.name: rows(fits(found)),
        PREDICTIONS.name: rows(predictions(found)),
    }


_Number: TypeAlias = Annotated[float, Meta(gt=-(2.0**63), lt=2.0**63)]
_Positive: TypeAlias = Annotated[float, Meta(ge=1e-30, lt=2.0**63)]
_Ranks: TypeAlias = Annotated[int, Meta(ge=2, le=2**63 - 1)]


class _FitRow(msgspec.Struct):
    """What the bandwidth law takes of a row of `fits`."""

    source: str
    distribution: str
    group_size: _Ranks
    block_seconds: _Positive
    spread_seconds: _Positive
    tail_location: _Number
    tail_scale: _Positive
    tail_shape: Annotated[float, Meta(ge=-100, lt=2.0**63)]
    reason: str = ""
    scale: _Positive = 1.0
    time_scale: _Positive = 1.0


class _PredictionRow(msgspec.Struct):
    """What it takes of a row of `predictions`."""

    source: str
    distribution: str
    predicted_ranks: _Ranks
    tau: _Number | None
    tau_low: _Number | None
    tau_high: _Number | None

    def estimate(self) -> Estimate:
        """The wait; NaN where there is none, or no interval."""
        return Estimate(*(math.nan if number is None else number for number in (self.tau, self.tau_low, self.tau_high)))


class _Document(msgspec.Struct):
    fits: list[_FitRow]
    predictions: list[_PredictionRow]
    notes: list[str] = []


@dataclass(frozen=True, slots=True)
class Fitted:
    """What the bandwidth law takes of a fit."""

    source: str
    """Whose block times were fitted."""
    taxes: list[Tax]
    """One per distribution."""
    block: float
    """a: mean block time, seconds."""
    domains: list[int]
    """Ranks for which the waits have intervals."""
    notes: list[str]
    """What is to know of the fit: what its file says of it, and of which scale its waits are."""


def read_fit(path: Path, source: str | None = None) -> Fitted:
    """The fit that a document of `dlbench extremes --json` holds; `source` chooses a group where it has several.

    Raises `OptionError` where the file is no such document, or has not one fit.
    """
    try:
        document = msgspec.json.decode(path.read_bytes(), type=_Document)
    except OSError as error:
        raise OptionError(f"{path}: cannot be read: {error.strerror}; write it with dlbench extremes --json") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OptionError(f"{path}: no output of dlbench extremes --json: {error}") from None
    fitted = [row for row in document.fits if source in (None, row.source)]
    if not fitted or len(fitted) != len({row.distribution for row in fitted}):
        raise OptionError(
            f"{path}: not one fit{'' if source is None else f' of {source!r}'}; {_which(document, fitted, source)}"
        )
    taxes = [_tax(row, document.predictions) for row in fitted]
    domains = set.intersection(*(set(tax.intervals) for tax in taxes))
    return Fitted(fitted[0].source, taxes, fitted[0].block_seconds, sorted(domains), _notes(document, fitted[0]))


def _notes(document: _Document, fitted: _FitRow) -> list[str]:
    """The notes of the document but for those of other groups, and one where its runs were scaled."""
    others = tuple(f"{row.source}: " for row in document.fits if row.source != fitted.source)
    said = scaled_waits(fitted.scale, fitted.time_scale)
    return [*(note for note in document.notes if not note.startswith(others)), *([said] if said else [])]


def scaled_waits(scale: float, time_scale: float) -> str:
    """What to know of waits, and of B*, where messages or computation of the runs were scaled; empty where not."""
    scales = {"scale": scale, "time scale": time_scale}
    scaled = ", ".join(f"{name} {factor:g}" for name, factor in scales.items() if factor != 1)
    return f"times are those of scaled runs ({scaled}), and so are waits and B*" if scaled else ""


def _which(document: _Document, fitted: Sequence[_FitRow], source: str | None) -> str:
    """How one fit can be chosen."""
    if len({row.source for row in fitted}) == 1:
        return f"{fitted[0].source} is of several configurations; fit one with dlbench extremes --where"
    names = ", ".join(dict.fromkeys(row.source for row in document.fits)) or "none"
    return f"choose one of its groups with --source: {names}" if source is None else f"its groups are {names}"


def _tax(row: _FitRow, predictions: Sequence[_PredictionRow]) -> Tax:
    intervals = {
        each.predicted_ranks: each.estimate()
        for each in predictions
        if (each.source, each.distribution) == (row.source, row.distribution)
    }
    for ranks, (tau, low, high) in intervals.items():
        if tau < low or high < tau:
            raise OptionError(
                f"{row.distribution}: a wait of {tau:g} s for {ranks} ranks is not in {low:g} to {high:g} s"
            )
    return Tax(
        name=row.distribution,
        tail=Tail.of(row.tail_location, row.tail_scale, row.tail_shape),
        spread=row.spread_seconds,
        group_size=row.group_size,
        intervals=intervals,
        beware=row.reason,
    )


def taxes(found: Extremes) -> list[Tax]:
    """The waits of a fit as the bandwidth law takes them, one per distribution."""
    return [
        Tax(
            name=name,
            tail=fit.tail,
            spread=found.spread.value,
            group_size=found.group_size,
            intervals={each.ranks: each.tau for each in found.predictions if each.distribution == name},
            beware=fit.reason,
        )
        for name, fit in found.fits.items()
    ]


def with_intervals(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame of a law, without intervals unless every wait in it has one: those without a tax are no estimates."""
    ends = [name for name in frame if str(name).endswith(("_low", "_high"))]
    waits = frame.loc[frame["tax"] != NO_TAX, ends]
    return frame.drop(columns=ends) if waits.empty or waits.isna().any(axis=None) else frame
