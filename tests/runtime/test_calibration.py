"""Calibration: what is measured on a device of known speed is that speed, and the spec says it."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from host_device import GIBIBYTE, HostDriver
from hypothesis import given, settings
from hypothesis import strategies as st
from timed_device import TERA, PowerMeter, TimedDevice

from dlbench.accelerator.protocol import Precision
from dlbench.errors import PreflightError
from dlbench.runtime.calibration import (
    SHAPES,
    Calibration,
    Effort,
    Shape,
    against,
    calibrate,
    measured_spec,
    spec_yaml,
)
from dlbench.specs import GpuSpec, load_gpu

QUICK = Effort(min_seconds=1e-9)
TINY = Effort(
    shapes=(Shape("square", 16, 16, 16, 0), Shape("projection", 32, 16, 8, 1)),
    min_seconds=1e-9,
    sample_seconds=1e-9,
    copy_bytes=2**20,
)


def measured(device: TimedDevice, *precisions: Precision, effort: Effort = QUICK, **options: Any) -> Calibration:
    return calibrate(device, precisions, effort=effort, **options)


def spec_of(calibration: Calibration) -> GpuSpec:
    return measured_spec(calibration, date="2026-02-03", version="1.2.3")


def test_every_product_is_measured_at_the_rate_of_the_device() -> None:
    found = measured(TimedDevice(), "bf16")
    shapes = [rate.shape for rate in found.rates]
    assert shapes == [*SHAPES, None]
    assert [rate.flops.median for rate in found.rates] == pytest.approx([100 * TERA] * 6)


def test_the_rate_of_a_layer_is_its_flops_over_its_time() -> None:
    # Projections u = 2 × 8192 × 4096², four of them; MLP up and down 3.5 u each, of which down takes twice as long:
    # (4 + 3.5 + 3.5) / (4 + 3.5 + 7) of the rate. Squares do not count.
    def rate(rows: int, columns: int, k: int) -> float:
        return 50 * TERA if k == 14336 else 100 * TERA

    peak = measured(TimedDevice(rate=rate), "bf16").peaks["bf16"]
    assert peak.median == pytest.approx(100 * TERA * 11 / 14.5)


def test_the_bandwidth_counts_what_a_copy_reads_and_writes() -> None:
    device = TimedDevice(bandwidth=3 * TERA)
    found = measured(device, "bf16")
    assert found.bandwidth.median == pytest.approx(3 * TERA)
    assert found.copied_bytes == 2**30
    assert set(device.copied) == {2**30}


def test_figures_are_medians_of_ten_rounds_behind_a_warm_up_with_order_statistics_around() -> None:
    # Two launches find out how many make a measurement, one round warms up; the tenths of percent are then 3 … 12:
    # median 7.5, and the interval of ten samples goes from the second to the last but one.
    effort = Effort(shapes=(Shape("square", 4096, 4096, 4096, 1),), min_seconds=1e-9)
    rate = measured(TimedDevice(slower=0.001), "bf16", effort=effort).rates[0].flops
    assert rate.count == 10
    assert rate.median == pytest.approx(100 * TERA * (1 - 0.0075), rel=1e-4)
    assert rate.interval is not None
    assert rate.interval.low == pytest.approx(100 * TERA * (1 - 0.011), rel=1e-6)
    assert rate.interval.high == pytest.approx(100 * TERA * (1 - 0.004), rel=1e-6)


def test_rounds_go_on_for_the_seconds_that_were_asked_for() -> None:
    effort = dataclasses.replace(TINY, min_seconds=0.02)
    assert measured(TimedDevice(), "bf16", effort=effort).rates[0].flops.count > 10


def test_a_measurement_is_as_many_products_as_hide_the_first_launch() -> None:
    device = TimedDevice()
    launched: list[float] = []
    device.pass_time = launched.append  # type: ignore[method-assign]
    device.elapsed = lambda begin, end: 0.001  # type: ignore[method-assign]
    calibrate(device, ["bf16"], effort=Effort(shapes=(SHAPES[2],), min_seconds=1e-9, fewest_rounds=6))
    # 20 ms are 20 products of 1 ms: two to find out, then 7 rounds; and as many copies.
    assert len(launched) == 2 * (2 + 7 * 20)


def test_a_copy_is_no_larger_than_a_quarter_of_the_free_memory_and_small_ones_are_noted() -> None:
    found = measured(TimedDevice(memory_bytes=3 * GIBIBYTE), "bf16")
    assert found.copied_bytes == GIBIBYTE // 2
    assert found.notes == ("the bandwidth may be that of caches: memory is free for copies of 536.9 MB only",)


def test_a_precision_that_the_device_lacks_is_left_out_and_noted() -> None:
    found = measured(TimedDevice(precisions=("fp16", "fp32")))
    assert list(found.peaks) == ["fp16", "fp32"]
    assert found.notes[0] == "bf16 is left out: no bf16 products on host:0"
    assert len(found.notes) == 3


def test_a_precision_that_was_asked_for_and_is_missing_is_an_error() -> None:
    with pytest.raises(PreflightError, match="^no tf32 products on host:0$"):
        measured(TimedDevice(precisions=("fp16",)), "fp16", "tf32")


def test_a_device_that_multiplies_in_nothing_is_an_error() -> None:
    with pytest.raises(PreflightError, match="^bf16 is left out: no bf16 products on host:0$"):
        measured(TimedDevice(precisions=()))


def test_too_little_memory_is_an_error_that_says_how_much_it_takes() -> None:
    # bf16: A of 8192 × 14336, B of 14336 × 4096 or 8192², C of 8192 × 14336, the largest of each: 604 MB.
    with pytest.raises(PreflightError) as caught:
        measured(TimedDevice(memory_bytes=2**29), "bf16")
    assert str(caught.value) == (
        "host:0 has 536.9 MB of memory free, but bf16 products take 604.0 MB; end what else uses it"
    )


def test_the_library_is_released_even_where_a_product_fails() -> None:
    device = TimedDevice()

    def fail_later(rows: int, columns: int, k: int) -> float:
        if device.measurements > len(SHAPES) * 2:
            raise RuntimeError("the device has failed")
        return TERA

    device.rate = fail_later
    with pytest.raises(RuntimeError, match="the device has failed"):
        measured(device, "bf16")
    assert [multiplier.closed for multiplier in device.multipliers] == [True]


def test_progress_counts_precisions_and_the_bandwidth() -> None:
    told: list[tuple[int, int]] = []
    measured(TimedDevice(), "bf16", "fp32", progress=lambda done, total: told.append((done, total)))
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_real_products_and_copies_on_the_cpu_are_measured_too() -> None:
    found = calibrate(HostDriver().open(0), ["fp32", "bf16"], effort=TINY)
    assert all(0 < rate.flops.median < 1e15 for rate in found.rates)
    assert 1e6 < found.bandwidth.median < 1e13


def test_the_spec_loads_as_a_gpu_with_the_measured_figures(tmp_path: Path) -> None:
    path = tmp_path / "measured.yaml"
    path.write_text(spec_yaml(spec_of(measured(TimedDevice()))), encoding="utf-8")
    gpu = load_gpu(str(path))
    assert gpu.name == "host-memory-measured"
    assert gpu.peak_flops == dict.fromkeys(["bf16", "fp16", "tf32", "fp32", "fp64"], 100 * TERA)
    assert gpu.memory_bandwidth == 2 * TERA
    assert gpu.memory_bytes == 64 * GIBIBYTE


def test_the_spec_says_how_and_when_and_on_what_it_was_measured() -> None:
    spec = spec_of(measured(TimedDevice(), "bf16", meter=PowerMeter(450.0)))
    origin = (
        "measured by dlbench 1.2.3 calibrate on 2026-02-03; host memory, driver 12.4, runtime 12.4, CuPy 14.2.0, "
        "power limit 450 W"
    )
    assert spec.source == {
        "peak_flops": f"{origin}; rows × columns × k: 4 of 8192×4096×4096 + 1 of 8192×14336×4096 + "
        "1 of 8192×4096×14336; bf16 100.0 TFLOP/s (median of 10 rounds, 95 % interval 100.0 TFLOP/s to 100.0 TFLOP/s)",
        "memory_bandwidth": f"{origin}; copies of 1.074 GB within the device, read and written; "
        "2.000 TB/s (median of 10 rounds, 95 % interval 2.000 TB/s to 2.000 TB/s)",
        "memory_bytes": "as the runtime says; host memory",
    }


def test_without_a_meter_no_power_limit_is_claimed() -> None:
    found = measured(TimedDevice(), "bf16")
    assert math.isnan(found.power_limit_watts)
    assert "power limit" not in spec_of(found).source["peak_flops"]


def test_fp8_is_left_out_with_a_comment_that_says_why() -> None:
    text = spec_yaml(spec_of(measured(TimedDevice(), "bf16")))
    assert "  bf16: 1e+14\n  # fp8 was not measured: gemmEx, which multiplies, has none\n" in text


def test_too_few_rounds_for_an_interval_are_told_as_such() -> None:
    effort = dataclasses.replace(TINY, fewest_rounds=2)
    source = spec_of(measured(TimedDevice(), "bf16", effort=effort)).source
    assert source["memory_bandwidth"].endswith("2.000 TB/s (median of 2 rounds)")


@settings(deadline=None, max_examples=30)
@given(st.text(max_size=30))
def test_a_spec_of_any_device_name_can_be_read_again(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    facts = msgspec.structs.replace(TimedDevice().facts, name=name, kind="cuda")
    spec = spec_of(measured(TimedDevice(facts=facts), "bf16", effort=TINY))
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(spec_yaml(spec).encode())
    assert load_gpu(str(path)) == spec


@pytest.mark.parametrize(
    ("name", "slug"),
    [("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3-measured"), ("…", "gpu-measured")],
)
def test_the_name_of_the_spec_is_that_of_the_device(name: str, slug: str) -> None:
    facts = msgspec.structs.replace(TimedDevice().facts, name=name, kind="hip")
    spec = spec_of(measured(TimedDevice(facts=facts), "fp16", effort=TINY))
    assert (spec.name, spec.vendor) == (slug, "AMD")


def test_shares_are_of_the_datasheets_figures_and_only_where_it_has_them() -> None:
    # The datasheet of the H100: 989 TFLOP/s in bf16, 3.35 TB/s.
    found = measured(TimedDevice(rate=lambda *_: 494.5 * TERA, bandwidth=3.35 * TERA), "bf16")
    shares, notes = against(found, load_gpu("h100"))
    assert shares == pytest.approx({"bf16": 0.5, "memory_bandwidth": 1.0})
    assert notes == []
    # That of the MI250X has no tf32.
    assert "tf32" not in against(measured(TimedDevice(), "tf32"), load_gpu("mi250x-gcd"))[0]


def test_figures_above_the_datasheet_are_doubted() -> None:
    found = measured(TimedDevice(rate=lambda *_: 1100 * TERA), "bf16")
    assert against(found, load_gpu("h100"))[1] == ["bf16 above the datasheet of h100: is it that of host memory?"]
