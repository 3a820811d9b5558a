"""`dlbench bandwidth`: the bandwidth that is still worth buying, with and without what ranks wait for the slowest.

With `--json` the output is one object: dlbench (version), alpha and message, elasticity, with `--from-fit` fit (file),
source and notes, with `--flops-factor` block and today (bandwidth), and arrays: taxes, whose objects have tax, mu and
sigma (in spreads), shape, spread (1 s where mu and sigma are times) and group_size, and bandwidth and flops, whose
objects have the columns of `dlbench.analysis.bandwidth` as keys; all in SI units.
"""

from __future__ import annotations

import argparse
import re
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from dlbench import __version__
from dlbench.arguments import ArgumentParser, at_least, more_than, path, text
from dlbench.cli.extremes import counts, note_lines
from dlbench.cli.forwarding import add_command
from dlbench.cli.selection import add_output
from dlbench.errors import OptionError, one_line
from dlbench.quantities import si

if TYPE_CHECKING:
    import pandas as pd

    from dlbench.analysis.bandwidth import Collective, Tax, Topology

HELP = "Print the bandwidth beyond which a collective gains little."
EPILOG = """An all-reduce takes T = p α + q S / B + τ. At the bandwidth B*, 1 % more of it saves |ε| % of T: 0.5 % at an
elasticity of 0.5. τ is the mean wait for the slowest of n ranks: spread · (μ + σ ln k + γσ) with k = n / group size, or
that of the GEV where --shape is not 0.

examples:
  dlbench bandwidth --from-fit fit.json --topology ring              fit.json is of dlbench extremes --json
  dlbench bandwidth --mu 225.714us --sigma 130.736us --domain 8,128,512 --topology connected
  dlbench bandwidth --mu 1.03 --sigma 0.55 --spread 237us --message 256MiB --elasticity 0.3
  dlbench bandwidth --mu 225.714us --sigma 130.736us --block 10.38ms --flops-factor 2,4 --bandwidth 450GB/s
  dlbench bandwidth --domain 64 --topology 12,1.97                   p and q of your own; without --sigma no tax
"""
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_SIZES = {
    "B": 1.0,
    **{f"{prefix}B": 1e3**power for power, prefix in enumerate(("k", "M", "G", "T"), start=1)},
    **{f"{prefix}iB": 2.0 ** (10 * power) for power, prefix in enumerate(("K", "M", "G", "T"), start=1)},
}
_RATES = {f"{unit}/s": factor for unit, factor in _SIZES.items()}
_DIGITS = r"[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?"
_NUMBER = f"(?P<number>{_DIGITS})"
_SMALLEST, _LARGEST = 1e-30, 2.0**63
"""Nothing is measured beyond them, and every product of a few numbers between them is a float."""
TODAY = 450e9
"""Bytes per second."""
DOMAINS = (8, 64, 512, 4096)


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    add_command(app, "bandwidth", HELP, bandwidth)


def bandwidth(argv: Sequence[str]) -> None:
    """Print or write what the command line asks for; raises `UserError` where it asks for something impossible."""
    from dlbench.analysis.export import json_text, rows, write_frames  # noqa: PLC0415 - pandas takes its time

    arguments = _parser().parse_args(argv)
    given = _given(arguments)
    frames = _frames(arguments, given)
    written: list[Path] = []
    if arguments.csv:
        written += write_frames(frames, Path(arguments.csv))
    if arguments.plots:
        from dlbench.analysis.plots import save  # noqa: PLC0415 - matplotlib takes its time
        from dlbench.analysis.plots.bandwidth import draw  # noqa: PLC0415

        written += save(draw(frames, _collective(arguments), given.notes).plots, Path(arguments.plots))
    if arguments.json:
        tables = {name: rows(frame) for name, frame in frames.items()}
        print(json_text({"dlbench": __version__, **_parameters(arguments, given), **tables}))
        return
    for line in _lines(frames, arguments, given, written):
        print(line)


