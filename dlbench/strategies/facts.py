"""A configuration as plain data: what a record's header and `dlbench describe --json` say of it in the same words."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import asdict

from dlbench.strategies.computation import ideal
from dlbench.strategies.configuration import Configuration
from dlbench.strategies.layout import Coordinates
from dlbench.strategies.messages import memory, message_table
from dlbench.strategies.ops import op_row


def facts(configuration: Configuration) -> dict[str, Any]:
    """Keys and values as in the header of a run record (docs/records.md)."""
    workload, layout = configuration.workload, configuration.layout
    return {
        "strategy": configuration.strategy.name,
        "model": {**msgspec.to_builtins(workload.model), "parameters": workload.model.parameters},
        "gpu": msgspec.to_builtins(workload.gpu),
        "world_size": layout.world_size,
        "replicas": layout.replicas,
        "degrees": configuration.degrees(),
        "groups": {
            str(scope): {"size": layout.group_size(scope), "stride": layout.stride(scope)}
            for scope in configuration.scopes()
        },
        "notes": list(configuration.notes),
        "dtype": workload.dtype,
        "local_batch": workload.local_batch,
        "microbatches": workload.microbatches,
        "sequence_length": workload.sequence_length,
        "buckets": workload.buckets,
        "units": workload.units,
        "scale": workload.scale,
        "time_scale": workload.time_scale,
        "messages": [asdict(row) for row in message_table(configuration)],
        "ideal_seconds": ideal(configuration).seconds,
        "memory_bytes": max(memory(configuration).values()),
    }


def op_tables(configuration: Configuration) -> list[dict[str, Any]]:
    """One table per pipeline stage, whose ranks run the same program: `ranks`, and `ops` as of `op_row`."""
    layout = configuration.layout

    def table(stage: int) -> dict[str, Any]:
        first = layout.rank(Coordinates(inner=0, stage=stage, replica=0))
        return {
            "ranks": [rank for rank in range(layout.world_size) if layout.coordinates(rank).stage == stage],
            "ops": [op_row(op) for op in configuration.ops(first)],
        }

    return [table(stage) for stage in range(layout.pp)]
