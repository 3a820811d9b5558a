"""The synchronisation tax: how long the ranks of a group wait in each collective for the last of them to come.

With a global clock the wait of rank r is the latest enter − its enter. Traces have no such clock, but all ranks leave
together: there the wait of r is its stay in the collective − the shortest stay. Of the waits of a collective,
tau_range is the largest, tau_med the median and tau_mean the mean; its straggler is the rank that nobody waits longer
than. What a clock cannot tell is no finding: a wait that does not exceed the error of its two times is unresolved, and
a straggler is one only where it came later than every other rank by more than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dlbench.analysis.campaign import Schema
from dlbench.analysis.critical_path import Culprit, Explained
from dlbench.analysis.recorded_collectives import Recorded
from dlbench.analysis.traces.collectives import Collectives

UNRESOLVED = -1
"""Straggler where the clocks cannot tell which rank came last."""

COLLECTIVES: Schema = {
    "run": np.int32,
    **dict.fromkeys(("name", "group"), str),
    **dict.fromkeys(("iteration", "place"), np.int32),
    "buffer": str,
    "bytes": np.int64,
    "ranks": np.int32,
    "begin": np.float64,
    **dict.fromkeys(("tau_range", "tau_med", "tau_mean", "transfer", "exposed"), np.float64),
    **dict.fromkeys(("stay_first", "stay_median", "uncertainty"), np.float64),
    "resolved": bool,
    "straggler": np.int32,
    **dict.fromkeys(("predicted", "gap", "window", "end_skew"), np.float64),
    **dict.fromkeys(("culprit", "culprit_class"), str),
    **dict.fromkeys(("culprit_rank", "culprit_number"), np.int32),
    "culprit_idle": bool,
    "culprit_seconds": np.float64,
}
"""Columns of `frame`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupTax:
    """The tax on the collectives of one group. Arrays of shape (collectives, ranks) where nothing else is said."""

    run: int
    """Number of the run."""
    names: tuple[str, ...]
    """Communication class of each collective, operation/scope."""
    collectives: Collectives
    iteration: NDArray[np.int32]
    """Shape (collectives,): index of the iteration; 0 in traces, which know none."""
    waits: NDArray[np.float64]
    """Seconds that each rank waited for the last."""
    bounds: NDArray[np.float64]
    """Seconds: bound on the error of each wait."""
    last: NDArray[np.int64]
    """Shape (collectives,): column of the rank that came last, the lowest of equals."""
    exposed: NDArray[np.float64]
    """Seconds of each wait in which the rank did nothing else; NaN where that is unknown."""
    explained: Explained | None = None
    """Why the last rank came late, where that was asked for."""

    @property
    def resolved(self) -> NDArray[np.bool_]:
        """Shape (collectives,): whether any wait exceeds its error."""
        return np.asarray((self.waits > self.bounds).any(axis=1))

    @property
    def straggler(self) -> NDArray[np.int64]:
        """Shape (collectives,): the rank that came last, `UNRESOLVED` where the clocks cannot tell it from another."""
        others = np.arange(len(self.collectives.ranks)) != self.last[:, None]
        known = ((self.waits > self.bounds) | ~others).all(axis=1)
        return np.asarray(np.where(known, np.array(self.collectives.ranks, dtype=np.int64)[self.last], UNRESOLVED))

    @property
    def place(self) -> NDArray[np.int64]:
        """Shape (collectives,): place of each among those of the group and class in its iteration, from 0."""
        keys = pd.DataFrame({"name": self.names, "iteration": self.iteration})
        return np.asarray(keys.groupby(["name", "iteration"]).cumcount(), dtype=np.int64)


def arrival_tax(recorded: Recorded, run: int = 0) -> GroupTax:
    """The tax by moments of arrival on one clock."""
    collectives = recorded.collectives
    last = collectives.enter.argmax(axis=1)
    latest = collectives.enter.max(axis=1, keepdims=True)
    return GroupTax(
        run=run,
        names=(recorded.name,) * len(collectives),
        collectives=collectives,
        iteration=recorded.iteration,
        waits=latest - collectives.enter,
        bounds=collectives.error + _taken(collectives.error, last),
        last=last,
        exposed=np.maximum(np.minimum(latest, collectives.leave) - recorded.blocked, 0.0),
        explained=recorded.explained,
    )


