"""The bandwidth that is still worth buying: where more of it no longer makes a collective much faster.

A collective takes T = pα + qS/B + τ: p messages in a row of latency α, a volume of qS bytes at bandwidth B, and the
mean wait τ for the slowest rank. Its elasticity, the relative change of T for one of B, is ε = −W / (F + W) with
W = qS/B and F = pα + τ. The bandwidth at which it has fallen to a target is

    B* = qS (1 − |ε|) / (|ε| F).

What ranks wait, no bandwidth brings back: the tax lowers B* by the share τ / F, whatever S and ε are.

End to end, an iteration is T and a block of computation a. Its elasticity at a bandwidth B, kept when FLOPS grow by x
and the tax stays, asks for B*(x) = B (F + a) / (F + a/x).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from dlbench.analysis.campaign import Schema
from dlbench.analysis.samples import Estimate, estimate_types, one_sided, table
from dlbench.analysis.tails import FARTHEST, Tail
from dlbench.errors import OptionError

NO_TAX = "none"
_SMALLEST_ELASTICITY = 1e-6
_SMALLEST, _LARGEST = 1e-9, 2.0**63
"""Messages in a row and bytes per byte lie between them."""
DOMAINS = (8, 64, 512, 4096)
"""Ranks that the law is shown for where nobody asks for others."""

BANDWIDTH: Schema = {
    "topology": str,
    "domain": np.int64,
    "tax": str,
    "p": np.float64,
    "q": np.float64,
    **estimate_types("tau", "bandwidth", "reduction"),
    "reason": str,
}
"""Columns of `bandwidths`."""

FLOPS: Schema = {
    "topology": str,
    "domain": np.int64,
    "tax": str,
    "flops_factor": np.float64,
    **estimate_types("bandwidth", "reduction", "elasticity"),
    "reason": str,
}
"""Columns of `end_to_end`."""


@dataclass(frozen=True, slots=True)
class Topology:
    """How an all-reduce of n ranks uses the network."""

    name: str
    p: Callable[[int], float]
    """Messages that follow each other."""
    q: Callable[[int], float]
    """Bytes through a rank's link per byte of the message."""


def _ring_volume(n: int) -> float:
    return 2 * (n - 1) / n


TOPOLOGIES = {
    topology.name: topology
    for topology in (
        Topology("ring", lambda n: 2.0 * (n - 1), _ring_volume),
        Topology("torus", lambda n: 6 * (n ** (1 / 3) - 1), _ring_volume),
        Topology("connected", lambda n: 2.0, _ring_volume),
    )
}
"""Ring, 3-D torus and fully connected domain."""


def given_topology(p: float, q: float) -> Topology:
    """A network of which p and q are known, for whatever domain. Raises `OptionError` where one is impossible."""
    if not all(_SMALLEST <= number < _LARGEST for number in (p, q)):
        raise OptionError(f"topology {p:g},{q:g} is impossible: messages in a row and bytes per byte are above 0")
    return Topology(f"p={p:g}, q={q:g}", lambda n: p, lambda n: q)


def optimal_bandwidth(fixed: float, volume: float, elasticity: float) -> float:
    """B* in bytes per second: `fixed` is F in seconds, `volume` is qS in bytes, `elasticity` |ε| of 0 to 1.

    Infinite where nothing is fixed: the time is then in proportion to 1/B however large B is.
    """
    return volume * (1 - elasticity) / (elasticity * fixed) if fixed > 0 else math.inf


def elasticity(fixed: float, volume: float, bandwidth: float) -> float:
    """|ε| of a time F + W at a bandwidth in bytes per second."""
    transfer = volume / bandwidth
    return transfer / (fixed + transfer)


