"""`dlbench calibrate`: what a GPU achieves, as a GPU spec for the roofline.

With `--json` stdout is one object: dlbench (version), device (the facts of the GPU), power_limit_watts, rates (each
with precision, shape, rows, columns, k and the summary of its FLOP/s; without rows, columns and k the products of a
layer together, which the spec takes), memory_bandwidth (its summary in B/s, and copied_bytes), datasheet and shares
(the measured figures over those of --gpu), notes, spec (what was written) and output (where). A summary has count,
median, interval (low, high, coverage), minimum and maximum. What is absent is null.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Timer
from typing import Any, NamedTuple

import msgspec
import typer

from dlbench import __version__
from dlbench.accelerator.protocol import Device, Driver, DriverLoader, Meter
from dlbench.analysis.writing import new_file
from dlbench.arguments import ArgumentParser, at_least, more_than, path, text
from dlbench.cli.forwarding import add_command
from dlbench.cli.selection import progress_shown
from dlbench.cli.specs import Row, print_table
from dlbench.compute.precision import PRECISIONS
from dlbench.errors import OptionError
from dlbench.quantities import si
from dlbench.runtime.calibration import DEFAULT_EFFORT, Calibration, Effort, against, measured_spec, spec_yaml
from dlbench.runtime.calibration import calibrate as measure
from dlbench.runtime.preflight import START_VARIABLE, start_limit
from dlbench.runtime.streams import say
from dlbench.specs import GpuSpec, load_gpu
from dlbench.statistics import Summary

HELP = "Measure what a GPU achieves, and write it as a GPU spec."
EPILOG = """Measured are the rates of matrix products by precision, and the bandwidth of the GPU's memory. The GPU's
settings are left as they are, and nothing else should use it meanwhile. It takes some seconds a precision.

examples:
  dlbench calibrate                              measure GPU 0, write measured.yaml
  dlbench calibrate --gpu h100                   beside its datasheet
  dlbench run dp -n 8 --gpu measured.yaml        sleep as long as this GPU would compute