def quantity(
    units: Mapping[str, float], kind: str, *, bare: bool = False, smallest: float = _SMALLEST
) -> Callable[[str], float]:
    """Argument type: a number above 0 with one of the units, in SI units; `bare`: or without one, as it stands."""
    pattern = re.compile(f"{_NUMBER} ?(?P<unit>{'|'.join(map(re.escape, units))}){'?' if bare else ''}")

    def convert(value: str) -> float:
        found = pattern.fullmatch(value)
        number = float(found["number"]) * units.get(found["unit"] or "", 1.0) if found else 0.0
        if number >= _LARGEST:
            raise ArgumentTypeError(f"expected less than 2^63 {next(iter(units))}, found {value!r}")
        if number < smallest:
            raise ArgumentTypeError(f"expected {kind} with a unit of {', '.join(units)}, found {value!r}")
        return number

    return convert


_duration = quantity(_TIMES, "a time above 0")
_scaled = quantity(_TIMES, "a number above 0, or such a time", bare=True)
_magnitude = quantity(_TIMES, "a number, or a time", bare=True)


class _Parameter(NamedTuple):
    """A location or scale of a tail, in spreads or in seconds."""

    value: float
    is_time: bool


def _scale(value: str) -> _Parameter:
    return _Parameter(_scaled(value), value.endswith("s"))


def _size(value: str) -> float:
    if power := re.fullmatch(r"2\^([0-9]{1,3})", value):
        value = str(2 ** int(power[1]))
    return quantity(_SIZES, "a size of a byte or more", bare=True, smallest=1.0)(value)


def _location(value: str) -> _Parameter:
    """A location may lie below 0."""
    sign = -1 if value.startswith("-") else 1
    return _Parameter(0.0 if value == "0" else sign * _magnitude(value.removeprefix("-")), value.endswith("s"))


def _elasticity(value: str) -> float:
    """An elasticity is negative; its magnitude is what it is known by."""
    return more_than(0.0)(value.removeprefix("-"))


def _factors(value: str) -> list[float]:
    return [at_least(0.001)(part) for part in value.split(",")]


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="dlbench bandwidth", description=HELP, epilog=EPILOG)
    law = parser.add_argument_group("collective")
    law.add_argument("--alpha", type=_duration, default=5e-6, metavar="TIME", help="latency of a message (default 5us)")
    law.add_argument(
        "--message", type=_size, default=2.0**28, metavar="SIZE", help="bytes, as 2^28 or 256MiB (default 2^28)"
    )
    law.add_argument(
        "--elasticity", type=_elasticity, default=0.5, metavar="SHARE", help="|ε| wanted, 0 to 1 (default 0.5)"
    )
    law.add_argument(
        "--topology",
        action="append",
        type=text,
        default=[],
        metavar="NAME",
        help="ring, torus, connected, or P,Q: messages in a row and bytes through a link per byte; may be repeated "
        "(default ring, torus, connected)",
    )
    law.add_argument(
        "--domain",
        type=counts,
        metavar="N,N",
        help="ranks of the domain (default those that --from-fit has predictions for, else 8,64,512,4096)",
    )
    tax = parser.add_argument_group("mean wait; without --from-fit or --sigma none")
    tax.add_argument(
        "--from-fit", type=path, metavar="FILE", help="output of dlbench extremes --json: both of its fits"
    )
    tax.add_argument("--source", type=text, metavar="GROUP", help="group of the fit, where the file has several")
    tax.add_argument("--mu", type=_location, metavar="NUMBER", help="location μ, in spreads or as a time")
    tax.add_argument("--sigma", type=_scale, metavar="NUMBER", help="scale σ, in spreads or as a time, as μ is")
    tax.add_argument("--shape", type=at_least(-100.0), metavar="NUMBER", help="shape ξ of a GEV (default 0, Gumbel)")
    tax.add_argument(
        "--spread",
        type=_duration,
        metavar="TIME",
        help="b: standard deviation of a block time, unless μ and σ are times",
    )
    tax.add_argument(
        "--group-size", type=at_least(2), metavar="M", help="ranks of the groups that were fitted (default 4)"
    )
    grown = parser.add_argument_group("faster computation, end to end")
    grown.add_argument("--flops-factor", type=_factors, default=[], metavar="X,X", help="by how much FLOPS grow")
    grown.add_argument("--block", type=_duration, metavar="TIME", help="a: mean block time (default that of the fit)")
    grown.add_argument(
        "--bandwidth",
        type=quantity(_RATES, "a bandwidth above 0"),
        metavar="RATE",
        help="today's, whose elasticity is kept (default 450GB/s)",
    )
    add_output(parser, plots=True)
    return parser