def duration_tax(collectives: Collectives, run: int = 0, explained: Explained | None = None) -> GroupTax:
    """The tax by stays, of ranks that leave together; how far they did not is part of the error."""
    stays = collectives.durations
    last = stays.argmin(axis=1)
    return GroupTax(
        run=run,
        names=tuple(_class(operation, collectives.group) for operation in collectives.operations),
        collectives=collectives,
        iteration=np.zeros(len(collectives), dtype=np.int32),
        waits=collectives.waits,
        bounds=collectives.error + _taken(collectives.error, last) + collectives.end_skew[:, None],
        last=last,
        exposed=np.full(stays.shape, np.nan),
        explained=explained,
    )


def _class(operation: str, group: str) -> str:
    """Communication class: groups of one purpose, such as `mesh_tp (0-3)` and `mesh_tp (4-7)`, have one scope."""
    scope = group.partition(" (")[0]
    return operation if scope == operation else f"{operation}/{scope}"


def frame(groups: Sequence[GroupTax]) -> pd.DataFrame:
    """One row per collective, columns `COLLECTIVES`, ordered by run, group and time.

    `name` is the class, `place` the collective's number among those of the class and group in the iteration, `begin`
    when its last rank entered. `transfer` is the stay of the rank that came last, and `stay_first` and `stay_median`
    those of the rank that waited longest and of the median; both ends of a stay are read from one clock. `exposed` is
    the largest over ranks, and `uncertainty` bounds the error of `tau_range`. From `predicted` on, columns are those of
    `dlbench.analysis.critical_path`; where nothing was explained they are NaN, "" and -1.
    """
    parts = [pd.DataFrame(_columns(group)).astype(COLLECTIVES) for group in groups if len(group.collectives)]
    empty = pd.DataFrame(columns=list(COLLECTIVES)).astype(COLLECTIVES)
    return pd.concat(parts, ignore_index=True) if parts else empty


def _columns(tax: GroupTax) -> dict[str, object]:
    collectives, stays = tax.collectives, tax.collectives.durations
    first = tax.waits.argmax(axis=1)
    return {
        "run": tax.run,
        "name": tax.names,
        "group": collectives.group,
        "iteration": tax.iteration,
        "place": tax.place,
        "buffer": collectives.names,
        "bytes": collectives.bytes,
        "ranks": len(collectives.ranks),
        "begin": collectives.enter.max(axis=1),
        "tau_range": tax.waits.max(axis=1),
        "tau_med": np.median(tax.waits, axis=1),
        "tau_mean": tax.waits.mean(axis=1),
        "transfer": _taken(stays, tax.last)[:, 0],
        "exposed": tax.exposed.max(axis=1),
        "stay_first": _taken(stays, first)[:, 0],
        "stay_median": np.median(stays, axis=1),
        "uncertainty": _taken(tax.bounds, first)[:, 0],
        "resolved": tax.resolved,
        "straggler": tax.straggler,
        "end_skew": collectives.end_skew,
        **_explained(tax.explained, len(collectives)),
    }


def _explained(explained: Explained | None, count: int) -> dict[str, object]:
    if explained is None:
        nothing = np.full(count, np.nan)
        explained = Explained(predicted=nothing, gap=nothing, window=nothing, culprits=[Culprit()] * count, classes=[])
    culprits = explained.culprits
    return {
        "predicted": explained.predicted,
        "gap": explained.gap,
        "window": explained.window,
        "culprit": [culprit.name for culprit in culprits],
        "culprit_class": [culprit.kind for culprit in culprits],
        "culprit_rank": [culprit.rank for culprit in culprits],
        "culprit_number": [culprit.number for culprit in culprits],
        "culprit_idle": [culprit.idle for culprit in culprits],
        "culprit_seconds": [culprit.seconds if culprit.name else np.nan for culprit in culprits],
    }


def _taken(array: NDArray[np.float64], column: NDArray[np.int64]) -> NDArray[np.float64]:
    """The entry of each row in its column, shape (rows, 1)."""
    return np.take_along_axis(array, column[:, None], axis=1)
