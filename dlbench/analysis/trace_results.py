"""What the report says of the Kineto traces of a job: their tax, how it grows with the group, and the files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from dlbench.analysis.campaign import Schema
from dlbench.analysis.columns import counted, plain
from dlbench.analysis.results import TAXED
from dlbench.analysis.samples import table
from dlbench.analysis.tables import Layout, Table, build
from dlbench.analysis.taxes import Taxes
from dlbench.analysis.traces.source import UnreadableTrace

if TYPE_CHECKING:
    from dlbench.analysis.growth import Growth

SOURCES = Layout(
    name="traces",
    title="Traces",
    about="One file per rank, with its size and SHA-256 as it lies there, compressed or not.",
    key=("rank",),
    measures=("path", "sha256", "bytes"),
)
_COLUMNS: Schema = {"rank": np.int64, "path": str, "bytes": np.int64, "sha256": str}


@dataclass(frozen=True, kw_only=True)
class TraceResults:
    """The tables of a job's traces."""

    taxes: Taxes

    @cached_property
    def growth(self) -> Growth:
        """How waits grow with the group; fitted when it is first asked for."""
        from dlbench.analysis.growth import growth_of_traces  # noqa: PLC0415 - SciPy takes its time

        return growth_of_traces([tax.collectives for tax in self.taxes.groups], seed=self.taxes.seed)

    @cached_property
    def sources(self) -> pd.DataFrame:
        """One row per trace: rank, path, bytes, sha256. Raises `UnreadableTrace` where a file has gone."""
        return table([_source(rank, path) for rank, path in self.taxes.traces.items()], _COLUMNS)

    def lead(self) -> str:
        """How much there is, in one sentence."""
        taxes = self.taxes
        return (
            f"Traces of {counted(len(taxes.traces), 'rank')}, {counted(len(taxes.collectives), 'collective')} of "
            f"{counted(len(taxes.groups), 'group')}; {taxes.clocks}"
        )

    def source_table(self) -> Table:
        """The traces that were read; a folder that all lie in is named once."""
        files = self.taxes.traces.values()
        folders = {path.parent for path in files}
        if len(folders) > 1:
            return build(SOURCES, self.sources)
        about = f"{SOURCES.about} All lie in {plain(str(*folders))}."
        return build(replace(SOURCES, about=about), self.sources.assign(path=[path.name for path in files]))

    def tables(self) -> Iterator[Table]:
        """Tables of the synchronisation tax and, where a fit is possible, of how it grows with the group."""
        yield from self.taxes.tables(TAXED)
        yield from self.growth.tables()


def _source(rank: int, path: Path) -> dict[str, int | str]:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return {"rank": rank, "path": str(path), "bytes": file.tell(), "sha256": digest}
    except OSError as error:
        raise UnreadableTrace(path, f"cannot be read again for its SHA-256: {error.strerror}") from None
