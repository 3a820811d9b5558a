"""The header of a run's record: everything that is needed to repeat the run and to interpret it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dlbench.records.schema import Backend, ClockModel, Group, Header, Message, OpEntry, OpTable
from dlbench.records.writer import unique_name
from dlbench.runtime.environment import package_versions, relevant_environment
from dlbench.runtime.request import RunRequest
from dlbench.strategies import Configuration
from dlbench.strategies.layout import Coordinates
from dlbench.strategies.messages import memory, message_table
from dlbench.strategies.ops import op_row


def op_tables(configuration: Configuration) -> list[OpTable]:
    """One table per pipeline stage: its ranks run the same program."""
    layout = configuration.layout

    def table(stage: int) -> OpTable:
        first = layout.rank(Coordinates(inner=0, stage=stage, replica=0))
        return OpTable(
            ranks=[rank for rank in range(layout.world_size) if layout.coordinates(rank).stage == stage],
            ops=msgspec.convert([op_row(op) for op in configuration.ops(first)], list[OpEntry]),
        )

    return [table(stage) for stage in range(layout.pp)]


def build_header(  # noqa: PLR0913 (the sources of a header, all by keyword)
    request: RunRequest,
    configuration: Configuration,
    *,
    created: str,
    hosts: Sequence[str],
    devices: Sequence[str],
    backend: Backend,
    compute: Mapping[str, str],
    clock: ClockModel,
    environment: Mapping[str, str],
    command: Sequence[str],
) -> Header:
    """Header of a live run; `created` is ISO 8601, UTC, and `compute` describes the compute model."""
    workload, layout, run = configuration.workload, configuration.layout, request.run
    return Header(
        run_id=unique_name(request.strategy, layout.world_size, created),
        created=created,
        strategy=request.strategy,
        model={**msgspec.to_builtins(request.model), "parameters": request.model.parameters},
        gpu=msgspec.to_builtins(request.gpu),
        world_size=layout.world_size,
        replicas=layout.replicas,
        degrees=configuration.degrees(),
        groups={
            scope: Group(size=layout.group_size(scope), stride=layout.stride(scope)) for scope in configuration.scopes()
        },
        notes=list(configuration.notes),
        dtype=workload.dtype,
        local_batch=workload.local_batch,
        microbatches=workload.microbatches,
        sequence_length=workload.sequence_length,
        buckets=workload.buckets,
        units=workload.units,
        scale=workload.scale,
        time_scale=workload.time_scale,
        compute=run.compute,
        backend=backend,
        messages=msgspec.convert(message_table(configuration), list[Message], from_attributes=True),
        memory_bytes=max(memory(configuration).values()),
        system=run.system,
        placement=run.placement,
        experiment=run.experiment,
        job=run.job,
        labels=run.label,
        seed=run.seed,
        hosts=list(hosts),
        devices=list(devices),
        environment=relevant_environment(environment),
        clock=clock,
        packages=package_versions(),
        command=list(command),
        options={**_plain(run), **{f"compute_{key}": value for key, value in compute.items()}},
        op_tables=op_tables(configuration) if run.record_ops else [],
    )


def _plain(options: object) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(options)
    return plain
