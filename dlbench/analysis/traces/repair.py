"""Mends JSON that profilers have written wrongly, without a change to its structure."""

from __future__ import annotations

import re

_LITERAL = rb"-?\b(?:NaN|nan|Infinity|inf)\b"
_ESCAPED = rb'["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}'
"""What may follow a backslash; a surrogate only with its partner."""
_TOKEN = re.compile(
    rb'(?>(?:[^"NnIi-]++|(?!%b)[NnIi-]|"(?>(?:[^"\\\x00-\x1f\x80-\xff]++|\\(?:%b))*)")+)' % (_LITERAL, _ESCAPED)
    + rb'|(?P<literal>%b)|(?P<string>"(?:[^"\\]|\\.)*")' % _LITERAL,
    re.DOTALL,
)
"""A sound stretch of any length, or one token that may need mending.

Groups are atomic instead of possessive, which before Python 3.11.5 loses matches (gh-106052).
"""
_CONTROL = re.compile(rb"[\x00-\x1f]")
_ESCAPE = re.compile(rb"\\(?:%b|(.?))" % _ESCAPED, re.DOTALL)


def repaired(text: bytes) -> tuple[bytes, int, int]:
    """The text with what no JSON reader takes replaced, the number of replacements, and the offset of the first.

    NaN and infinities become null; in strings, control characters become spaces, a backslash that escapes nothing
    becomes two, and bytes that are not UTF-8 become U+FFFD.
    """
    changes: list[int] = []

    def mend(token: re.Match[bytes]) -> bytes:
        found = token[0]
        if token.lastgroup is None:
            return found
        mended = b"null" if token.lastgroup == "literal" else _string(found)
        if mended != found:
            changes.append(token.start())
        return mended

    return _TOKEN.sub(mend, text), len(changes), changes[0] if changes else 0


def _string(token: bytes) -> bytes:
    if b"\\" in token:
        token = _ESCAPE.sub(lambda found: found[0] if found[1] is None else b"\\\\" + found[1], token)
    token = _CONTROL.sub(b" ", token)
    return token if token.isascii() else token.decode("utf-8", "replace").encode()
