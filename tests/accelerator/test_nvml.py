"""Energy, clocks and limits by NVML: a fake answers, and the real module has the functions that are asked."""

from __future__ import annotations

import ast
import inspect
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import FakeNvml, OlderNvml, gpu

from dlbench.accelerator import libraries, nvml
from dlbench.accelerator.nvml import Nvml, NvmlMeter, open_meter
from dlbench.accelerator.protocol import Meter, Reading

HOPPER: dict[str, Any] = {
    "mig": 0,
    "millijoules": 5_000_250,
    "instant": 350_000,
    "usage": 340_000,
    "sm": 1980,
    "memory": 2619,
    "limit": 700_000,
    "reasons": 0x24,
    "old_reasons": 0x24,
}


def opened(library: FakeNvml) -> NvmlMeter:
    meter = open_meter(gpu(), lambda: library)
    assert meter is not None
    return meter


def without(*names: str, **changes: Any) -> FakeNvml:
    return FakeNvml(**{name: value for name, value in HOPPER.items() if name not in names} | changes)


def sampling_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "power sampling"]


def asked_functions() -> list[str]:
    return [name for name in vars(Nvml) if name.startswith("nvml")]


def test_the_counter_of_the_gpu_is_read_in_joules() -> None:
    meter: Meter = opened(FakeNvml(**HOPPER))
    assert meter.source == "counter"
    assert meter.read() == Reading(
        joules=pytest.approx(5000.25), sm_mhz=1980, memory_mhz=2619, power_limit_watts=pytest.approx(700), throttle=0x24
    )
    assert not sampling_threads(), "a counter needs no sampling"
    meter.close()


def test_energy_is_asked_first_so_that_it_has_the_time_before_the_call() -> None:
    library = FakeNvml(**HOPPER)
    meter = opened(library)
    library.calls.clear()
    meter.read()
    assert library.calls == ["millijoules", "sm", "memory", "limit", "reasons"]


def test_without_a_counter_power_is_sampled_until_the_meter_is_closed() -> None:
    meter = opened(without("millijoules"))
    assert meter.source == "sampled power"
    assert len(sampling_threads()) == 1
    first, second = meter.read().joules, meter.read().joules
    assert 0 <= first <= second < 350, "350 W for less than a second"
    meter.close()
    assert not sampling_threads()


def test_power_of_this_moment_is_preferred_to_the_mean_of_the_last_second() -> None:
    library = without("millijoules")
    opened(library).close()
    assert "usage" not in library.calls
    library = without("millijoules", "instant")
    opened(library).close()
    assert "usage" in library.calls


def test_power_that_is_no_longer_told_is_no_energy() -> None:
    library = without("millijoules", "instant")
    meter = opened(library)
    del library.answers["usage"]
    assert math.isnan(meter.read().joules)
    meter.close()


def test_a_gpu_that_tells_no_power_still_tells_its_clocks() -> None:
    meter = opened(without("millijoules", "instant", "usage"))
    reading = meter.read()
    assert meter.source == ""
    assert math.isnan(reading.joules)
    assert (reading.sm_mhz, reading.memory_mhz, reading.throttle) == (1980, 2619, 0x24)


def test_a_part_of_a_gpu_has_no_energy_of_its_own() -> None:
    meter = opened(without(mig=1))
    assert meter.source == ""
    assert math.isnan(meter.read().joules)
    assert meter.read().sm_mhz == 1980


def test_a_gpu_that_cannot_be_partitioned_has_energy() -> None:
    assert opened(without("mig")).source == "counter"


@pytest.mark.parametrize(
    ("missing", "field"),
    [("sm", "sm_mhz"), ("memory", "memory_mhz"), ("limit", "power_limit_watts")],
)
def test_what_the_gpu_does_not_tell_is_not_a_number(missing: str, field: str) -> None:
    reading = opened(without(missing)).read()
    assert [name for name, value in reading._asdict().items() if math.isnan(value)] == [field]


def test_older_drivers_have_the_reasons_under_another_name() -> None:
    assert opened(without("reasons", old_reasons=0x8)).read().throttle == 0x8
    assert math.isnan(opened(without("reasons", "old_reasons")).read().throttle)


def test_a_gpu_that_is_lost_during_the_run_does_not_fail_it() -> None:
    library = FakeNvml(**HOPPER)
    meter = opened(library)
    library.answers.clear()
    assert all(map(math.isnan, meter.read()))


def test_a_module_from_before_the_reasons_were_renamed_has_them_under_the_older_name() -> None:
    library: Any = OlderNvml(without(reasons=0x1, old_reasons=0x8), "nvmlDeviceGetCurrentClocksEventReasons")
    assert opened(library).read().throttle == 0x8