class _Given(NamedTuple):
    """What the command line says of the tax and the computation."""

    taxes: Sequence[Tax]
    domains: Sequence[int]
    block: float | None
    source: str = ""
    """Group of the fit that the taxes are from, unless their parameters were given."""
    notes: Sequence[str] = ()
    """What the file of the fit says to know of it."""


def _given(arguments: argparse.Namespace) -> _Given:
    from dlbench.analysis.bandwidth import Tax  # noqa: PLC0415 - SciPy takes its time
    from dlbench.analysis.model_tables import read_fit  # noqa: PLC0415
    from dlbench.analysis.tails import Tail  # noqa: PLC0415

    parameters = ("mu", "sigma", "shape", "spread", "group_size")
    named = [f"--{name.replace('_', '-')}" for name in parameters if getattr(arguments, name) is not None]
    if arguments.from_fit:
        if named:
            raise OptionError(f"{named[0]} contradicts --from-fit, whose file has it; leave one out")
        fitted = read_fit(Path(arguments.from_fit), arguments.source)
        domains = arguments.domain or fitted.domains or DOMAINS
        return _Given(fitted.taxes, domains, arguments.block or fitted.block, fitted.source, fitted.notes)
    if arguments.source:
        raise OptionError("--source chooses a group of --from-fit; name its file")
    domains = arguments.domain or DOMAINS
    if not named:
        return _Given([], domains, arguments.block)
    if arguments.mu is None or arguments.sigma is None:
        raise OptionError(f"{named[0]} alone is no tail; give --mu and --sigma, or --from-fit")
    shape = arguments.shape or 0.0
    tax = Tax(
        name="GEV" if shape else "Gumbel",
        tail=Tail.of(arguments.mu.value, arguments.sigma.value, shape),
        spread=_spread(arguments.mu, arguments.sigma, arguments.spread),
        group_size=arguments.group_size or 4,
    )
    return _Given([tax], domains, arguments.block)


def _spread(mu: _Parameter, sigma: _Parameter, spread: float | None) -> float:
    """Spread b in seconds: 1 where μ and σ are times. Raises `OptionError` where it is missing, or has no meaning."""
    units = {each.is_time for each in (mu, sigma) if each.value}
    if len(units) > 1:
        raise OptionError("one of --mu and --sigma is a time; give both as times, or both as numbers with --spread")
    if units == {False}:
        if spread is None:
            raise OptionError("--mu and --sigma are in spreads; give --spread, e.g. --spread 237us, or both as times")
        return spread
    if spread is not None:
        raise OptionError("--spread has no meaning where --mu and --sigma are times; leave it out")
    return 1.0


def _parameters(arguments: argparse.Namespace, given: _Given) -> dict[str, Any]:
    """What the tables are made by, in SI units."""
    found: dict[str, Any] = {name: getattr(arguments, name) for name in ("alpha", "message", "elasticity")}
    if arguments.from_fit:
        found |= {"fit": arguments.from_fit, "source": given.source, "notes": given.notes}
    if arguments.flops_factor:
        found |= {"block": given.block, "today": arguments.bandwidth or TODAY}
    names = ("tax", "mu", "sigma", "shape", "spread", "group_size")
    return found | {"taxes": [dict(zip(names, _of_tax(tax), strict=True)) for tax in given.taxes]}


def _of_tax(tax: Tax) -> tuple[str, float, float, float, float, int]:
    location, scale, shape = (float(each) for each in (tax.tail.location, tax.tail.scale, tax.tail.shape))
    return tax.name, location, scale, shape, tax.spread, tax.group_size


def _collective(arguments: argparse.Namespace) -> Collective:
    from dlbench.analysis.bandwidth import Collective  # noqa: PLC0415 - pandas takes its time

    return Collective(alpha=arguments.alpha, message=arguments.message, elasticity=arguments.elasticity)


