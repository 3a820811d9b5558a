"""Host lists as SLURM writes them: `lrdn[0001-0180]`, `jpbi-[001-005]-l1-[01-03]`, `login[08,13],viz05`.

The order of a list is the order of the ranks and a name may stand twice, so nothing here sorts or drops anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain, groupby, product
from math import prod

from dlbench.errors import UserError

MOST_NAMES = 1_000_000
"""Names that one list may stand for: more than any machine has, and few enough for the memory of a login node."""

_SEPARATORS = re.compile(r"[,\s]*")
_ELEMENT = re.compile(r"(?:[^][,\s]+|\[[^][]*\])+")
"""A plain name, or a name with any number of brackets."""
_BRACKETS = re.compile(r"\[([^][]*)\]")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_NAME = re.compile(r"([^][,\s]*?)([0-9]{0,18})")
"""Prefix and trailing digits, as many of them as a range may have."""
_SHOWN_CHARACTERS = 40


class HostListError(UserError):
    """A text that is no host list, or a name that cannot stand in one."""


def expand(text: str) -> list[str]:
    """The names that a host list stands for, in its order, duplicates included.

    Commas and white space separate; with several brackets in a name the last one varies fastest; numbers are padded to
    the width of the first of their range. Raises `HostListError` with the position of what is wrong (characters from
    1), and where the list stands for more than `MOST_NAMES` names.
    """
    names: list[str] = []
    for start, element in _elements(text):
        if "[" not in element:
            names.append(element)
            continue
        parts = list(_parts(text, start, element))
        count = prod(sum(len(numbers) for numbers, _ in ranges) for _, ranges in parts)
        if len(names) + count > MOST_NAMES:
            raise _error(text, start, f"the list stands for more than {MOST_NAMES:,} names; name fewer")
        choices = [
            [f"{literal}{number:0{width}}" for numbers, width in ranges for number in numbers]
            for literal, ranges in parts
        ]
        tail = element.rpartition("]")[2]
        names += (f"{''.join(choice)}{tail}" for choice in product(*choices))
    return names


def compress(names: Iterable[str]) -> str:
    """The host list of the names, as SLURM writes it: neighbours that differ in their trailing number share a bracket.

    `expand(compress(names))` gives the names back. Raises `HostListError` for a name that is empty or has a comma, a
    bracket or white space in it.
    """
    elements: list[str] = []
    for (prefix, numbered), group in groupby(map(_split, names), key=lambda split: (split[0], split[1] != "")):
        digits = [digits for _, digits in group]
        if not numbered or len(digits) == 1:
            elements += (prefix + number for number in digits)
        else:
            elements.append(f"{prefix}[{','.join(_ranges(digits))}]")
    return ",".join(elements)


def _elements(text: str) -> Iterator[tuple[int, str]]:
    """Index and text of each element."""
    end = _separated(text, 0)
    while end < len(text):
        start, found = end, _ELEMENT.match(text, end)
        end = found.end() if found else start
        if text[end : end + 1] in {"[", "]"}:
            raise _error(text, end, _bracket_fault(text, end))
        if found:
            yield start, found[0]
        end = _separated(text, end)


def _separated(text: str, index: int) -> int:
    found = _SEPARATORS.match(text, index)
    return found.end() if found else index


def _bracket_fault(text: str, index: int) -> str:
    if text[index] == "]":
        return "']' closes no bracket; write '[' before the numbers"
    if "[" in text[index + 1 :].partition("]")[0]:
        return "brackets within brackets; write one pair, as in n[1-3,5]"
    return "'[' is never closed; write ']' after the numbers"


def _parts(text: str, start: int, element: str) -> Iterator[tuple[str, list[tuple[range, int]]]]:
    """What stands before each bracket of the element, and the ranges in it with the width of their numbers."""
    end = 0
    for found in _BRACKETS.finditer(element):
        yield element[end : found.start()], list(_numbers(text, start + found.start(1), found[1]))
        end = found.end()


def _numbers(text: str, index: int, ranges: str) -> Iterator[tuple[range, int]]:
    for item in ranges.split(","):
        found = _RANGE.fullmatch(item)
        if found is None:
            raise _error(text, index, f"expected a number or a range such as 01-48, found {_shortened(item)!r}")
        low, high = int(found[1]), int(found[2] or found[1])
        if high < low:
            raise _error(text, index, f"the range {item} descends; write {found[2]}-{found[1]}")
        if high - low >= MOST_NAMES:
            raise _error(text, index, f"the range {item} has more than {MOST_NAMES:,} numbers; name fewer")
        yield range(low, high + 1), len(found[1])
        index += len(item) + 1


def _split(name: str) -> tuple[str, str]:
    found = _NAME.fullmatch(name)
    if found is None or not name:
        raise HostListError(f"host name {name!r}: expected a name without commas, brackets and white space")
    return found[1], found[2]


def _ranges(digits: list[str]) -> Iterator[str]:
    """Each ascending run of numbers as `first-last`, a number alone as it is."""
    first = last = digits[0]
    for number in chain(digits[1:], [""]):
        if number == f"{int(last) + 1:0{len(first)}}":
            last = number
            continue
        yield first if first == last else f"{first}-{last}"
        first = last = number


def _error(text: str, index: int, problem: str) -> HostListError:
    first = max(0, index - _SHOWN_CHARACTERS // 2)
    shown = f"{'…' * (first > 0)}{_shortened(text[first:])}"
    return HostListError(f"host list {shown!r}, character {index + 1}: {problem}")


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
