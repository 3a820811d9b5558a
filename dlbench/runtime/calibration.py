"""What a GPU achieves: rates of matrix products by precision, and bandwidth of its memory; and the spec that says so.

Every figure is the median over rounds, with its 95 % interval. A round measures each product shape once, so that a
clock that slows down with heat or power slows all of them. Times are the device's, between two events.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dlbench.compute.gemm import Block, PoolElements
from dlbench.compute.operands import ELEMENT_BYTES, random_operand
from dlbench.compute.precision import PRECISIONS
from dlbench.errors import PreflightError
from dlbench.quantities import counted, si
from dlbench.specs.gpu import GpuSpec
from dlbench.statistics import Summary, summarise

if TYPE_CHECKING:
    from dlbench.accelerator.protocol import Device, Event, GpuFacts, Kind, Meter, Precision, Stream

_WARMUP_SHARE = 0.25
_SHARE_OF_FREE = 4
_ABOVE = 1.02
"""A measured figure so far above its datasheet's is not noise."""

_VENDORS: dict[Kind, str] = {"cuda": "NVIDIA", "hip": "AMD", "host": "host"}

Progress = Callable[[int, int], None]
"""Called with how many measurements are done, and how many there are."""


class Shape(NamedTuple):
    """A product C[rows, columns] = A[rows, k] B[k, columns], as often as a layer has it."""

    name: str
    rows: int
    columns: int
    k: int
    times: int

    @property
    def flops(self) -> int:
        """2 × rows × columns × k, of one product."""
        return 2 * self.rows * self.columns * self.k

    @property
    def size(self) -> str:
        """Rows × columns × k."""
        return f"{self.rows}×{self.columns}×{self.k}"


SHAPES = (
    Shape("square", 4096, 4096, 4096, 0),
    Shape("square", 8192, 8192, 8192, 0),
    Shape("projection", 8192, 4096, 4096, 4),
    Shape("MLP up", 8192, 14336, 4096, 1),
    Shape("MLP down", 8192, 4096, 14336, 1),
)
"""The squares that everyone compares, and the layer of Llama-3 8B over one sequence, as the roofline counts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What is measured, and how long."""

    shapes: tuple[Shape, ...] = SHAPES
    min_seconds: float = 2.0
    """Of rounds for every precision and for the bandwidth, so that clocks come to rest."""
    fewest_rounds: int = 10
    sample_seconds: float = 0.02
    """Of one measurement at least: the first launch comes some microseconds after the event that starts the clock."""
    copy_bytes: int = 2**30
    """Several times the caches of any GPU."""


DEFAULT_EFFORT = Effort()


@dataclass(frozen=True, slots=True)
class Rate:
    """What products of one precision achieve."""

    precision: Precision
    shape: Shape | None
    """None: those of a layer together, which the spec takes."""
    flops: Summary
    """FLOP/s."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a GPU achieves."""

    facts: GpuFacts
    shapes: tuple[Shape, ...]
    rates: tuple[Rate, ...]
    copied_bytes: int
    bandwidth: Summary
    """Bytes/s, read and written."""
    power_limit_watts: float
    """NaN where it is not known."""
    notes: tuple[str, ...]

    @property
    def peaks(self) -> dict[str, Summary]:
        """FLOP/s of a layer's products, by precision."""
        return {rate.precision: rate.flops for rate in self.rates if rate.shape is None}


