"""Files with what SLURM's commands print."""

from __future__ import annotations

from pathlib import Path

from dlbench.errors import UserError

LARGEST_FILE = 64_000_000
"""Bytes; the topology of Leonardo has 36 thousand."""


def read_text(path: Path) -> str:
    """Content of a text file, or of a pipe such as `<(sinfo)`. Raises `UserError`."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise UserError(f"{path}: {(error.strerror or str(error)).lower()}; name a file with SLURM's output") from None
    except ValueError as error:  # a zero byte in the path
        raise UserError(f"{path}: {error}") from None
    if len(content) > LARGEST_FILE:
        raise UserError(f"{path}: is larger than {LARGEST_FILE // 1_000_000} MB; name a file with SLURM's output")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}); name a file with SLURM's output") from None
