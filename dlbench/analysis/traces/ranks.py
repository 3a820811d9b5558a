"""Traces of several ranks: which file is which rank's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from dlbench.analysis.traces.communication import Communication, communication
from dlbench.analysis.traces.format import counted
from dlbench.analysis.traces.kernels import CommunicationKernels
from dlbench.errors import UserError, one_line

_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d{1,9})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RankedTrace:
    """The communication kernels of a rank."""

    rank: int
    communication: Communication


def read_ranks(paths: Sequence[Path], patterns: Sequence[str] = ()) -> tuple[list[RankedTrace], list[str]]:
    """Read traces, one file per rank, by ascending rank, and what there is to know about them.

    `patterns` are further communication kernels, as of `CommunicationKernels`. A file that does not tell its rank has
    that of its name, or else of its place among the files; notes say so. Raises `UserError` where a file is no trace,
    two are of one rank, or two of jobs of different sizes.
    """
    kernels = CommunicationKernels(patterns)
    return by_rank([communication(path, kernels) for path in paths])


def by_rank(traces: Sequence[Communication]) -> tuple[list[RankedTrace], list[str]]:
    """The same of traces that are read."""
    _check_one_job(traces)
    notes = [note for trace in traces for note in trace.notes]
    ranked: dict[int, Communication] = {}
    for place, trace in enumerate(traces):
        rank, origin = _rank(trace, place)
        if origin:
            notes.append(one_line(f"{trace.path}: names no rank; taken as rank {rank} by {origin}"))
        if rank in ranked:
            files = f"{ranked[rank].path} and {trace.path}"
            raise UserError(f"{files} are both traces of rank {rank}; give one file per rank")
        ranked[rank] = replace(trace, rank=rank)
    notes += _missing(ranked)
    return [RankedTrace(rank, ranked[rank]) for rank in sorted(ranked)], notes


def _check_one_job(traces: Sequence[Communication]) -> None:
    """Raise `UserError` where two traces know how many ranks their job has, and it is not the same number."""
    sized = [trace for trace in traces if trace.world_size is not None]
    for first, other in pairwise(sized):
        if other.world_size != first.world_size:
            raise UserError(
                f"{first.path} is of a job of {counted(first.world_size or 0, 'rank')} and {other.path} of one of "
                f"{other.world_size}; give the traces of one job"
            )


def _rank(trace: Communication, place: int) -> tuple[int, str]:
    """Rank of a trace, and where it is from unless its metadata tells it."""
    if trace.rank is not None:
        return trace.rank, ""
    if found := _RANK_IN_NAME.search(trace.path.name):
        return int(found[1]), "the file's name"
    return place, "its place among the files"


def _missing(ranked: dict[int, Communication]) -> list[str]:
    """A note on ranks whose traces are not there."""
    size = max((trace.world_size or 0 for trace in ranked.values()), default=0)
    if size <= len(ranked):
        return []
    first = next(rank for rank in range(size) if rank not in ranked)
    return [f"{len(ranked)} of {size} ranks have a trace here; the first without is rank {first}"]