def calibrate(
    device: Device,
    precisions: Sequence[Precision] = (),
    *,
    effort: Effort = DEFAULT_EFFORT,
    meter: Meter | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """Measure a device that nothing else uses; its meter is asked for the power limit.

    Without `precisions` all that the device can multiply in are measured, and the others get a note. Raises
    `PreflightError` where a precision that was asked for, all of them, or the memory is missing.
    """
    asked = precisions or PRECISIONS
    tell = progress or (lambda done, total: None)
    rates: list[Rate] = []
    notes: list[str] = []
    for done, precision in enumerate(asked):
        tell(done, len(asked) + 1)
        try:
            rates += _rates(device, precision, effort)
        except PreflightError as error:
            if precisions:
                raise
            notes.append(f"{precision} is left out: {error}")
    if not rates:
        raise PreflightError(notes[0])
    tell(len(asked), len(asked) + 1)
    size = min(effort.copy_bytes, 1 << (device.free_bytes() // _SHARE_OF_FREE).bit_length() - 1)
    if size < effort.copy_bytes:
        notes.append(f"the bandwidth may be that of caches: memory is free for copies of {si(size, 'B')} only")
    bandwidth = _bandwidth(device, size, effort)
    tell(len(asked) + 1, len(asked) + 1)
    limit = meter.read().power_limit_watts if meter else math.nan
    return Calibration(device.facts, effort.shapes, tuple(rates), size, bandwidth, limit, tuple(notes))


class _Stopwatch:
    """Times work on a stream by the device's clock."""

    def __init__(self, device: Device, sample_seconds: float) -> None:
        self._sample_seconds = sample_seconds
        self.stream: Stream = device.stream()
        self._elapsed = device.elapsed
        self._begin: Event = device.timed_event()
        self._end: Event = device.timed_event()

    def seconds(self, launch: Callable[[], None], times: int) -> float:
        """Seconds of one of `times` launches in a row."""
        self._begin.record(self.stream)
        for _ in range(times):
            launch()
        self._end.record(self.stream)
        self._end.synchronize()
        return self._elapsed(self._begin, self._end) / times

    def enough(self, launch: Callable[[], None]) -> int:
        """How many launches make a measurement; by the second, as the first one loads a kernel."""
        self.seconds(launch, 1)
        return max(1, math.ceil(self._sample_seconds / max(self.seconds(launch, 1), 1e-9)))


def _rounds(measure: Callable[[], list[float]], effort: Effort) -> list[list[float]]:
    """What `measure` returns, round by round, once the device is warm."""
    _repeat(measure, effort.min_seconds * _WARMUP_SHARE, 1)
    return _repeat(measure, effort.min_seconds, effort.fewest_rounds)


def _repeat(measure: Callable[[], list[float]], seconds: float, fewest: int) -> list[list[float]]:
    found: list[list[float]] = []
    end = perf_counter() + seconds
    while len(found) < fewest or perf_counter() < end:
        found.append(measure())
    return found


def _rates(device: Device, precision: Precision, effort: Effort) -> list[Rate]:
    """Rates of all shapes, and of a layer, in one precision."""
    shapes = effort.shapes
    elements = PoolElements.of(Block(shape.rows, shape.columns, shape.k, 1) for shape in shapes)
    needed = sum(elements) * ELEMENT_BYTES[precision]
    if needed > (free := device.free_bytes()):
        raise PreflightError(
            f"{device.facts.label} has {si(free, 'B')} of memory free, but {precision} products take "
            f"{si(needed, 'B')}; end what else uses it"
        )
    watch = _Stopwatch(device, effort.sample_seconds)
    multiplier = device.multiplier(watch.stream, precision)
    random = np.random.default_rng(0)
    left, right = (random_operand(device, count, precision, random) for count in elements[:2])
    out = device.allocate(elements.out * ELEMENT_BYTES[precision])

    def launcher(shape: Shape) -> Callable[[], None]:
        sizes = {"rows": shape.rows, "columns": shape.columns, "k": shape.k}
        return lambda: multiplier.multiply(left.ptr, right.ptr, out.ptr, **sizes)

    launches = [(launch, watch.enough(launch)) for launch in map(launcher, shapes)]
    try:
        rounds = _rounds(lambda: [watch.seconds(launch, times) for launch, times in launches], effort)
    finally:
        multiplier.close()
    return _summarised(precision, shapes, rounds)


def _summarised(precision: Precision, shapes: Sequence[Shape], rounds: list[list[float]]) -> list[Rate]:
    """Rates from the seconds of each shape in each round."""
    seconds = np.array(rounds)
    flops, times = np.array([(shape.flops, shape.times) for shape in shapes], dtype=float).T
    of_shapes = [
        Rate(precision, shape, summarise(shape.flops / column)) for shape, column in zip(shapes, seconds.T, strict=True)
    ]
    return [*of_shapes, Rate(precision, None, summarise((flops @ times) / (seconds @ times)))]


def _bandwidth(device: Device, size: int, effort: Effort) -> Summary:
    """Bytes/s that a copy within the device's memory reads and writes."""
    watch = _Stopwatch(device, effort.sample_seconds)
    source, target = device.allocate(size), device.allocate(size)

    def launch() -> None:
        device.copy(source.ptr, target.ptr, size, watch.stream)

    times = watch.enough(launch)
    rounds = _rounds(lambda: [watch.seconds(launch, times)], effort)
    return summarise([2 * size / seconds for (seconds,) in rounds])


def against(calibration: Calibration, datasheet: GpuSpec) -> tuple[dict[str, float], list[str]]:
    """Shares of the datasheet's figures, by precision and for `memory_bandwidth`, and what is odd about them."""
    shares = {
        precision: peak.median / datasheet.peak_flops[precision]
        for precision, peak in calibration.peaks.items()
        if precision in datasheet.peak_flops
    }
    shares["memory_bandwidth"] = calibration.bandwidth.median / datasheet.memory_bandwidth
    above = [name for name, share in shares.items() if share > _ABOVE]
    what = f"{', '.join(above)} above the datasheet of {datasheet.name}: is it that of {calibration.facts.name}?"
    return shares, [what] if above else []


def measured_spec(calibration: Calibration, *, date: str, version: str) -> GpuSpec:
    """The device as a GPU spec, with the date and dlbench's version as part of its sources."""
    facts = calibration.facts
    name = "".join(letter if letter.isprintable() else "?" for letter in facts.name)  # YAML takes no others
    slug = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-") or "gpu"
    origin = (
        f"measured by dlbench {version} calibrate on {date}; {name}, "
        f"driver {facts.driver}, runtime {facts.runtime}, CuPy {facts.cupy}"
    )
    if not math.isnan(calibration.power_limit_watts):
        origin += f", power limit {calibration.power_limit_watts:g} W"
    layer = " + ".join(f"{shape.times} of {shape.size}" for shape in calibration.shapes if shape.times)
    rates = ", ".join(f"{precision} {_spread(peak, 'FLOP/s')}" for precision, peak in calibration.peaks.items())
    copied = f"copies of {si(calibration.copied_bytes, 'B')} within the device, read and written"
    return GpuSpec(
        name=f"{slug}-measured",
        vendor=_VENDORS[facts.kind],
        peak_flops={precision: _rounded(peak.median) for precision, peak in calibration.peaks.items()},
        memory_bandwidth=_rounded(calibration.bandwidth.median),
        memory_bytes=facts.memory_bytes,
        source={
            "peak_flops": f"{origin}; rows × columns × k: {layer}; {rates}",
            "memory_bandwidth": f"{origin}; {copied}; {_spread(calibration.bandwidth, 'B/s')}",
            "memory_bytes": f"as the runtime says; {name}",
        },
    )


def _rounded(value: float) -> float:
    return float(f"{value:.3e}")


def _spread(summary: Summary, unit: str) -> str:
    """Median, interval and number of samples in words."""
    median = si(summary.median, unit)
    if summary.interval is None:
        return f"{median} (median of {counted(summary.count, 'round')})"
    low, high = si(summary.interval.low, unit), si(summary.interval.high, unit)
    return f"{median} (median of {summary.count} rounds, 95 % interval {low} to {high})"


def spec_yaml(spec: GpuSpec) -> str:
    """The spec as a YAML file that `--gpu` takes."""
    lines = [
        f"name: {_quoted(spec.name)}",
        f"vendor: {_quoted(spec.vendor)}",
        "peak_flops:  # FLOP/s, achieved",
        *(f"  {precision}: {peak:.4g}" for precision, peak in spec.peak_flops.items()),
        *(["  # fp8 was not measured: gemmEx, which multiplies, has none"] if "fp8" not in spec.peak_flops else []),
        f"memory_bandwidth: {spec.memory_bandwidth:.4g}  # bytes/s, achieved",
        f"memory_bytes: {spec.memory_bytes}",
        "source:",
        *(f"  {figure}: {_quoted(source)}" for figure, source in spec.source.items()),
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Text as a double-quoted scalar of YAML, which JSON's strings are."""
    return json.dumps(text, ensure_ascii=False)
