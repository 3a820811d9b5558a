"""Kineto's JSON: what of an event is read, and its times in whole nanoseconds.

Values have whatever type the file gives them: writers of different years disagree on numbers and texts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw, Struct
from numpy.typing import NDArray

NO_TIME = np.iinfo(np.int64).min
"""Stands for a time that is missing or does not fit 64 bits."""
UNKNOWN = -1
"""Stands for a missing number: correlations, sequence numbers and sizes are not negative."""

_LARGEST = 1 << 61
"""73 years in nanoseconds; a base, a time and a duration can be added in 64 bits."""
_DECIMALS = 3
_MOST_DIGITS = 18
_EMPTY = Raw(b"")


class Args(Struct, gc=False):
    """Arguments of an event that something here looks at."""

    correlation: Any = None
    external_id: Any = msgspec.field(default=None, name="External id")
    collective: Any = msgspec.field(default=None, name="Collective name")
    group: Any = msgspec.field(default=None, name="Process Group Name")
    description: Any = msgspec.field(default=None, name="Process Group Description")
    ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    group_size: Any = msgspec.field(default=None, name="Group size")
    elements_in: Any = msgspec.field(default=None, name="In msg nelems")
    elements_out: Any = msgspec.field(default=None, name="Out msg nelems")
    dtype: Any = None
    seq: Any = msgspec.field(default=None, name="Seq")
    wait_on_stream: Any = None
    wait_on_correlation: Any = msgspec.field(default=None, name="wait_on_cuda_event_record_corr_id")


class Event(Struct, gc=False):
    """An entry of `traceEvents`."""

    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    ts: Raw = _EMPTY
    dur: Raw = _EMPTY
    id: Any = None
    args: Args | None = None


NO_ARGS = Args()


def counted(number: int, noun: str) -> str:
    """`1 value`, `2 values`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def integer(value: Any) -> int:
    """A count or an identity, which some writers give as text; `UNKNOWN` for what is none or exceeds 64 bits."""
    if type(value) is not int:
        whole = isinstance(value, float) and value.is_integer()
        if not (whole or isinstance(value, str) and _DIGITS.fullmatch(value)):
            return UNKNOWN
        value = int(value)
    return value if 0 <= value < _LARGEST else UNKNOWN


_DIGITS = re.compile(r"[0-9]{1,19}")
_MICROSECONDS = rb"(?:1\d{15}|\d{1,15})"
"""Below 64 years, so that nanoseconds fit."""
_WHOLE = re.compile(rb"(?>(?:%b )*)%b" % (_MICROSECONDS, _MICROSECONDS))
_THREE_DECIMALS = re.compile(rb"(?>(?:%b\.\d{3} )*)%b\.\d{3}" % (_MICROSECONDS, _MICROSECONDS))


def nanoseconds(values: Sequence[Raw]) -> NDArray[np.int64]:
    """Microseconds as they stand in the file, to the last digit, in nanoseconds; `NO_TIME` for what is no time."""
    text = b" ".join(values)
    if _WHOLE.fullmatch(text):
        return np.asarray(np.array(text.split(), dtype="S16").astype(np.int64) * 10**_DECIMALS)
    if _THREE_DECIMALS.fullmatch(text):
        return np.array(text.replace(b".", b"").split(), dtype="S19").astype(np.int64)
    return np.array([_nanoseconds(value) for value in map(bytes, values)], dtype=np.int64)


def _nanoseconds(text: bytes) -> int:
    whole, _, decimals = text.partition(b".")
    digits = whole + decimals.ljust(_DECIMALS, b"0")
    if len(decimals) <= _DECIMALS and len(whole) <= _MOST_DIGITS - _DECIMALS and whole and digits.isdigit():
        return int(digits)
    try:
        time = Decimal(text.strip(b'"').decode())
    except (InvalidOperation, UnicodeDecodeError):
        return NO_TIME
    if not time.is_finite() or time.adjusted() > _MOST_DIGITS:
        return NO_TIME
    value = int(time.scaleb(_DECIMALS).to_integral_value())
    return value if abs(value) < _LARGEST else NO_TIME
