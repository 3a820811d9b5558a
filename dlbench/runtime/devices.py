"""The GPU of every rank: which one it drives, whether it is the only one to do so, and whether its cores are near."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from dlbench.accelerator.early import own_gpu
from dlbench.accelerator.presence import nccl_version
from dlbench.accelerator.protocol import Device, Driver, DriverLoader, GpuFacts
from dlbench.comm.library import MPI
from dlbench.errors import PreflightError
from dlbench.runtime.agreement import agree
from dlbench.runtime.hosts import Host
from dlbench.runtime.machine.facts import DEVICE_VARIABLES, boot_id
from dlbench.runtime.machine.survey import compressed_ranks
from dlbench.runtime.preflight import usable_cores

if TYPE_CHECKING:
    from dlbench.records.schema import Accelerator

_NODES = "/sys/devices/system/node"
_OWN_GPU = "srun --gpus-per-node={} --gpu-bind=none"


def cupy_driver() -> Driver:
    """The GPUs of this host through CuPy."""
    from dlbench.accelerator.cupy_driver import CupyDriver  # noqa: PLC0415 - only runs on a GPU load CuPy

    return CupyDriver()


class Gpu(NamedTuple):
    """What a rank drives."""

    driver: Driver
    device: Device
    nccl: str
    """Version of NCCL or RCCL; empty where messages do not travel by it."""


class Place(NamedTuple):
    """A rank and its GPU, as rank 0 compares them."""

    rank: int
    host: str
    machine: str
    """Id of the running kernel: containers on one have it in common, hosts of one name do not."""
    facts: GpuFacts
    nccl: str
    near_cores: bool | None
    """Whether all cores of the rank belong to the NUMA node of its GPU; None where either is not known."""

    def who(self) -> str:
        """Name of the rank, e.g. `rank 3 (node017, cuda:3)`."""
        return f"rank {self.rank} ({self.host}, {self.facts.label})"

    def accelerator(self) -> Accelerator:
        """The GPU as the record names it."""
        from dlbench.records.schema import Accelerator  # noqa: PLC0415 - rank 0 only

        facts = self.facts
        return Accelerator(
            name=facts.name,
            uuid=facts.uuid,
            pci=facts.pci,
            driver=facts.driver,
            runtime=facts.runtime,
            cupy=facts.cupy,
            nccl=self.nccl,
            memory_bytes=facts.memory_bytes,
            numa_node=facts.numa_node,
            near_cores=self.near_cores,
        )


def join_gpus(comm: MPI.Intracomm, host: Host, driver: DriverLoader | None, *, nccl: bool) -> tuple[Gpu, list[Place]]:
    """Open the GPU of this rank; on rank 0 also all ranks' places. Collective, raises like `agree`.

    Rank 0 compares them before NCCL starts, which would hang. `driver` takes the place of CuPy.
    """

    def find() -> Gpu:
        try:
            return open_gpu(driver or cupy_driver, host.comm.rank, nccl=nccl)
        except PreflightError as error:
            raise PreflightError(f"rank {comm.rank} ({host.name}): {error}") from None

    gpu = agree(comm, find)
    places = comm.gather(find_place(comm.rank, host.name, gpu)) or []
    agree(comm, lambda: check_places(places))
    return gpu, places


def open_gpu(load: DriverLoader, local_rank: int, *, nccl: bool) -> Gpu:
    """Open the GPU of the rank with this number on its host; raises `PreflightError`."""
    driver = load()
    device = driver.open(device_index(local_rank, driver.count()))
    return Gpu(driver, device, nccl_version(driver.nccl().get_version()) if nccl else "")


def device_index(local_rank: int, visible: int) -> int:
    """Which of the visible GPUs a rank drives: the only one, or the one with its number on the host.

    Raises `PreflightError` where there is none for it.
    """
    index = own_gpu(local_rank, visible)
    if index is not None:
        return index
    chosen = "".join(f", {name}={os.environ[name]}" for name in DEVICE_VARIABLES if name in os.environ)
    raise PreflightError(
        f"there is no GPU for local rank {local_rank}: {visible} are visible{chosen}; start at most {visible} ranks on "
        f"a host, or show them all its GPUs: {_OWN_GPU.format(local_rank + 1)}"
    )


def find_place(rank: int, host: str, gpu: Gpu) -> Place:
    """The rank and the GPU that it drives."""
    facts = gpu.device.facts
    near = near_cores(usable_cores(), facts.numa_node)
    return Place(rank, host, boot_id() or host, facts, gpu.nccl, near)


def near_cores(cores: set[int], numa_node: int | None, nodes: str = _NODES) -> bool | None:
    """Whether all cores belong to a NUMA node of the host; None where that is not known."""
    if numa_node is None:
        return None
    try:
        with open(f"{nodes}/node{numa_node}/cpulist", encoding="ascii") as file:  # noqa: PTH123
            return cores <= parse_cores(file.read())
    except (OSError, ValueError):
        return None


def parse_cores(text: str) -> set[int]:
    """Cores of a list as the kernel writes it, e.g. `0-15,32-47`."""
    ranges = [part.split("-") for part in text.strip().split(",") if part]
    return {core for ends in ranges for core in range(int(ends[0]), int(ends[-1]) + 1)}


def check_places(places: Sequence[Place]) -> None:
    """Raise `PreflightError` where two ranks drive one GPU, or NCCL's version is not the same on all ranks."""
    _check_own(places)
    _check_nccl(places)


