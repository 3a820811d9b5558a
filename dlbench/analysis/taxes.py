"""The synchronisation tax of runs, or of a job's traces, in tables: per class, group, iteration, run and straggler.

Collectives of one iteration are not independent, since a rank that is late is late for all that follow. So estimates
are over iterations, as everywhere in the analysis, and what is estimated is first made one number of an iteration.
Traces know no iterations: there each collective counts as one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dlbench.analysis.bootstrap import mean, ratio_of_sums
from dlbench.analysis.campaign import FACTORS, Schema
from dlbench.analysis.columns import counted
from dlbench.analysis.culprit_tables import (
    CLASS_TABLE,
    COMMAND,
    CULPRIT_TABLE,
    PATH_TABLE,
    PREDICTED,
    PREDICTED_ABOUT,
    culprit_classes,
    culprits,
    paths,
)
from dlbench.analysis.persistence import persistence
from dlbench.analysis.samples import FACTOR_TYPES, Samples, estimate_types, median, table
from dlbench.analysis.sync_tax import UNRESOLVED, GroupTax, frame
from dlbench.analysis.tables import Layout, Table, build
from dlbench.errors import OptionError
from dlbench.quantities import duration

_TAIL = 0.95
_NANOSECOND = 1e-9
_SUMMED = ("tau_range", "tau_med", "stay_first", "stay_median")
_BELOW = "unresolved: the median tau range does not exceed the error of its times"

MEASURES: Schema = {
    **dict.fromkeys(("collectives", "resolved"), np.int64),
    **estimate_types("tau_range"),
    "tau_range_p95": np.float64,
    **estimate_types("tau_med"),
    "tau_med_p95": np.float64,
    **estimate_types("tau_mean"),
    **dict.fromkeys(("transfer", "exposed"), np.float64),
    **estimate_types("share_first", "share_median"),
    "uncertainty": np.float64,
    "reason": str,
}
"""What is said of any set of collectives."""

STRAGGLING: Schema = {
    "known": np.int64,
    "straggler": np.int32,
    **dict.fromkeys(("straggler_share", "straggler_p"), np.float64),
    "stretches": np.int64,
    **dict.fromkeys(("expected_stretches", "stretches_p"), np.float64),
    **dict.fromkeys(("verdict", "persistence"), str),
}
"""What is said of the stragglers of a group; `persistence` is the verdict in words."""

_ROWS = (*FACTORS, "concurrent")
CLASSES: Schema = {
    **FACTOR_TYPES,
    "concurrent": bool,
    "name": str,
    **dict.fromkeys(("runs", "iterations"), np.int64),
    "groups": np.int64,
    **MEASURES,
}
_RUN: Schema = {"run": np.int32, "run_id": str}
GROUPS: Schema = {
    **_RUN,
    "name": str,
    "group": str,
    "ranks": np.int64,
    "iterations": np.int64,
    **MEASURES,
    **STRAGGLING,
}
ITERATIONS: Schema = {
    **_RUN,
    "iteration": np.int32,
    **dict.fromkeys(("collectives", "resolved"), np.int64),
    **dict.fromkeys(("tau_range", "tau_range_max", "tau_med", "tau_mean", "share_first"), np.float64),
    "straggler": np.int32,
}
RUN_ROWS: Schema = {**_RUN, "iterations": np.int64, **MEASURES}
STRAGGLERS: Schema = {
    **_RUN,
    "rank": np.int32,
    **dict.fromkeys(("times", "known"), np.int64),
    **dict.fromkeys(("straggler_share", "caused", "tau_range"), np.float64),
}


_TESTS = ("straggler_p", "stretches_p", "verdict")
_OF_RECORDS = {"runs", "iterations", "iteration", "exposed", "more"}
"""Columns that say nothing of traces."""
_COUNTS = ("collectives", "resolved")
_TAXES = ("tau_range", "tau_range_p95", "tau_med", "tau_mean", "transfer", "exposed", "share_first", "share_median")

_ABOUT_WAITS = (
    "communication class: how long ranks wait in a collective for the last of their group to come. tau range: the "
    "first to come; tau med: the median rank; tau mean: all ranks on average."
)
_ABOUT_SHARES = (
    "of first, of median: waiting as a share of the time in collectives. uncertainty: what the clocks cannot tell."
)

TAX = Layout(
    name="tax",
    title="Synchronisation tax",
    about=f"Per configuration and {_ABOUT_WAITS} Medians over iterations, tau mean a mean. exposed: what of the "
    f"longest wait a rank spent doing nothing else. {_ABOUT_SHARES}",
    key=("name",),
    measures=("runs", "iterations", "groups", *_COUNTS, *_TAXES, "uncertainty"),
    empty="no run recorded its ops, which dlbench run --record-ops does",
    command=COMMAND,
)
TAX_OF_TRACES = replace(TAX, about=f"Per {_ABOUT_WAITS} Medians, tau mean a mean. {_ABOUT_SHARES}")
GROUP_TAX = Layout(
    name="groups",
    title="Groups and their stragglers",
    about="straggler: the rank that came last most often, of the collectives whose straggler the clocks can tell "
    "(known); p last: of that by chance. stretches: runs of the same straggler, beside what chance gives; p stretches: "
    "of as few or as many by chance. verdict: p last < 0.05, one rank persists; otherwise p stretches < 0.05, the last "
    "rank tends to be last again (in stretches) or not (alternates); otherwise it wanders.",
    first=("run_id",),
    key=("name", "group"),
    measures=(
        *(*_COUNTS, "tau_range", "tau_range_p95", "share_first", "share_median", "uncertainty"),
        *("known", "straggler", "straggler_share", "stretches", "expected_stretches", *_TESTS),
    ),
    together=_TESTS,
    empty="no collectives",
    command=COMMAND,
)
STRAGGLER_TAX = Layout(
    name="stragglers",
    title="Stragglers",
    about="Ranks that came last, by what the others waited for them in all. last in: share of the collectives of the "
    "rank's groups whose straggler the clocks can tell.",
    first=("run_id",),
    key=("rank",),
    measures=("times", "known", "straggler_share", "caused", "tau_range"),
    empty="the clocks can tell no straggler",
    command=COMMAND,
)
LARGEST = Layout(
    name="largest",
    title="Collectives with the largest tax",
    about="place: the collective's number among those of its class and group, in its iteration.",
    first=("run_id",),
    key=("name", "group", "iteration", "place", "buffer"),
    measures=("bytes", "tau_range", "tau_med", "tau_mean", "transfer", "exposed", "uncertainty", "straggler", "more"),
    empty="the clocks can tell no tax",
    command=COMMAND,
    file="collectives",
)
EXPLAINED = replace(
    LARGEST,
    title="Collectives with the largest tax, and why the last rank came late",
    about=f"{LARGEST.about} {PREDICTED_ABOUT}",
    measures=(*LARGEST.measures, *PREDICTED),
)
_ABOUT_EVENTS = (
    "Of those of an iteration with the same straggler only the largest is shown; more: how many others there are."
)


@dataclass(frozen=True, kw_only=True)
class Taxes:
    """The tax of some runs, or of the traces of one job."""

    groups: Sequence[GroupTax]
    runs: pd.DataFrame
    """By number of the run, with `run_id`; of records with the factors of a campaign."""
    notes: Sequence[str]
    """What was dropped and what could not be compared, one line each."""
    seed: int
    traces: Mapping[int, Path] = field(default_factory=dict)
    """File of each rank; none of records."""

    @cached_property
    def collectives(self) -> pd.DataFrame:
        """One row per collective, as `dlbench.analysis.sync_tax.frame`, with the `run_id`."""
        found = frame(self.groups)
        found.insert(1, "run_id", found["run"].map(self.runs["run_id"]).astype(str))
        return found

    @cached_property
    def _counted(self) -> pd.DataFrame:
        """The collectives with `unit`, the number of what counts as one observation."""
        units = self.collectives["iteration"] if self.recorded else np.arange(len(self.collectives))
        return self.collectives.assign(unit=units)

    @cached_property
    def classes(self) -> pd.DataFrame:
        """One row per configuration and communication class, columns `CLASSES`; of traces without factors."""
        factors = [name for name in _ROWS if name in self.runs]
        joined = self._counted.join(self.runs[factors], on="run")
        types = {name: kind for name, kind in CLASSES.items() if name not in _ROWS or name in factors}
        return self._table(joined, [*factors, "name"], types)

    @cached_property
    def by_group(self) -> pd.DataFrame:
        """One row per run, class and group, columns `GROUPS`, the largest median tau_range first."""
        rows = self._table(self._counted, ["run", "run_id", "name", "group", "ranks"], GROUPS, self._straggling)
        return rows.sort_values("tau_range", ascending=False, kind="stable", ignore_index=True)

    @cached_property
    def by_iteration(self) -> pd.DataFrame:
        """One row per run and iteration, columns `ITERATIONS`: medians, the largest tau_range, the mean tau_mean.

        `straggler` is the rank that was last most often, the lowest of equals; -1 where none is resolved. Traces have
        one row.
        """
        by = ["run", "run_id", "iteration"]
        grouped = self.collectives.groupby(by, sort=False)
        resolved = self.collectives[self.collectives["straggler"] != UNRESOLVED]
        often = resolved.groupby(by, sort=False)["straggler"].agg(lambda ranks: ranks.mode().iloc[0])
        found = grouped.agg(
            collectives=("name", "size"),
            resolved=("resolved", "sum"),
            tau_range=("tau_range", "median"),
            tau_range_max=("tau_range", "max"),
            tau_med=("tau_med", "median"),
            tau_mean=("tau_mean", "mean"),
        )
        found["share_first"] = grouped["tau_range"].sum() / grouped["stay_first"].sum()
        found["straggler"] = often.reindex(found.index, fill_value=UNRESOLVED)
        return found.reset_index()[list(ITERATIONS)].astype(ITERATIONS)

    @cached_property
    def by_run(self) -> pd.DataFrame:
        """One row per run, columns `RUN_ROWS`."""
        return self._table(self._counted, ["run", "run_id"], RUN_ROWS)

    @cached_property
    def stragglers(self) -> pd.DataFrame:
        """One row per run and rank that came last in any collective, columns `STRAGGLERS`, what it caused descending.

        `times` it was last and resolved, of `known` collectives of its groups with a resolved straggler; `caused` is
        the time that all other ranks together waited in these, `tau_range` the median of these.
        """
        rows = [row for tax_run, taxes in self._by_run_number() for row in self._stragglers_of(tax_run, taxes)]
        return table(rows, STRAGGLERS).sort_values("caused", ascending=False, kind="stable", ignore_index=True)

    @cached_property
    def culprit_classes(self) -> pd.DataFrame:
        """One row per run and class of culprits, as `dlbench.analysis.culprit_tables`."""
        classes = [
            each
            for tax in self.groups
            for each in ([{}] * len(tax.collectives) if tax.explained is None else tax.explained.classes)
        ]
        return culprit_classes(self.collectives, classes)

    @cached_property
    def culprits(self) -> pd.DataFrame:
        """One row per run and culprit, as `dlbench.analysis.culprit_tables`."""
        return culprits(self.collectives)

    @cached_property
    def paths(self) -> pd.DataFrame:
        """One row per run and class with explained collectives, as `dlbench.analysis.culprit_tables`."""
        return paths(self.collectives)

    @property
    def explained(self) -> bool:
        """Whether it was asked why ranks came late."""
        return any(tax.explained is not None for tax in self.groups)

    @property
    def recorded(self) -> bool:
        """Whether it is the tax of run records, and not that of traces."""
        return "strategy" in self.runs

    @property
    def uncertainty(self) -> float:
        """Largest error of a tau_range, seconds; NaN without collectives."""
        return float(self.collectives["uncertainty"].max())

    @property
    def clocks(self) -> str:
        """What the clocks can tell, in words."""
        error = self.uncertainty
        known = "ranks read one clock" if error < _NANOSECOND else f"waits are known to {duration(error)}"
        unresolved = int((~self.collectives["resolved"]).sum())
        return f"{known}; {counted(unresolved, 'collective')} unresolved"

    def largest(self, count: int) -> pd.DataFrame:
        """The collectives with the largest resolved tau_range, that first."""
        resolved = self.collectives[self.collectives["resolved"]]
        return resolved.nlargest(count, "tau_range").reset_index(drop=True)

    def events(self) -> pd.DataFrame:
        """The collectives with the largest resolved tau_range, of each iteration one per straggler.

        A rank that is late once is last in collective after collective: `more` is how many others there are. Traces
        know no iterations, and have them all.
        """
        found = self.largest(len(self.collectives))
        if not self.recorded:
            return found
        event = ["run", "iteration", "straggler"]
        more = found.groupby(event)["straggler"].transform("size") - 1
        return found.assign(more=more)[~found.duplicated(event)].reset_index(drop=True)

    def only(self, names: Sequence[str]) -> Taxes:
        """The groups that have one of the names: of a class, a scope or a group. Raises `OptionError` for none."""
        known = dict.fromkeys(name for tax in self.groups for name in _names_of(tax))
        for name in names:
            if name not in known:
                close = get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(map(repr, list(known)[:8]))}"
                raise OptionError(f"no group is named {name!r}; {hint}")
        kept = [tax for tax in self.groups if not set(names).isdisjoint(_names_of(tax))]
        return replace(self, groups=kept)

    def tables(self, top: int, known: Collection[str] = ()) -> Iterator[Table]:
        """The tables that people read: all classes, and the first `top` of groups, stragglers and collectives.

        `known` are factors that need no repetition.
        """
        largest = EXPLAINED if self.explained else LARGEST
        if self.recorded:
            largest = replace(largest, about=f"{largest.about} {_ABOUT_EVENTS}")
        shown = [
            (TAX if self.recorded else TAX_OF_TRACES, self.classes, None),
            (GROUP_TAX, self.by_group, top),
            (STRAGGLER_TAX, self.stragglers, top),
            (largest, self.events(), top),
        ]
        if self.explained:
            shown += [
                (CLASS_TABLE, self.culprit_classes, None),
                (CULPRIT_TABLE, self.culprits, top),
                (PATH_TABLE, self.paths, None),
            ]
        for layout, found, most in shown:
            first = layout.first if len(self.runs) > 1 else ()
            key, measures = (
                tuple(name for name in names if self.recorded or name not in _OF_RECORDS)
                for names in (layout.key, layout.measures)
            )
            samples = layout.samples if self.recorded else "collectives"
            yield build(replace(layout, first=first, key=key, measures=measures, samples=samples), found, known, most)

    def frames(self) -> dict[str, pd.DataFrame]:
        """Every table by the name of its file."""
        return {
            TAX.name: self.classes,
            GROUP_TAX.name: self.by_group,
            STRAGGLER_TAX.name: self.stragglers,
            "iterations": self.by_iteration,
            "runs": self.by_run,
            CLASS_TABLE.name: self.culprit_classes,
            CULPRIT_TABLE.name: self.culprits,
            PATH_TABLE.name: self.paths,
            "collectives": self.collectives,
        }

    def _table(
        self,
        rows: pd.DataFrame,
        by: list[str],
        types: Schema,
        more: Callable[[pd.DataFrame], dict[str, Any]] = lambda _: {},
    ) -> pd.DataFrame:
        found = [
            {**dict(zip(by, values, strict=True)), **measures(part, self.seed), **more(part)}
            for values, part in rows.groupby(by, sort=False)
        ]
        return table(found, types)

    def _straggling(self, rows: pd.DataFrame) -> dict[str, Any]:
        resolved = rows.loc[rows["straggler"] != UNRESOLVED, "straggler"].tolist()
        found = persistence(resolved, int(rows["ranks"].iloc[0]), self.seed)
        return {
            "known": found.count,
            "straggler": found.straggler,
            "straggler_share": found.share,
            "straggler_p": found.p,
            "stretches": found.stretches,
            "expected_stretches": found.expected_stretches,
            "stretches_p": found.stretches_p,
            "verdict": found.verdict.value,
            "persistence": found.words(),
        }

    def _by_run_number(self) -> Iterator[tuple[int, list[GroupTax]]]:
        for run in dict.fromkeys(tax.run for tax in self.groups):
            yield run, [tax for tax in self.groups if tax.run == run]

    def _stragglers_of(self, run: int, taxes: Sequence[GroupTax]) -> Iterator[dict[str, Any]]:
        known: dict[int, int] = {}
        caused: dict[int, list[tuple[float, float]]] = {}
        for tax in taxes:
            straggler = tax.straggler
            resolved = int((straggler != UNRESOLVED).sum())
            known |= {rank: known.get(rank, 0) + resolved for rank in tax.collectives.ranks}
            for rank in set(straggler.tolist()) - {UNRESOLVED}:
                waits = tax.waits[straggler == rank]
                caused.setdefault(rank, []).extend(zip(waits.sum(axis=1), waits.max(axis=1), strict=True))
        for rank in sorted(caused):
            sums, ranges = zip(*caused[rank], strict=True)
            counts = {"times": len(sums), "known": known[rank], "straggler_share": len(sums) / known[rank]}
            measured = {"caused": sum(sums), "tau_range": float(np.median(ranges))}
            yield {"run": run, "run_id": self.runs["run_id"][run], "rank": rank, **counts, **measured}


def measures(rows: pd.DataFrame, seed: int) -> dict[str, Any]:
    """Columns `MEASURES` of some collectives, with the numbers of `runs`, `iterations` and `groups` that they are of.

    Medians over iterations of their medians; `tau_mean` is a mean, `_p95` the 95th percentile of all collectives.
    `share_first` is the sum of tau_range ÷ the sum of the stays of the ranks that waited longest, `share_median` the
    same of tau_med and of the median stays.
    """
    grouped = rows.groupby(["run", "unit"])
    medians, sums = grouped[["tau_range", "tau_med"]].median(), grouped[list(_SUMMED)].sum()
    means = grouped["tau_mean"].mean()
    lengths = tuple(medians.groupby("run", sort=False).size().tolist())

    def samples(column: pd.Series[float]) -> Samples:
        return Samples(np.asarray(column, dtype=np.float64), lengths)

    uncertainty = float(rows["uncertainty"].median())
    tau_range = median(samples(medians["tau_range"]))
    first = ratio_of_sums(samples(sums["tau_range"]), samples(sums["stay_first"]), seed)
    middle = ratio_of_sums(samples(sums["tau_med"]), samples(sums["stay_median"]), seed)
    return {
        "runs": len(lengths),
        "iterations": len(medians),
        "groups": len(rows[["run", "group"]].drop_duplicates()),
        "collectives": len(rows),
        "resolved": int(rows["resolved"].sum()),
        **tau_range.columns("tau_range"),
        "tau_range_p95": float(np.quantile(rows["tau_range"], _TAIL)),
        **median(samples(medians["tau_med"])).columns("tau_med"),
        "tau_med_p95": float(np.quantile(rows["tau_med"], _TAIL)),
        **mean(samples(means), seed).columns("tau_mean"),
        "transfer": rows["transfer"].median(),
        "exposed": rows["exposed"].median(),
        **first.columns("share_first"),
        **middle.columns("share_median"),
        "uncertainty": uncertainty,
        "reason": _BELOW if tau_range.value <= uncertainty else "",
    }


def _names_of(tax: GroupTax) -> list[str]:
    """Names by which a group is chosen: its own, those of its classes, and both halves of these."""
    classes = dict.fromkeys(tax.names)
    return [tax.collectives.group, *classes, *(part for name in classes for part in name.split("/", maxsplit=1))]
