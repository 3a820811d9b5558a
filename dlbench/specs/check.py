"""What the specs of models, GPUs and systems check alike."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from msgspec import Meta

from dlbench.errors import SpecError

Positive = Annotated[int, Meta(ge=1, description="an integer >= 1")]
NonNegative = Annotated[int, Meta(ge=0, description="an integer >= 0")]
Rate = Annotated[float, Meta(gt=0, description="a number > 0")]
Text = Annotated[str, Meta(min_length=1, description="text")]


def require(holds: bool, key: str, expected: str, found: object) -> None:
    """Raise `SpecError` at `key` (a path such as `topology.groups`) unless the condition holds."""
    if not holds:
        raise SpecError(f"at {key}: expected {expected}, found {found}")


def require_sources(sources: dict[str, str], key: str, figures: Collection[str]) -> None:
    """Raise `SpecError` unless `sources`, the spec's field `key`, says where every figure comes from."""
    found = ", ".join(sources) or "none"
    require(sources.keys() == set(figures), key, f"a source for each of {', '.join(figures)}", found)
