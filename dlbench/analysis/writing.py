"""Where the analysis writes."""

from __future__ import annotations

import os
from pathlib import Path

from dlbench.errors import OptionError
from dlbench.files import new_file

__all__ = ["make_folder", "new_file", "same_file"]


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
