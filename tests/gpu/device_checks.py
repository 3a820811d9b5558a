"""What must be true of one GPU and the code that drives it, and cannot be seen without one.

A check yields rows. Its bound says what is asked for; a row without a verdict could not be judged, and says why.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlbench.accelerator.protocol import Device, Driver, Event, GpuFacts, NcclLibrary, Precision, Stream
from dlbench.comm.device_buffer import BF16, Format, plain
from dlbench.comm.payload import Message, Values, fill, first_mismatch
from dlbench.comm.protocol import Buffer, Communicator
from dlbench.compute import create as compute_model
from dlbench.compute.operands import ELEMENT_BYTES, random_operand
from dlbench.compute.precision import PRECISIONS
from dlbench.errors import DlbenchError, PreflightError
from dlbench.quantities import duration, si
from dlbench.runtime.calibration import Effort, Shape, calibrate
from dlbench.specs import GpuSpec, gpu_names, load_gpu

OK, FAILED, SKIPPED = "OK", "FAILED", "SKIPPED"
LEAST_SHARE, LARGEST_SHARE = 0.30, 1.02
LEAST_HIDDEN = 0.25
LEAST_WATTS, ABOVE_LIMIT = 5.0, 1.2
_SAME_MEMORY = 0.85
_FLOAT32, _SUM = 7, 0


class Row(NamedTuple):
    """One line of the table."""

    check: str
    found: str
    bound: str
    verdict: str


def judged(check: str, found: str, bound: str, good: bool, withheld: str = "") -> Row:
    """A row whose verdict follows, unless there is a reason why it cannot."""
    return Row(check, found, bound, f"{SKIPPED}: {withheld}" if withheld else OK if good else FAILED)


def skipped(check: str, reason: str) -> Row:
    """A row of a check that cannot be made here."""
    return Row(check, "-", "-", f"{SKIPPED}: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is done, and how sharp times must be."""

    message_elements: int = 2**20 + 3
    large_bytes: int = 2**28
    product_edge: int = 8192
    product_seconds: float = 0.05
    """Of products, beside which collectives are to be hidden."""
    effort: Effort = field(
        default_factory=lambda: Effort(shapes=(Shape("square", 8192, 8192, 8192, 1),), min_seconds=1.0, fewest_rounds=5)
    )
    spins: tuple[int, ...] = (100_000, 1_000_000, 10_000_000)
    """Nanoseconds."""
    repetitions: int = 21
    spin_late: float = 50e-6
    """Seconds that a spinning kernel may last longer by the device's events, which have microseconds of their own."""
    phase_off: float = 100e-6
    """Seconds by which the median phase of a compute model may differ from what is asked."""
    energy_seconds: float = 1.0


GPU = Sizes()
HOST = Sizes(
    message_elements=1003,
    large_bytes=2**16,
    product_edge=64,
    product_seconds=0.002,
    effort=Effort(
        shapes=(Shape("square", 64, 64, 64, 1),),
        min_seconds=0.01,
        fewest_rounds=2,
        sample_seconds=1e-4,
        copy_bytes=2**16,
    ),
    spins=(100_000, 1_000_000),
    repetitions=5,
    spin_late=0.05,
    phase_off=0.05,
    energy_seconds=0.02,
)
"""For cores that other work shares, on which all of this only shows that it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The GPU under test, and what belongs to it."""

    driver: Driver
    device: Device
    sizes: Sizes
    spec: str = ""
    """Name or path of the datasheet's figures; empty where the name of the GPU tells."""
    agreed: Callable[[float], float] = float
    """The same figure for all ranks, which meet for it."""

    @property
    def withheld(self) -> str:
        """Why nothing can be said of work that runs beside other work; empty on a GPU."""
        return "streams of host memory do not run beside each other" if self.device.facts.kind == "host" else ""


Check = Callable[[Bench], Iterable[Row]]

COLLECTIVES = ("allreduce", "allgather", "reduce_scatter", "alltoall")
DTYPES = ("bf16", "fp16", "fp32", "fp64", "fp8")


