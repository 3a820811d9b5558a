"""Published figures of the bandwidth law, as printed in the paper and as the formulas of dlbench give them.

Run it with `python examples/reproduce_bandwidth_law.py`. All figures that involve no fit follow from one set of
parameters, below; groups of 4 ranks were fitted, so k = n / 4. The exit code is 1 where a figure is not reproduced.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd

from dlbench.analysis.bandwidth import NO_TAX, TOPOLOGIES, Collective, Computation, Tax, bandwidths, end_to_end
from dlbench.analysis.tails import Tail

COLLECTIVE = Collective(alpha=5e-6, message=2.0**28, elasticity=0.5)
TAX = Tax(name="Gumbel", tail=Tail.of(225.714e-6, 130.736e-6), spread=1.0, group_size=4)
TODAY = 450e9
"""Bandwidth of a GPU in its NVLink domain, bytes per second."""
COMPUTATION = Computation(block=10.38e-3, bandwidth=TODAY, factors=(2250 / 989,))
"""A block of 10.38 ms, and FLOPS that grow as from H100 to B200. The block is inferred: the paper does not print it."""

TABLE = {
    8: {"ring": 1017.2, "torus": 1113.7, "connected": 1169.2},
    128: {"ring": 263.1, "torus": 608.5, "connected": 697.0},
    512: {"ring": 88.6, "torus": 467.8, "connected": 566.7},
    4096: {"ring": 12.7, "torus": 323.9, "connected": 440.9},
}
"""B* in GB/s at an elasticity of −0.5 with the tax, by domain and topology."""
TOLERANCE = 1e-3
ROUNDING = 0.05
"""Half of the last digit of the table, which for the smallest entries is more than the tolerance."""


class Figure(NamedTuple):
    """A figure of the paper beside that of the formula."""

    what: str
    paper: str
    formula: str
    """With more digits."""
    agrees: bool


def best(topology: str, domain: int, *, taxed: bool = True) -> float:
    """B* in bytes per second."""
    frame = bandwidths(COLLECTIVE, [TOPOLOGIES[topology]], [domain], [TAX])
    return column(frame, "bandwidth")[TAX.name if taxed else NO_TAX]


def column(frame: pd.DataFrame, name: str) -> dict[str, float]:
    """A column by the name of the tax."""
    return dict(zip(frame["tax"].tolist(), frame[name].tolist(), strict=True))


def figures() -> Iterator[Figure]:
    """The figures that the paper prints."""
    for topology, domain, printed in (("ring", 128, "37.26"), ("connected", 128, "98.69"), ("torus", 512, "81.67")):
        lower = 100 * (1 - best(topology, domain) / best(topology, domain, taxed=False))
        what = f"{topology}, n={domain}: B* lower by"
        yield Figure(what, f"{printed} %", f"{lower:.4f} %", f"{lower:.2f}" == printed)
    ratio = best("connected", 8) / best("connected", 512)
    yield Figure("connected: B*(8) / B*(512)", "2.06", f"{ratio:.4f}", f"{ratio:.2f}" == "2.06")
    for domain in (128, 4096):
        terabytes = best("connected", domain, taxed=False) / 1e12
        what = f"connected, n={domain}: B* without a tax"
        yield Figure(what, "~53 TB/s", f"{terabytes:.2f} TB/s", int(terabytes) == 53)  # noqa: PLR2004
    largest = best("connected", 4096)
    yield Figure("connected, n=4096: saturated at 450 GB/s", "yes", f"B* {largest / 1e9:.1f} GB/s", largest < TODAY)


def entries() -> Iterator[Figure]:
    """The table of B*, to 0.1 %."""
    for domain, row in TABLE.items():
        for topology, printed in row.items():
            found = best(topology, domain) / 1e9
            agrees = abs(found - printed) <= max(TOLERANCE * printed, ROUNDING)
            yield Figure(f"{topology}, n={domain}: B*", f"{printed:.1f} GB/s", f"{found:.2f} GB/s", agrees)


def flops() -> Iterator[Figure]:
    """B* end to end for FLOPS of B200 instead of H100, n = 4096 fully connected, and by how much the tax lowers it."""
    frame = end_to_end(COLLECTIVE, [TOPOLOGIES["connected"]], [4096], [TAX], COMPUTATION)
    for tax, printed in ((NO_TAX, "1022.5"), (TAX.name, "902.9")):
        found = column(frame, "bandwidth")[tax] / 1e9
        yield Figure(f"end to end, tax {tax}: B*", f"{printed} GB/s", f"{found:.2f} GB/s", f"{found:.1f}" == printed)
    lower = 100 * column(frame, "reduction")[TAX.name]
    yield Figure("end to end: B* lower by", "11.7 %", f"{lower:.3f} %", f"{lower:.1f}" == "11.7")


def main() -> int:
    """Print all comparisons; 1 where one fails, else 0."""
    failed = 0
    print(f"{'figure':<42} {'paper':>12} {'formula':>16}")
    for figure in (*figures(), *entries(), *flops()):
        failed += not figure.agrees
        print(f"{figure.what:<42} {figure.paper:>12} {figure.formula:>16}{'' if figure.agrees else '  DIFFERS'}")
    print("OK" if not failed else f"FAILED: {failed} differ")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
