"""What made ranks late, in tables: the culprits by class and by name, and how well the paths explain the tax."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from dlbench.analysis.campaign import Schema
from dlbench.analysis.critical_path import determination
from dlbench.analysis.samples import table
from dlbench.analysis.tables import Layout

COMMAND = "tax"
"""Command that writes the tables of the tax."""

_RUN: Schema = {"run": np.int32, "run_id": str}
_BLAMED: Schema = {
    **dict.fromkeys(("times", "explained"), np.int64),
    **dict.fromkeys(("blamed", "taxed", "blamed_share"), np.float64),
    "culprit_rank": np.int32,
    "culprit_rank_share": np.float64,
}
CULPRIT_CLASSES: Schema = {
    **_RUN,
    "culprit_class": str,
    **dict.fromkeys(("path_difference", "path_share"), np.float64),
    "explained": np.int64,
    "times": np.int64,
}
CULPRITS: Schema = {**_RUN, "culprit_class": str, "culprit": str, "culprit_idle": bool, **_BLAMED}
PATHS: Schema = {
    **_RUN,
    "name": str,
    **dict.fromkeys(("collectives", "explained"), np.int64),
    **dict.fromkeys(("determination", "determination_busy", "gap_share", "gap", "end_skew", "window"), np.float64),
}

CLASS_TABLE = Layout(
    name="culprit_classes",
    title="What made ranks late, by class",
    about="What the critical path of the last rank has more of than that of the first, summed over all collectives "
    "with a tax that the clocks can tell and a path (explained); of tax: as a share of their tax. Shares add "
    "up to what the paths predict: one is above 100 % where others are below 0, of which the first rank's path"
    " has more. times: collectives of which the culprit is of the class.",
    first=("run_id",),
    key=("culprit_class",),
    measures=("path_difference", "path_share", "times", "explained"),
    empty="no path was found",
    command=COMMAND,
)
CULPRIT_TABLE = Layout(
    name="culprits",
    title="What made ranks late",
    about="The culprit of a collective is what makes the largest difference between these paths. times: collectives "
    "of which it is the culprit. blamed: by how much it took longer on the last rank, in all; of tax: as a "
    "share of the tax of these collectives, above 100 % where something else on the first rank made up for it."
    " rank: where that was most often, and in which share of the times. Class idle: the time before what is "
    "named, which nothing covers.",
    first=("run_id",),
    key=("culprit_class", "culprit"),
    measures=("times", "explained", "blamed", "blamed_share", "culprit_rank", "culprit_rank_share"),
    empty="no culprit was found",
    command=COMMAND,
)
PATH_TABLE = Layout(
    name="paths",
    title="How well the paths explain the tax",
    about="R²: of the difference in length of the paths of the last and the first rank, and the tax; close to 1 by "
    "construction where ranks leave together. R² busy: the same without idle time, which nothing explains. R² "
    "is below 0 where the difference is further from the tax than the tax is from its own mean: then it "
    "explains nothing. gap: the median of the idle time in that difference; of tax: its sum as a share of the "
    "sum of the tax, above 100 % where the last rank idled longer than it was late and was busy for less. end "
    "skew: between the first and the last rank to leave.",
    first=("run_id",),
    key=("name",),
    measures=("collectives", "explained", "determination", "determination_busy", "gap", "gap_share", "end_skew"),
    empty="no collective was explained",
    command=COMMAND,
)


PREDICTED = (
    *("predicted", "gap", "end_skew"),
    *("culprit_class", "culprit", "culprit_rank", "culprit_number", "culprit_seconds"),
)
"""What a path says of one collective."""
PREDICTED_ABOUT = (
    "predicted: by how much the path of the last rank is longer than that of the first; gap: of that, idle time. "
    "blamed: by how much the culprit took longer on the rank."
)


def culprit_classes(collectives: pd.DataFrame, classes: Sequence[Mapping[str, float]]) -> pd.DataFrame:
    """One row per run and class, columns `CULPRIT_CLASSES`, the largest difference first.

    `classes` are those of `Explained`, of each row of `collectives`.
    """
    found = []
    for (run, run_id), rows in _known(collectives).groupby(["run", "run_id"], sort=False):
        differences: Counter[str] = Counter()
        for number in rows.index.tolist():
            differences.update(classes[number])
        times = rows["culprit_class"].value_counts()
        for name, seconds in differences.most_common():
            share = {"path_difference": seconds, "path_share": seconds / rows["tau_range"].sum()}
            counts = {"explained": len(rows), "times": times.get(name, 0)}
            found.append({"run": run, "run_id": run_id, "culprit_class": name, **share, **counts})
    return table(found, CULPRIT_CLASSES)


def culprits(collectives: pd.DataFrame) -> pd.DataFrame:
    """One row per run and culprit, columns `CULPRITS`, the most blamed first."""
    known = _known(collectives)
    explained = known.groupby("run").size().to_dict()
    by = ["run", "run_id", "culprit_class", "culprit", "culprit_idle"]
    rows = [
        {**dict(zip(by, values, strict=True)), "explained": explained[values[0]], **_blamed(part)}
        for values, part in known[known["culprit"] != ""].groupby(by, sort=False)
    ]
    return table(rows, CULPRITS).sort_values("blamed", ascending=False, kind="stable", ignore_index=True)


def paths(collectives: pd.DataFrame) -> pd.DataFrame:
    """One row per run and communication class, columns `PATHS`."""
    found = [
        {"run": run, "run_id": run_id, "name": name, "collectives": len(rows), **_fit(rows)}
        for (run, run_id, name), rows in collectives.groupby(["run", "run_id", "name"], sort=False)
        if rows["predicted"].notna().any()
    ]
    return table(found, PATHS)


def _known(collectives: pd.DataFrame) -> pd.DataFrame:
    """Those with a path, whose tax the clocks can tell."""
    return collectives[collectives["resolved"] & collectives["predicted"].notna()]


def _blamed(rows: pd.DataFrame) -> dict[str, Any]:
    ranks = rows["culprit_rank"].value_counts()
    blamed, taxed = rows["culprit_seconds"].sum(), rows["tau_range"].sum()
    return {
        "times": len(rows),
        "blamed": blamed,
        "taxed": taxed,
        "blamed_share": blamed / taxed,
        "culprit_rank": ranks[ranks == ranks.max()].index.min(),
        "culprit_rank_share": ranks.max() / len(rows),
    }


def _fit(rows: pd.DataFrame) -> dict[str, Any]:
    known = rows[rows["predicted"].notna()]
    measured, predicted, gap = (known[name].to_numpy() for name in ("tau_range", "predicted", "gap"))
    taxed = measured.sum()
    return {
        "explained": len(known),
        "determination": determination(measured, predicted),
        "determination_busy": determination(measured, predicted - gap),
        "gap_share": gap.sum() / taxed if taxed else np.nan,
        "gap": np.median(gap),
        "end_skew": known["end_skew"].median(),
        "window": known["window"].median(),
    }
