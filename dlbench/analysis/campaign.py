"""A campaign: the runs of any number of records as tidy tables.

Times are float64 seconds; `begin`, `end` and `start` are Unix times by the clock model in force, which runs of several
machines can be compared on. `run`, `iteration` and `rank` are int32; `run` is the index of `runs` and stays the same in
every selection.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dlbench.analysis.condition import matching
from dlbench.errors import OptionError, RecordError
from dlbench.records.reader import OpsReader, read_ops

KEY = ("system", "strategy", "model", "gpus", "placement")
"""Factors that every table shows."""

FACTORS = (
    *KEY,
    *("mode", "pp", "tp", "ep", "sharding", "dtype", "gpu", "local_batch", "microbatches", "sequence_length"),
    *("buckets", "units", "scale", "time_scale", "compute", "precision", "backend", "library", "buffers", "persistent"),
    *("sync", "progress", "delay", "specs", "simulated"),
)
"""Columns of `runs` that define a configuration: runs are pooled only where all of them are equal."""

EXPERIMENT = ("simulated", "system", "experiment")
"""Columns that name an experiment: its jobs can have run beside each other."""

Schema: TypeAlias = dict[str, Any]
"""Columns of a table and their NumPy types."""

RUNS: Schema = {
    **dict.fromkeys(("run_id", "path", "created"), str),
    "simulated": bool,
    **dict.fromkeys(("system", "strategy", "model"), str),
    **dict.fromkeys(("gpus", "replicas"), np.int64),
    "placement": str,
    **dict.fromkeys(("pp", "tp", "ep", "sharding"), np.int64),
    **dict.fromkeys(("dtype", "gpu"), str),
    **dict.fromkeys(("local_batch", "microbatches", "sequence_length", "buckets", "units"), np.int64),
    **dict.fromkeys(("scale", "time_scale"), np.float64),
    **dict.fromkeys(("compute", "precision", "backend", "library", "buffers"), str),
    "persistent": bool,
    **dict.fromkeys(("sync", "progress", "delay", "specs", "experiment", "job"), str),
    "concurrent_jobs": np.int64,
    "concurrent": bool,
    "mode": str,
    **dict.fromkeys(("nodes", "seed", "samples"), np.int64),
    "ideal_seconds": np.float64,
    **{"has_ops": bool, "energy_source": str},
    **dict.fromkeys(("status", "reason"), str),
    **dict.fromkeys(("warmups", "measured"), np.int64),
    **dict.fromkeys(("begin", "end"), np.float64),
}
"""Columns of `Campaign.runs`; a column `label_KEY` follows for every label but `mode`, "" where a run lacks it."""

_ITERATION: Schema = {"run": np.int32, "iteration": np.int32, "warmup": bool}

ITERATIONS: Schema = {
    **_ITERATION,
    **dict.fromkeys(("start", "end", "seconds", "throughput", "communication", "hidden", "skew"), np.float64),
    "late": np.int32,
    **dict.fromkeys(("joules", "gpu_seconds"), np.float64),
}
RANKS: Schema = {
    **_ITERATION,
    "rank": np.int32,
    **dict.fromkeys(("skew", "runtime", "sync_time", "compute", "overrun", "issue"), np.float64),
}
CLASSES: Schema = {**_ITERATION, "name": str, **dict.fromkeys(("seconds", "mean", "share"), np.float64)}
WINDOWS: Schema = {
    "simulated": bool,
    **dict.fromkeys(("system", "experiment", "job", "run_id"), str),
    **dict.fromkeys(("begin", "end"), np.float64),
}
EXCLUDED: Schema = dict.fromkeys(("path", "run_id", "reason"), str)

_SHOWN_REASONS = 3
_NOT_OF_A_HEADER = {"status", "reason", "specs", "concurrent", "warmups", "measured", "begin", "end"}
"""Columns of a run that its iterations or other runs decide."""
_LABEL = "label_"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Campaign:
    """Valid runs in four tables, and what was left out of them."""

    runs: pd.DataFrame
    """One row per run, columns `RUNS`.

    `delay` is what was injected, as `--delay` takes it, e.g. `1:8:40`; `specs` tells apart models and GPUs of one name
    whose figures differ, and is empty where none do. `samples` are those of an iteration, `nodes` distinct hosts,
    `begin` and `end` those of the first and the last iteration with warm-ups, `status` completed, terminated or killed.
    `concurrent` tells whether other jobs of the experiment may have run at the same time; a
    baseline is a run that is not.
    """
    iterations: pd.DataFrame
    """One row per iteration, columns `ITERATIONS`.

    `seconds` of the slowest rank; `communication` and `hidden` as in `dlbench.records.measures`; `late` counts ranks.
    `joules` are those of all GPUs, `gpu_seconds` their added up time; NaN where not every GPU told its energy.
    """
    ranks: pd.DataFrame
    """One row per iteration and rank, columns `RANKS`: the record's seconds."""
    classes: pd.DataFrame
    """One row per iteration and communication class, columns `CLASSES`.

    `name` such as allreduce/world, `seconds` the maximum over ranks, `mean` over ranks, `share` the maximum over ranks
    of its seconds / runtime.
    """
    windows: pd.DataFrame
    """When the jobs of experiments were running, columns `WINDOWS`: one row per record that names an experiment.

    Never filtered, and with excluded records: a failed job, too, was there and loaded the network until it failed.
    """
    excluded: pd.DataFrame
    """One row per file or run that counts nowhere, columns `EXCLUDED`; `run_id` is "" where the header is unknown."""
    excluded_headers: tuple[dict[str, Any] | None, ...]
    """What the header of each row of `excluded` says of its run, by columns of `runs`; None where it is not known."""
    notes: list[str]
    """What a reader of the tables must know, one line each."""
    run_notes: tuple[tuple[str, ...], ...]
    """Those of them that each run brings, by its number."""
    paths: tuple[Path, ...]
    """Record of each run by its number, with all bytes of its name: `runs.path` is that name as it can be printed."""
    files: int
    """Files that were found."""

    def require_runs(self) -> Campaign:
        """The campaign itself. Raises `RecordError` where it has no valid run: how many files, and why none is."""
        if len(self.runs):
            return self
        found = f"{self.files} file{'' if self.files == 1 else 's'}"
        if self.paths:
            raise RecordError(f"no run is left: {len(self.paths)} valid in {found}, and none of them was selected")
        raise RecordError(f"no valid run in {found}; {few(self.reasons())}")

    def reasons(self) -> list[str]:
        """Why files and runs are excluded, one line each."""
        return [f"{row.path}: {row.reason}" for row in self.excluded.itertuples()]

    def select(
        self,
        *,
        strategy: Sequence[str] = (),
        system: Sequence[str] = (),
        model: Sequence[str] = (),
        where: str | None = None,
    ) -> Campaign:
        """The runs that have one of the named values in each column, and for which `where` holds.

        `where` is a condition over the columns of `runs`, e.g. `gpus >= 64` (`dlbench.analysis.condition`). Raises
        `OptionError` for a value that no run has and an expression that is no condition. Notes and
        excluded files of other runs are left out; a note counts the files of which that cannot be told.
        """
        kept = pd.Series(True, index=self.runs.index)
        wanted = {
            column: list(values)
            for column, values in (("strategy", strategy), ("system", system), ("model", model))
            if values
        }
        for column, values in wanted.items():
            _check_values(self.runs[column], values)
            kept &= self.runs[column].isin(values)
        if where is not None:
            kept &= matching(self.runs, where)
        chosen = self._only(kept)
        return chosen._excluding(wanted, where) if wanted or where is not None else chosen

    def separate(self, *, mix_scaled: bool = False, mix_simulated: bool = False) -> Campaign:
        """Live runs without simulated ones, and unscaled runs without scaled ones.

        Where both are there, simulated and then scaled runs are excluded, unless they are to be mixed in: in rows of
        their own, since `simulated`, `scale` and `time_scale` are factors. Notes say what was done.
        """
        live = self._without("simulated", "live", self.runs["simulated"], "--mix-simulated", mix_simulated)
        scaled = (live.runs["scale"] != 1) | (live.runs["time_scale"] != 1)
        return live._without("scaled", "unscaled", scaled, "--mix-scaled", mix_scaled)

    def ops(self, run: int) -> OpsReader:
        """The ops arrays of a run, memory-mapped. Raises `RecordError` where it recorded none."""
        return read_ops(self.paths[run])

    def _without(self, kind: str, other: str, those: pd.Series[bool], flag: str, mixed: bool) -> Campaign:
        """Exclude `those` runs, which are of a kind that is never mixed with the other, unless it was asked for."""
        count = int(those.sum())
        if not count:
            return self
        runs = f"{count} {kind} run{'' if count == 1 else 's'}"
        if count == len(self.runs):
            return dataclasses.replace(self, notes=[*self.notes, f"all runs are {kind}"])
        if mixed:
            note = f"{runs} beside {other} ones, in rows of their own ({flag})"
            return dataclasses.replace(self, notes=[*self.notes, note])
        left_out = self.runs.loc[those, ["path", "run_id"]]
        reason = f"{kind}, and never mixed with {other} runs; {flag} brings it in"
        excluded = pd.concat([self.excluded, left_out.assign(reason=reason)], ignore_index=True)
        note = f"{runs} excluded beside {other} ones; {flag} brings them in"
        headers = (told_by_header(row) for row in self.runs[those].to_dict("records"))
        kept = self._only(~those)
        return dataclasses.replace(
            kept,
            excluded=excluded,
            excluded_headers=(*self.excluded_headers, *headers),
            notes=[*kept.notes, note],
        )

    def _excluding(self, wanted: Mapping[str, Sequence[str]], where: str | None) -> Campaign:
        """The campaign, with only those excluded files that are known to match."""
        known = {place: header for place, header in enumerate(self.excluded_headers) if header is not None}
        frame = pd.DataFrame(list(known.values()), index=list(known))
        for label in (name for name in self.runs if str(name).startswith(_LABEL)):
            frame[label] = frame[label].fillna("") if label in frame else ""
        for column, values in wanted.items():
            frame = frame[frame[column].isin(list(values))] if len(frame) else frame
        unknown = len(self.excluded) - len(known)
        if where is not None and len(frame):
            try:
                frame = frame[matching(frame, where)]
            except OptionError:  # it asks for what no header tells
                unknown += len(frame)
                frame = frame.iloc[:0]
        places = [int(place) for place in frame.index]
        files = f"{unknown} excluded file{'' if unknown == 1 else 's'}"
        note = f"of {files} it is not known whether the filters choose them; without filters, reasons are listed"
        return dataclasses.replace(
            self,
            excluded=self.excluded.iloc[places].reset_index(drop=True),
            excluded_headers=tuple(self.excluded_headers[place] for place in places),
            notes=[*self.notes, *([note] if unknown else [])],
        )

    def _only(self, kept: pd.Series[bool]) -> Campaign:
        """The runs for which `kept`, by run number, is true."""
        if kept.all():
            return self
        runs = self.runs[kept]
        chosen = np.zeros(len(self.paths), dtype=bool)
        chosen[runs.index] = True
        dropped = {note for run in np.flatnonzero(~chosen) for note in self.run_notes[run]}
        return dataclasses.replace(
            self,
            runs=runs,
            notes=[note for note in self.notes if note not in dropped],
            iterations=_rows(self.iterations, chosen),
            ranks=_rows(self.ranks, chosen),
            classes=_rows(self.classes, chosen),
        )


def told_by_header(row: Mapping[Any, Any]) -> dict[str, Any]:
    """What of a run's row its header tells."""
    return {str(name): value for name, value in row.items() if name not in _NOT_OF_A_HEADER}


def few(reasons: Sequence[str]) -> str:
    """The first of the reasons, and how many more there are."""
    more = len(reasons) - _SHOWN_REASONS
    return "; ".join([*reasons[:_SHOWN_REASONS], *([f"and {more} more"] if more > 0 else [])])


def _rows(frame: pd.DataFrame, chosen: NDArray[np.bool_]) -> pd.DataFrame:
    """Rows of the runs whose entry in `chosen` is true."""
    found: pd.DataFrame = frame[chosen[frame["run"].to_numpy()]]
    return found.reset_index(drop=True)


def _check_values(column: pd.Series[Any], values: Sequence[str]) -> None:
    there = sorted(set(column))
    for value in values:
        if there and value not in there:
            close = get_close_matches(value, there, n=1)
            hint = f"did you mean {close[0]}?" if close else f"the runs have {', '.join(map(repr, there))}"
            raise OptionError(f"no run has {column.name} {value!r}; {hint}")
