"""Block times: how long each rank works between two collectives of its group.

The ranks leave a collective together and come to the next when each is ready, so the spread of these times is what
makes ranks wait. In a record, the time that a rank spends in other communication on the way is taken out: it waits
there for others. In a trace, a block is the time from the end of a collective's kernel to the start of the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dlbench.analysis.campaign import Campaign
from dlbench.analysis.columns import counted
from dlbench.analysis.programs import Programs, communication_class
from dlbench.analysis.samples import Configuration, configurations, measured
from dlbench.analysis.traces.collectives import Collectives
from dlbench.errors import UserError
from dlbench.records.reader import OpsReader, UnreadableRecord, iterate
from dlbench.records.schema import Header, OpEntry

COLLECTIVES = ("allreduce", "allgather", "reduce_scatter", "alltoall")
_BEGIN = "begin"
"""Stands for the collective before the first of an iteration: ranks begin one together."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockTimes:
    """Block times of groups of equal ranks. Rows are instances: one block, performed once by all ranks of a group."""

    source: str
    """Whose they are, e.g. `allreduce/world`, or the group of a trace."""
    factors: dict[str, Any] = field(default_factory=dict)
    """Configuration of the runs; empty for traces."""
    labels: tuple[str, ...]
    """Of the blocks, e.g. `gradient[0] → gradient[1]`."""
    block: NDArray[np.int64]
    """Shape (instances,): index into `labels`."""
    iteration: NDArray[np.int64]
    """Shape (instances,): instances of the same number happened together, and are resampled together."""
    seconds: NDArray[np.float64]
    """Shape (instances, ranks)."""
    waits: NDArray[np.float64]
    """Shape (instances,): mean wait in the collective that ends the block, in seconds; NaN where it is not known."""
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.block)

    @property
    def ranks(self) -> int:
        """Ranks of a group."""
        return int(self.seconds.shape[1])

    def only(self, kept: NDArray[np.bool_]) -> BlockTimes:
        """The instances for which `kept` is true."""
        return replace(
            self,
            block=self.block[kept],
            iteration=self.iteration[kept],
            seconds=self.seconds[kept],
            waits=self.waits[kept],
        )

    @classmethod
    def of_array(cls, seconds: ArrayLike, source: str = "block times") -> BlockTimes:
        """From an array x[c, j, r]: block c, instance j, rank r. Raises `UserError` for another shape."""
        x = np.asarray(seconds, dtype=np.float64)
        if x.ndim != 3:  # noqa: PLR2004
            raise UserError(f"{source}: block times have shape (blocks, instances, ranks), not {x.shape}")
        blocks, instances, ranks = x.shape
        return cls(
            source=source,
            labels=tuple(f"block {number}" for number in range(blocks)),
            block=np.repeat(np.arange(blocks), instances),
            iteration=np.tile(np.arange(instances), blocks),
            seconds=x.reshape(-1, ranks),
            waits=np.full(blocks * instances, np.nan),
        )


def of_collectives(groups: Sequence[Collectives]) -> list[BlockTimes]:
    """Block times of each group of a trace.

    Blocks between collectives of equal names, operations and sizes are instances of one block: a trace does not say
    which step they belong to.
    """
    return [_of_group(group) for group in groups if len(group) > 1]


def _of_group(group: Collectives) -> BlockTimes:
    signatures = list(zip(group.names, group.operations, group.bytes.tolist(), strict=True))
    codes: dict[tuple[Any, ...], int] = {}
    seen: list[int] = []
    block, iteration = [], []
    for pair in zip(signatures, signatures[1:], strict=False):
        code = codes.setdefault(pair, len(codes))
        seen[code:] = seen[code:] or [0]
        block.append(code)
        iteration.append(seen[code])
        seen[code] += 1
    seconds = group.enter[1:] - group.leave[:-1]
    apart = (seconds >= 0).all(axis=1)
    overlapping = int(np.count_nonzero(~apart))
    early = counted(overlapping, "collective")
    note = f"{group.group}: {early} began before the one before had ended, which makes no block"
    return BlockTimes(
        source=group.group,
        labels=tuple(f"{before[1]} {before[2]} B → {after[1]} {after[2]} B" for before, after in codes),
        block=np.array(block, dtype=np.int64)[apart],
        iteration=np.array(iteration, dtype=np.int64)[apart],
        seconds=seconds[apart],
        waits=group.tau_mean[1:][apart],
        notes=(note,) if overlapping else (),
    )


