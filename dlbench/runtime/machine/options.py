"""Options of a preflight."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence

import msgspec

from dlbench.arguments import ArgumentParser, at_least, more_than

CLOCK_FAILS_SECONDS = 5.0
"""A host whose clock is so far off has no time service, and its records cannot be put beside others."""
DESCRIPTION = "Check ranks, links, devices, clocks and versions before a run is worth starting."


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks should look like; None: nothing said so."""

    ranks_per_node: int | None = None
    clock_limit: float = 0.1
    """Seconds beyond which a clock is worth a warning."""
    tasks: int | None = None
    """Of the allocation."""
    nodes: int | None = None
    """Of the allocation."""


class PreflightOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a preflight was asked to do."""

    ranks: int | None
    ranks_per_node: int | None
    clock_limit: float
    hop_timeout: float
    json: bool

    def arguments(self) -> list[str]:
        """The command line of a rank that has these options."""
        counts = (("-n", self.ranks), ("--ranks-per-node", self.ranks_per_node))
        given = [(name, str(value)) for name, value in counts if value is not None]
        given += [("--clock-limit", repr(self.clock_limit)), ("--hop-timeout", repr(self.hop_timeout))]
        return [word for pair in given for word in pair] + ["--json"] * self.json

    def asked(self, environment: Mapping[str, str]) -> Asked:
        """What the ranks should look like, by the options and the allocation."""
        tasks = None if self.ranks else _count(environment, "SLURM_NTASKS")
        nodes = _count(environment, "SLURM_JOB_NUM_NODES")
        return Asked(ranks_per_node=self.ranks_per_node, clock_limit=self.clock_limit, tasks=tasks, nodes=nodes)


def _count(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else None


def add_preflight_arguments(parser: ArgumentParser) -> None:
    """Add the options of a preflight to a parser."""
    group = parser.add_argument_group("what to check")
    group.add_argument("--ranks-per-node", type=at_least(1), metavar="G", help="ranks that every node must have")
    group.add_argument(
        "--clock-limit",
        type=more_than(0),
        default=0.1,
        metavar="SECONDS",
        help=f"warn of clocks further from rank 0's (default 0.1; beyond {CLOCK_FAILS_SECONDS:g} s it is an error)",
    )
    group.add_argument(
        "--hop-timeout",
        type=more_than(0),
        default=20.0,
        metavar="SECONDS",
        help="limit of the messages between two ranks (default 20)",
    )
    group.add_argument("--json", action="store_true", help="print one JSON document")


def parse_preflight(prog: str, argv: Sequence[str]) -> PreflightOptions | str:
    """Options of a rank, or the text that --help asks for. Raises `OptionError`."""
    parser = ArgumentParser(prog=prog, usage=f"{prog} [options]", description=DESCRIPTION, add_help=False)
    parser.add_argument("-h", "--help", action="store_true", help="show this text and leave")
    parser.add_argument("-n", "--ranks", type=at_least(1), metavar="N", help="number of ranks that there must be")
    add_preflight_arguments(parser)
    options = parser.parse_args(argv)
    return parser.format_help() if options.help else preflight_options(options)


def preflight_options(parsed: Namespace) -> PreflightOptions:
    """Options from what a parser with the arguments of a preflight has read."""
    return PreflightOptions(**{name: getattr(parsed, name) for name in PreflightOptions.__struct_fields__})


def mismatch(world_size: int, asked: int | None) -> str:
    """What is wrong where MPI sees another number of ranks than was asked for with -n; empty where it does not."""
    if asked is None or asked == world_size:
        return ""
    return (
        f"MPI sees a world of {world_size} rank{'s' if world_size != 1 else ''}, but -n asks for {asked}; start as "
        "many, with the launcher that belongs to this MPI (`dlbench preflight -n N` finds it)"
    )
