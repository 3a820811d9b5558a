"""`dlbench describe`: what a configuration would do, without running it.

With `--json` the output is one object with stable keys: those of a record's header that do not depend on a run
(`strategies.facts`: strategy, model, gpu, world_size, replicas, degrees, groups, notes, dtype, local_batch,
microbatches, sequence_length, buckets, units, scale, time_scale, messages, memory_bytes), and

- title: the strategy's name in words
- phases: name, count (per iteration), flops, bytes, intensity (FLOPs per byte), seconds (of one)
- roles: name, rank (the first), ranks (how many), compute_seconds (per iteration), memory_bytes (message buffers)
- ideal: seconds, samples_per_second, bubble, as if communication took no time

With `--program RANK` it is JSON Lines, an op a line: index, op, and what the op has of scope, name (phase or buffer),
elements, bytes, blocking, peer (rank in the group), peer_rank (rank in the world), requests, seconds.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterator, Sequence
from itertools import starmap
from typing import Any

import typer

from dlbench import __version__
from dlbench.arguments import ArgumentParser, at_least
from dlbench.cli.forwarding import add_command
from dlbench.quantities import duration, si, significant
from dlbench.specs import DTYPE_BYTES, load_gpu, load_model
from dlbench.strategies import STRATEGIES, Configuration, configure, get_strategy
from dlbench.strategies.computation import compute_seconds, ideal, phase_table
from dlbench.strategies.degrees import inner_option
from dlbench.strategies.facts import facts
from dlbench.strategies.messages import memory, message_table
from dlbench.strategies.ops import Op, Scope, op_row
from dlbench.strategies.options import DEFAULT_GPU, add_workload_arguments, workload_options

HELP = "Show what a strategy computes and communicates on N ranks, without running it."
WIDTH = 80
EXAMPLES = """examples:
  dlbench describe dp_pp_tp -n 256                    a run of the paper
  dlbench describe fsdp -n 32 --model minerva-7b      another model
  dlbench describe dp_pp -n 16 --program 0            the ops of rank 0, one a line
  dlbench describe dp_pp_ep -n 512 --json | jq .messages
"""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    add_command(app, "describe", HELP, describe)


def describe(argv: Sequence[str]) -> None:
    """Print what the command line asks for; raises `UserError` where it asks for something impossible."""
    arguments = _parser().parse_args(argv)
    configuration = _configuration(arguments)
    if arguments.program is not None:
        rows = program_rows(configuration, arguments.program)
        lines = map(json.dumps, rows) if arguments.json else _program_lines(configuration, arguments.program, rows)
    elif arguments.json:
        lines = iter([json.dumps(document(configuration), indent=2, ensure_ascii=False)])
    else:
        lines = _description(configuration)
    for line in lines:
        print(line)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="dlbench describe",
        description=HELP,
        epilog=EXAMPLES,
    )
    parser.add_argument("strategy", metavar="STRATEGY", help=", ".join(STRATEGIES))
    parser.add_argument("-n", "--ranks", type=at_least(1), required=True, metavar="N", help="world size")
    parser.add_argument("--program", type=at_least(0), metavar="RANK", help="print the ops of one rank instead")
    parser.add_argument("--json", action="store_true", help="print JSON; with --program, one object per line")
    add_workload_arguments(parser)
    return parser


def _configuration(arguments: argparse.Namespace) -> Configuration:
    strategy = get_strategy(arguments.strategy)
    return configure(
        strategy,
        world_size=arguments.ranks,
        model=load_model(arguments.model or strategy.model),
        gpu=load_gpu(arguments.gpu or DEFAULT_GPU),
        **workload_options(vars(arguments)),
    )


def document(configuration: Configuration) -> dict[str, Any]:
    """The description as plain data; the module's docstring lists the keys."""
    buffers = memory(configuration)
    return {
        **facts(configuration),
        "title": configuration.strategy.title,
        "phases": [
            {
                "name": phase.name,
                "count": count,
                "flops": phase.flops,
                "bytes": phase.bytes,
                "intensity": phase.intensity,
                "seconds": phase.seconds,
            }
            for phase, count in phase_table(configuration)
        ],
        "roles": [
            {
                **role._asdict(),
                "compute_seconds": compute_seconds(configuration, role.rank),
                "memory_bytes": buffers[role],
            }
            for role in configuration.roles()
        ],
        "ideal": ideal(configuration)._asdict(),
    }


def program_rows(configuration: Configuration, rank: int) -> Iterator[dict[str, Any]]:
    """The ops of one rank as plain data, one by one; the module's docstring lists the keys."""
    width = DTYPE_BYTES[configuration.workload.dtype]
    pipeline = configuration.layout.group(Scope.PIPELINE, rank)

    def described(index: int, op: Op) -> dict[str, Any]:
        row: dict[str, Any] = {"index": index, **op_row(op)}
        if "elements" in row:
            row["bytes"] = row["elements"] * width
        if "peer" in row:
            row["peer_rank"] = pipeline[row["peer"]]
        return row

    return starmap(described, enumerate(configuration.ops(rank)))


