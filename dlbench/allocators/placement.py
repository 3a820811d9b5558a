"""Placement: nodes for several jobs at once, each of exactly the class that was asked for, none shared."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from dlbench.allocators.classes import PAPER_BLOCKS, PlacementClass, PlacementError, Spread
from dlbench.allocators.exhaustive import UndecidedError, search
from dlbench.allocators.packing import Machine, NoRoomError, Packing, Shape, pack
from dlbench.allocators.topology import Topology
from dlbench.quantities import counted

ATTEMPTS = 40
"""At random, and every other one from the third on filling one group and switch after the other."""


class Request(NamedTuple):
    """A job that wants nodes."""

    job: str
    nodes: int
    placement: PlacementClass


def place(topology: Topology, requests: Sequence[Request], rng: np.random.Generator) -> tuple[tuple[str, ...], ...]:
    """Nodes of every job in rank order, no node twice.

    Within its class a placement is random: for a job by itself, every place for a block is as likely as any other, and
    so is every group for a job that stays within one. Beside others, it is as random as they let it be. Rank order is
    random too, block by block, but never by accident that of a nearer one of the paper's classes, where another order
    exists.

    Raises `PlacementError` for the first job that has no place: because no job of its size is of its class, because no
    group or switch of the machine could hold it, or because there is none left beside the other jobs. The last is
    proved by an exhaustive search where the machine is small; the message says which.
    """
    for request in requests:
        request.placement.check(request.job, request.nodes)
    if not requests:
        return ()
    machine = _machine(topology)
    shapes = [Shape.of(request.placement, request.nodes) for request in requests]
    _refuse_too_many(topology.name, machine, requests, shapes)
    packing = _pack(machine, requests, shapes, rng)
    for shape, switches in zip(shapes, packing, strict=True):
        _disorder(shape, switches, rng)
    return _named(topology, shapes, packing, rng)


def check_alone(topology: Topology, request: Request) -> None:
    """Raise `PlacementError` for a job that the topology could not hold by itself."""
    request.placement.check(request.job, request.nodes)
    _refuse_impossible(_machine(topology), request, Shape.of(request.placement, request.nodes))


def _machine(topology: Topology) -> Machine:
    free = [(switch.size, index) for index, group in enumerate(topology.groups) for switch in group.switches]
    return Machine(*np.array(free, dtype=np.int64).T)


def _refuse_too_many(name: str, machine: Machine, requests: Sequence[Request], shapes: Sequence[Shape]) -> None:
    """Raise `PlacementError` where the jobs want more nodes, or blocks of a size and larger, than there are."""
    for size in sorted({1} | {shape.size for shape in shapes}):
        wanted, free = sum(shape.places(size) for shape in shapes), int(machine.places(size).sum())
        if wanted > free:
            _refuse_impossible_ones(machine, requests, shapes)
            jobs = counted(sum(shape.size >= size for shape in shapes), "job")
            each = "" if size == 1 else ", each under one L1 switch"
            raise PlacementError(f"{jobs} together want {_blocks(wanted, size)}{each}; topology {name} has {free}")


def _refuse_impossible_ones(machine: Machine, requests: Sequence[Request], shapes: Sequence[Shape]) -> None:
    for request, shape in dict(zip(requests, shapes, strict=True)).items():
        _refuse_impossible(machine, request, shape)


def _pack(machine: Machine, requests: Sequence[Request], shapes: Sequence[Shape], rng: np.random.Generator) -> Packing:
    """The switches of all blocks. Raises `PlacementError`."""
    for attempt in range(ATTEMPTS):
        try:
            return pack(machine, shapes, rng, tight=attempt > 1 and attempt % 2 == 0)
        except NoRoomError as error:
            stuck = error
    _refuse_impossible_ones(machine, requests, shapes)
    try:
        if (found := search(machine, shapes, rng)) is not None:
            return found
        proof = "no placement exists"
    except UndecidedError:
        proof = f"none was found in {ATTEMPTS} attempts"
    others = counted(len(requests) - 1, "other job")
    free = f"{stuck.free} free beside {others} ({proof})"
    raise _refusal(requests[stuck.job], _blocks(stuck.wanted, stuck.size), free)


def _refuse_impossible(machine: Machine, request: Request, shape: Shape) -> None:
    """Raise `PlacementError` for a job that the empty machine cannot hold."""
    places = machine.places(shape.size)
    match shape.spread:
        case Spread.L1:
            possible, free = bool(places.any()), f"the largest switch has {_blocks(int(machine.free.max()), 1)}"
        case Spread.GROUP:
            possible = bool(machine.holds(shape).any())
            usable = places * (machine.places_beside_fullest(shape.size) > 0)
            free = f"the best group has {_blocks(int(usable.max()), shape.size)}"
        case Spread.ACROSS:
            possible = bool(shape.full <= places.sum() and machine.groups > 1)
            free = f"there are {_blocks(int(places.sum()), shape.size)} in {counted(machine.groups, 'group')}"
    if not possible:
        wanted = _blocks(shape.full, shape.size) + (f" and {_blocks(1, shape.rest)}" if shape.rest else "")
        raise _refusal(request, wanted, free)


_WHERE = {
    Spread.L1: "under one L1 switch",
    Spread.GROUP: "under two L1 switches or more of one group",
    Spread.ACROSS: "in two groups or more",
}


def _refusal(request: Request, wanted: str, free: str) -> PlacementError:
    where = _WHERE[request.placement.spread]
    return PlacementError(
        f"job {request.job} of class {request.placement} on {_blocks(request.nodes, 1)} wants {wanted} {where}; {free}"
    )


def _blocks(count: int, size: int) -> str:
    return counted(count, "node") if size == 1 else f"{counted(count, 'block')} of {size} nodes"


def _disorder(shape: Shape, switches: list[int], rng: np.random.Generator) -> None:
    """Exchange two blocks where the rank order happens to be that of a nearer class of the paper."""
    if shape.spread is Spread.L1 or not any(_nearer(shape, switches, block) for block in PAPER_BLOCKS):
        return
    others = [index for index in range(1, shape.full) if switches[index] != switches[0]]
    if others:
        other = others[int(rng.integers(len(others)))]
        switches[1], switches[other] = switches[other], switches[1]


def _nearer(shape: Shape, switches: list[int], block: int) -> bool:
    """Whether blocks of that many nodes, more than the shape's, lie under one switch each."""
    if not shape.size < block < shape.nodes or switches[0] != switches[1]:
        return False
    by_node = [switch for switch, size in zip(switches, shape.sizes, strict=True) for _ in range(size)]
    return all(len(set(by_node[start : start + block])) == 1 for start in range(0, len(by_node), block))


def _named(
    topology: Topology, shapes: Sequence[Shape], packing: Packing, rng: np.random.Generator
) -> tuple[tuple[str, ...], ...]:
    """Nodes of every block, any of its switch alike."""
    sizes = [switch.size for switch in topology.switches]
    mixed = np.lexsort((rng.random(len(topology.nodes)), np.repeat(np.arange(len(sizes)), sizes)))
    names = iter([topology.nodes[index] for index in mixed])
    left = [iter(list(islice(names, size))) for size in sizes]
    return tuple(
        tuple(node for switch, size in zip(switches, shape.sizes, strict=True) for node in islice(left[switch], size))
        for shape, switches in zip(shapes, packing, strict=True)
    )
