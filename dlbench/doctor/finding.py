"""What a probe found of a piece that runs need."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

State = Literal["ok", "warning", "missing", "broken", "unknown"]
"""`broken`: it is there and fails, or its probe crashed or hung; `unknown`: another piece keeps it from being asked."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One piece, in lines that a table can show."""

    state: State
    found: str
    """What is here, or what keeps it from serving."""
    note: str = ""
    """What its user must know although it serves."""
    remedy: str = ""
    """The command that brings it, or what else to do; empty where nothing has to be done."""
    facts: dict[str, Any] = {}
    """The same for programs; keys by piece, none where it was not found."""

    @property
    def serves(self) -> bool:
        """Whether runs can use it."""
        return self.state in {"ok", "warning"}
