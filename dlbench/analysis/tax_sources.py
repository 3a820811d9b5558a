"""Where the synchronisation tax comes from: records with ops, or the Kineto traces of a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from dlbench.analysis.block_times import without_ops
from dlbench.analysis.campaign import Campaign, few
from dlbench.analysis.critical_path import Explained
from dlbench.analysis.culprits import CulpritClasses
from dlbench.analysis.recorded_collectives import recorded_collectives
from dlbench.analysis.sync_tax import GroupTax, arrival_tax, duration_tax
from dlbench.analysis.taxes import Taxes
from dlbench.analysis.traces.alignment import TOLERANCE, align
from dlbench.analysis.traces.communication import Codes, communication
from dlbench.analysis.traces.events import events
from dlbench.analysis.traces.graph import Graph, Kind
from dlbench.analysis.traces.kernels import CommunicationKernels
from dlbench.analysis.traces.paths import TracePaths
from dlbench.analysis.traces.ranks import by_rank
from dlbench.errors import RecordError
from dlbench.records.reader import UnreadableRecord

Progress = Callable[[int, int], None]


def tax_of_runs(campaign: Campaign, *, seed: int, progress: Progress | None = None, paths: bool = True) -> Taxes:
    """The tax of the runs that recorded ops; notes say which others are left out, and why.

    `progress` is called with the measured iterations that are read and those of all these runs; `paths` says whether
    to explain why ranks came late.
    """
    runs = campaign.runs[campaign.runs["has_ops"]]
    total, before = int(runs["measured"].sum()), 0
    groups: list[GroupTax] = []
    notes = []
    for run, measured in zip(runs.index, runs["measured"], strict=True):
        try:
            found, dropped = recorded_collectives(
                campaign.paths[run], progress=_from(before, total, progress), paths=paths
            )
        except UnreadableRecord as error:
            notes.append(f"left out of the tax: {error}")
        else:
            groups += [arrival_tax(recorded, int(run)) for recorded in found]
            notes += dropped
        before += int(measured)
    return Taxes(groups=groups, runs=runs, notes=[*notes, *without_ops(campaign)], seed=seed)


def _from(before: int, total: int, progress: Progress | None) -> Progress | None:
    """Progress of a run as that of all."""
    return None if progress is None else lambda done, _: progress(before + done, total)


def require_tax(taxes: Taxes, excluded: Sequence[str] = ()) -> Taxes:
    """The taxes themselves. Raises `RecordError` where no run has any: why none has, then what else is `excluded`."""
    if taxes.groups:
        return taxes
    reasons = taxes.notes or ["no collective of several ranks"]
    raise RecordError(f"no collectives to compare: {few([*reasons, *excluded])}")


def tax_of_traces(
    paths: Sequence[Path],
    *,
    seed: int,
    tolerance: float = TOLERANCE,
    patterns: Sequence[str] = (),
    progress: Progress | None = None,
    explain: CulpritClasses | None = None,
) -> Taxes:
    """The tax of a job's Kineto traces, one file per rank; arguments as of `align` and `CommunicationKernels`.

    `progress` is called with the traces that are read and those that there are. With `explain`, all events are read to
    find why ranks came late, and memory grows with their number. Raises `UserError` where a file is no trace, or no
    group can be compared.
    """
    kernels, kinds = CommunicationKernels(patterns), Codes[Kind]()
    graphs: dict[Path, Graph] = {}
    read = []
    for done, path in enumerate(paths, start=1):
        if explain is None:
            read.append(communication(path, kernels))
        else:
            graphs[path] = Graph(events(path, kernels), kinds)
            read.append(graphs[path].communication)
        if progress is not None:
            progress(done, len(paths))
    traces, notes = by_rank(read)
    alignment = align(traces, tolerance=tolerance).require_groups()
    reasons: Sequence[Explained | None] = [None] * len(alignment.groups)
    if explain is not None:
        by_number = {trace.rank: graphs[trace.communication.path] for trace in traces}
        reasons = TracePaths(alignment, by_number, kinds, explain, tolerance).explained()
    return Taxes(
        groups=[
            duration_tax(collectives, explained=reason)
            for collectives, reason in zip(alignment.groups, reasons, strict=True)
        ],
        runs=pd.DataFrame({"run_id": [""]}),
        notes=[*notes, *alignment.notes, *(f"refused: {reason}" for reason in alignment.refused)],
        seed=seed,
        traces={trace.rank: trace.communication.path for trace in traces},
    )
