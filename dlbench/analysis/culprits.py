"""What kind of event kept a rank: knowledge in `culprits.yaml`, to which the user can add."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Literal

from msgspec import Struct

from dlbench.errors import SpecError
from dlbench.specs.reading import read

COMMUNICATION = "communication"
IDLE = "idle"
"""Class of time that nothing covers."""

Where = Literal["gpu", "cpu"]


class Class(Struct, frozen=True, forbid_unknown_fields=True):
    """A class of events by their names."""

    name: str
    on: Where
    pattern: str


class _More(Struct, frozen=True, forbid_unknown_fields=True):
    classes: tuple[Class, ...]


class _Knowledge(Struct, frozen=True, forbid_unknown_fields=True):
    classes: tuple[Class, ...]
    blocking: str
    blocking_copies: str


@cache
def _knowledge() -> _Knowledge:
    return read(Path(__file__).with_name("culprits.yaml"), _Knowledge)


class CulpritClasses:
    """Classes of events: those of the file `more`, then the built-in ones. Raises `SpecError` where it is wrong."""

    def __init__(self, more: Path | None = None) -> None:
        added = read(more, _More).classes if more is not None else ()
        for entry in added:
            try:
                re.compile(entry.pattern)
            except re.error as error:
                raise SpecError(f"{more}: pattern {entry.pattern!r} is no regular expression: {error}") from None
        self._classes = [*added, *_knowledge().classes]
        self._known: dict[tuple[str, Where], str] = {}

    def of(self, name: str, where: Where) -> str:
        """Class of an event by its name; the last built-in ones match all."""
        if (name, where) not in self._known:
            self._known[name, where] = next(
                entry.name
                for entry in self._classes
                if entry.on == where and re.search(entry.pattern, name, re.IGNORECASE)
            )
        return self._known[name, where]


def waits_for_gpu(name: str) -> bool:
    """Whether the call returns only when the GPU has completed what it was given before."""
    return re.search(_knowledge().blocking, name) is not None


def may_wait_for_copy(name: str) -> bool:
    """Whether the call returns only when its copy is complete, if the memory is pageable."""
    return re.search(_knowledge().blocking_copies, name) is not None
