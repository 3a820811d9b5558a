"""Whether the straggler persists or wanders: two tests on the sequence of ranks that came last.

The first asks whether one rank is last more often than chance would have it, were every rank equally likely: an exact
binomial test, its p-value times the number of ranks, since the rank was chosen for being last most often. The second
asks whether the same rank is last many times in a row: the number of runs (stretches of one rank) against all orders of
the same sequence (Wald and Wolfowitz, Annals of Mathematical Statistics 11, 1940, for more than two kinds of elements).

A rank that is late for a moment is last in all collectives of that moment, which are one observation and not many. So
the first test counts collectives only as far as the second calls them independent: where there are fewer stretches than
by chance, both counts shrink in that proportion.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from dlbench.statistics import FEWEST_SAMPLES

SIGNIFICANCE = 0.05
PERMUTATIONS = 999

_MOST_PERMUTED = 500
"""Of longer sequences, the number of runs is normal for all that its p-value shows."""
_LEAST_P = 0.001
"""Smaller p-values are not told apart in words."""


class Verdict(StrEnum):
    """What the order of stragglers shows."""

    PERSISTS = "persists"
    """One rank is last more often than by chance."""
    STRETCHES = "in stretches"
    """No rank is, but the last one tends to be last again."""
    ALTERNATES = "alternates"
    """No rank is, and the last one tends not to be last again."""
    WANDERS = "wanders"
    """Neither differs from chance."""
    UNKNOWN = "too few"
    """Fewer than six collectives whose straggler is resolved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Persistence:
    """The stragglers of a group in numbers."""

    verdict: Verdict
    count: int
    """Collectives whose straggler is resolved."""
    straggler: int
    """Rank that is last most often, the lowest of equals; -1 where no straggler is resolved."""
    times: int
    """How often it is last."""
    p: float
    """Of as many times or more for any rank, were all equally likely; NaN below six stragglers."""
    stretches: int
    """Runs of the same straggler."""
    expected_stretches: float
    """Mean number of runs over all orders of the sequence."""
    stretches_p: float
    """Two-sided, of the number of runs; NaN below six stragglers."""

    @property
    def share(self) -> float:
        """Share of the resolved collectives in which the most frequent straggler is last; NaN of none."""
        return self.times / self.count if self.count else math.nan

    def words(self) -> str:
        """The verdict as a sentence without a subject, e.g. `rank 2 is last in 58 of 60 (p < 0.001): it persists`."""
        if self.verdict is Verdict.UNKNOWN:
            return f"{self.count} resolved stragglers are too few to tell whether one persists"
        often = f"rank {self.straggler} is last most often, in {self.times} of {self.count} ({p_text(self.p)})"
        order = f"{self.stretches} stretches where chance gives {self.expected_stretches:.1f}"
        order += f" ({p_text(self.stretches_p)})"
        match self.verdict:
            case Verdict.PERSISTS:
                return f"rank {self.straggler} is last in {self.times} of {self.count} ({p_text(self.p)}): it persists"
            case Verdict.STRETCHES:
                return f"{often}: no rank persists, but one stays last for a while, {order}"
            case Verdict.ALTERNATES:
                return f"{often}: no rank persists, and the last one seldom stays last, {order}"
        return f"{often}: it wanders, {order}"


def p_text(p: float) -> str:
    """A p-value in words."""
    return f"p < {_LEAST_P}" if p < _LEAST_P else f"p = {p:.3f}"


