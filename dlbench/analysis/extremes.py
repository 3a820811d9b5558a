"""How the synchronisation tax grows with the group: extreme value fits of block times, and what they predict.

Ranks wait for the slowest, so the mean wait of a group, tau_mean = max x − mean x over its ranks, is that of an extreme
value. Block times are standardised to z-scores block by block; the maxima of small groups of m ranks are fitted by a
Gumbel and by a GEV distribution; the largest of k·m ranks is the largest of k such maxima:

    Gumbel  τ(n) = b (μ + σ ln k + γσ)                    GEV  τ(n) = b (μ + σ (k^ξ Γ(1 − ξ) − 1) / ξ),  k = n / m

where b is the standard deviation of a block time, averaged over blocks. Estimates are by L-moments, with bootstrap
intervals; those by maximum likelihood stand beside them. How far the predictions can be trusted: docs/models.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dlbench.analysis.block_times import BlockTimes
from dlbench.analysis.bootstrap import RESAMPLES, expanded_tail
from dlbench.analysis.samples import Estimate, one_sided
from dlbench.analysis.tails import (
    FARTHEST,
    Floats,
    Goodness,
    LMoments,
    Tail,
    gev_by_l_moments,
    gev_by_likelihood,
    goodness,
    gumbel_by_l_moments,
    gumbel_by_likelihood,
    l_moments,
)
from dlbench.errors import OptionError, UserError
from dlbench.statistics import FEWEST_SAMPLES

Centring: TypeAlias = Literal["pooled", "instance"]
CENTRINGS: tuple[Centring, ...] = ("pooled", "instance")

GROUP_SIZE = 4
FEWEST_BLOCKS = 30
"""Instances of blocks below which no tail can be told."""

_LONGEST = 1e9
"""Seconds. What is longer is no time, and its square need not be a number."""
_LIKELIHOOD_SIZE = 20_000
"""Maxima that the likelihood is computed of, drawn at random where there are more: its search takes many passes."""
_NOTEWORTHY_SHARE = 0.1
_NOTEWORTHY_ERROR = 0.05
_SAME_UP_TO = 2
"""k up to which fits by L-moments predict the same: the first two fix the mean of the larger of two draws."""
_ROUNDING = 1e-9
"""Relative. With one block, prediction and measurement are equal at k = 1, but for it."""
_SORTED_AT_MOST = 200_000_000
_FEWEST_RESAMPLES = 200
_DISTRIBUTIONS: dict[str, tuple[Callable[[LMoments], Tail], Callable[[Floats], Tail]]] = {
    "Gumbel": (gumbel_by_l_moments, gumbel_by_likelihood),
    "GEV": (gev_by_l_moments, gev_by_likelihood),
}
GUMBEL, GEV = _DISTRIBUTIONS

HEAVY, LIGHT, OPEN = "heavy", "light", "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A distribution fitted to the z-scores of group maxima. Location and scale are in units of `Extremes.spread`."""

    distribution: str
    location: Estimate
    scale: Estimate
    shape: Estimate
    likelihood: Tail
    """By maximum likelihood."""
    goodness: Goodness
    resampled: Tail = field(repr=False)
    """By L-moments in each resample."""
    reason: str = ""
    """What to beware of in waits by this fit."""

    @property
    def tail(self) -> Tail:
        """The fitted distribution, by L-moments."""
        return Tail.of(self.location.value, self.scale.value, self.shape.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Mean wait of a group of `ranks`, in seconds."""

    distribution: str
    ranks: int
    k: float
    tau: Estimate
    likelihood: float
    """By the fit of maximum likelihood; NaN where its shape is 1 or more: such a tail has no mean."""
    measured: Estimate
    """In groups of that many of the measured ranks; NaN where there are fewer ranks."""
    error: Estimate
    """tau / measured − 1."""
    waits: float
    """Mean wait in the collectives themselves, where the group is that of the data; else NaN."""
    reason: str = ""
    """What to beware of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extremes:
    """The fits of block times, and what they predict."""

    times: BlockTimes
    group_size: int
    centring: Centring
    seed: int
    block_seconds: Estimate
    """a: mean block time."""
    spread: Estimate
    """b: standard deviation of a block time, averaged over instances, in seconds."""
    maxima: Floats = field(repr=False)
    """Pooled z-scores of group maxima, ascending."""
    fits: dict[str, Fit]
    tail: str
    """heavy or light where the interval of the GEV's shape lies above or below 0, else open."""
    predictions: list[Prediction]
    notes: tuple[str, ...]


def extremes(
    times: BlockTimes,
    *,
    group_size: int = GROUP_SIZE,
    centring: Centring = "pooled",
    predict: Sequence[int] = (),
    seed: int = 0,
) -> Extremes:
    """Fit block times, and predict the mean wait in groups of `predict` ranks.

    By default, groups that double from `group_size` to 16 times it, and as many ranks as there are. `pooled` centring
    subtracts a block's mean over all its instances, `instance` that of the instance, which leaves aside what all ranks
    of the group have in common. The seed splits ranks into groups and resamples.

    Raises `UserError` for block times that allow no fit and `OptionError` for impossible groups.
    """
    times, notes = _checked(times)
    asked = _sizes(times, group_size, predict)
    sizes = sorted({*asked, *(size for size in _sizes(times, group_size) if size <= times.ranks)})
    rows = _Rows.of(times, group_size, sizes, seed)
    observed = rows.statistics(np.arange(len(times)), centring)
    maxima = np.sort(rows.scores(np.arange(len(times)), centring)[0], axis=None)
    drawn, units = _resamples(times, maxima.size, seed)
    again = _Statistics(*map(np.array, zip(*(rows.statistics(chosen, centring) for chosen in drawn), strict=True)))
    interval = _Interval(units)
    if len(np.unique(times.iteration)) < FEWEST_SAMPLES:
        notes.append(f"{times.source}: fewer than {FEWEST_SAMPLES} iterations: intervals take blocks as independent")
    notes += rows.shared(times.source) if centring == "pooled" else []
    notes += [*rows.uneven(times.source, centring), *_unchecked(times, group_size)]
    fits = {name: _fit(name, maxima, again.moments, interval, seed) for name in _DISTRIBUTIONS}
    predicted = list(_predictions(times, group_size, sizes, fits, observed, again, interval))
    fits = _warned(fits, predicted, centring)
    block_seconds, spread = interval(observed.block, again.block), interval(observed.spread, again.spread)
    notes += _widened(times.source, {"block a": block_seconds, "spread b": spread}, fits)
    return Extremes(
        times=times,
        group_size=group_size,
        centring=centring,
        seed=seed,
        block_seconds=block_seconds,
        spread=spread,
        maxima=maxima,
        fits=fits,
        tail=_tail(fits[GEV].shape),
        predictions=[
            replace(each, reason=_reason(each, fits[each.distribution])) for each in predicted if each.ranks in asked
        ],
        notes=(*times.notes, *notes),
    )


def _predictions(
    times: BlockTimes,
    group_size: int,
    sizes: Sequence[int],
    fits: Mapping[str, Fit],
    observed: _Statistics,
    again: _Statistics,
    interval: _Interval,
) -> Iterator[Prediction]:
    """Predictions for groups of each size by each fit, from statistics of the sample and `again` of each resample."""
    for place, ranks in enumerate(sizes):
        k = ranks / group_size
        measured = interval(observed.measured[place], again.measured[:, place])
        waits = float(times.waits.mean()) if ranks == times.ranks else np.nan
        for name, fit in fits.items():
            value, values = observed.spread * fit.tail.mean(k), again.spread * fit.resampled.mean(k)
            yield Prediction(
                distribution=name,
                ranks=ranks,
                k=k,
                tau=interval(value, values),
                likelihood=float(observed.spread * fit.likelihood.mean(k)),
                measured=measured,
                error=interval(value / measured.value - 1, values / again.measured[:, place] - 1),
                waits=waits,
            )


class _Statistics(NamedTuple):
    """What a sample, or each resample, comes to."""

    block: Floats
    """a, seconds."""
    spread: Floats
    """b, seconds."""
    moments: Floats
    """The three L-moments of the z-scores of group maxima."""
    measured: Floats
    """Mean wait in groups of each size, in seconds; NaN where there are fewer ranks."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """What a resample needs of each instance. Arrays have shape (instances,) where nothing else is said."""

    block: NDArray[np.int64]
    blocks: int
    ranks: int
    mean: Floats
    variance: Floats
    maxima: Floats
    """Shape (instances, groups)."""
    measured: Floats
    """Shape (instances, sizes): mean wait in groups of each size."""

    @classmethod
    def of(cls, times: BlockTimes, group_size: int, sizes: Sequence[int], seed: int) -> _Rows:
        """Every instance splits its ranks anew into disjoint groups; ranks that fill none are left out of the split."""
        split = np.random.default_rng((seed, *times.seconds.shape)).permuted(times.seconds, axis=1)
        measured = [_waits(split, size) for size in sizes]
        return cls(
            block=times.block,
            blocks=len(times.labels),
            ranks=times.ranks,
            mean=split.mean(axis=1),
            variance=split.var(axis=1, ddof=1),
            maxima=_groups(split, group_size).max(axis=-1),
            measured=np.stack(measured, axis=1),
        )

    def scores(self, chosen: NDArray[np.int64], centring: Centring) -> tuple[Floats, Floats]:
        """z-scores of the group maxima of the chosen instances, shape (chosen, groups), and their s, shape (chosen,).

        pooled: z = (M − a_c) / s_c over all instances of the block. instance: z = (M − mean) / s_within.
        """
        block, mean = self.block[chosen], self.mean[chosen]
        count = np.bincount(block, minlength=self.blocks)
        there = np.maximum(count, 1)
        within = np.bincount(block, self.variance[chosen], self.blocks)
        if centring == "instance":
            centre, variance = mean, within / there
        else:
            centre = (np.bincount(block, mean, self.blocks) / there)[block]
            between = np.bincount(block, (mean - centre) ** 2, self.blocks)
            variance = ((self.ranks - 1) * within + self.ranks * between) / (self.ranks * there - 1)
        s = np.sqrt(variance)[block]
        with np.errstate(divide="ignore", invalid="ignore"):  # a resample can hold equal times only
            return (self.maxima[chosen] - centre[:, np.newaxis]) / s[:, np.newaxis], s

    def shared(self, source: str) -> list[str]:
        """A note where ranks have much of the variance in common: nobody waits for that, but it widens pooled tails."""
        whole = np.arange(len(self.block))
        within, pooled = (np.mean(self.scores(whole, centring)[1] ** 2) for centring in ("instance", "pooled"))
        share = 1 - within / pooled
        if share < _NOTEWORTHY_SHARE:
            return []
        common = f"{source}: {100 * share:.0f} % of the variance of block times is common to the ranks of an instance"
        return [f"{common}, so nobody waits for it; dlbench extremes --centring instance leaves it out"]

    def uneven(self, source: str, centring: Centring) -> list[str]:
        """A note where one sample of z-scores does not stand for all blocks: even the mean of its own groups is off."""
        z, s = self.scores(np.arange(len(self.block)), centring)
        error = s.mean() * z.mean() / (z.mean(axis=1) * s).mean() - 1
        if abs(error) < _NOTEWORTHY_ERROR:
            return []
        apart = f"{source}: blocks of more spread have other tails than those of less, so predictions start"
        return [f"{apart} {100 * abs(error):.0f} % too {'high' if error > 0 else 'low'} in groups of the fitted size"]

    def statistics(self, chosen: NDArray[np.int64], centring: Centring) -> _Statistics:
        """Statistics of the chosen instances, which may be there several times."""
        z, s = self.scores(chosen, centring)
        moments = np.array(l_moments(np.sort(z, axis=None)))
        return _Statistics(self.mean[chosen].mean(), s.mean(), moments, self.measured[chosen].mean(axis=0))


def _unchecked(times: BlockTimes, group_size: int) -> list[str]:
    """A note where no measured group is large enough to tell which of the fits is right."""
    if times.ranks > _SAME_UP_TO * group_size:
        return []
    smaller = times.ranks > 2 * _SAME_UP_TO
    how = f"--group-size {max(2, times.ranks // 4)}" if smaller else "a run of more ranks"
    same = f"{times.source}: up to {_SAME_UP_TO} times the fitted groups, Gumbel and GEV predict the same"
    return [f"{same}, so {times.ranks} ranks cannot tell which is right; {how} can"]


def _groups(split: Floats, size: int) -> Floats:
    """Shape (instances, groups, size)."""
    count = split.shape[1] // size
    return split[:, : count * size].reshape(len(split), count, size)


def _waits(split: Floats, size: int) -> Floats:
    """Mean wait in groups of `size` ranks, per instance; NaN where there are fewer."""
    if size > split.shape[1]:
        return np.full(len(split), np.nan)
    groups = _groups(split, size)
    return np.asarray((groups.max(axis=-1) - groups.mean(axis=-1)).mean(axis=-1))


def _resamples(times: BlockTimes, maxima: int, seed: int) -> tuple[Iterator[NDArray[np.int64]], int]:
    """Instances of each resample, and of how many independent draws it consists.

    What happened in one iteration is drawn together, since an iteration can be slow as a whole. Where there are too few
    iterations for an interval, instances are drawn one by one.
    """
    numbers, iteration = np.unique(times.iteration, return_inverse=True)
    units = len(numbers)
    if units < FEWEST_SAMPLES:
        units, iteration = len(times), np.arange(len(times))
    order = np.argsort(iteration, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(iteration[order])) + 1)
    count = int(np.clip(_SORTED_AT_MOST // maxima, _FEWEST_RESAMPLES, RESAMPLES))
    generator = np.random.default_rng((seed, units, count))
    draws = (generator.integers(units, size=units) for _ in range(count))
    return (np.concatenate([members[unit] for unit in draw]) for draw in draws), units


class _Interval(NamedTuple):
    """Makes estimates with the interval that resamples of `units` independent draws give (`analysis.bootstrap`).

    Samples of a heavy tail have lighter ones when they are resampled: where all of the interval lies on one side of the
    estimate, it is widened to reach it, and `one_sided` says so.
    """

    units: int

    def __call__(self, value: Any, resampled: Floats) -> Estimate:
        tail = expanded_tail(self.units)
        if not np.isfinite(resampled).all():
            return Estimate(float(value))
        low, high = np.quantile(resampled, (tail, 1 - tail))
        return Estimate(float(value), min(float(low), float(value)), max(float(high), float(value)))


def _fit(name: str, maxima: Floats, resampled: Floats, interval: _Interval, seed: int) -> Fit:
    """The fit to `maxima`, ascending; `resampled` has the L-moments of each resample, shape (resamples, 3)."""
    by_moments, by_likelihood = _DISTRIBUTIONS[name]
    tail, again = by_moments(l_moments(maxima)), by_moments(LMoments(*resampled.T))
    looked_at = maxima
    if len(maxima) > _LIKELIHOOD_SIZE:
        looked_at = np.random.default_rng((seed, len(maxima))).choice(maxima, _LIKELIHOOD_SIZE, replace=False)
    return Fit(
        distribution=name,
        location=interval(tail.location, again.location),
        scale=interval(tail.scale, again.scale),
        shape=interval(tail.shape, again.shape),
        likelihood=by_likelihood(looked_at),
        goodness=goodness(maxima, by_moments, seed),
        resampled=again,
    )


def _tail(shape: Estimate) -> str:
    if shape.low > 0:
        return HEAVY
    return LIGHT if shape.high < 0 else OPEN


_BEWARE_GUMBEL = {
    HEAVY: "Gumbel is a lower bound: the tail is heavy (ξ above 0), so expect waits as long as it predicts, or longer",
    LIGHT: "Gumbel overestimates: the tail is light (ξ below 0), so expect shorter waits than it predicts",
    OPEN: "Gumbel is no bound: the interval of ξ holds 0, so waits may be shorter or longer than it predicts",
}
_CONTRADICTED = "Gumbel is no bound: measured waits are shorter than it predicts, although the tail looks heavy"
_IN_COMMON = "; dlbench extremes --centring instance leaves out what ranks have in common"
_NO_MEAN = "by likelihood the shape ξ is 1 or more: such a tail has no mean"


def _warned(fits: Mapping[str, Fit], predictions: Sequence[Prediction], centring: Centring) -> dict[str, Fit]:
    """The fits with what to beware of, as far as shape, likelihood and measured waits tell."""
    tail = _tail(fits[GEV].shape)
    gumbel = _BEWARE_GUMBEL[tail]
    contradicted = {each.k for each in predictions if each.distribution == GUMBEL and each.error.low > _ROUNDING}
    if tail == HEAVY and contradicted:
        # At k = 1 it is not what ranks have in common that is off, but blocks that differ.
        gumbel = _CONTRADICTED + (_IN_COMMON if centring == "pooled" and 1 not in contradicted else "")
    reasons = {name: [gumbel] if name == GUMBEL else [] for name in fits}
    return {
        name: replace(fit, reason="; ".join(reasons[name] + ([_NO_MEAN] if fit.likelihood.shape >= 1 else [])))
        for name, fit in fits.items()
    }


def _widened(source: str, estimates: Mapping[str, Estimate], fits: Mapping[str, Fit]) -> list[str]:
    """A note of the parameters whose intervals were widened to reach the estimate."""
    found = dict(estimates)
    for name, fit in fits.items():
        found |= {
            f"{name} {sign}": each for sign, each in zip("μσξ", (fit.location, fit.scale, fit.shape), strict=True)
        }
    said = one_sided(found)
    return [f"{source}: {said}"] if said else []


def _reason(prediction: Prediction, fit: Fit) -> str:
    reasons = [fit.reason] if fit.reason else []
    if said := one_sided({"wait": prediction.tau, "measured": prediction.measured, "error": prediction.error}):
        reasons.append(said)
    if prediction.k > FARTHEST:
        reasons.append(
            f"an extrapolation beyond k = {FARTHEST}, where no measurement supports the tail: mind its interval"
        )
    return "; ".join(reasons)


def _sizes(times: BlockTimes, group_size: int, predict: Sequence[int] = ()) -> list[int]:
    """Ranks of the groups to predict, ascending. Raises `OptionError` for groups that are impossible."""
    if group_size < 2:  # noqa: PLR2004
        raise OptionError(f"group size {group_size} is impossible: a rank waits for another; use 2 or more")
    if group_size > times.ranks:
        right = f"--group-size {times.ranks}{' or less' if times.ranks > 2 else ''}"  # noqa: PLR2004
        raise OptionError(f"{times.source}: groups of {group_size} ranks cannot be made of {times.ranks}; use {right}")
    small = [size for size in predict if size < group_size]
    if small:
        raise OptionError(
            f"{small[0]} ranks are less than the fitted groups of {group_size}; predict {group_size} or more"
        )
    doublings = [group_size << step for step in range(FARTHEST.bit_length())]
    return sorted(set(predict) or {*doublings, times.ranks})


def _checked(times: BlockTimes) -> tuple[BlockTimes, list[str]]:
    """The block times without blocks that take the same time always. Raises `UserError` where no fit is possible."""
    if times.ranks < 2:  # noqa: PLR2004
        raise UserError(f"{times.source}: block times of one rank, which waits for nobody; give those of a group")
    if len(times) < FEWEST_BLOCKS:
        raise UserError(f"{times.source}: {len(times)} blocks were measured; a tail takes {FEWEST_BLOCKS} or more")
    wrong = np.argwhere(~(np.abs(times.seconds) < _LONGEST))
    if len(wrong):
        instance, rank = wrong[0].tolist()
        label, found = times.labels[times.block[instance]], times.seconds[instance, rank]
        raise UserError(f"{times.source}: {label}, rank {rank} of the group: {found} is no block time; leave it out")
    variance = np.bincount(times.block, times.seconds.var(axis=1), minlength=len(times.labels))
    scale = np.bincount(times.block, np.abs(times.seconds).max(axis=1), minlength=len(times.labels))
    constant = variance <= (scale * 1e-12) ** 2
    kept = ~constant[times.block]
    if not kept.any():
        raise UserError(f"{times.source}: all ranks have the same block times, so nobody waits and there is no tail")
    notes = [
        f"{times.source}: {times.labels[code]} takes the same time on all ranks and was left out"
        for code in np.flatnonzero(constant)
    ]
    if kept.sum() < FEWEST_BLOCKS:
        raise UserError(
            f"{times.source}: {kept.sum()} blocks differ between ranks; a tail takes {FEWEST_BLOCKS} or more"
        )
    return times.only(kept), notes