def detection(bench: Bench) -> Iterator[Row]:
    """The GPU says which one it is, and how much memory it has."""
    facts, free = bench.device.facts, bench.device.free_bytes()
    yield judged("identity", f"{facts.uuid} at {facts.pci}", "UUID and PCI id", bool(facts.uuid and facts.pci))
    found = f"{si(free, 'B')} of {si(facts.memory_bytes, 'B')} free"
    yield judged("memory", found, "some, and no more than all", 0 < free <= facts.memory_bytes)


def copies(bench: Bench) -> Iterator[Row]:
    """What goes to the device comes back, by way of a copy within it; what it cannot hold is refused."""
    device, size = bench.device, bench.sizes.large_bytes
    content = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    source, target, stream = device.allocate(size), device.allocate(size), device.stream()
    device.upload(source.ptr, content)
    device.copy(source.ptr, target.ptr, size, stream)
    stream.synchronize()
    wrong = int(np.count_nonzero(device.download(target.ptr, size) != content))
    yield judged("copies", f"{wrong} of {size} bytes wrong", "0 wrong", wrong == 0)
    try:
        device.allocate(2 * device.facts.memory_bytes)
        yield Row("too large a buffer", "twice the memory was allocated", "refused", FAILED)
    except PreflightError as error:
        yield Row("too large a buffer", str(error), "refused", OK)


def collectives(bench: Bench) -> Iterator[Row]:
    """A communicator of one rank carries every element of every collective, in every dtype; NCCL only copies there."""
    try:
        library = bench.driver.nccl()
    except PreflightError as error:
        yield skipped("collectives", str(error))
        return
    world = world_of_one(bench.device, library)
    group = world.split(0, 0)
    yield from carried(bench, group, "a copy")
    yield started(bench, world, "a copy")
    group.close()
    world.close()
    yield Row("communicators", "closed, the group before the world", "closed", OK)


def carried(bench: Bench, group: Communicator[Any, Any], what: str) -> Iterator[Row]:
    """Every collective in every dtype; `what` it is for so many ranks."""
    for number, name in enumerate(COLLECTIVES):
        for dtype in DTYPES:
            found = wrong_elements(group, name, dtype, bench.sizes.message_elements, number)
            yield judged(f"{name} of {dtype}, {what}", found, "0 wrong", found.startswith("0 "))


