"""The header of a run's record: everything that is needed to repeat the run and to interpret it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from dlbench.quantities import si
from dlbench.records.schema import Backend, ClockModel, Header
from dlbench.records.writer import unique_name
from dlbench.runtime.environment import package_versions, relevant_environment
from dlbench.runtime.executor import describe_op
from dlbench.runtime.request import Delay, RunRequest
from dlbench.strategies import Configuration
from dlbench.strategies.configuration import FACTOR_RANGE
from dlbench.strategies.facts import facts, op_tables
from dlbench.strategies.messages import moved_bytes

if TYPE_CHECKING:
    from dlbench.runtime.devices import Place

_HEAVY_BYTES = 10e9
"""Seconds: ranks of one host hand each other a few GB a second."""
_LIGHT_BYTES = 1e9


def build_header(  # noqa: PLR0913 (the sources of a header, all by keyword)
    request: RunRequest,
    configuration: Configuration,
    *,
    created: str,
    remarks: Sequence[str],
    hosts: Sequence[str],
    devices: Sequence[str],
    places: Sequence[Place],
    backend: Backend,
    compute: Mapping[str, str],
    clock: ClockModel,
    environment: Mapping[str, str],
    command: Sequence[str],
    energy_source: str = "",
) -> Header:
    """Header of a live run; `created` is ISO 8601, UTC; `remarks` are the backend's, `compute` the compute model's.

    `places` are the ranks and their GPUs, none where the ranks drive none; `energy_source` is that of the joules.
    """
    run, described = request.run, facts(configuration)
    heavy = [] if run.gpu_messages or len(set(hosts)) > 1 else _heavy(configuration)
    fields: dict[str, Any] = {
        **described,
        "notes": [*described["notes"], *_delays(run.delay, configuration), *heavy, *remarks],
        "run_id": unique_name(request.strategy, configuration.layout.world_size, created),
        "created": created,
        "compute": run.compute,
        # Where nothing is computed, the roofline is the floor of nothing.
        **({"ideal_seconds": 0.0} if run.compute == "none" else {}),
        "backend": backend,
        "system": run.system,
        "placement": run.placement,
        "experiment": run.experiment,
        "job": run.job,
        "concurrent_jobs": run.concurrent_jobs,
        "labels": run.label,
        "seed": run.seed,
        "hosts": list(hosts),
        "devices": list(devices),
        "accelerators": [place.accelerator() for place in places],
        "energy_source": energy_source,
        "environment": relevant_environment(environment),
        "clock": clock,
        "packages": package_versions(),
        "command": list(command),
        "options": {**msgspec.to_builtins(run), **{f"compute_{key}": value for key, value in compute.items()}},
        "op_tables": op_tables(configuration) if run.record_ops else [],
    }
    return msgspec.convert({"kind": "header", **fields}, Header)


def _heavy(configuration: Configuration) -> list[str]:
    """Says so where the messages of one machine take seconds an iteration, and what scale brings them below one."""
    moved = moved_bytes(configuration)
    if moved < _HEAVY_BYTES:
        return []
    shorter = 10.0 ** -math.ceil(math.log10(moved / _LIGHT_BYTES))
    scale = max(configuration.workload.scale * shorter, FACTOR_RANGE[0])
    return [
        f"a rank moves {si(moved, 'B')} an iteration through the memory of one host; --scale {scale:.2g} shortens it"
    ]


def _delays(delays: Sequence[Delay], configuration: Configuration) -> Iterator[str]:
    """What is injected into the run, in words: its times are those of a machine with this fault."""
    for delay in delays:
        op = describe_op(delay.op, configuration.program(delay.rank)[delay.op])
        yield f"delay: rank {delay.rank} sleeps {delay.milliseconds:g} ms before {op}"