@pytest.mark.parametrize("missing", asked_functions())
def test_a_function_that_the_module_lacks_fails_nothing(missing: str) -> None:
    fake = FakeNvml(**HOPPER)
    library: Any = OlderNvml(fake, missing)
    meter = open_meter(gpu(), lambda: library)
    if missing in {"nvmlInit", "nvmlDeviceGetHandleByPciBusId"}:
        assert meter is None
        assert fake.initialised == 0
    else:
        assert meter is not None
        assert meter.read().sm_mhz == (
            1980 if missing != "nvmlDeviceGetClockInfo" else pytest.approx(math.nan, nan_ok=True)
        )
        assert meter.source == ("counter" if missing != "nvmlDeviceGetTotalEnergyConsumption" else "sampled power")
        meter.close()


def test_a_function_with_other_arguments_fails_nothing() -> None:
    class Other(FakeNvml):
        def nvmlDeviceGetHandleByPciBusId(self, pciBusId: Any) -> Any:
            raise TypeError("bytes or integer address expected instead of str instance")

    library = Other(**HOPPER)
    assert open_meter(gpu(), lambda: library) is None
    assert library.initialised == 0


def importing(outcome: object) -> Callable[[str], Any]:
    """An import that has this outcome."""

    def find(name: str) -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return find


@pytest.mark.parametrize(
    "outcome",
    [ImportError("No module named 'pynvml'"), SyntaxError("print 'of Python 2'"), object(), OSError("libnvidia-ml")],
    ids=["none", "of Python 2", "another one of that name", "broken"],
)
def test_a_module_that_is_not_the_one_of_nvml_is_as_good_as_none(outcome: object) -> None:
    assert nvml.pynvml(importing(outcome)) is None


def test_its_library_is_loaded_without_pythons_lock_before_the_module_would(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def find(name: str) -> FakeNvml:
        order.append(name)
        return FakeNvml()

    monkeypatch.setattr(libraries, "load", order.append)
    nvml.pynvml(find)
    assert order == ["libnvidia-ml.so.1", "pynvml"]


def test_the_module_of_nvml_is_taken() -> None:
    library = FakeNvml()
    assert nvml.pynvml(importing(library)) is library


@pytest.mark.parametrize(
    ("library", "facts"),
    [
        (None, {}),
        (FakeNvml(init=False), {}),
        (FakeNvml(**HOPPER), {"pci": "0000:99:00.0"}),
        (FakeNvml(**HOPPER), {"pci": ""}),
        (FakeNvml(**HOPPER), {"kind": "hip"}),
        (FakeNvml(), {}),
    ],
    ids=["no module", "no driver", "unknown bus id", "no bus id", "an AMD GPU", "a GPU that tells nothing"],
)
def test_where_nvml_has_nothing_to_tell_there_is_no_meter(library: FakeNvml | None, facts: dict[str, Any]) -> None:
    assert open_meter(gpu(**facts), lambda: library) is None
    assert library is None or library.initialised == 0, "initialised and shut down equally often"


def test_nvml_is_shut_down_with_the_meter() -> None:
    library = FakeNvml(**HOPPER)
    meter = opened(library)
    assert library.initialised == 1
    meter.close()
    assert library.initialised == 0


ALLOWED = {
    *("nvmlInit", "nvmlShutdown", "nvmlDeviceGetHandleByPciBusId", "nvmlDeviceGetMigMode"),
    *("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetFieldValues", "nvmlDeviceGetPowerUsage"),
    *("nvmlDeviceGetClockInfo", "nvmlDeviceGetEnforcedPowerLimit"),
    *("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
}


def test_no_setting_of_the_card_is_changed() -> None:
    source = ast.parse(Path(nvml.__file__).read_text(encoding="utf-8"))
    attributes = {node.attr for node in ast.walk(source) if isinstance(node, ast.Attribute)}
    called = {name for name in attributes if name.startswith("nvml") and name != "nvmlReturn"}
    assert called == ALLOWED
    assert not [name for name in called if name.startswith("nvmlDevice") and not name.startswith("nvmlDeviceGet")]


@pytest.mark.parametrize("name", asked_functions())
def test_the_real_module_has_the_function_with_these_arguments(name: str) -> None:
    real = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    ours = list(inspect.signature(getattr(Nvml, name)).parameters)[1:]
    parameters = inspect.signature(getattr(real, name)).parameters.values()
    assert [parameter.name for parameter in parameters if parameter.default is parameter.empty] == ours


def test_the_numbers_are_those_of_the_real_module() -> None:
    real = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    assert (nvml.SM_CLOCK, nvml.MEMORY_CLOCK) == (real.NVML_CLOCK_SM, real.NVML_CLOCK_MEM)
    assert real.NVML_FI_DEV_POWER_INSTANT == nvml.INSTANT_POWER
    field = real.c_nvmlFieldValue_t()
    assert (field.nvmlReturn, field.value.uiVal, real.NVML_SUCCESS) == (0, 0, 0)
    for error in ("NVMLError_LibraryNotFound", "NVMLError_NotSupported", "NVMLError_FunctionNotFound"):
        assert issubclass(getattr(real, error), real.NVMLError)


def test_the_real_module_without_a_driver_gives_no_meter() -> None:
    real = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    try:
        real.nvmlInit()
    except real.NVMLError_LibraryNotFound:
        assert open_meter(gpu()) is None
    else:
        real.nvmlShutdown()
        pytest.skip("there is a driver")
