"""Files that stand under their name once they are whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from dlbench.errors import OptionError

UNFINISHED = ".unfinished"
"""Ending of a file that is being written; a process that is killed leaves it."""


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
        unfinished = target.with_name(f".{os.getpid()}{UNFINISHED}")
        try:
            with unfinished.open("wb") as file:
                yield file
            unfinished.replace(target)
        finally:
            with suppress(OSError):
                unfinished.unlink()
    except OSError as error:
        raise OptionError(f"{path} cannot be written: {error.strerror or error}") from None
