"""Quantities as people read them: four significant digits and an SI prefix."""

from __future__ import annotations

_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
_SMALL_PREFIXES = ("", "m", "µ", "n")
_THOUSAND = 1000


def significant(value: float, digits: int = 4, smallest: int = 0) -> str:
    """Significant digits without an exponent, and all digits before the point: `0.095`, `33.55`, `17953`.

    A value below 10^`smallest` has fewer digits.
    """
    rounded = f"{value:.{digits - 1}e}"
    magnitude = int(rounded.partition("e")[2])
    return f"{value:.{max(0, digits - 1 - max(magnitude, smallest))}f}"


def si(value: float, unit: str) -> str:
    """Value with a prefix of its unit, e.g. `33.55 MB`, `1.024 TFLOP`; a whole number below 1000 stays as it is."""
    if 0 <= value < _THOUSAND and value == int(value):
        return f"{int(value)} {unit}".rstrip()
    prefix = 0
    while _rounds_up(value) and prefix < len(_PREFIXES) - 1:
        value, prefix = value / _THOUSAND, prefix + 1
    return f"{significant(value)} {_PREFIXES[prefix]}{unit}".rstrip()


def counted(number: int, noun: str) -> str:
    """Number of things, e.g. `1 job`, `2 jobs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(seconds: float) -> str:
    """Seconds with the prefix that suits them, down to nanoseconds, e.g. `938.2 ms`."""
    if seconds == 0:
        return "0 s"
    prefix = 0
    while seconds < 1 and prefix < len(_SMALL_PREFIXES) - 1:
        seconds, prefix = seconds * _THOUSAND, prefix + 1
    return f"{significant(seconds)} {_SMALL_PREFIXES[prefix]}s"


def _rounds_up(value: float) -> bool:
    return float(significant(value)) >= _THOUSAND
