"""Records with ops whose every time is written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from builder import end, header, iterations, write_lines

Times = Sequence[Sequence[tuple[float, float]]]
"""Per rank and op, enter and leave in seconds; ranks with a shorter program have fewer."""


def collective(name: str, op: str = "allreduce", scope: str = "world", **changes: Any) -> dict[str, Any]:
    """A blocking collective of 1000 elements."""
    return {"op": op, "scope": scope, "name": name, "elements": 1000, **changes}


def started(name: str, **changes: Any) -> dict[str, Any]:
    """A non-blocking collective."""
    return collective(name, blocking=False, **changes)


def wait(*names: str) -> dict[str, Any]:
    return {"op": "wait", "requests": list(names)}


def table_of(ranks: Sequence[int], *ops: dict[str, Any]) -> list[dict[str, Any]]:
    """The one table of a run whose ranks all perform these ops."""
    return [{"ranks": list(ranks), "ops": list(ops)}]


def write_ops(record: Path, arrays: Sequence[Times]) -> None:
    """Write the ops array of each iteration beside the record."""
    with record.with_suffix(".ops.npy").open("wb") as file:
        for times in arrays:
            longest = max(map(len, times))
            padded = [[*rank, *[(np.nan, np.nan)] * (longest - len(rank))] for rank in times]
            np.save(file, np.array(padded, dtype=np.float64))


def write_taxed(
    folder: Path,
    arrays: Sequence[Times],
    op_tables: Sequence[dict[str, Any]],
    *,
    name: str = "run",
    warmups: int = 0,
    **changes: Any,
) -> Path:
    """A record of iterations a second long with these ops; `changes` are those of the header."""
    ranks = sum(len(table["ranks"]) for table in op_tables)
    lines = iterations([[1.0] * ranks] * len(arrays), [[0.5] * ranks] * len(arrays), warmups=warmups)
    head = header(name, ranks, op_tables=list(op_tables), **changes)
    path = write_lines(folder / f"{name}.jsonl", head, *lines, end(len(lines)))
    write_ops(path, arrays)
    return path


def clock(ranks: int, uncertainty: float) -> dict[str, Any]:
    """A clock model whose every time is known to `uncertainty` seconds."""
    zeros = [0.0] * ranks
    return {
        **{"reference": 0.0, "offset": zeros, "drift": zeros, "drift_uncertainty": zeros, "unix_epoch": 1.7e9},
        "uncertainty": [uncertainty] * ranks,
    }


def arrivals(*ranks: float, leave: float = 1.0) -> Times:
    """One collective: when each rank enters it; all leave together."""
    return [[(enter, leave)] for enter in ranks]
