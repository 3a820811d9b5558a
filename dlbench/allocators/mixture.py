"""Mixture entropy: how evenly the GPUs of a pattern are spread over strategies, and what it can be made.

H = -Σ p_i ln p_i over the m strategies of the mix, p_i being strategy i's share of the GPUs: 0 where one has them all,
ln m where all have the same.

What can be made of a half-assigned pattern is described by its *claims*: for every set of strategies, a bit mask, the
GPUs that only strategies of the set can still get. A strategy's GPUs, summed over any set, are at least the set's
claim, and over all strategies they are the claim of the whole set. Claims are supermodular, so the vectors within them
form the core of a convex game (Shapley, "Cores of convex games", 1971). Its vertices are reached by handing all that
is left to one strategy after the other, and the entropy, which is concave, is least at one of them. The most even
vector is that of Dutta and Ray, "A concept of egalitarianism under participation constraints" (1989). It may split
jobs, so that its entropy bounds what assignments reach.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, TypeAlias

Bin: TypeAlias = Literal["low", "medium", "high"]
BINS: tuple[Bin, ...] = ("low", "medium", "high")
"""The three equal parts of a range."""
_ROUNDING = 1e-9


def third(value: float, low: float, high: float) -> Bin:
    """The part of [low, high] that holds the value. An edge between two belongs to the upper one; [0, 0] is low."""
    if high <= low:
        return "low"
    return BINS[max(0, min(2, math.floor(3 * (value - low) / (high - low) + _ROUNDING)))]


def entropy(gpus: Sequence[float]) -> float:
    """Mixture entropy in nats of the GPUs of each strategy; the same in whatever order they come."""
    total = math.fsum(gpus)
    return abs(math.fsum(-share / total * math.log(share / total) for share in gpus if share > 0))


def subset_sums(values: Sequence[int]) -> list[int]:
    """Sum of the values of every subset, by its bit mask."""
    sums = [0]
    for value in values:
        sums += [value + others for others in sums]
    return sums


def vertex(claims: Sequence[int], order: Sequence[int]) -> list[int]:
    """GPUs of each strategy where each, from the last of `order` to the first, takes all that it can."""
    gpus = [0] * len(order)
    taken = 0
    for strategy in order:
        gpus[strategy] = claims[taken | 1 << strategy] - claims[taken]
        taken |= 1 << strategy
    return gpus


def least_even(claims: Sequence[int]) -> list[int]:
    """GPUs of each strategy at the least entropy: the best of all vertices, found set by set in 2^m m steps."""
    weight = [0.0] * len(claims)
    last = [0] * len(claims)
    for subset in range(1, len(claims)):
        weight[subset] = -1.0
        for strategy, others in _removals(len(claims))[subset]:
            gpus = claims[subset] - claims[others]
            found = weight[others] + (gpus * math.log(gpus) if gpus else 0.0)
            if found > weight[subset]:
                weight[subset], last[subset] = found, strategy
    order: list[int] = []
    subset = len(claims) - 1
    while subset:
        order.append(last[subset])
        subset ^= 1 << last[subset]
    return vertex(claims, order[::-1])


def most_even(claims: Sequence[int]) -> list[float]:
    """GPUs of each strategy at the greatest entropy, where jobs could be split between strategies.

    The set with the largest claim per strategy must have so much, shared equally; then the same among the others.
    """
    full = len(claims) - 1
    gpus = [0.0] * full.bit_length()
    settled = 0
    while settled != full:
        level, members = -1.0, 0
        for subset in range(1, full + 1):
            if not subset & settled:
                mean = (claims[subset | settled] - claims[settled]) / subset.bit_count()
                if mean > level:
                    level, members = mean, subset
        for strategy in range(len(gpus)):
            if members >> strategy & 1:
                gpus[strategy] = level
        settled |= members
    return gpus


@lru_cache(maxsize=16)
def _removals(subsets: int) -> list[list[tuple[int, int]]]:
    """Of every subset: each strategy in it, and the subset without that strategy."""
    strategies = range((subsets - 1).bit_length())
    return [[(i, subset ^ 1 << i) for i in strategies if subset >> i & 1] for subset in range(subsets)]
