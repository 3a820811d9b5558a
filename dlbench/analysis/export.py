"""The numbers for other programs: one JSON document, or a file a table as CSV or Parquet, in SI units.

Columns are those of the frames, times in seconds, shares as fractions; an estimate X has its interval in X_low and
X_high. What is absent is null in JSON and Parquet and an empty field in CSV. In CSV, an apostrophe stands before a text
that a spreadsheet would take for a formula.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import msgspec
import pandas as pd

from dlbench import __version__
from dlbench.analysis.results import Results
from dlbench.analysis.writing import make_folder, new_file
from dlbench.errors import OptionError

Document: TypeAlias = dict[str, Any]

_FORMULA = re.compile(r"[=@]|[+-][^\d.]")
"""How a formula begins; a signed number is none."""


def document(results: Results) -> Document:
    """What `dlbench analyze --json` prints, as plain data.

    Keys: dlbench (version), seed, min_overlap, files (read), iterations (measured), notes, excluded, runs, and an array
    per table: summary, relevance, scaling, slowdown, and energy where a run has any. Rows are objects whose keys are
    the columns.
    """
    campaign = results.campaign
    return {
        "dlbench": __version__,
        "seed": results.seed,
        "min_overlap": results.min_overlap,
        "files": campaign.files,
        "iterations": int((~campaign.iterations["warmup"]).sum()),
        "notes": campaign.notes,
        "excluded": rows(campaign.excluded),
        "runs": rows(campaign.runs.reset_index()),
        **{name: rows(frame) for name, frame in results.frames().items()},
    }


def rows(frame: pd.DataFrame) -> list[Document]:
    """The rows of a frame as plain data."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def json_text(value: object) -> str:
    """JSON on indented lines, what is no number as null."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def frames(results: Results) -> dict[str, pd.DataFrame]:
    """Every table by the name of its file: the tables shown, and what they were made of."""
    campaign = results.campaign
    return {
        **results.frames(),
        "slowdown_iterations": results.slowdown.iterations,
        "runs": campaign.runs.reset_index(),
        "iterations": campaign.iterations,
        "ranks": campaign.ranks,
        "classes": campaign.classes,
        "excluded": campaign.excluded,
    }


def write_csv(results: Results, folder: Path) -> list[Path]:
    """Write `NAME.csv` for every table into the folder, which is made where it does not exist.

    Raises `OptionError` where that is impossible.
    """
    return write_frames(frames(results), folder)


def write_frames(tables: Mapping[str, pd.DataFrame], folder: Path) -> list[Path]:
    """Write `NAME.csv` for every frame, as `write_csv`."""
    return _write(tables, folder, "csv", lambda frame, file: _without_formulas(frame).to_csv(file, index=False))


def write_parquet(results: Results, folder: Path) -> list[Path]:
    """Write `NAME.parquet` for every table, as `write_csv`; needs pyarrow."""
    if find_spec("pyarrow") is None:
        raise OptionError("Parquet files need pyarrow; install it with pip install 'dlbench[parquet]'")
    return _write(frames(results), folder, "parquet", lambda frame, file: frame.to_parquet(file, index=False))


def _without_formulas(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with an apostrophe before texts that a spreadsheet would run: records come from other people, too."""
    texts = {name: values for name, values in frame.items() if pd.api.types.is_string_dtype(values)}
    return frame.assign(
        **{str(name): values.where(~values.str.match(_FORMULA), "'" + values) for name, values in texts.items()}
    )


def _write(
    tables: Mapping[str, pd.DataFrame], folder: Path, ending: str, write: Callable[[pd.DataFrame, BinaryIO], object]
) -> list[Path]:
    make_folder(folder)
    paths = []
    for name, frame in tables.items():
        paths.append(folder / f"{name}.{ending}")
        with new_file(paths[-1]) as file:
            write(frame, file)
    return paths
