"""What rank 0 prints: a `#` header, one row per iteration as soon as it is measured, the summary, and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TextIO

from dlbench.errors import one_line
from dlbench.quantities import duration, si, significant
from dlbench.records.measures import Measures
from dlbench.records.schema import Accelerator, Header, Iteration, Message
from dlbench.statistics import Summary

_WIDTH = 12
_MARGIN = "  "
"""As wide as the mark of the comments, so that the columns stand under their names."""
_PLACE = ("system", "placement", "experiment", "job")
_MAP_ROWS = 16


def number(value: float) -> str:
    """A cell of the tables, from microseconds in ms to hours in ms: 0.0051234, 12.345, 123457."""
    return significant(value, digits=5, smallest=-5)


def milliseconds(seconds: float) -> str:
    """A cell of a time."""
    return number(seconds * 1e3)


def microseconds(seconds: float) -> str:
    """A cell of a skew."""
    return f"{seconds * 1e6:.1f}"


def percent(share: float) -> str:
    """A cell of a share."""
    return f"{share * 100:.1f}"


def rank_map(hosts: Sequence[str], devices: Sequence[str]) -> Iterator[str]:
    """Lines rank → host → device: a line a rank of a small run, a line a host of a large one, cut in the middle."""
    if len(hosts) <= _MAP_ROWS:
        rows = [(str(rank), host, device) for rank, (host, device) in enumerate(zip(hosts, devices, strict=True))]
    else:
        ranks_of: dict[str, list[int]] = {}
        for rank, host in enumerate(hosts):
            ranks_of.setdefault(host, []).append(rank)
        rows = [
            (_compressed_ranks(ranks), host, _compressed(devices[rank] for rank in ranks))
            for host, ranks in ranks_of.items()
        ]
    left_out = len(rows) - _MAP_ROWS
    if left_out > 0:
        rows[_MAP_ROWS // 2 : -_MAP_ROWS // 2] = [("…", f"{left_out} more hosts", "…")]
    widths = [max(map(len, column)) for column in zip(("rank", "host", ""), *rows, strict=True)]
    for cells in (("rank", "host", "device"), *rows):
        yield f"{cells[0]:>{widths[0]}}  {cells[1]:<{widths[1]}}  {cells[2]}"


def _compressed_ranks(ranks: Sequence[int]) -> str:
    """`5`, `0-3`, or for ranks dealt out to hosts in turn `0,4,…,12`."""
    first, last = ranks[0], ranks[-1]
    if last - first == len(ranks) - 1:
        return f"{first}-{last}" if last > first else f"{first}"
    return ",".join(map(str, ranks)) if len(ranks) <= 3 else f"{first},{ranks[1]},…,{last}"  # noqa: PLR2004


def _compressed(devices: Iterable[str]) -> str:
    distinct = list(dict.fromkeys(devices))
    return distinct[0] if len(distinct) == 1 else f"{distinct[0]} … {distinct[-1]}"


def _message_line(message: Message) -> str:
    start = "" if message.blocking else ", non-blocking"
    return (
        f"{message.operation} ({message.scope}, {message.group_size} ranks) {message.count} × "
        f"{message.elements} elements, {si(message.bytes, 'B')}{start}"
    )


def _workload_line(header: Header) -> str:
    parts = [f"local batch {header.local_batch}", f"sequence {header.sequence_length}"]
    optional = (("microbatches", header.microbatches), ("buckets", header.buckets), ("units", header.units))
    parts += [f"{count} {name}" for name, count in optional if count > (name == "microbatches")]
    parts += [f"scale {header.scale:g}"] if header.scale != 1 else []
    parts += [f"time scale {header.time_scale:g}"] if header.time_scale != 1 else []
    return ", ".join(parts)


def header_lines(header: Header, record: str | None) -> Iterator[str]:
    """The header: what runs, on what, and every factor that bears on the numbers."""
    model, gpu, options = header.model, header.gpu, header.options
    persistent = " (persistent)" if header.backend.persistent else ""
    degrees = "".join(f" × {name} {degree}" for name, degree in header.degrees.items())
    yield f"dlbench {header.packages['dlbench']}  {header.strategy}  {model['name']}  {header.dtype}"
    fields = [
        ("model", f"{model['name']}, {model['parameters']:,} parameters"),
        ("layout", f"{_count(header.world_size, 'rank')} = {_count(header.replicas, 'replica')}{degrees}"),
        ("workload", _workload_line(header)),
        *(("message", _message_line(message)) for message in header.messages),
        ("compute", f"{header.compute}, {gpu['name']} roofline"),
        ("ideal", _ideal_line(header)),
        (
            "backend",
            f"{header.backend.name}{persistent}, {header.backend.library}; {header.dtype} as {header.backend.carrier}",
        ),
        *(("device", line) for line in _accelerator_lines(header.accelerators)),
        ("memory", f"{si(header.memory_bytes, 'B')} of message buffers per rank{_where(header)}"),
        ("run", f"sync {options['sync']}, progress {options['progress']}, seed {header.seed}"),
        *((name, value) for name in _PLACE if (value := getattr(header, name))),
        *(("label", f"{key} = {value}") for key, value in header.labels.items()),
        ("versions", ", ".join(f"{name} {version}" for name, version in header.packages.items())),
        ("record", record or "none"),
        *(("note", note) for note in header.notes),
    ]
    yield from (one_line(f"{name:<10} {value}") for name, value in fields)
    yield from rank_map(header.hosts, _device_names(header))


def _ideal_line(header: Header) -> str:
    if header.ideal_seconds == 0:
        return "none: nothing is computed"
    return f"{duration(header.ideal_seconds)} an iteration, if communication took no time"


def _where(header: Header) -> str:
    return ", on the GPU" if header.options.get("buffers") == "gpu" else ""


def _accelerator_lines(accelerators: Sequence[Accelerator]) -> Iterator[str]:
    """A line for every kind of GPU, and the versions that it runs with."""
    kinds = Counter(
        f"{gpu.name}, {si(gpu.memory_bytes, 'B')}, driver {gpu.driver}, runtime {gpu.runtime}, CuPy {gpu.cupy}"
        + (f", NCCL {gpu.nccl}" if gpu.nccl else "")
        for gpu in accelerators
    )
    yield from (f"{count} × {kind}" for kind, count in kinds.items())


def _device_names(header: Header) -> list[str]:
    """The device of every rank, with its bus id where it has one."""
    if not header.accelerators:
        return header.devices
    pairs = zip(header.devices, header.accelerators, strict=True)
    return [f"{device} {gpu.pci}".rstrip() for device, gpu in pairs]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"


def _row(cells: Sequence[str]) -> str:
    return "".join(f" {cell:>{_WIDTH - 1}}" for cell in cells)


def table_head() -> tuple[str, str]:
    """Column names and units of the rows."""
    names = ("iteration", "time", "throughput", "comm.", "hidden", "skew")
    units = ("", "[ms]", "[samples/s]", "[%]", "[%]", "[µs]")
    return _row(names), _row(units)


def row(iteration: Iteration, measures: Measures) -> str:
    """One iteration; a warm-up is marked w, a missed start of the window !."""
    mark = ("w" if iteration.warmup else " ") + ("!" if iteration.late else " ")
    cells = (
        f"{iteration.index}",
        milliseconds(measures.seconds),
        number(measures.throughput),
        percent(measures.communication),
        percent(measures.hidden),
        microseconds(measures.skew),
    )
    return f"{_MARGIN}{_row(cells)} {mark}".rstrip()


class SummaryRow(NamedTuple):
    """A measure in the summary: its name with unit, its samples, and how a number of it is written."""

    name: str
    summary: Summary
    write: Callable[[float], str]


def summary_lines(rows: Sequence[SummaryRow], mean_throughput: float | None) -> Iterator[str]:
    """Median, 95 % interval, minimum and maximum of each measure."""
    if mean_throughput is None:
        yield "no iteration was measured"
        return
    yield f"{'':<28}{_summary_cells(('median', 'low', 'high', 'minimum', 'maximum'))}"
    for name, summary, write in rows:
        interval = summary.interval
        low, high = (interval.low, interval.high) if interval else (None, None)
        values = (summary.median, low, high, summary.minimum, summary.maximum)
        yield f"{name:<28}{_summary_cells(['-' if value is None else write(value) for value in values])}"
    yield f"geometric mean of the throughput: {number(mean_throughput)} samples/s"
    if any(row.summary.interval is None for row in rows):
        yield "low and high: no 95 % interval below 6 iterations"


def _summary_cells(cells: Sequence[str]) -> str:
    return "".join(f" {cell:>9}" for cell in cells)


class Printer:
    """Writes to one stream, line by line, each at once."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def comment(self, lines: Iterable[str]) -> None:
        """Lines of the header or summary, marked with #."""
        for line in lines:
            self.line(f"# {line}".rstrip())

    def line(self, text: str) -> None:
        """One line as it is."""
        self._stream.write(f"{text}\n")
        self._stream.flush()