def _check_own(places: Sequence[Place]) -> None:
    first: dict[tuple[str, str], Place] = {}
    for place in places:
        identity = place.facts.uuid or place.facts.pci
        if not identity:
            continue
        other = first.setdefault((place.machine, identity), place)
        if other is not place:
            ranks = sum(place.machine == neighbour.machine for neighbour in places)
            raise PreflightError(
                f"{other.who()} and {place.who()} drive one GPU, {place.facts.name} {identity}; give every rank its "
                f"own, e.g. {_OWN_GPU.format(ranks)}"
            )


def _check_nccl(places: Sequence[Place]) -> None:
    ranks: dict[str, list[int]] = {}
    for place in places:
        ranks.setdefault(place.nccl, []).append(place.rank)
    if len(ranks) > 1:
        found = ", ".join(f"{version or 'none'} on {_ranks(numbers, places)}" for version, numbers in ranks.items())
        raise PreflightError(
            f"NCCL is not the same on all ranks: {found}; load one module and one environment on all hosts (the wheel "
            "nvidia-nccl in an environment comes before LD_LIBRARY_PATH)"
        )


def place_remarks(places: Sequence[Place]) -> list[str]:
    """What a record must say of GPUs that are not driven quite as they should be."""
    remarks = []
    far = [place.rank for place in places if place.near_cores is False]
    if far:
        remarks.append(
            f"{_ranks(far, places)} may run on cores away from the NUMA node of the GPU; bind them, e.g. mpirun "
            "--bind-to numa, srun --cpu-bind=ldoms"
        )
    unknown = [place.rank for place in places if not (place.facts.uuid or place.facts.pci)]
    if len(unknown) > 1:
        remarks.append(f"the GPUs of {_ranks(unknown, places)} say neither UUID nor PCI id: two ranks may share one")
    return remarks


def _ranks(numbers: Sequence[int], places: Sequence[Place]) -> str:
    """Ranks and their hosts, e.g. `rank 3 (node017)` or `ranks 0-3 (node017, node018)`; at most three hosts."""
    hosts = [host for host, _ in groupby(places[number].host for number in numbers)]
    distinct = list(dict.fromkeys(hosts))
    names = distinct if len(distinct) <= 3 else [*distinct[:2], "…", distinct[-1]]  # noqa: PLR2004
    return f"rank{'s' if len(numbers) > 1 else ''} {compressed_ranks(numbers)} ({', '.join(names)})"