def _frames(arguments: argparse.Namespace, given: _Given) -> dict[str, pd.DataFrame]:
    """The tables by their names."""
    from dlbench.analysis.bandwidth import Computation, bandwidths, end_to_end  # noqa: PLC0415
    from dlbench.analysis.model_tables import BANDWIDTHS, FLOPS  # noqa: PLC0415

    collective = _collective(arguments)
    topologies = _topologies(arguments.topology)
    frames = {BANDWIDTHS.name: bandwidths(collective, topologies, given.domains, given.taxes)}
    ignored = [name for name in ("block", "bandwidth") if getattr(arguments, name) is not None]
    if ignored and not arguments.flops_factor:
        raise OptionError(f"--{ignored[0]} has no meaning without --flops-factor; give both, or leave it out")
    if arguments.flops_factor:
        if given.block is None:
            raise OptionError("--flops-factor needs the mean block time; give --block, e.g. --block 10ms")
        computation = Computation(
            block=given.block, bandwidth=arguments.bandwidth or TODAY, factors=arguments.flops_factor
        )
        frames[FLOPS.name] = end_to_end(collective, topologies, given.domains, given.taxes, computation)
    return frames


def _topologies(names: Sequence[str]) -> list[Topology]:
    from dlbench.analysis.bandwidth import TOPOLOGIES, given_topology  # noqa: PLC0415

    found = []
    for name in names or TOPOLOGIES:
        if name in TOPOLOGIES:
            found.append(TOPOLOGIES[name])
        elif pair := re.fullmatch(f"({_DIGITS}),({_DIGITS})", name):
            found.append(given_topology(float(pair[1]), float(pair[2])))
        else:
            close = get_close_matches(name, TOPOLOGIES, n=1)
            hint = (
                f"did you mean {close[0]}?" if close else f"there are {', '.join(TOPOLOGIES)}, and P,Q such as 2,1.97"
            )
            raise OptionError(f"unknown topology {name!r}; {hint}")
    return found


def _lines(
    frames: dict[str, pd.DataFrame], arguments: argparse.Namespace, given: _Given, written: Sequence[Path]
) -> Iterator[str]:
    from dlbench.analysis.model_tables import BANDWIDTHS, FLOPS, with_intervals  # noqa: PLC0415
    from dlbench.analysis.tables import build  # noqa: PLC0415
    from dlbench.analysis.terminal import comment, text_lines  # noqa: PLC0415

    yield f"# dlbench {__version__} bandwidth"
    yield f"# message    {_message(arguments.message)}, latency {_microseconds(arguments.alpha)}"
    yield f"# elasticity {_exact(arguments.elasticity)}"
    if arguments.from_fit:
        yield from comment(f"fit        {one_line(f'{arguments.from_fit}: {given.source}')}")
    for tax in given.taxes:
        as_times = arguments.mu is not None and arguments.spread is None
        yield f"# wait       {one_line(_described(tax, as_times=as_times))}"
    if FLOPS.name in frames and given.block:
        today = _exact((arguments.bandwidth or TODAY) / 1e9)
        yield f"# today      {today} GB/s, block {_microseconds(given.block)}"
    yield from note_lines(given.notes)
    for layout in (BANDWIDTHS, FLOPS):
        if layout.name in frames:
            yield "#"
            yield from text_lines(build(layout, with_intervals(frames[layout.name])))
    if written:
        yield "#"
        yield from (f"# written    {file}" for file in written)


def _described(tax: Tax, *, as_times: bool) -> str:
    """The parameters of a tax; `as_times`: location and scale are times, not in spreads."""
    name, location, scale, shape, spread, group_size = _of_tax(tax)
    write = _microseconds if as_times else _exact
    parts = [f"μ {write(location)}", f"σ {write(scale)}", f"ξ {_exact(shape)}"]
    parts += [] if as_times else [f"spread {_microseconds(spread)}"]
    return f"{name}: {', '.join(parts)}, groups of {group_size} ranks"


def _message(size: float) -> str:
    """The size as people read it, and all of its bytes where that leaves some out."""
    exact = f"{size:.0f} B" if size.is_integer() else f"{_exact(size)} B"
    short = si(size, "B")
    return exact if short == exact else f"{short} ({exact})"


def _microseconds(seconds: float) -> str:
    return f"{_exact(1e6 * seconds)} µs"


def _exact(value: float) -> str:
    """Enough digits to give the same again."""
    return f"{value:.10g}"
