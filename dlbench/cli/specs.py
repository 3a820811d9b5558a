"""`dlbench models | gpus | systems`: what is shipped, and every field of one spec.

With `--json` the output is one object for a named spec and an array of such objects without a name. The keys are those
of the YAML files, and for a model what is derived: parameters, expert_parameters, non_expert_parameters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import msgspec
import typer

from dlbench.analysis.screen import broken, line_width, terminal_columns
from dlbench.arguments import ArgumentParser, text
from dlbench.cli.forwarding import add_command
from dlbench.quantities import si
from dlbench.specs import (
    GpuSpec,
    ModelSpec,
    SystemSpec,
    gpu_names,
    load_gpu,
    load_model,
    load_system,
    model_names,
    system_names,
)

Spec: TypeAlias = ModelSpec | GpuSpec | SystemSpec
Row: TypeAlias = dict[str, str]

_UNITS = {
    "peak_flops": "FLOP/s",
    "memory_bandwidth": "B/s",
    "memory_bytes": "B",
    "pair_bytes_per_second_min": "B/s",
    "pair_bytes_per_second_max": "B/s",
}
_NONE = "-"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of spec, as the commands see it."""

    name: str
    """Of the command, in the plural."""
    example: str
    """Something that is shipped."""
    names: Callable[[], list[str]]
    load: Callable[[str], Spec]
    row: Callable[[Any], Row]
    """Row of the list, without the name."""


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    for kind in (
        Kind("models", "llama3-8b", model_names, load_model, _model_row),
        Kind("gpus", "h100", gpu_names, load_gpu, _gpu_row),
        Kind("systems", "leonardo", system_names, load_system, _system_row),
    ):
        add_command(app, kind.name, _help(kind), partial(_show, kind))


def _help(kind: Kind) -> str:
    return f"List the {'GPUs' if kind.name == 'gpus' else kind.name}, or show one."


def _show(kind: Kind, argv: Sequence[str]) -> None:
    arguments = _parser(kind).parse_args(argv)
    if arguments.name is not None:
        found = document(kind.load(arguments.name))
        print(_json(found) if arguments.json else "\n".join(_lines(found)))
        return
    specs = {name: kind.load(name) for name in kind.names()}
    if arguments.json:
        print(_json([document(spec) for name, spec in specs.items() if name == spec.name]))
    else:
        print_table([{"name": _label(name, spec), **kind.row(spec)} for name, spec in specs.items()])


def _parser(kind: Kind) -> ArgumentParser:
    command = f"dlbench {kind.name}"
    lines = (command, f"{command} {kind.example}", f"{command} my-{kind.name[:-1]}.yaml --json")
    parser = ArgumentParser(prog=command, description=_help(kind), epilog="\n  ".join(("examples:", *lines)))
    parser.add_argument("name", nargs="?", type=text, metavar="NAME", help="shipped name, or path of a YAML file")
    parser.add_argument("--json", action="store_true", help="print JSON: an object, or without NAME an array of them")
    return parser


def _label(name: str, spec: Spec) -> str:
    return name if name == spec.name else f"{name} = {spec.name}"


def document(spec: Spec) -> dict[str, Any]:
    """The spec and what is derived from it, as plain data; the module's docstring lists the keys."""
    fields: dict[str, Any] = msgspec.to_builtins(spec)
    if isinstance(spec, ModelSpec):
        derived = ("parameters", "expert_parameters", "non_expert_parameters")
        fields |= {name: getattr(spec, name) for name in derived}
    return fields


def _model_row(model: ModelSpec) -> Row:
    return {
        "parameters": f"{model.parameters:,}",
        "hidden": str(model.hidden_size),
        "layers": str(model.layers),
        "heads/kv": f"{model.heads}/{model.kv_heads}",
        "mlp": str(model.feed_forward_size),
        "length": str(model.sequence_length),
        "experts": f"{model.active_experts}/{model.experts}" if model.experts > 1 else _NONE,
    }


def _gpu_row(gpu: GpuSpec) -> Row:
    peaks = {dtype: gpu.peak_flops.get(dtype) for dtype in ("bf16", "fp8")}
    return {
        **{dtype: si(peak, "FLOP/s") if peak else _NONE for dtype, peak in peaks.items()},
        "bandwidth": si(gpu.memory_bandwidth, "B/s"),
        "memory": si(gpu.memory_bytes, "B"),
    }


