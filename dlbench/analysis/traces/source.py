"""The bytes of a trace file, plain or compressed with gzip, in blocks."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import IO, Self

from dlbench.errors import UserError

BLOCK = 1 << 18
"""Bytes read at once: blocks and what is decoded from them stay in the caches of a core."""

_GZIP = b"\x1f\x8b"
_GZIP_FORMAT = 31


class UnreadableTrace(UserError):
    """A file that is no trace. `offset` counts the bytes of its text, decompressed where it is compressed."""

    def __init__(self, path: Path, text: str, offset: int | None = None) -> None:
        super().__init__(f"{path}: {text}" if offset is None else f"{path}: byte {offset}: {text}")
        self.path = path
        self.text = text
        self.offset = offset

    def __reduce__(self) -> tuple[type[Self], tuple[Path, str, int | None]]:
        """Pickle by what it was made of: an error may come from another process."""
        return type(self), (self.path, self.text, self.offset)


class Source:
    """A trace file that is read once, from its begin to its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        """Bytes of text so far."""
        self.fault = ""
        """Why a compressed file ended early, "" where it did not."""

    def blocks(self) -> Iterator[bytes]:
        """The text. Raises `UnreadableTrace` where the file cannot be read; a damaged compression ends it: `fault`."""
        try:
            mode = self.path.stat().st_mode
            if not (S_ISREG(mode) or S_ISDIR(mode)):
                raise UnreadableTrace(self.path, "is a pipe or a device; a trace is a file")
            with self.path.open("rb") as file:
                compressed = file.read(len(_GZIP)) == _GZIP
                file.seek(0)
                for block in self._inflated(file) if compressed else iter(lambda: file.read(BLOCK), b""):
                    self.size += len(block)
                    yield block
        except FileNotFoundError:
            raise UnreadableTrace(self.path, "does not exist") from None
        except IsADirectoryError:
            raise UnreadableTrace(self.path, "is a folder; name the traces in it, one file per rank") from None
        except OSError as error:
            raise UnreadableTrace(self.path, f"cannot be read: {error.strerror}") from None
        except ValueError as error:  # a zero byte in the path
            raise UnreadableTrace(self.path, f"cannot be read: {error}") from None

    def _inflated(self, file: IO[bytes]) -> Iterator[bytes]:
        """Decompressed blocks of all members of a gzip file; never more than a block of text at once."""
        inflater = zlib.decompressobj(_GZIP_FORMAT)
        packed = file.read(BLOCK)
        while packed:
            try:
                text = inflater.decompress(packed, BLOCK)
            except zlib.error:
                self.fault = "the compressed data is damaged"
                return
            if text:
                yield text
            packed = inflater.unconsumed_tail or inflater.unused_data or file.read(BLOCK)
            if inflater.eof:
                packed = packed.lstrip(b"\0")
                if not packed.startswith(_GZIP):  # what follows the last member belongs to nobody
                    return
                inflater = zlib.decompressobj(_GZIP_FORMAT)
        self.fault = "the compressed file is cut"
