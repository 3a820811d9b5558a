"""Load records from files and folders into a `Campaign`.

What cannot count is listed with its reason, and the rest loads: a damaged file never costs the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from dlbench.analysis.campaign import (
    CLASSES,
    EXCLUDED,
    EXPERIMENT,
    ITERATIONS,
    RANKS,
    RUNS,
    WINDOWS,
    Campaign,
    Schema,
    told_by_header,
)
from dlbench.analysis.extraction import LABEL, Run, Unusable, described, extract, fields, times
from dlbench.analysis.search import search
from dlbench.errors import one_line
from dlbench.records.reader import Record, UnreadableRecord, iterate, read
from dlbench.records.schema import Header

_experiment = itemgetter(*EXPERIMENT)


def load(paths: Sequence[Path], *, progress: Callable[[int, int], None] | None = None) -> Campaign:
    """Load the records that `paths` name: files, and folders, which are searched for `*.jsonl`.

    `progress` is called with (done, total) after every file. A file, and a run, counts once however often it is there.
    Raises `RecordError` for a path that does not exist or cannot be looked at; everything else that cannot be used is
    listed in `excluded`.
    """
    found = search(paths)
    collection = _Collection()
    for place, reason in found.refused:
        collection.exclude(place, reason)
    for done, path in enumerate(found.records, start=1):
        collection.take(path)
        if progress is not None:
            progress(done, len(found.records))
    return collection.campaign(files=len(found.records))


@dataclass(frozen=True, slots=True)
class _Collection:
    """Records as they come in."""

    runs: dict[str, Run] = field(default_factory=dict)
    """By `run_id`."""
    excluded: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, Any] | None] = field(default_factory=list)
    """What the header of each excluded file says of its run, None where it cannot be read."""
    jobs: defaultdict[tuple[Any, ...], set[str]] = field(default_factory=lambda: defaultdict(set))
    """Jobs of each experiment, those of excluded records too."""
    windows: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By `run_id`."""

    def exclude(self, path: Path | str, reason: str, run_id: str = "", header: dict[str, Any] | None = None) -> None:
        """List what counts nowhere."""
        self.headers.append(header)
        fields = {"path": str(path), "run_id": run_id, "reason": reason}
        self.excluded.append({name: one_line(value) for name, value in fields.items()})

    def take(self, path: Path) -> None:
        """Read a file, and keep or exclude its run."""
        try:
            record = read(path)
        except UnreadableRecord as error:
            self.exclude(
                path, error.text if error.line is None else f"line {error.line}: {error.text}", header=_header(path)
            )
            return
        try:
            if record.header.experiment:
                self._place(record)
            self._keep(extract(record))
        except Unusable as error:
            self.exclude(path, str(error), record.header.run_id, told_by_header(described(path, record.header)))

    def _place(self, record: Record) -> None:
        """Note when a job of an experiment was running."""
        job = fields(record.header, (name for name in WINDOWS if name not in {"begin", "end"}))
        self.jobs[_experiment(job)].add(job["job"])
        begins, ends = times(record)
        known = self.windows.get(job["run_id"])
        if len(begins) and (known is None or known["end"] < ends.max()):
            self.windows[job["run_id"]] = job | {"begin": begins.min(), "end": ends.max()}

    def _keep(self, run: Run) -> None:
        """Keep a run; of two records of one run that with more iterations, of equals the first."""
        run_id = run.row["run_id"]
        other = self.runs.get(run_id)
        if other is not None:
            run, other = (run, other) if len(run) > len(other) else (other, run)
            reason = f"the same run as {run.path}, which has {len(run)} iterations; a run counts once"
            self.exclude(other.path, reason, run_id, told_by_header(other.row))
        self.runs[run_id] = run

    def campaign(self, files: int) -> Campaign:
        """All that was kept, as tables."""
        runs = list(self.runs.values())
        for run in runs:
            jobs = self.jobs.get(_experiment(run.row), ())
            run.row["concurrent"] = (run.row["concurrent_jobs"] or len(jobs)) > 1
        _tell_specs_apart([run.row for run in runs])
        labels = sorted({name for run in runs for name in run.row if name.startswith(LABEL)})
        return Campaign(
            runs=_table((run.row for run in runs), RUNS | dict.fromkeys(labels, str)).rename_axis("run"),
            iterations=_joined([run.iterations for run in runs], ITERATIONS),
            ranks=_joined([run.ranks for run in runs], RANKS),
            classes=_joined([run.classes for run in runs], CLASSES),
            windows=_table(self.windows.values(), WINDOWS),
            excluded=_table(self.excluded, EXCLUDED),
            excluded_headers=tuple(self.headers),
            notes=[note for run in runs for note in run.notes],
            run_notes=tuple(tuple(run.notes) for run in runs),
            paths=tuple(run.path for run in runs),
            files=files,
        )


def _header(path: Path) -> dict[str, Any] | None:
    """What the header of a damaged record says of its run."""
    try:
        return told_by_header(described(path, cast(Header, next(iterate(path)))))
    except UnreadableRecord:
        return None


def _tell_specs_apart(rows: Sequence[dict[str, Any]]) -> None:
    """Leave the digest of its specs to a run only where others have specs of the same names with other figures."""
    digests: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        digests.setdefault((row["model"], row["gpu"]), set()).add(row["specs"])
    for row in rows:
        if len(digests[row["model"], row["gpu"]]) == 1:
            row["specs"] = ""


def _table(rows: Iterable[dict[str, Any]], schema: Schema) -> pd.DataFrame:
    """A table of rows; "" where a row lacks a label."""
    rows = list(rows)
    columns = {name: pd.Series([row.get(name, "") for row in rows], dtype=dtype) for name, dtype in schema.items()}
    return pd.DataFrame(columns)


def _joined(parts: Sequence[dict[str, Any]], schema: Schema) -> pd.DataFrame:
    """A table of the runs' columns, one run below the other, with the number of the run in front."""
    lengths = [len(part["iteration"]) for part in parts]
    columns = {"run": np.repeat(np.arange(len(parts), dtype=np.int32), lengths)}
    for name in schema:
        if name != "run":
            # Taken out of the parts, so that a campaign is not in memory twice.
            columns[name] = np.concatenate([np.empty(0, schema[name]), *(part.pop(name) for part in parts)])
    series = {name: pd.Series(columns[name], dtype=dtype, copy=False) for name, dtype in schema.items()}
    return pd.DataFrame(series, copy=False)
