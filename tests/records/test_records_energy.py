"""What the energy lines of a record amount to: sums over the GPUs, and who was throttled."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from handmade import COUNTED, ENERGY

from dlbench.records.measures import Measures, TotalEnergy, total_energy
from dlbench.records.schema import Energy, Iteration
from dlbench.records.throttling import REASONS, Throttling


def energy(**changes: Any) -> Energy:
    return msgspec.convert(ENERGY | {"joules": [150.0, 170.0], "seconds": [0.5, 0.4]} | changes, Energy)


def test_joules_and_time_are_added_up_over_the_gpus() -> None:
    assert total_energy(energy()) == TotalEnergy(joules=320.0, gpu_seconds=pytest.approx(0.9))


def test_the_sum_of_some_ranks_is_not_that_of_all() -> None:
    assert total_energy(energy(joules=[150.0, None], seconds=[0.5, None])) is None
    assert total_energy(energy(seconds=[0.5, None])) is None
    assert total_energy(None) is None


def test_an_iteration_knows_its_energy() -> None:
    measures = Measures(msgspec.convert(COUNTED | {"energy": msgspec.to_builtins(energy())}, Iteration), samples=32)
    assert measures.energy is not None
    assert measures.energy.joules == 320.0
    assert Measures(msgspec.convert(COUNTED, Iteration), samples=32).energy is None


def lines(*masks: list[int | None]) -> list[str]:
    throttling = Throttling([f"nid{rank}" for rank in range(len(masks[0]))])
    for mask in masks:
        throttling.add(energy(throttle=mask))
    return list(throttling.lines())


def test_a_throttled_rank_is_named_with_its_reason_and_how_often() -> None:
    assert lines([0, 0x20], [0, 0x21], [0, 0]) == [
        "rank 1 (nid1) was throttled: SW thermal slowdown in 2 of 3 iterations"
    ]


def test_ranks_that_were_throttled_alike_share_a_line() -> None:
    assert lines([4, 4, 0, None], [4, 0, 0, None]) == [
        "2 of 4 ranks were throttled: SW power cap in up to 2 of 2 iterations, as on rank 0 (nid0)"
    ]


def test_every_reason_has_a_line_the_hardware_first() -> None:
    assert lines([0x44, 0x8]) == [
        "rank 1 (nid1) was throttled: HW slowdown in 1 of 1 iterations",
        "rank 0 (nid0) was throttled: HW thermal slowdown in 1 of 1 iterations",
        "rank 0 (nid0) was throttled: SW power cap in 1 of 1 iterations",
    ]


@pytest.mark.parametrize("mask", [0, None, 0x1, 0x2, 0x100, 0x103, 1 << 62])
def test_idle_gpus_clocks_that_were_set_and_unknown_bits_are_no_fault(mask: int | None) -> None:
    assert lines([mask, 0]) == []


def test_the_reasons_are_those_of_nvml() -> None:
    nvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    named = {
        "HwSlowdown": "HW slowdown",
        "HwThermalSlowdown": "HW thermal slowdown",
        "HwPowerBrakeSlowdown": "HW power brake slowdown",
        "SwThermalSlowdown": "SW thermal slowdown",
        "SwPowerCap": "SW power cap",
        "SyncBoost": "sync boost",
        "BoardLimit": "board limit",
        "Reliability": "reliability limit",
    }
    assert {getattr(nvml, f"nvmlClocksThrottleReason{name}"): text for name, text in named.items()} == REASONS