def kept_elasticity_bandwidth(bandwidth: float, fixed: float, block: float, flops_factor: float) -> float:
    """B*(x): the bandwidth that keeps the end-to-end elasticity when computation gets faster by `flops_factor`."""
    return bandwidth * (fixed + block) / (fixed + block / flops_factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """What the law takes of a collective, the tax aside."""

    alpha: float = 5e-6
    """Latency of a message, seconds."""
    message: float = 2.0**28
    """S, bytes."""
    elasticity: float = 0.5
    """|ε| that B* is wanted for."""

    def __post_init__(self) -> None:
        if not _SMALLEST_ELASTICITY <= self.elasticity < 1:
            raise OptionError(f"elasticity {self.elasticity:g} is impossible; give one between 0 and 1, e.g. 0.5")


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """The computation of an iteration, for the end-to-end law."""

    block: float
    """a: mean block time, seconds."""
    bandwidth: float
    """B of today in bytes per second, whose elasticity is kept."""
    factors: Sequence[float]
    """x: by how much FLOPS grow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tax:
    """Mean wait τ(n) by a fitted tail."""

    name: str
    """E.g. Gumbel."""
    tail: Tail
    """Of the maxima of groups, in units of the spread."""
    spread: float = 1.0
    """b, seconds."""
    group_size: int = 4
    """Ranks of the groups that the tail was fitted to."""
    intervals: Mapping[int, Estimate] = field(default_factory=dict)
    """τ(n) with its interval, in seconds, for the n for which there is one."""
    beware: str = ""
    """What the fit says to beware of."""

    def __post_init__(self) -> None:
        if self.tail.scale <= 0 or self.spread <= 0:
            raise OptionError(f"scale σ {self.tail.scale:g} and spread {self.spread:g} s must be above 0")
        if self.tail.shape >= 1:
            raise OptionError(f"a tail of shape {self.tail.shape:g} has no mean, so no tax follows; ξ must be below 1")

    def tau(self, n: int) -> Estimate:
        """Mean wait of n ranks, in seconds. Raises `OptionError` where the tail does not tell it."""
        if n < self.group_size:
            raise OptionError(
                f"a domain of {n} ranks is smaller than the groups of {self.group_size} that the tail was fitted to"
            )
        tau = self.intervals.get(n) or Estimate(self.spread * float(self.tail.mean(n / self.group_size)))
        if not 0 <= tau.value < math.inf:
            raise OptionError(f"{self.name}: a wait of {tau.value:g} s for {n} ranks is impossible; check μ, σ and ξ")
        return Estimate(*np.maximum(tau, 0.0).tolist())  # no wait is below 0, but the end of an interval can be

    def reason(self, n: int) -> str:
        """What to beware of."""
        known = self.intervals.get(n)
        widened = one_sided({"wait": known}) if known else ""
        far = f"the tax is an extrapolation beyond k = {FARTHEST} times the groups of its fit"
        return "; ".join(filter(None, (self.beware, widened, far if n > FARTHEST * self.group_size else "")))


@dataclass(frozen=True, slots=True)
class _Case:
    """A topology and a number of ranks under a tax, or none."""

    topology: Topology
    domain: int
    tax: Tax | None

    def key(self) -> dict[str, Any]:
        return {
            "topology": self.topology.name,
            "domain": self.domain,
            "tax": self.tax.name if self.tax else NO_TAX,
            "reason": self.tax.reason(self.domain) if self.tax else "",
        }

    def tau(self) -> Estimate:
        return self.tax.tau(self.domain) if self.tax else Estimate(0.0, 0.0, 0.0)


def _cases(topologies: Sequence[Topology], domains: Sequence[int], taxes: Sequence[Tax]) -> Iterator[_Case]:
    for domain in domains:
        if domain < 2:  # noqa: PLR2004
            raise OptionError(f"a domain of {domain} ranks has nothing to send; give 2 or more")
    for topology in topologies:
        for domain in domains:
            yield from (_Case(topology, domain, tax) for tax in (None, *taxes))


def bandwidths(
    collective: Collective, topologies: Sequence[Topology], domains: Sequence[int], taxes: Sequence[Tax]
) -> pd.DataFrame:
    """B* of every topology and domain, without a tax and with each: columns `BANDWIDTH`, times in seconds.

    `reduction` is by how much the tax lowers B*, as a fraction. Raises `OptionError` for impossible domains.
    """
    return table([_row(case, collective) for case in _cases(topologies, domains, taxes)], BANDWIDTH)


def _row(case: _Case, collective: Collective) -> dict[str, Any]:
    p, q, tau = case.topology.p(case.domain), case.topology.q(case.domain), case.tau()
    latency, volume = p * collective.alpha, q * collective.message
    best = _through(tau, lambda wait: optimal_bandwidth(latency + wait, volume, collective.elasticity))
    if not math.isfinite(best.value):
        raise OptionError(f"{case.topology.name}: no bandwidth is enough, since nothing else takes time; check α and p")
    reduction = _through(tau, lambda wait: wait / (latency + wait))
    estimates = {"tau": tau, "bandwidth": best, "reduction": reduction}
    return {**case.key(), "p": p, "q": q, **_columns(estimates)}


def end_to_end(
    collective: Collective,
    topologies: Sequence[Topology],
    domains: Sequence[int],
    taxes: Sequence[Tax],
    computation: Computation,
) -> pd.DataFrame:
    """B*(x) of every topology, domain and growth x of the FLOPS, without a tax and with each: columns `FLOPS`.

    `reduction` is by how much B*(x) is lower than without a tax. Raises as `bandwidths` does.
    """
    cases = [(case, factor) for case in _cases(topologies, domains, taxes) for factor in computation.factors]
    return table([_flops_row(case, factor, collective, computation) for case, factor in cases], FLOPS)


def _flops_row(case: _Case, factor: float, collective: Collective, computation: Computation) -> dict[str, Any]:
    latency = case.topology.p(case.domain) * collective.alpha
    volume = case.topology.q(case.domain) * collective.message

    def kept(wait: float) -> float:
        return kept_elasticity_bandwidth(computation.bandwidth, latency + wait, computation.block, factor)

    tau, baseline = case.tau(), kept(0.0)
    estimates = {
        "bandwidth": _through(tau, kept),
        "reduction": _through(tau, lambda wait: 1 - kept(wait) / baseline),
        "elasticity": _through(
            tau, lambda wait: elasticity(latency + wait + computation.block, volume, computation.bandwidth)
        ),
    }
    return {**case.key(), "flops_factor": factor, **_columns(estimates)}


def _columns(estimates: Mapping[str, Estimate]) -> dict[str, float]:
    return {name: value for key, estimate in estimates.items() for name, value in estimate.columns(key).items()}


def _through(estimate: Estimate, function: Callable[[float], float]) -> Estimate:
    """The estimate of a monotonic function of the number."""
    value, *ends = map(function, estimate)
    return Estimate(value, *sorted(ends))
