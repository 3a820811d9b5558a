"""Find the records of a campaign in files and folders."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dlbench.errors import RecordError


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found."""

    records: list[Path] = field(default_factory=list)
    """Files, each once however many names and links lead to it."""
    refused: list[tuple[str, str]] = field(default_factory=list)
    """Folders that gave nothing, each with the reason."""


def search(paths: Sequence[Path]) -> Found:
    """Files as they are named, and `*.jsonl` in folders and below, links followed, in the order of their names.

    Raises `RecordError` for a path that does not exist or that cannot be looked at.
    """
    found = Found()
    files: dict[str, Path] = {}
    folders: set[str] = set()
    for path in paths:
        for record in _walk(path, folders, found.refused) if is_folder(path) else [path]:
            files.setdefault(os.path.realpath(record), record)
    found.records.extend(files.values())
    return found


def is_folder(path: Path, expected: str = "a record NAME.jsonl or a folder of records") -> bool:
    """Whether a path is a folder. Raises `RecordError` where nothing is there: what was `expected`."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise RecordError(f"{path} does not exist; name {expected}") from None
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}; name {expected}") from None
    return path.is_dir()


def _walk(top: Path, seen: set[str], refused: list[tuple[str, str]]) -> Iterator[Path]:
    """Records in a folder and below; none in a folder that was `seen`, to which links can lead again and again."""
    errors: list[OSError] = []
    empty = os.path.realpath(top) not in seen
    for place, folders, files in os.walk(top, onerror=errors.append, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders.sort()
        for name in sorted(files):
            if name.endswith(".jsonl"):
                empty = False
                yield Path(place, name)
    refused.extend((str(error.filename), f"cannot be searched: {error.strerror}") for error in errors)
    if empty and not errors:
        refused.append((str(top), "holds no record; records are files NAME.jsonl"))