def _program_lines(configuration: Configuration, rank: int, rows: Iterator[dict[str, Any]]) -> Iterator[str]:
    yield from _header(configuration)
    yield f"# program   of rank {rank}: {_place(configuration, rank)}"
    yield "#"
    yield (f"#{'index':>5}  {'op':<15}{'scope':<9}{'peer':>6} {'buffer or phase':<20}{'elements':>11}{'size/time':>10}")
    for row in rows:
        yield _program_line(row)


def _place(configuration: Configuration, rank: int) -> str:
    place = configuration.layout.coordinates(rank)
    indices = {"pp": place.stage, inner_option(configuration.strategy): place.inner}
    inside = "".join(f", {name} {indices[name]}" for name in configuration.degrees())
    return f"replica {place.replica}{inside}"


def _program_line(row: dict[str, Any]) -> str:
    name, amount = row.get("name", ""), ""
    if "requests" in row:
        first, *others = row["requests"]
        name = f"{first} +{len(others)}" if others else first
    elif "seconds" in row:
        amount = duration(row["seconds"])
    else:
        amount = si(row["bytes"], "B")
    op = row["op"] if row.get("blocking", True) else f"i{row['op']}"
    peer, elements = row.get("peer_rank", ""), row.get("elements", "")
    line = f" {row['index']:>5}  {op:<15}{row.get('scope', ''):<9}{peer:>6} {name:<20}{elements:>11}{amount:>10}"
    return line.rstrip()


def _description(configuration: Configuration) -> Iterator[str]:
    yield from _header(configuration)
    yield "#"
    yield from _message_lines(configuration)
    yield "#"
    yield from _phase_lines(configuration)
    yield "#"
    yield from _role_lines(configuration)
    yield "#"
    best = ideal(configuration)
    bubble = f", bubble {best.bubble:.1%}" if configuration.layout.pp > 1 else ""
    yield (
        f"# ideal (no communication time): {duration(best.seconds)}, "
        f"{significant(best.samples_per_second)} samples/s{bubble}"
    )


def _header(configuration: Configuration) -> Iterator[str]:
    workload, layout, strategy = configuration.workload, configuration.layout, configuration.strategy
    model, gpu = workload.model, workload.gpu
    replica = "".join(f" × {name} {degree}" for name, degree in configuration.degrees().items())
    parts = "".join(
        f", {count} {name}"
        for name, count in (
            ("microbatches", workload.microbatches),
            ("buckets", workload.buckets),
            ("units", workload.units),
        )
        if name in strategy.defaults
    )
    yield f"# dlbench {__version__} describe {strategy.name}"
    yield f"# strategy  {strategy.title}"
    yield f"# model     {model.name}: {model.parameters:,} parameters, {model.layers} layers"
    yield (
        f"# gpu       {gpu.name}: {si(gpu.peak(workload.dtype), 'FLOP/s')} {workload.dtype}, "
        f"{si(gpu.memory_bandwidth, 'B/s')}, {si(gpu.memory_bytes, 'B')}"
    )
    yield f"# ranks     {layout.world_size} = replicas {layout.replicas}{replica}"
    yield (
        f"# work      {workload.dtype}, local batch {workload.local_batch}{parts}, "
        f"sequence length {workload.sequence_length}"
    )
    for note in configuration.notes:
        yield textwrap.fill(note, WIDTH, initial_indent="# note      ", subsequent_indent="#           ")


def _message_lines(configuration: Configuration) -> Iterator[str]:
    rows = message_table(configuration)
    if not rows:
        yield "# messages: none"
        return
    yield "# messages per iteration (counts of the rank that has most)"
    yield f"# {'operation':<15}{'scope':<9}{'ranks':>7}{'count':>7}{'elements':>14}{'size':>11}{'total':>11}"
    for row in rows:
        name = row.operation if row.blocking else f"i{row.operation}"
        yield (
            f"  {name:<15}{row.scope:<9}{row.group_size:>7}{row.count:>7}{row.elements:>14}"
            f"{si(row.bytes, 'B'):>11}{si(row.bytes * row.count, 'B'):>11}"
        )


def _phase_lines(configuration: Configuration) -> Iterator[str]:
    yield "# compute per iteration (counts of the rank that has most)"
    yield f"# {'phase':<20}{'count':>7}{'FLOP':>11}{'bytes':>11}{'FLOP/B':>9}{'time':>10}{'total':>10}"
    for phase, count in phase_table(configuration):
        yield (
            f"  {phase.name:<20}{count:>7}{si(phase.flops, ''):>11}{si(phase.bytes, 'B'):>11}"
            f"{phase.intensity:>9.1f}{duration(phase.seconds):>10}{duration(phase.seconds * count):>10}"
        )


def _role_lines(configuration: Configuration) -> Iterator[str]:
    yield "# per rank (memory: message buffers)"
    yield f"# {'role':<20}{'ranks':>7}{'compute':>11}{'memory':>11}{'of GPU':>9}"
    for role, size in memory(configuration).items():
        seconds = compute_seconds(configuration, role.rank)
        part = size / configuration.workload.gpu.memory_bytes
        yield f"  {role.name:<20}{role.ranks:>7}{duration(seconds):>11}{si(size, 'B'):>11}{part:>9.1%}"
