"""The header of a run's record: everything that is needed to repeat the run and to interpret it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from dlbench.records.schema import Backend, ClockModel, Header
from dlbench.records.writer import unique_name
from dlbench.runtime.environment import package_versions, relevant_environment
from dlbench.runtime.executor import describe_op
from dlbench.runtime.request import Delay, RunRequest
from dlbench.strategies import Configuration
from dlbench.strategies.facts import facts, op_tables

if TYPE_CHECKING:
    from dlbench.runtime.devices import Place


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
    fields: dict[str, Any] = {
        **described,
        "notes": [*described["notes"], *_delays(run.delay, configuration), *remarks],
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


def _delays(delays: Sequence[Delay], configuration: Configuration) -> Iterator[str]:
    """What is injected into the run, in words: its times are those of a machine with this fault."""
    for delay in delays:
        op = describe_op(delay.op, configuration.program(delay.rank)[delay.op])
        yield f"delay: rank {delay.rank} sleeps {delay.milliseconds:g} ms before {op}"
