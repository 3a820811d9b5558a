"""What the ranks have found out about themselves, their hosts and their links, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Literal

import msgspec

Vendor = Literal["cuda", "hip", ""]


class DeviceFacts(msgspec.Struct, frozen=True):
    """The GPUs of a host as one rank finds them."""

    vendor: Vendor = ""
    """Empty where the host has no GPU that this rank may open."""
    accessible: tuple[int, ...] = ()
    """Numbers of the GPUs that the rank may open, as its control group allows."""
    variables: dict[str, str] = {}
    """What says which of them to use: those of `DEVICE_VARIABLES` that are set."""


class RankFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One rank, as it sees itself."""

    rank: int
    host: str
    boot: str
    """Id of the running kernel; empty where there is none."""
    versions: dict[str, str]
    """Version of all that must be the same on every rank, by its name."""
    source: str
    """Folder that dlbench was imported from."""
    source_hash: str
    """SHA-256 of that folder's files; only on the first rank of a host that imports from it."""
    cores: tuple[int, ...]
    """That the rank may run on."""
    memory: int | None
    """Bytes that the host can still give; only on its first rank, and where it is known."""
    devices: DeviceFacts


class Hop(msgspec.Struct, frozen=True, kw_only=True):
    """The link from a rank to the next one."""

    sender: int
    receiver: int
    latency: float
    """Seconds that a message of 8 bytes takes one way: half the shortest round trip."""
    bandwidth: float
    """Bytes per second of a message of 1 MiB, one way."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A message that arrived with other content than was sent."""

    sender: int
    receiver: int
    size: int
    """Bytes."""
    byte: int
    """The first wrong one."""
    count: int
    """Wrong bytes."""


class Lap(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank has seen of the ring. A ring of one rank has no link."""

    hop: Hop | None = None
    faults: tuple[Fault, ...] = ()
    """In messages that this rank received, one a neighbour and size at most."""


class ClockOffset(msgspec.Struct, frozen=True):
    """How far a rank's wall clock is ahead of rank 0's: offset ± uncertainty, seconds."""

    offset: float
    uncertainty: float


class Host(msgspec.Struct, frozen=True):
    """A host and its ranks, in order."""

    name: str
    ranks: tuple[RankFacts, ...]

    @property
    def numbers(self) -> list[int]:
        """World ranks."""
        return [facts.rank for facts in self.ranks]

    @property
    def crowded(self) -> bool:
        """Whether its ranks outnumber the cores that any of them may run on."""
        return len(self.ranks) > len(set().union(*(facts.cores for facts in self.ranks)))

    @property
    def memory(self) -> int | None:
        """Bytes that it can still give, where they are known."""
        return min((facts.memory for facts in self.ranks if facts.memory is not None), default=None)


class Survey(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """All that the ranks have found, in rank order."""

    facts: tuple[RankFacts, ...]
    laps: tuple[Lap, ...]
    clocks: tuple[ClockOffset, ...]

    @cached_property
    def hosts(self) -> list[Host]:
        """In the order of their first ranks."""
        ranks: dict[str, list[RankFacts]] = {}
        for facts in self.facts:
            ranks.setdefault(facts.host, []).append(facts)
        return [Host(name, tuple(members)) for name, members in ranks.items()]

    def who(self, rank: int) -> str:
        """Name of a rank, e.g. `rank 3 (node017)`."""
        return f"rank {rank} ({self.facts[rank].host})"


def compressed_ranks(numbers: Sequence[int]) -> str:
    """Ascending ranks as ranges: `5`, `0-3`, `0,2,4-7`."""
    starts = [rank for index, rank in enumerate(numbers) if not index or rank != numbers[index - 1] + 1]
    ends = [rank for index, rank in enumerate(numbers) if index + 1 == len(numbers) or numbers[index + 1] != rank + 1]
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