"""
_NONE = "-"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    add_command(app, "calibrate", HELP, calibrate)


def _cupy_driver() -> Driver:
    from dlbench.accelerator.cupy_driver import CupyDriver  # noqa: PLC0415 - only with a GPU

    return CupyDriver()


def calibrate(argv: Sequence[str], load: DriverLoader = _cupy_driver, effort: Effort = DEFAULT_EFFORT) -> None:
    """Measure, write the spec, and print it.

    Raises `UserError` where options are wrong, a GPU or something for it is missing, or the spec cannot be written.
    """
    arguments = _parser().parse_args(argv)
    require_new(arguments.output, force=arguments.force)
    datasheet = load_gpu(arguments.gpu) if arguments.gpu else None
    calibration = _measure(arguments, load, effort)
    found = _Found.of(calibration, datasheet)
    with new_file(arguments.output) as file:
        file.write(spec_yaml(found.spec).encode())
    if arguments.json:
        print(json.dumps(_document(found, arguments.output), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        _print(found, arguments.output)


class _Found(NamedTuple):
    """What was measured, and what it is beside the datasheet."""

    calibration: Calibration
    datasheet: GpuSpec | None
    shares: dict[str, float]
    notes: list[str]
    spec: GpuSpec

    @classmethod
    def of(cls, calibration: Calibration, datasheet: GpuSpec | None) -> _Found:
        shares, odd = against(calibration, datasheet) if datasheet else ({}, [])
        today = datetime.now(UTC).date().isoformat()
        spec = measured_spec(calibration, date=today, version=__version__)
        return cls(calibration, datasheet, shares, [*calibration.notes, *odd], spec)


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="dlbench calibrate", description=HELP, epilog=EPILOG)
    parser.add_argument("--device", type=at_least(0), default=0, metavar="N", help="which GPU (default 0)")
    parser.add_argument(
        "-o", "--output", type=_yaml, default=Path("measured.yaml"), metavar="FILE", help="spec (default measured.yaml)"
    )
    parser.add_argument("--force", action="store_true", help="replace the file where there is one")
    parser.add_argument("--gpu", type=text, metavar="SPEC", help="name or path of the datasheet to compare with")
    parser.add_argument(
        "--precision",
        action="append",
        choices=PRECISIONS,
        default=[],
        help="only this one; may be repeated (default all that the GPU has)",
    )
    parser.add_argument(
        "--min-seconds",
        type=more_than(0.0),
        default=DEFAULT_EFFORT.min_seconds,
        metavar="S",
        help=f"of measuring, for each precision and the bandwidth (default {DEFAULT_EFFORT.min_seconds:g})",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    return parser


def _yaml(value: str) -> Path:
    """Argument type: the path of a spec, which `--gpu` knows by its ending."""
    found = Path(path(value))
    if found.suffix not in {".yaml", ".yml"}:
        raise argparse.ArgumentTypeError(f"expected a file NAME.yaml, found {value!r}")
    return found


def require_new(output: Path, *, force: bool) -> None:
    """Raise `OptionError` where the file is there already, or its folder is not: before minutes of measuring."""
    if output.exists() and not force:
        raise OptionError(f"{output} exists; use --force to replace it, or -o for another file")
    if not output.parent.is_dir():
        raise OptionError(f"{output}: there is no folder {output.parent}")


def _measure(arguments: argparse.Namespace, load: DriverLoader, effort: Effort) -> Calibration:
    with _limited(start_limit(os.environ)):
        device, meter = _open(arguments.device, load())
    effort = dataclasses.replace(effort, min_seconds=arguments.min_seconds)
    precisions = tuple(dict.fromkeys(arguments.precision))
    try:
        with progress_shown("rates", doing="measuring", done="measured") as progress:
            return measure(device, precisions, effort=effort, meter=meter, progress=progress)
    finally:
        if meter:
            meter.close()


def _open(index: int, driver: Driver) -> tuple[Device, Meter | None]:
    if index >= (count := driver.count()):
        visible = "there is only GPU 0" if count == 1 else f"there are GPUs 0 to {count - 1}"
        raise OptionError(f"--device {index}: {visible}")
    device = driver.open(index)
    return device, driver.meter(device.facts)


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """End the process where the block takes longer, or by Ctrl-C: a driver that hangs lets Python do neither."""

    def give_up() -> None:
        say(
            f"FAILED: hang: the GPU is not open after {seconds:g} s; the limit is {START_VARIABLE}, and "
            "`dlbench doctor` says which library hangs"
        )
        os._exit(1)

    timer = Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    interrupt = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, interrupt)
        timer.cancel()


def _document(found: _Found, output: Path) -> dict[str, Any]:
    calibration, limit = found.calibration, found.calibration.power_limit_watts
    return {
        "dlbench": __version__,
        "device": msgspec.to_builtins(calibration.facts),
        "power_limit_watts": None if math.isnan(limit) else limit,
        "rates": [
            {
                "precision": rate.precision,
                "shape": rate.shape.name if rate.shape else "layer",
                **{side: getattr(rate.shape, side, None) for side in ("rows", "columns", "k")},
                **dataclasses.asdict(rate.flops),
            }
            for rate in calibration.rates
        ],
        "memory_bandwidth": {"copied_bytes": calibration.copied_bytes, **dataclasses.asdict(calibration.bandwidth)},
        "datasheet": found.datasheet.name if found.datasheet else None,
        "shares": found.shares or None,
        "notes": found.notes,
        "spec": msgspec.to_builtins(found.spec),
        "output": str(output),
    }


def _print(found: _Found, output: Path) -> None:
    facts = found.calibration.facts
    limit = found.calibration.power_limit_watts
    power = "" if math.isnan(limit) else f", power limit {limit:g} W"
    print(f"# dlbench {__version__} calibrate")
    print(f"# device     {facts.label} {facts.name}, {si(facts.memory_bytes, 'B')}{power}")
    print(f"# software   driver {facts.driver}, runtime {facts.runtime}, CuPy {facts.cupy}")
    if found.datasheet:
        print(f"# datasheet  {found.datasheet.name}")
    for note in found.notes:
        print(f"# note       {note}")
    print_table(list(_rows(found)))
    print(f"# written    {output}: the layers and the bandwidth; use it with --gpu {output}")


def _rows(found: _Found) -> Iterator[Row]:
    for rate in found.calibration.rates:
        figures = _figures(rate.flops, "FLOP/s", found, "" if rate.shape else rate.precision)
        shape = (rate.shape.name, rate.shape.size) if rate.shape else ("layer", _NONE)
        yield {"measured": rate.precision, "of": shape[0], "rows×columns×k": shape[1], **figures}
    copied = si(found.calibration.copied_bytes, "B")
    figures = _figures(found.calibration.bandwidth, "B/s", found, "memory_bandwidth")
    yield {"measured": "memory", "of": f"copy of {copied}", "rows×columns×k": _NONE, **figures}


def _figures(summary: Summary, unit: str, found: _Found, figure: str) -> Row:
    """Cells of a row; the datasheet's where `figure` is one of those compared with it."""
    low, high = (summary.interval.low, summary.interval.high) if summary.interval else (None, None)
    row = {
        "rounds": str(summary.count),
        "median": si(summary.median, unit),
        "low": _NONE if low is None else si(low, unit),
        "high": _NONE if high is None else si(high, unit),
    }
    if found.datasheet:
        share = found.shares.get(figure)
        row["of datasheet"] = _NONE if share is None else f"{100 * share:.1f} %"
    return row