def started(bench: Bench, world: Communicator[Any, Any], what: str) -> Row:
    """A large all-reduce is under way when its call returns."""
    send, receive = (world.allocate(bench.sizes.large_bytes // 4, "fp32") for _ in range(2))
    request = world.iallreduce(send, receive)
    at_once = request.test()
    request.wait()
    found = "done at once" if at_once else "under way"
    return judged(f"a started all-reduce, {what}", found, "under way", not at_once, bench.withheld)


def world_of_one(device: Device, library: NcclLibrary) -> Communicator[Any, Any]:
    """NCCL's communicator of this process alone."""
    from dlbench.comm.library import MPI  # noqa: PLC0415 - MPI starts when it is imported
    from dlbench.comm.variants import create  # noqa: PLC0415

    return create(MPI.COMM_SELF, backend="nccl", device=device, nccl=library)


def wrong_elements(group: Communicator[Any, Any], name: str, dtype: str, elements: int, sequence: int) -> str:
    """How many elements a collective brings that are not what they should be, and whether it wrote too far."""
    message = Message(
        operation=name,
        sequence=sequence,
        ranks=range(group.size),
        elements=elements,
        carrier=group.carrier(dtype),
        precision=group.precision(dtype),
    )
    send, receive = buffers(group, name, dtype, elements)
    fill(send, message.sent(group.rank))
    getattr(group, name)(send, receive)
    return wrong(receive, message.expected(group.rank), send)


def wrong(receive: Buffer, expected: Values, send: Buffer) -> str:
    """How many elements are not what they should be, and whether something was written behind the buffers."""
    mismatch = first_mismatch(receive, expected)
    beyond = "" if receive.guard_intact() and send.guard_intact() else ", and bytes behind the buffer"
    return f"{mismatch.count if mismatch else int(bool(beyond))} of {receive.elements}{beyond}"


def buffers(group: Communicator[Any, Any], name: str, dtype: str, elements: int) -> tuple[Buffer, Buffer]:
    """Send and receive buffer of a collective whose message has so many elements."""
    send = elements * (group.size if name in ("reduce_scatter", "alltoall") else 1)
    receive = elements * (group.size if name in ("allgather", "alltoall") else 1)
    return group.allocate(send, dtype), group.allocate(receive, dtype)


def products(bench: Bench) -> Iterator[Row]:
    """Products by rows are right, in every precision that the GPU has: small whole numbers, whose sums are exact."""
    rows, columns, k = 96, 40, 16
    random = np.random.default_rng(0)
    left, right = (random.integers(-2, 3, shape) for shape in ((rows, k), (k, columns)))
    for precision in PRECISIONS:
        try:
            found = product(bench.device, precision, left, right)
        except PreflightError as error:
            yield skipped(f"product in {precision}", str(error))
            continue
        wrong = int(np.count_nonzero(found != left @ right))
        yield judged(f"product in {precision}", f"{wrong} of {rows * columns} wrong", "0 wrong", wrong == 0)


FORMATS: dict[Precision, Format] = {
    "fp64": plain(np.float64),
    "fp32": plain(np.float32),
    "tf32": plain(np.float32),
    "fp16": plain(np.float16),
    "bf16": BF16,
}


def product(device: Device, precision: Precision, left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """The product of two matrices on the device."""
    coded, size = FORMATS[precision], ELEMENT_BYTES[precision]
    (rows, k), columns = left.shape, right.shape[1]
    stream = device.stream()
    multiplier = device.multiplier(stream, precision)
    a, b, c = (device.allocate(count * size) for count in (rows * k, k * columns, rows * columns))
    for memory, matrix in ((a, left), (b, right)):
        device.upload(memory.ptr, coded.encode(matrix.astype(coded.carrier)))
    multiplier.multiply(a.ptr, b.ptr, c.ptr, rows=rows, columns=columns, k=k)
    stream.synchronize()
    multiplier.close()
    return coded.decode(device.download(c.ptr, c.nbytes)).reshape(rows, columns)


def overlap(bench: Bench) -> Iterator[Row]:
    """What NCCL does with one rank runs beside what occupies the compute stream."""
    try:
        library = bench.driver.nccl()
    except PreflightError as error:
        yield skipped("overlap", str(error))
        return
    yield from overlapped(bench, library.NcclCommunicator(1, library.get_unique_id(), 0), "a copy")


def overlapped(bench: Bench, handle: Any, what: str) -> Iterator[Row]:
    """An all-reduce runs beside what occupies the compute stream: a kernel that waits, and products.

    `handle` is a communicator of CuPy, whose stream the caller gives; it is destroyed. `what` it does for its ranks.
    """
    device, sizes = bench.device, bench.sizes
    compute, communication = device.stream(), device.stream()
    source, target = (device.allocate(sizes.large_bytes) for _ in range(2))
    count = sizes.large_bytes // 4

    def collective() -> None:
        handle.allReduce(source.ptr, target.ptr, count, _FLOAT32, _SUM, communication.ptr)

    yield from beside_a_spin(bench, (compute, communication), collective, what)
    precision: Precision = "fp16"  # which every GPU has
    edge = sizes.product_edge
    multiplier = device.multiplier(compute, precision)
    random = np.random.default_rng(0)
    left, right, out = (random_operand(device, edge * edge, precision, random) for _ in range(3))
    multiply = partial(multiplier.multiply, left.ptr, right.ptr, out.ptr, rows=edge, columns=edge, k=edge)
    yield hidden_share(bench, (compute, multiply), (communication, collective), what)
    multiplier.close()
    handle.destroy()


def beside_a_spin(
    bench: Bench, streams: tuple[Stream, Stream], collective: Callable[[], None], what: str
) -> Iterator[Row]:
    """While a kernel occupies the first stream, a collective begins and ends on the other."""
    compute, communication = streams
    device, spun, arrived = bench.device, bench.device.event(), bench.device.event()
    device.spin(compute, 1000)
    collective()
    compute.synchronize()  # both kernels are loaded now, for which a GPU may have to be idle
    communication.synchronize()
    bench.agreed(0)
    device.spin(compute, bench.sizes.spins[-1] * 5)
    spun.record(compute)
    at_once = spun.done
    collective()
    arrived.record(communication)
    arrived.synchronize()
    still = not spun.done
    compute.synchronize()
    launched = "was over when its launch was" if at_once else "was still running after its launch"
    yield judged(f"a kernel, {what}", launched, "still running", not at_once, bench.withheld)
    came = "while the kernel ran" if still else "after the kernel"
    yield judged(f"all-reduce beside a kernel, {what}", f"came {came}", "while it ran", still, bench.withheld)


Work = tuple[Stream, Callable[[], None]]


def hidden_share(bench: Bench, product: Work, collective: Work, what: str) -> Row:
    """How much of the shorter of products and collectives is hidden behind the longer, by timed events."""

    def lasting(*works: tuple[Work, int]) -> float:
        return bench.agreed(together(bench.device, *works))

    for launch in (product, collective):
        lasting((launch, 1))
    products = max(1, round(bench.sizes.product_seconds / lasting((product, 1))))
    apart = [lasting((product, products))]
    reductions = max(1, round(apart[0] / 2 / lasting((collective, 1))))
    apart.append(lasting((collective, reductions)))
    both = lasting((collective, reductions), (product, products))
    hidden = (sum(apart) - both) / min(apart)
    found = f"{hidden:.0%} hidden ({duration(apart[0])} and {duration(apart[1])}, together {duration(both)})"
    name = f"products beside all-reduces, {what}"
    return judged(name, found, f"≥ {LEAST_HIDDEN:.0%}", hidden >= LEAST_HIDDEN, bench.withheld)


def together(device: Device, *works: tuple[Work, int]) -> float:
    """Seconds on the device from the first of the works to the end of the last, each launched so many times."""
    begin, ends = device.timed_event(), []
    begin.record(works[0][0][0])
    for (stream, launch), times in works:
        for _ in range(times):
            launch()
        end: Event = device.timed_event()
        end.record(stream)
        ends.append(end)
    for end in ends:
        end.synchronize()
    return max(device.elapsed(begin, end) for end in ends)


def rates(bench: Bench) -> Iterator[Row]:
    """Products and copies are as fast as the datasheet lets expect, and no faster."""
    calibration = calibrate(bench.device, effort=bench.sizes.effort)
    spec, reason = datasheet(bench.device.facts, bench.spec)

    def row(what: str, found: float, unit: str, expected: float | None) -> Row:
        if spec is None or expected is None:
            return judged(what, si(found, unit), "-", False, reason or "the datasheet has no figure for it")
        bound = f"{LEAST_SHARE:.0%} to {LARGEST_SHARE:.0%} of {spec.name}"
        share = found / expected
        return judged(what, f"{si(found, unit)}, {share:.0%}", bound, LEAST_SHARE <= share <= LARGEST_SHARE)

    for precision, peak in calibration.peaks.items():
        yield row(f"rate in {precision}", peak.median, "FLOP/s", spec.peak_flops.get(precision) if spec else None)
    for note in calibration.notes:
        yield skipped("rates", note)
    yield row("memory bandwidth", calibration.bandwidth.median, "B/s", spec.memory_bandwidth if spec else None)


def datasheet(facts: GpuFacts, name: str) -> tuple[GpuSpec | None, str]:
    """The spec of that name, or of the GPU's own with as much memory; and why there is none."""
    if name:
        return load_gpu(name), ""
    words = facts.name.lower().replace("-", " ").split()
    named = [load_gpu(spec) for spec in gpu_names() if spec.split("-")[0] in words]
    if not named:
        return None, f"no shipped GPU is called like {facts.name}; --gpu names one"
    nearest = min(named, key=lambda spec: abs(math.log(facts.memory_bytes / spec.memory_bytes)))
    share = facts.memory_bytes / nearest.memory_bytes
    if not _SAME_MEMORY <= share <= 1 / _SAME_MEMORY:
        has = f"{si(facts.memory_bytes, 'B')} of memory, not the {si(nearest.memory_bytes, 'B')} of {nearest.name}"
        return None, f"{facts.name} has {has}; --gpu names another"
    return nearest, ""


def spins(bench: Bench) -> Iterator[Row]:
    """A spinning kernel lasts as long as it should, by the device's events."""
    device, late = bench.device, bench.sizes.spin_late
    stream, begin, end = device.stream(), device.timed_event(), device.timed_event()
    device.spin(stream, 1000)
    for nanoseconds in bench.sizes.spins:
        lasted = []
        for _ in range(bench.sizes.repetitions):
            begin.record(stream)
            device.spin(stream, nanoseconds)
            end.record(stream)
            end.synchronize()
            lasted.append(device.elapsed(begin, end))
        off = median(lasted) - nanoseconds * 1e-9
        bound = f"-2 µs to +{late * 1e6:.0f} µs"
        what = f"kernel of {duration(nanoseconds * 1e-9)}"
        yield judged(what, f"median {off * 1e6:+.1f} µs", bound, -2e-6 <= off <= late)


class Millisecond(NamedTuple):
    """A phase of a millisecond."""

    seconds: float = 1e-3
    gemms: tuple[tuple[int, int, int, float], ...] = ()


def phases(bench: Bench) -> Iterator[Row]:
    """Phases of sleep and spin last as long as they should, by the host's clock."""
    off = bench.sizes.phase_off
    for name in ("sleep", "spin"):
        model = compute_model(name, ranks_per_core=1.0, seed=0, device=bench.device)
        run = model.bind(Millisecond())
        lasted = []
        for _ in range(bench.sizes.repetitions):
            enter = time.perf_counter()
            run()
            lasted.append(time.perf_counter() - enter)
        found = median(lasted) - Millisecond().seconds
        bound = f"±{off * 1e6:.0f} µs"
        yield judged(f"{name} of 1 ms", f"median {found * 1e6:+.1f} µs", bound, abs(found) <= off)


def energy(bench: Bench) -> Iterator[Row]:
    """Energy grows while the GPU works, by as much as a GPU can take; clocks are told."""
    meter = bench.driver.meter(bench.device.facts)
    if meter is None:
        yield skipped("energy", "no NVML for this GPU; pip install 'dlbench[gpu]' brings pynvml")
        return
    try:
        before, enter = meter.read(), time.perf_counter()
        work(bench, bench.sizes.energy_seconds)
        after, seconds = meter.read(), time.perf_counter() - enter
    finally:
        meter.close()
    watts = (after.joules - before.joules) / seconds
    limit = after.power_limit_watts
    most = limit * ABOVE_LIMIT if limit > 0 else math.inf
    bound = f"{LEAST_WATTS:g} W to {most:g} W" if limit > 0 else f"≥ {LEAST_WATTS:g} W"
    withheld = "" if meter.source else "this GPU counts no energy"
    yield judged("power", f"{watts:.0f} W by {meter.source or '-'}", bound, LEAST_WATTS <= watts <= most, withheld)
    clocks = f"{after.sm_mhz:g} and {after.memory_mhz:g} MHz, limit {limit:g} W, throttle {after.throttle:g}"
    yield judged("clocks of SMs and memory", clocks, "> 0", after.sm_mhz > 0 and after.memory_mhz > 0)


def work(bench: Bench, seconds: float) -> None:
    """Keep the GPU busy with products for so long."""
    device, edge = bench.device, bench.sizes.product_edge
    stream = device.stream()
    multiplier = device.multiplier(stream, "fp16")
    random = np.random.default_rng(0)
    left, right, out = (random_operand(device, edge * edge, "fp16", random) for _ in range(3))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        multiplier.multiply(left.ptr, right.ptr, out.ptr, rows=edge, columns=edge, k=edge)
        stream.synchronize()
    multiplier.close()


CHECKS: tuple[Check, ...] = (detection, copies, collectives, products, overlap, rates, spins, phases, energy)


def rows(bench: Bench, checks: Iterable[Check] = CHECKS) -> Iterator[Row]:
    """All rows; a check that breaks is a row that failed, and the others are made nevertheless."""
    for check in checks:
        try:
            yield from check(bench)
        except Exception as error:
            what = str(error) if isinstance(error, DlbenchError) else f"{type(error).__name__}: {error}"
            yield Row(check.__name__, what.splitlines()[0] if what else "", "no error", FAILED)