class _Block(NamedTuple):
    """A block of a program."""

    before: int
    """Number of the collective's op before it, -1 where it begins the iteration."""
    after: int
    """Number of the collective's op that ends it."""
    label: str
    blocking: bool
    """Whether the collective that ends it is."""


class _Blocks(NamedTuple):
    """The blocks of a program, and the groups whose ranks all run it."""

    scope: str
    keys: list[tuple[int, int, str]]
    """Number of the program, of the block, and its label."""
    before: NDArray[np.int64]
    after: NDArray[np.int64]
    blocking: NDArray[np.bool_]
    """As of `_Block`; shape (blocks,)."""
    groups: NDArray[np.int64]
    """Shape (groups, ranks)."""
    communicates: NDArray[np.bool_]
    """Shape (ops,): whether an op of the program does."""


class _Part(NamedTuple):
    """Instances of the blocks of a program in one iteration of a run."""

    keys: list[tuple[int, int, str]]
    iteration: int
    seconds: NDArray[np.float64]
    """Shape (blocks, groups, ranks)."""
    waits: NDArray[np.float64]
    """Shape (blocks, groups)."""


def of_campaign(campaign: Campaign) -> tuple[list[BlockTimes], list[str]]:
    """Block times of each configuration and communication scope, and why others have none. Warm-ups do not count."""
    notes: list[str] = []
    found = [
        times for configuration in with_ops(campaign) for times in of_configuration(campaign, configuration, notes)
    ]
    return found, [*notes, *without_ops(campaign)]


def without_ops(campaign: Campaign) -> list[str]:
    """How many runs recorded no ops, and what would have: a line, or none where all did."""
    without = int((~campaign.runs["has_ops"]).sum())
    counts = f"{without} of {counted(len(campaign.runs), 'run')}"
    return [f"{counts} recorded no ops; dlbench run --record-ops records them"] if without else []


def with_ops(campaign: Campaign) -> list[Configuration]:
    """The configurations of the runs that recorded ops, with their measured iterations."""
    return configurations(campaign.runs[campaign.runs["has_ops"]], measured(campaign.iterations))


def of_configuration(campaign: Campaign, configuration: Configuration, notes: list[str]) -> list[BlockTimes]:
    """Block times of each communication scope in the iterations of a configuration whose runs recorded ops.

    Adds to `notes` why runs and scopes have none.
    """
    parts: dict[str, list[_Part]] = {}
    frame = configuration.frame
    number = 0
    for run in configuration.runs.tolist():
        of_run: list[tuple[str, _Part]] = []
        try:
            reading, ops = _Run(campaign.paths[run], notes), campaign.ops(run)
            indices = frame["iteration"][(frame["run"] == run) & (frame["iteration"] < len(ops))].tolist()
            for place, index in enumerate(indices, start=number):
                of_run += reading.parts(ops, index, place)
        except UnreadableRecord as error:
            notes.append(f"left out: {error}")
            continue
        notes += [f"{ops.path}: {note}" for note in ops.notes]
        for scope, part in of_run:
            parts.setdefault(scope, []).append(part)
        number += len(indices)
    return [_joined(scope, configuration.factors, those) for scope, those in parts.items()]


def _checked(ops: OpsReader, index: int) -> NDArray[np.float64]:
    """The array of an iteration. Raises `UnreadableRecord` for impossible times; what is no op is NaN."""
    array = ops[index]
    if np.isinf(array).any() or (array[..., 1] < array[..., 0]).any():
        raise UnreadableRecord(ops.path, f"array {index}: an op ends before it begins, or never")
    return array


