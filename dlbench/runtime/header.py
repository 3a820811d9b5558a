"""The header of a run's record: everything that is needed to repeat the run and to interpret it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dlbench.records.schema import Backend, ClockModel, Header, Message, OpEntry, OpTable
from dlbench.records.writer import unique_name
from dlbench.runtime.environment import package_versions, relevant_environment
from dlbench.runtime.request import RunRequest
from dlbench.strategies import Configuration
from dlbench.strategies.layout import Coordinates
from dlbench.strategies.messages import memory, message_table
from dlbench.strategies.ops import Compute, Op, Recv, Send, Wait, operation


def op_entry(op: Op) -> OpEntry:
    """Row of the op table."""
    match op:
        case Compute(phase):
            return OpEntry(op="compute", name=phase.name, seconds=phase.seconds)
        case Wait(requests):
            return OpEntry(op="wait", name=",".join(requests))
        case Send(group, peer, buffer) | Recv(group, peer, buffer):
            return OpEntry(op=operation(op), scope=group, name=buffer.name, elements=buffer.elements, peer=peer)
        case _:
            return OpEntry(
                op=operation(op),
                scope=op.group,
                name=op.buffer.name,
                elements=op.buffer.elements,
                blocking=op.blocking,
            )


def op_tables(configuration: Configuration) -> list[OpTable]:
    """One table per pipeline stage: its ranks run the same program."""
    layout = configuration.layout
    return [
        OpTable(
            ranks=[rank for rank in range(layout.world_size) if layout.coordinates(rank).stage == stage],
            ops=[op_entry(op) for op in configuration.ops(layout.rank(Coordinates(inner=0, stage=stage, replica=0)))],
        )
        for stage in range(layout.pp)
    ]


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
