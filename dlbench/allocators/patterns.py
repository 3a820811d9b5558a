"""Patterns: how many jobs an experiment has, and how many GPUs each of them.

Uniform and tier-sampled patterns are those of Raffi et al., SC26.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from importlib.resources import files
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from dlbench.errors import OptionError
from dlbench.specs.check import Positive, Rate, Text, require
from dlbench.specs.load import load_named

if TYPE_CHECKING:
    import numpy as np

Pattern: TypeAlias = tuple[int, ...]
"""GPUs of each job, in the order in which the jobs were drawn."""

FULL = (0.0, 1.0)
"""Window of utilisations that leaves a pattern as it was drawn."""
MOST_DRAWS = 100
"""Patterns that are drawn before a window of utilisations is given up."""
_ROUNDING = 1e-9
"""Products such as 0.29 × 100 lie this close to the whole number that they stand for."""
_FOLDER = files("dlbench.allocators") / "tiers"


class Tier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Job sizes that are drawn together: first the tier, then one of its sizes, all alike."""

    name: Text
    probability: Rate
    sizes: tuple[Positive, ...]
    """GPUs of a job."""

    def __post_init__(self) -> None:
        require(bool(self.sizes), f"tiers {self.name}, sizes", "at least one", "none")
        require(len(set(self.sizes)) == len(self.sizes), f"tiers {self.name}, sizes", "each once", list(self.sizes))


class Tiers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A distribution of job sizes.

    Raises `SpecError` where a name appears twice or the probabilities do not add up to 1.
    """

    name: Text
    description: Text
    gpus_per_node: Positive | None = None
    """Node for which the sizes are meant, see `for_nodes`; None: they hold on any."""
    tiers: tuple[Tier, ...]
    source: Text
    """Where the figures come from."""

    def __post_init__(self) -> None:
        names = [tier.name for tier in self.tiers]
        require(len(set(names)) == len(names), "tiers", "each name once", ", ".join(names))
        total = math.fsum(tier.probability for tier in self.tiers)
        require(abs(total - 1) <= _ROUNDING, "tiers", "probabilities that add up to 1", f"{total:g}")

    def weights(self) -> list[tuple[int, float]]:
        """Sizes and their probabilities, smallest first; a size of two tiers appears twice."""
        return sorted((size, tier.probability / len(tier.sizes)) for tier in self.tiers for size in tier.sizes)


def load_tiers(name_or_path: str) -> Tiers:
    """Tiers by name, or by path: whatever has a `/` or ends in .yaml or .yml. Raises `SpecError`."""
    return load_named(name_or_path, _FOLDER, "tiers", Tiers)


def doubled(tiers: Tiers) -> Tiers:
    """The same tiers with twice the GPUs in every job."""
    return msgspec.structs.replace(
        tiers,
        gpus_per_node=None if tiers.gpus_per_node is None else 2 * tiers.gpus_per_node,
        tiers=tuple(
            msgspec.structs.replace(tier, sizes=tuple(2 * size for size in tier.sizes)) for tier in tiers.tiers
        ),
    )


def is_doubled(sizes_for: int | None, gpus_per_node: int) -> bool:
    """Whether sizes meant for nodes of `sizes_for` GPUs double on these: the paper's do with 8 GPUs in place of 4."""
    return sizes_for is not None and gpus_per_node >= 2 * sizes_for


def for_nodes(tiers: Tiers, gpus_per_node: int) -> Tiers:
    """The tiers as they are used on nodes of that many GPUs: doubled where these have twice the GPUs."""
    return doubled(tiers) if is_doubled(tiers.gpus_per_node, gpus_per_node) else tiers


def uniform(budget: int, size: int, utilisation: float = 1.0) -> Pattern:
    """As many jobs of `size` GPUs as fit `utilisation` (0 to 1) of `budget` GPUs.

    Raises `OptionError` where not even one fits.
    """
    usable = _usable(budget, (0.0, utilisation))
    if size < 1:
        raise OptionError(f"jobs of {size} GPUs are impossible; use 1 or more")
    if size > usable:
        raise OptionError(
            f"no job of {size} GPUs fits {utilisation:g} of {budget} GPUs = {usable}; use smaller jobs or more GPUs"
        )
    return (size,) * (usable // size)


def tier_sampled(
    budget: int, tiers: Tiers, rng: np.random.Generator, *, utilisation: tuple[float, float] = FULL
) -> Pattern:
    """Draw jobs until nothing fits what is left of `budget` GPUs.

    Each draw takes a tier, then a size of it; what does not fit is drawn again. `utilisation` is the window (low,
    high) for the share of the budget that the jobs use: high bounds what they may use, and a pattern that ends below
    low is drawn again.

    Raises `OptionError` where nothing fits at all, or where `MOST_DRAWS` patterns all end below the window.
    """
    usable = _usable(budget, utilisation)
    weights = tiers.weights()
    if (smallest := weights[0][0]) > usable:
        raise OptionError(
            f"no job fits {usable} of {budget} GPUs: the smallest of tiers {tiers.name} has {smallest}; "
            "use other tiers or more GPUs"
        )
    needed = utilisation[0] * budget - _ROUNDING
    best = 0
    for _ in range(MOST_DRAWS):
        pattern = _draw(usable, weights, rng)
        if (used := sum(pattern)) >= needed:
            return pattern
        best = max(best, used)
    raise OptionError(
        f"{MOST_DRAWS} patterns of tiers {tiers.name} on {budget} GPUs all end below utilisation {utilisation[0]:g}; "
        f"the fullest reaches {best} GPUs = {best / budget:.4g}; use a wider window"
    )


def _draw(usable: int, weights: list[tuple[int, float]], rng: np.random.Generator) -> Pattern:
    """One pattern.

    Drawing among the sizes that fit, in proportion to their probabilities, has the law of drawing among all until one
    fits, and takes one draw even where the only size that fits is a rare one.
    """
    sizes = [size for size, _ in weights]
    cumulated = list(accumulate(weight for _, weight in weights))
    pattern = []
    while fitting := bisect_right(sizes, usable):
        drawn = bisect_right(cumulated, rng.random() * cumulated[fitting - 1], hi=fitting - 1)
        pattern.append(sizes[drawn])
        usable -= sizes[drawn]
    return tuple(pattern)


def _usable(budget: int, utilisation: tuple[float, float]) -> int:
    """GPUs that a pattern may use. Raises `OptionError` for an impossible budget or window."""
    low, high = utilisation
    if budget < 1:
        raise OptionError(f"a budget of {budget} GPUs is impossible; use 1 or more")
    if not (0 <= low <= high <= 1 and high > 0):
        shown = f"{high:g}" if low == 0 else f"{low:g}:{high:g}"
        raise OptionError(f"utilisation {shown} is out of range; use 0 <= low <= high <= 1 and high > 0")
    return math.floor(high * budget + _ROUNDING)
