"""Files that the analysis writes: each stands under its name once it is whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dlbench.errors import OptionError


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A file that stands under its name once it is whole; after any error, what stood there before stays.

    A link goes on leading to where it led, and a device or pipe is written to as it is. Raises `OptionError` where the
    file cannot be written.
    """
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                yield file
            return
        target = Path(os.path.realpath(path))
        unfinished = target.with_name(f".{os.getpid()}.unfinished")
        try:
            with unfinished.open("wb") as file:
                yield file
            unfinished.replace(target)
        finally:
            with suppress(OSError):
                unfinished.unlink()
    except OSError as error:
        raise OptionError(f"{path} cannot be written: {error.strerror or error}") from None


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, where there is none. Raises `OptionError` where that is impossible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        places = (place for place in (folder, *folder.parents) if os.path.lexists(place) and not place.is_dir())
        raise OptionError(f"{next(places, folder)} is no folder; nothing can be written into it") from None
    except OSError as error:
        raise OptionError(f"{folder} cannot be made: {error.strerror}") from None


def same_file(path: Path, other: Path) -> bool:
    """Whether both name one file that exists."""
    try:
        return path.samefile(other)
    except OSError:
        return False
