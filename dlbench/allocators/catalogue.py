"""Catalogues: which strategies share a machine with others, at which sizes, and with which model."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib.resources import files

import msgspec

from dlbench.allocators.patterns import is_doubled
from dlbench.errors import LayoutError, OptionError, SpecError
from dlbench.specs import load_gpu, load_model
from dlbench.specs.check import Positive, Text, require
from dlbench.specs.load import load_named
from dlbench.strategies import configure, get_strategy
from dlbench.strategies.options import DEFAULT_GPU

_FOLDER = files("dlbench.allocators") / "catalogues"


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a strategy takes part."""

    model: Text
    """Name or path of the model that it trains."""
    sizes: tuple[Positive, ...] | None = None
    """GPUs of a job; None: every size that the strategy can run with its default degrees of parallelism."""


class Catalogue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The strategies of a mix.

    Raises `SpecError` for an unknown strategy or model, and for a size at which the strategy cannot run.
    """

    name: Text
    description: Text
    gpus_per_node: Positive | None = None
    """Node for which the sizes are meant: on nodes of twice the GPUs they double. None: they hold on any."""
    strategies: dict[Text, Entry]
    source: Text
    """Where the choice comes from."""

    def __post_init__(self) -> None:
        require(bool(self.strategies), "strategies", "at least one", "none")
        for strategy, entry in self.strategies.items():
            _check(strategy, entry)


def load_catalogue(name_or_path: str) -> Catalogue:
    """Catalogue by name, or by path: whatever has a `/` or ends in .yaml or .yml. Raises `SpecError`."""
    return load_named(name_or_path, _FOLDER, "catalogue", Catalogue)


def feasible(size: int, gpus_per_node: int, catalogue: Catalogue) -> tuple[str, ...]:
    """Names of the strategies that a job of `size` GPUs can have, in the catalogue's order."""
    factor = _factor(catalogue, gpus_per_node)
    return tuple(
        strategy
        for strategy, entry in catalogue.strategies.items()
        if (
            _obstacle(strategy, entry.model, size) is None
            if entry.sizes is None
            else size in (factor * listed for listed in entry.sizes)
        )
    )


def feasible_by_size(sizes: Iterable[int], gpus_per_node: int, catalogue: Catalogue) -> dict[int, tuple[str, ...]]:
    """Feasible strategies of every size of a pattern. Raises `OptionError` for a size that has none."""
    found = {size: feasible(size, gpus_per_node, catalogue) for size in sorted(set(sizes))}
    for size, strategies in found.items():
        if not strategies:
            raise OptionError(
                f"no strategy of catalogue {catalogue.name} runs on {size} GPUs at {gpus_per_node} GPUs per node; "
                f"use {_runnable(catalogue, gpus_per_node)}"
            )
    return found


def _factor(catalogue: Catalogue, gpus_per_node: int) -> int:
    return 2 if is_doubled(catalogue.gpus_per_node, gpus_per_node) else 1


def _runnable(catalogue: Catalogue, gpus_per_node: int) -> str:
    """The sizes that can be used, in words."""
    factor = _factor(catalogue, gpus_per_node)
    listed = {factor * size for entry in catalogue.strategies.values() for size in entry.sizes or ()}
    return ", ".join(map(str, sorted(listed))) or "a size that one of its strategies can split"


def _check(strategy: str, entry: Entry) -> None:
    place = f"strategies.{strategy}"
    try:
        get_strategy(strategy)
    except OptionError as error:
        raise SpecError(f"at {place}: {error}") from None
    try:
        load_model(entry.model)
    except SpecError as error:
        raise SpecError(f"at {place}.model: {error}") from None
    for size in entry.sizes or ():
        if obstacle := _obstacle(strategy, entry.model, size):
            raise SpecError(f"at {place}.sizes: {obstacle}")


@cache
def _obstacle(strategy: str, model: str, size: int) -> str | None:
    """Why the strategy cannot run on `size` GPUs with its default degrees; None if it can.

    The GPU plays no part: every spec has a peak for the default dtype.
    """
    try:
        configure(strategy, world_size=size, model=load_model(model), gpu=load_gpu(DEFAULT_GPU))
    except (LayoutError, OptionError) as error:
        return str(error)
    return None
