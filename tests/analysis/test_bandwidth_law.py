"""The bandwidth law: golden values, properties, and what is impossible."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbench.analysis.bandwidth import (
    NO_TAX,
    TOPOLOGIES,
    Collective,
    Computation,
    Tax,
    bandwidths,
    elasticity,
    end_to_end,
    given_topology,
    kept_elasticity_bandwidth,
    optimal_bandwidth,
)
from dlbench.analysis.samples import Estimate
from dlbench.analysis.tails import Tail
from dlbench.errors import OptionError

COLLECTIVE = Collective(alpha=5e-6, message=2.0**28, elasticity=0.5)
TAX = Tax(name="Gumbel", tail=Tail.of(225.714e-6, 130.736e-6))
POSITIVE = st.floats(1e-3, 1e3)


def column(frame: pd.DataFrame, name: str) -> list[float]:
    return [float(value) for value in frame[name]]


def taxed(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["tax"] != NO_TAX]


def test_p_and_q_are_those_of_the_topologies() -> None:
    ring, torus, connected = (TOPOLOGIES[name] for name in ("ring", "torus", "connected"))
    assert (ring.p(8), torus.p(512), connected.p(512)) == pytest.approx((14, 42, 2))
    assert (ring.q(8), torus.q(8), connected.q(512)) == pytest.approx((1.75, 1.75, 1022 / 512))


@pytest.mark.parametrize(("n", "microseconds"), [(8, 391.80), (128, 754.27), (512, 935.51), (4096, 1207.37)])
def test_the_mean_wait_of_the_published_parameters(n: int, microseconds: float) -> None:
    assert TAX.tau(n).value * 1e6 == pytest.approx(microseconds, abs=0.005)


@pytest.mark.parametrize(
    ("n", "ring", "torus", "connected"),
    [
        (8, 1017.2, 1113.7, 1169.2),
        (128, 263.1, 608.5, 697.0),
        (512, 88.6, 467.8, 566.7),
        (4096, 12.7, 323.9, 440.9),
    ],
)
def test_the_table_of_bandwidths(n: int, ring: float, torus: float, connected: float) -> None:
    frame = taxed(bandwidths(COLLECTIVE, list(TOPOLOGIES.values()), [n], [TAX]))
    assert [value / 1e9 for value in column(frame, "bandwidth")] == pytest.approx([ring, torus, connected], abs=0.051)


@pytest.mark.parametrize(
    ("topology", "n", "lower"), [("ring", 128, 0.372615), ("connected", 128, 0.986916), ("torus", 512, 0.816676)]
)
def test_by_how_much_the_tax_lowers_the_bandwidth(topology: str, n: int, lower: float) -> None:
    frame = taxed(bandwidths(COLLECTIVE, [TOPOLOGIES[topology]], [n], [TAX]))
    assert column(frame, "reduction") == pytest.approx([lower], abs=2e-6)


def test_that_reduction_depends_neither_on_the_message_nor_on_the_elasticity() -> None:
    other = Collective(alpha=5e-6, message=1e3, elasticity=0.1)
    ring = [TOPOLOGIES["ring"]]
    first, second = (taxed(bandwidths(each, ring, [128], [TAX])) for each in (COLLECTIVE, other))
    assert column(first, "reduction") == column(second, "reduction")
    assert column(first, "bandwidth") != column(second, "bandwidth")


def test_without_a_tax_a_connected_domain_asks_for_53_terabytes_a_second() -> None:
    frame = bandwidths(COLLECTIVE, [TOPOLOGIES["connected"]], [128, 4096], [])
    assert [value / 1e12 for value in column(frame, "bandwidth")] == pytest.approx([53.27, 53.67], abs=0.005)
    assert column(frame, "tau") == [0, 0]


def test_end_to_end_the_published_growth_of_flops_is_reproduced() -> None:
    computation = Computation(block=10.38e-3, bandwidth=450e9, factors=[2250 / 989])
    frame = end_to_end(COLLECTIVE, [TOPOLOGIES["connected"]], [4096], [TAX], computation)
    assert [value / 1e9 for value in column(frame, "bandwidth")] == pytest.approx([1022.5, 902.9], abs=0.05)
    assert column(frame, "reduction") == pytest.approx([0, 0.117], abs=5e-4)
    # The elasticity at 450 GB/s: W = q S / B = 1.19275 ms of F + a + W.
    assert column(frame, "elasticity")[0] == pytest.approx(1.19275 / (1.19275 + 0.010 + 10.38), rel=1e-4)


@given(fixed=POSITIVE, volume=POSITIVE, target=st.floats(0.01, 0.99))
def test_at_the_optimal_bandwidth_the_elasticity_is_the_target(fixed: float, volume: float, target: float) -> None:
    assert elasticity(fixed, volume, optimal_bandwidth(fixed, volume, target)) == pytest.approx(target)


@given(fixed=POSITIVE, block=POSITIVE, volume=POSITIVE, today=POSITIVE, factor=st.floats(0.1, 100))
def test_the_end_to_end_law_keeps_the_elasticity(
    fixed: float, block: float, volume: float, today: float, factor: float
) -> None:
    then = kept_elasticity_bandwidth(today, fixed, block, factor)
    before = elasticity(fixed + block, volume, today)
    assert elasticity(fixed + block / factor, volume, then) == pytest.approx(before)


@given(fixed=POSITIVE, volume=POSITIVE, bandwidth=POSITIVE)
def test_the_elasticity_is_the_relative_change_of_the_time(fixed: float, volume: float, bandwidth: float) -> None:
    step = 1e-6
    before, after = (fixed + volume / b for b in (bandwidth, bandwidth * (1 + step)))
    assert -(after / before - 1) / step == pytest.approx(elasticity(fixed, volume, bandwidth), rel=1e-3, abs=1e-8)


def test_where_nothing_is_fixed_no_bandwidth_is_enough() -> None:
    assert optimal_bandwidth(0.0, 1.0, 0.5) == math.inf


def test_p_and_q_can_be_given() -> None:
    # B* = q S (1 − ε) / (ε p α) with ε = 1/2: 3 · 2^28 / (10 · 5 µs).
    frame = bandwidths(COLLECTIVE, [given_topology(10, 3)], [64], [])
    assert column(frame, "bandwidth") == pytest.approx([3 * 2**28 / 50e-6])
    assert list(frame["topology"]) == ["p=10, q=3"]


def test_the_interval_of_the_wait_becomes_one_of_the_bandwidth_with_its_ends_exchanged() -> None:
    tax = Tax(name="GEV", tail=TAX.tail, intervals={8: Estimate(400e-6, 300e-6, 600e-6)})
    frame = taxed(bandwidths(COLLECTIVE, [given_topology(20, 2)], [8], [tax]))  # p α = 100 µs
    volume = 2 * 2.0**28
    low, value, high = (column(frame, f"bandwidth{end}")[0] for end in ("_low", "", "_high"))
    assert (low, value, high) == pytest.approx((volume / 700e-6, volume / 500e-6, volume / 400e-6))
    reductions = [column(frame, f"reduction{end}")[0] for end in ("_low", "", "_high")]
    assert reductions == pytest.approx([3 / 4, 4 / 5, 6 / 7])


def test_a_tax_beyond_16_times_its_groups_is_called_an_extrapolation() -> None:
    frame = taxed(bandwidths(COLLECTIVE, [TOPOLOGIES["ring"]], [64, 128], [TAX]))
    assert list(frame["reason"]) == ["", "the tax is an extrapolation beyond k = 16 times the groups of its fit"]


def test_a_gev_tax_has_the_mean_of_its_tail() -> None:
    tax = Tax(name="GEV", tail=Tail.of(1.0, 2.0, 0.5), spread=1e-3)
    assert tax.tau(64).value == pytest.approx(1e-3 * (1 + 4 * (4 * math.sqrt(math.pi) - 1)))


@pytest.mark.parametrize("value", [0.0, 1.0, -0.5])
def test_an_elasticity_outside_0_to_1_is_refused(value: float) -> None:
    with pytest.raises(OptionError, match=f"^elasticity {value:g} is impossible; give one between 0 and 1, e.g. 0.5$"):
        Collective(alpha=1e-6, message=1, elasticity=value)


def test_a_tail_without_a_mean_is_no_tax() -> None:
    with pytest.raises(OptionError, match="^a tail of shape 1.2 has no mean, so no tax follows; ξ must be below 1$"):
        Tax(name="GEV", tail=Tail.of(1.0, 1.0, 1.2))


def test_a_scale_of_0_is_no_tax() -> None:
    with pytest.raises(OptionError, match="^scale σ 0 and spread 1 s must be above 0$"):
        Tax(name="GEV", tail=Tail.of(1.0, 0.0))


@pytest.mark.parametrize(
    ("n", "said"),
    [
        (2, "a domain of 2 ranks is smaller than the groups of 4 that the tail was fitted to"),
        (1, "a domain of 1 ranks has nothing to send; give 2 or more"),
    ],
)
def test_impossible_domains_are_refused(n: int, said: str) -> None:
    with pytest.raises(OptionError, match=f"^{said}$"):
        bandwidths(COLLECTIVE, [TOPOLOGIES["ring"]], [n], [TAX])


@pytest.mark.parametrize(("p", "q"), [(0, 1), (1, 0), (-1, 1), (math.nan, 1)])
def test_p_and_q_of_nothing_are_refused(p: float, q: float) -> None:
    with pytest.raises(OptionError, match=f"^topology {p:g},{q:g} is impossible: messages in a row and bytes per byte"):
        given_topology(p, q)


def test_a_bandwidth_beyond_all_bounds_is_refused() -> None:
    said = "^p=1, q=1: no bandwidth is enough, since nothing else takes time; check α and p$"
    with pytest.raises(OptionError, match=said):
        bandwidths(Collective(alpha=0.0), [given_topology(1, 1)], [8], [])


@pytest.mark.parametrize(("p", "q"), [(1e-300, 1), (1, 0), (math.inf, 1), (1, math.nan)])
def test_an_impossible_topology_is_refused(p: float, q: float) -> None:
    with pytest.raises(OptionError, match="is impossible: messages in a row and bytes per byte are above 0$"):
        given_topology(p, q)


def test_an_infinite_wait_is_refused() -> None:
    tax = Tax(name="GEV", tail=Tail.of(0.0, 1e300, 0.99), spread=1e300)
    with pytest.raises(OptionError, match="^GEV: a wait of inf s for 64 ranks is impossible; check μ, σ and ξ$"):
        tax.tau(64)


def test_a_negative_wait_is_refused() -> None:
    tax = Tax(name="Gumbel", tail=Tail.of(-10.0, 1.0))
    with pytest.raises(OptionError, match="^Gumbel: a wait of -9.42278 s for 4 ranks is impossible; check μ, σ and ξ$"):
        tax.tau(4)


def test_the_example_reproduces_every_published_figure() -> None:
    script = Path(__file__).parents[2] / "examples" / "reproduce_bandwidth_law.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr, lines[-1]) == (0, "", "OK")
    assert not [line for line in lines if "DIFFERS" in line]
    rows = [" ".join(line.split()) for line in lines]
    assert rows[1:8] == [
        "ring, n=128: B* lower by 37.26 % 37.2614 %",
        "connected, n=128: B* lower by 98.69 % 98.6916 %",
        "torus, n=512: B* lower by 81.67 % 81.6676 %",
        "connected: B*(8) / B*(512) 2.06 2.0631",
        "connected, n=128: B* without a tax ~53 TB/s 53.27 TB/s",
        "connected, n=4096: B* without a tax ~53 TB/s 53.67 TB/s",
        "connected, n=4096: saturated at 450 GB/s yes B* 440.9 GB/s",
    ]
