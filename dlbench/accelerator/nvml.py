"""Energy, clocks and limits of an NVIDIA GPU, from the driver's management library (NVML) through `pynvml`.

Nothing here changes a setting of the GPU, and nothing fails a run: what library, driver or GPU do not tell is NaN.
Functions and units: NVML API Reference Guide, device queries and field values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Protocol, cast

from dlbench.accelerator import libraries
from dlbench.accelerator.power import PowerIntegral, PowerSampler
from dlbench.accelerator.protocol import GpuFacts, Reading

SM_CLOCK, MEMORY_CLOCK = 1, 2
"""NVML_CLOCK_SM, NVML_CLOCK_MEM."""
INSTANT_POWER = 186
"""NVML_FI_DEV_POWER_INSTANT, in milliwatts."""
_SUCCESS = 0
_MILLI = 1e-3


class Nvml(Protocol):
    """What is called of the module `pynvml`, under its names: functions that ask, and none that sets."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None:  # noqa: N802
        """Load the library; raises where there is none."""

    def nvmlShutdown(self) -> None:  # noqa: N802
        """As often as `nvmlInit`."""

    def nvmlDeviceGetHandleByPciBusId(self, pciBusId: str) -> Any:  # noqa: N802, N803
        """NVML numbers GPUs in its own order, whatever CUDA_VISIBLE_DEVICES says: the bus id tells which is meant."""

    def nvmlDeviceGetMigMode(self, device: Any) -> list[int]:  # noqa: N802
        """Whether the GPU is partitioned, 0 or 1: now, and after the next reset."""

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any) -> int:  # noqa: N802
        """Millijoules since the driver was loaded, Volta on."""

    def nvmlDeviceGetFieldValues(self, handle: Any, fieldIds: Sequence[int]) -> Any:  # noqa: N802, N803
        """One structure per field: `nvmlReturn`, and `value.uiVal` where that is 0."""

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int:  # noqa: N802
        """Milliwatts; on Ampere and later, GA100 aside, the mean of the last second."""

    def nvmlDeviceGetClockInfo(self, handle: Any, type: int) -> int:  # noqa: N802
        """Megahertz now."""

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Any) -> int:  # noqa: N802
        """Milliwatts: the lowest of all limits that are set."""

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any) -> int:  # noqa: N802
        """Bit mask: why the clocks are not higher. Drivers from 535 on have it."""

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any) -> int:  # noqa: N802
        """The same under its older name."""


def pynvml(find: Callable[[str], Any] = import_module) -> Nvml | None:
    """The module; None where it is not installed, or another one has its name."""
    with suppress(OSError):
        libraries.load(libraries.NVML)  # else `nvmlInit` does, which keeps Python's lock meanwhile
    with suppress(Exception):  # whatever a module of that name does when it is imported
        module = find("pynvml")
        if issubclass(module.NVMLError, Exception):
            return cast("Nvml", module)
    return None


def refusals(nvml: Nvml) -> tuple[type[Exception], ...]:
    """What its functions raise: where library, driver or GPU do not tell, or the module is older than the function.

    There are older modules of the same name, and others, with functions missing or with other arguments.
    """
    return nvml.NVMLError, AttributeError, TypeError


def open_meter(facts: GpuFacts, library: Callable[[], Nvml | None] = pynvml) -> NvmlMeter | None:
    """The meter of a GPU; None where there is no NVML for it, or where it tells nothing of this GPU."""
    nvml = library() if facts.kind == "cuda" and facts.pci else None
    if nvml is None:
        return None
    with suppress(*refusals(nvml)):
        nvml.nvmlInit()
        with suppress(*refusals(nvml)):
            meter = NvmlMeter(nvml, nvml.nvmlDeviceGetHandleByPciBusId(facts.pci))
            if not all(map(math.isnan, meter.read())):
                return meter
            meter.stop_sampling()
        nvml.nvmlShutdown()
    return None


class NvmlMeter:
    """Meter of the GPU with this handle; NVML is initialised, and shut down with it.

    Energy is the GPU's own counter where it has one, else sampled power. Neither is there on a GPU that is partitioned
    (MIG): both are those of the whole GPU, of which the rank has a part.
    """

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        self._nvml = nvml
        self._refusals = refusals(nvml)
        self._handle = handle
        self._sampler: PowerSampler | None = None
        self.source = ""
        if self._ask(lambda: nvml.nvmlDeviceGetMigMode(handle)[0]) == 1:
            return
        if not math.isnan(self._counter()):
            self.source = "counter"
        elif watts := next((watts for watts in (self._instant, self._mean) if not math.isnan(watts())), None):
            self._sampler = PowerSampler(PowerIntegral(watts))
            self.source = "sampled power"

    def read(self) -> Reading:
        """As of now. Energy comes first: a time that is read before the call belongs to it."""
        nvml, handle = self._nvml, self._handle
        return Reading(
            joules=self._joules(),
            sm_mhz=self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, SM_CLOCK)),
            memory_mhz=self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, MEMORY_CLOCK)),
            power_limit_watts=self._ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle)) * _MILLI,
            throttle=self._throttle(),
        )

    def stop_sampling(self) -> None:
        """End the thread that samples power, if there is one."""
        if self._sampler:
            self._sampler.close()

    def close(self) -> None:
        """Stop sampling, and release NVML."""
        self.stop_sampling()
        with suppress(*self._refusals):
            self._nvml.nvmlShutdown()

    def _joules(self) -> float:
        if self._sampler:
            return self._sampler.joules()
        return self._counter() if self.source else math.nan

    def _counter(self) -> float:
        return self._ask(lambda: self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) * _MILLI

    def _instant(self) -> float:
        """Watts at this moment."""

        def milliwatts() -> float:
            (field,) = self._nvml.nvmlDeviceGetFieldValues(self._handle, [INSTANT_POWER])
            return float(field.value.uiVal) if field.nvmlReturn == _SUCCESS else math.nan

        return self._ask(milliwatts) * _MILLI

    def _mean(self) -> float:
        """Watts as older drivers tell them, which may be those of the last second."""
        return self._ask(lambda: self._nvml.nvmlDeviceGetPowerUsage(self._handle)) * _MILLI

    def _throttle(self) -> float:
        reasons = self._ask(lambda: self._nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle))
        if math.isnan(reasons):
            return self._ask(lambda: self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))
        return reasons

    def _ask(self, question: Callable[[], float]) -> float:
        """The answer; NaN for what library, driver or GPU do not support, or refuse."""
        with suppress(*self._refusals):
            return float(question())
        return math.nan