def _system_row(system: SystemSpec) -> Row:
    network, topology = system.network, system.topology
    return {
        "groups × nodes": f"{topology.groups} × {topology.nodes_per_group}" if topology.groups else _NONE,
        "gpus/node": f"{system.gpus_per_node} × {system.gpu}" if system.gpu else _NONE,
        "nics": f"{network.nics_per_node} × {network.nic_gbps:g} Gbit/s" if network else _NONE,
        "fabric": network.fabric if network else _NONE,
    }


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _lines(found: dict[str, Any]) -> Iterator[str]:
    """One line per field; on a terminal, long values are wrapped beneath themselves."""
    fields = list(_outline(found))
    indent = max(len(key) for key, _ in fields) + 2
    columns = terminal_columns() or 0
    for key, value in fields:
        line = f"{key:<{indent}}{value}".rstrip()
        if columns > 2 * indent:
            line = "\n".join(broken(line, columns, " " * indent))
        yield line


def _outline(mapping: dict[str, Any], depth: int = 0, unit: str = "") -> Iterator[tuple[str, str]]:
    """Keys, those of inner mappings indented beneath the outer one's, and values as text."""
    for key, value in mapping.items():
        inner, own_unit = isinstance(value, dict) and value, _UNITS.get(key, unit)
        yield "  " * depth + key, "" if inner else _text(value, own_unit)
        if inner:
            yield from _outline(value, depth + 1, own_unit)


def _text(value: Any, unit: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not value:
        return _NONE
    if isinstance(value, tuple):
        return ", ".join(value)
    if isinstance(value, str):
        return value
    if unit:
        return si(value, unit)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def print_table(rows: Sequence[Row]) -> None:
    """Print rows with the same columns: aligned by spaces, on a terminal with a rule beneath the headings.

    On a terminal that is too narrow, cells are wrapped at spaces; where that is not enough, the table is cut into parts
    that all have the first column.
    """
    columns = [[heading, *(row[heading] for row in rows)] for heading in rows[0]]
    if terminal_columns() is not None:
        _print_rich_parts(columns, line_width())
        return
    widths = [max(map(len, column)) for column in columns]
    for line in zip(*columns, strict=True):
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())


def _print_rich_parts(columns: Sequence[Sequence[str]], room: int) -> None:
    from rich import box  # noqa: PLC0415 - only a terminal needs it
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    for number, part in enumerate(table_parts(columns, room)):
        if number:
            print()
        widths = column_widths(part, room)
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for (heading, *_), width in zip(part, widths, strict=True):
            table.add_column(heading, width=width)
        for cells in zip(*(column[1:] for column in part), strict=True):
            table.add_row(*cells)
        # A name that is wider than the terminal makes a row longer; without a height, Rich gives TERM=dumb 80 columns.
        Console(width=max(room, _total(widths)), height=1).print(table)


def table_parts(columns: Sequence[Sequence[str]], room: int) -> list[list[Sequence[str]]]:
    """The columns, headings first, in parts that fit the room at their narrowest; each part has the first column."""
    first, *others = columns
    parts = [[first]]
    for column in others:
        if len(parts[-1]) > 1 and _total(list(map(_narrowest, [*parts[-1], column]))) > room:
            parts.append([first])
        parts[-1].append(column)
    return parts


def column_widths(columns: Sequence[Sequence[str]], room: int) -> list[int]:
    """Widths that fit the room as far as no word must be broken: those that can give most are wrapped first."""
    widths = [max(map(len, column)) for column in columns]
    least = list(map(_narrowest, columns))
    while _total(widths) > room and widths != least:
        widths[max(range(len(widths)), key=lambda place: widths[place] - least[place])] -= 1
    return widths


def _narrowest(column: Sequence[str]) -> int:
    """The longest word."""
    return max(len(word) for cell in column for word in [*cell.split(), ""])


def _total(widths: Sequence[int]) -> int:
    """Width of a table with two spaces between its columns."""
    return sum(widths) + 2 * (len(widths) - 1)
