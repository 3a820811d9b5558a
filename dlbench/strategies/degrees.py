"""Which degrees of parallelism a run gets where they were not asked for."""

from __future__ import annotations

from collections.abc import Mapping

from dlbench.strategies.layout import INNER_OPTION
from dlbench.strategies.ops import Scope
from dlbench.strategies.strategy import Strategy

SMALL_PIPELINE_RANKS = 8
"""Up to so many ranks, the paper's DP+PP uses two stages."""


def inner_option(strategy: Strategy) -> str:
    """Option that sets the innermost degree of the strategy; empty where it has none."""
    return INNER_OPTION[strategy.inner_scope] if strategy.inner_scope else ""


def choose_degrees(
    strategy: Strategy, world_size: int, given: Mapping[str, int]
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Degree of each of the strategy's dimensions, and in words where it is not the paper's.

    Given degrees are kept. From the paper's replica size on, the others are the paper's, whether they fit or not;
    smaller worlds get what fits:

    - FSDP shards by the world size.
    - DP+PP on up to 8 ranks has 2 stages, on one rank 1.
    - The hybrids take divisors of the paper's degrees whose product divides the world size: the largest product,
      then the most even pair, then the larger tensor or expert degree.
    """
    dimensions = [name for name in ("pp", inner_option(strategy)) if name in strategy.defaults]
    default = {name: given.get(name, strategy.defaults[name]) for name in dimensions}
    chosen = {**default, **_fitting(strategy, world_size, given, default)}
    changed = ", ".join(f"{name} = {chosen[name]}" for name in dimensions if chosen[name] != default[name])
    notes = (f"{changed} on so few ranks; larger runs have {_product(strategy, dimensions)}",) if changed else ()
    return chosen, notes


def _fitting(
    strategy: Strategy, world_size: int, given: Mapping[str, int], default: Mapping[str, int]
) -> dict[str, int]:
    if strategy.inner_scope is Scope.SHARD:
        fits = {"sharding": world_size} if world_size < strategy.defaults["sharding"] else {}
    elif strategy.inner_scope is None:
        fits = {"pp": min(2, world_size)} if "pp" in default and world_size <= SMALL_PIPELINE_RANKS else {}
    else:
        fits = _largest_pair(inner_option(strategy), world_size, given, default)
    return {name: degree for name, degree in fits.items() if name not in given}


def _largest_pair(inner: str, world_size: int, given: Mapping[str, int], default: Mapping[str, int]) -> dict[str, int]:
    if world_size >= default["pp"] * default[inner]:
        return {}
    pairs = [
        (pp, degree)
        for pp in _candidates("pp", given, default)
        for degree in _candidates(inner, given, default)
        if world_size % (pp * degree) == 0
    ]
    if not pairs:
        return {}
    pp, degree = max(pairs, key=lambda pair: (pair[0] * pair[1], min(pair), pair[1]))
    return {"pp": pp, inner: degree}


def _candidates(name: str, given: Mapping[str, int], default: Mapping[str, int]) -> list[int]:
    if name in given:
        return [given[name]]
    return [degree for degree in range(1, default[name] + 1) if default[name] % degree == 0]


def _product(strategy: Strategy, dimensions: list[str]) -> str:
    names = " × ".join(dimensions)
    degrees = " × ".join(str(strategy.defaults[name]) for name in dimensions)
    return f"{names} = {degrees}"
