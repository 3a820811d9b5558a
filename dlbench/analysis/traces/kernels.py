"""Which events are communication kernels, and which operation each performs: knowledge in `kernels.yaml`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from dlbench.analysis.traces.format import NO_ARGS, UNKNOWN, Args, Event, integer
from dlbench.errors import OptionError
from dlbench.specs.reading import read

UNNAMED = "collective"
"""Operation of a kernel whose name does not tell it, such as RCCL's generic kernel."""
POINT_TO_POINT = ("send", "recv")


class _Operation(Struct, frozen=True, forbid_unknown_fields=True):
    pattern: str
    operation: str


class _Knowledge(Struct, frozen=True, forbid_unknown_fields=True):
    kernels: list[str]
    operations: list[_Operation]
    dtypes: dict[str, int]


@cache
def _knowledge() -> _Knowledge:
    return read(Path(__file__).with_name("kernels.yaml"), _Knowledge)


class CommunicationKernels:
    """Recognises the kernels that communicate, by the built-in patterns and those of the user.

    A pattern is a regular expression, searched in the kernel's name without regard to case. Raises `OptionError` for
    one that is none.
    """

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise OptionError(f"kernel pattern {pattern!r} is no regular expression: {error}") from None
        every = "|".join(f"(?:{pattern})" for pattern in (*_knowledge().kernels, *patterns))
        self._communicates = cache(re.compile(every, re.IGNORECASE).search)

    def __call__(self, event: Event) -> bool:
        """Whether the event is one; annotations of the same collective, on the CPU and the GPU, are not."""
        if event.cat not in ("kernel", "Kernel"):
            return False
        if event.args is not None and isinstance(event.args.collective, str):
            return True
        return event.name is not None and self._communicates(event.name) is not None


@cache
def operation_of(text: str) -> str | None:
    """Operation by the collective's or the kernel's name, None where that tells nothing."""
    for entry in _knowledge().operations:
        if re.search(entry.pattern, text, re.IGNORECASE):
            return entry.operation
    return None


def operation(event: Event) -> str:
    """Operation of a communication kernel: by its argument, else by its name, else `UNNAMED`."""
    given: Any = (event.args or NO_ARGS).collective
    if isinstance(given, str) and given:
        return operation_of(given) or given.strip("_")
    return operation_of(event.name or "") or UNNAMED


def message_bytes(args: Args) -> int:
    """Size of the larger of a kernel's two messages, `UNKNOWN` where the arguments do not tell it."""
    size = _knowledge().dtypes.get(args.dtype) if isinstance(args.dtype, str) else None
    elements = max(integer(args.elements_in), integer(args.elements_out))
    return UNKNOWN if size is None or elements == UNKNOWN else elements * size