def persistence(stragglers: Sequence[int], ranks: int, seed: int) -> Persistence:
    """Test a sequence of resolved stragglers in order of time, of a group of `ranks` ranks; `seed` sets the orders."""
    counts = Counter(stragglers)
    straggler = min(counts, key=lambda rank: (-counts[rank], rank), default=-1)
    sequence = np.array(stragglers, dtype=np.int64)
    enough = len(sequence) >= FEWEST_SAMPLES
    stretches, expected = number_of_runs(sequence), expected_runs(list(counts.values()))
    p = _p(counts[straggler], len(sequence), ranks, min(1.0, stretches / expected)) if enough else math.nan
    stretches_p = runs_p(sequence, seed) if enough else math.nan
    return Persistence(
        verdict=_verdict(enough, p, stretches < expected, stretches_p),
        count=len(sequence),
        straggler=straggler,
        times=counts[straggler],
        p=p,
        stretches=stretches,
        expected_stretches=expected,
        stretches_p=stretches_p,
    )


def _verdict(enough: bool, p: float, fewer: bool, stretches_p: float) -> Verdict:
    if not enough:
        return Verdict.UNKNOWN
    if p < SIGNIFICANCE:
        return Verdict.PERSISTS
    if stretches_p < SIGNIFICANCE:
        return Verdict.STRETCHES if fewer else Verdict.ALTERNATES
    return Verdict.WANDERS


def _p(times: int, count: int, ranks: int, independent: float) -> float:
    """Of the most frequent straggler, where a share of the collectives is independent; by the Bonferroni bound."""
    trials = math.floor(count * independent)
    return min(1.0, ranks * binomial_tail(times * trials // count, trials, 1 / ranks))


def binomial_tail(least: int, trials: int, probability: float) -> float:
    """P(X ≥ least) of X binomial (trials, probability), exact to rounding at any size."""
    if least <= 0 or probability >= 1:
        return 1.0
    log = math.lgamma(trials + 1) - math.lgamma(least + 1) - math.lgamma(trials - least + 1)
    log += least * math.log(probability) + (trials - least) * math.log1p(-probability)
    successes = np.arange(least, trials)
    odds = probability / (1 - probability)
    terms = np.cumprod((trials - successes) / (successes + 1) * odds)
    return math.exp(log) * (1 + float(terms.sum()))


def number_of_runs(sequence: NDArray[np.int64]) -> int:
    """Stretches of equal elements."""
    return int(np.count_nonzero(sequence[1:] != sequence[:-1])) + (len(sequence) > 0)


def expected_runs(counts: Sequence[int]) -> float:
    """Mean number of runs over all orders of elements that occur that often: 1 + n − Σ nᵢ² / n."""
    total = sum(counts)
    return 1 + total - sum(count**2 for count in counts) / total if total else 0.0


def runs_variance(counts: Sequence[int]) -> float:
    """Variance of the number of runs over all orders (Mood, Annals of Mathematical Statistics 11, 1940)."""
    n = sum(counts)
    squares, cubes = (sum(count**power for count in counts) for power in (2, 3))
    return (squares * (squares + n * (n + 1)) - 2 * n * cubes - n**3) / (n**2 * (n - 1))


def runs_p(sequence: NDArray[np.int64], seed: int) -> float:
    """Two-sided p-value of the number of runs: twice the smaller tail, and 1 where there is one order only.

    By seeded permutations, the sequence itself being one of them; of long sequences by the normal distribution with
    the exact mean and variance.
    """
    counts = np.unique(sequence, return_counts=True)[1].tolist()
    if len(counts) == 1:
        return 1.0
    found = number_of_runs(sequence)
    if len(sequence) > _MOST_PERMUTED:
        spread = math.sqrt(2 * runs_variance(counts))
        return math.erfc(abs(found - expected_runs(counts)) / spread) if spread else 1.0
    generator = np.random.default_rng([seed, len(sequence)])
    permuted = generator.permuted(np.tile(sequence, (PERMUTATIONS, 1)), axis=1)
    runs = 1 + np.count_nonzero(permuted[:, 1:] != permuted[:, :-1], axis=1)
    tail = min(np.count_nonzero(runs <= found), np.count_nonzero(runs >= found))
    return min(1.0, 2 * (int(tail) + 1) / (PERMUTATIONS + 1))