def _joined(scope: str, factors: dict[str, Any], parts: Sequence[_Part]) -> BlockTimes:
    codes = {key: code for code, key in enumerate(dict.fromkeys(key for part in parts for key in part.keys))}
    return BlockTimes(
        source=scope,
        factors=factors,
        labels=tuple(label for _, _, label in codes),
        block=np.concatenate([np.repeat([codes[key] for key in part.keys], part.waits.shape[1]) for part in parts]),
        iteration=np.repeat([part.iteration for part in parts], [part.waits.size for part in parts]),
        seconds=np.concatenate([part.seconds.reshape(part.waits.size, -1) for part in parts]),
        waits=np.concatenate([part.waits.ravel() for part in parts]),
    )


class _Run:
    """The groups and blocks of a recorded run."""

    def __init__(self, path: Path, notes: list[str]) -> None:
        header = cast(Header, next(iterate(path)))
        programs = Programs(path, header)
        if header.world_size == 1:
            notes.append(f"{header.run_id}: one rank waits for nobody")
        tables = header.op_tables
        table_of = {rank: number for number, table in enumerate(tables) for rank in table.ranks}
        self._performed: list[_Blocks] = []
        for scope in header.groups:
            blocks = {number: found for number, table in enumerate(tables) if (found := [*_blocks(table.ops, scope)])}
            groups = {programs.group(scope, rank) for rank in range(header.world_size)}
            several = sorted((group for group in groups if len(group) > 1), key=min)
            alike: dict[int, list[range]] = {}
            for group in several:
                numbers = {table_of.get(rank) for rank in group}
                if len(numbers) == 1:
                    alike.setdefault(table_of[group[0]], []).append(group)
            self._performed += [
                _performed(scope, number, tables[number].ops, blocks[number], alike[number])
                for number in blocks
                if number in alike
            ]
            if blocks and several and sum(map(len, alike.values())) < len(several):
                notes.append(f"{header.run_id}: ranks of scope {scope} run different programs, which share no blocks")

    def parts(self, ops: OpsReader, index: int, iteration: int) -> Iterator[tuple[str, _Part]]:
        """Block times in the ops array of this index. Raises `UnreadableRecord` where it has impossible times."""
        array = _checked(ops, index)
        for scope, keys, before, after, blocking, groups, communicates in self._performed:
            own = array[groups, : len(communicates)]
            if np.isnan(own).any():
                raise UnreadableRecord(ops.path, f"array {index}: an op has no time")
            enter, leave = np.moveaxis(own, (3, 2), (0, 1))
            spent = np.zeros((len(communicates) + 1, *groups.shape))
            np.cumsum(np.where(communicates[:, np.newaxis, np.newaxis], leave - enter, 0.0), axis=0, out=spent[1:])
            begin = np.where((before < 0)[:, np.newaxis, np.newaxis], enter[0], leave[before])
            seconds = enter[after] - begin - (spent[after] - spent[before + 1])
            stay = leave[after] - enter[after]
            waits = np.where(blocking[:, np.newaxis], stay.mean(axis=2) - stay.min(axis=2), np.nan)
            yield scope, _Part(keys, iteration, seconds, waits)


def _performed(
    scope: str, number: int, ops: Sequence[OpEntry], blocks: Sequence[_Block], groups: Sequence[range]
) -> _Blocks:
    return _Blocks(
        scope=scope,
        keys=[(number, place, block.label) for place, block in enumerate(blocks)],
        before=np.array([block.before for block in blocks]),
        after=np.array([block.after for block in blocks]),
        blocking=np.array([block.blocking for block in blocks]),
        groups=np.array(groups),
        communicates=np.array([entry.op != "compute" for entry in ops]),
    )


def _blocks(ops: Sequence[OpEntry], scope: str) -> Iterator[_Block]:
    """The blocks of a program in which something is computed."""
    before, name = -1, _BEGIN
    for index, entry in enumerate(ops):
        if entry.op in COLLECTIVES and entry.scope == scope:
            if any(between.op == "compute" for between in ops[before + 1 : index]):
                yield _Block(before, index, f"{name} → {entry.name or communication_class(entry)}", entry.blocking)
            before, name = index, entry.name or communication_class(entry)
