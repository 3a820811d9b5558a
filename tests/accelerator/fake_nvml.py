"""NVML of a host with one GPU at `0000:3B:00.0`, in place of the module `pynvml`."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from dlbench.accelerator.nvml import INSTANT_POWER
from dlbench.accelerator.protocol import GpuFacts

BUS_ID = "0000:3B:00.0"


class NVMLError(Exception):
    """As pynvml raises it, for everything."""


class FakeNvml:
    """Answers with what stands in `answers`, by the function's name; raises for what does not."""

    NVMLError: type[Exception] = NVMLError

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.initialised = 0
        self.calls: list[str] = []

    def nvmlInit(self) -> None:
        self._answer("init")
        self.initialised += 1

    def nvmlShutdown(self) -> None:
        self.initialised -= 1

    def nvmlDeviceGetHandleByPciBusId(self, pciBusId: str) -> Any:
        if pciBusId != BUS_ID:
            raise NVMLError("Not Found")
        return "handle"

    def nvmlDeviceGetMigMode(self, device: Any) -> list[int]:
        return [int(self._answer("mig")), 0]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any) -> int:
        return int(self._answer("millijoules"))

    def nvmlDeviceGetFieldValues(self, handle: Any, fieldIds: Sequence[int]) -> Any:
        assert list(fieldIds) == [INSTANT_POWER]
        known = "instant" in self.answers
        value = SimpleNamespace(uiVal=self.answers.get("instant", 0))
        return [SimpleNamespace(nvmlReturn=0 if known else 3, value=value)]

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int:
        return int(self._answer("usage"))

    def nvmlDeviceGetClockInfo(self, handle: Any, type: int) -> int:
        return int(self._answer({1: "sm", 2: "memory"}[type]))

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Any) -> int:
        return int(self._answer("limit"))

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any) -> int:
        return int(self._answer("reasons"))

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any) -> int:
        return int(self._answer("old_reasons"))

    def _answer(self, name: str) -> Any:
        self.calls.append(name)
        if name == "init":
            if self.answers.get("init") is False:
                raise NVMLError("Driver Not Loaded")
            return None
        if name not in self.answers:
            raise NVMLError("Not Supported")
        return self.answers[name]


class OlderNvml:
    """A module of the same name and of another origin or age, which lacks some functions."""

    def __init__(self, library: FakeNvml, *missing: str) -> None:
        self._library = library
        self._missing = missing

    def __getattr__(self, name: str) -> Any:
        if name in self._missing:
            raise AttributeError(f"module 'pynvml' has no attribute {name!r}")
        return getattr(self._library, name)


def gpu(**changes: Any) -> GpuFacts:
    """Facts of the GPU, changed as asked."""
    facts: dict[str, Any] = {
        "kind": "cuda",
        "index": 0,
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": "GPU-1",
        "pci": BUS_ID,
        "driver": "12.8",
        "runtime": "12.6",
        "cupy": "14.2.0",
        "memory_bytes": 2**36,
    }
    return GpuFacts(**(facts | changes))
