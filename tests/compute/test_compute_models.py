"""Compute models by name."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import pytest
from host_device import HostDriver

from dlbench.compute import COMPUTE_MODELS, create
from dlbench.compute.protocol import Compute
from dlbench.errors import OptionError


@dataclass(frozen=True)
class Day:
    seconds: float = 86_400.0
    gemms: tuple[tuple[int, int, int, float], ...] = ()


@pytest.mark.parametrize("name", ["none", "sleep", "gemm"])
def test_a_model_is_made_by_the_name_that_it_bears(name: str) -> None:
    assert name in COMPUTE_MODELS
    assert create(name, ranks_per_core=1.0, seed=0).name == name


def test_an_unknown_model_is_an_error_that_names_the_known() -> None:
    with pytest.raises(OptionError, match="unknown compute model 'nap'; use sleep, gemm, spin, none"):
        create("nap", ranks_per_core=1.0, seed=0)


def test_without_computation_a_day_takes_no_time() -> None:
    compute = create("none", ranks_per_core=1.0, seed=0)
    compute.prepare([Day()])
    run = compute.bind(Day(), lambda: pytest.fail("nothing lasts, so nothing is driven"))
    enter = time.perf_counter()
    run()
    assert time.perf_counter() - enter < 1.0
    assert compute.describe() == {}


def on(kind: Literal["cuda", "hip", "host"], model: str = "gemm", **options: Any) -> Compute:
    device = HostDriver().open(0)
    device.facts = msgspec.structs.replace(device.facts, kind=kind)
    return create(model, ranks_per_core=1.0, seed=0, device=device, **options)


@pytest.mark.parametrize("name", COMPUTE_MODELS)
def test_with_a_gpu_every_model_bears_its_name_and_gemm_and_spin_work_there(name: str) -> None:
    model = on("host", name)
    assert model.name == name
    assert model.on_device == (name in {"gemm", "spin"})


@pytest.mark.parametrize("name", ["none", "sleep", "gemm"])
def test_without_a_gpu_models_work_on_the_host_and_can_be_closed(name: str) -> None:
    model = create(name, ranks_per_core=1.0, seed=0)
    assert not model.on_device
    model.close()


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "fp64"])
def test_a_gpu_multiplies_in_the_dtype_of_the_run(dtype: str) -> None:
    assert on("cuda", dtype=dtype).describe()["precision"] == dtype


def test_a_gpu_multiplies_in_the_precision_that_was_asked_for() -> None:
    assert on("cuda", dtype="fp8", precision="bf16").describe()["precision"] == "bf16"
    assert on("cuda", dtype="fp32", precision="tf32").describe()["precision"] == "tf32"
    assert on("hip", dtype="bf16", precision="fp16").describe() | {"library": "rocBLAS through CuPy 14.2.0"} == (
        on("hip", dtype="fp16").describe()
    )


@pytest.mark.parametrize(
    ("kind", "options", "told"),
    [
        (
            "cuda",
            {"dtype": "fp8"},
            "--compute gemm cannot multiply in fp8: gemmEx, which multiplies, has no fp8; use --gemm-precision bf16",
        ),
        (
            "hip",
            {"dtype": "fp8"},
            "--compute gemm cannot multiply in fp8: gemmEx, which multiplies, has no fp8; use --gemm-precision fp16",
        ),
        (
            "hip",
            {"dtype": "bf16"},
            "--compute gemm cannot multiply in bf16: on ROCm a bf16 product through CuPy aborts the process; "
            "use --gemm-precision fp16",
        ),
        (
            "cuda",
            {"precision": "fp12"},
            "unknown precision 'fp12'; use --gemm-precision auto, bf16, fp16, tf32, fp32, fp64",
        ),
        (
            "cuda",
            {"precision": "bf16", "model": "sleep"},
            "--gemm-precision has no meaning with --compute sleep; use --compute gemm, or leave it out",
        ),
    ],
)
def test_what_cannot_be_multiplied_is_refused_with_what_can(
    kind: Literal["cuda", "hip"], options: dict[str, str], told: str
) -> None:
    with pytest.raises(OptionError, match=f"^{re.escape(told)}$"):
        on(kind, **options)


def test_the_cpu_multiplies_in_fp32_only() -> None:
    create("gemm", ranks_per_core=1.0, seed=0, dtype="bf16")
    create("gemm", ranks_per_core=1.0, seed=0, precision="fp32")
    with pytest.raises(OptionError, match="--gemm-precision bf16 needs a GPU: on the CPU gemm multiplies in fp32; use"):
        create("gemm", ranks_per_core=1.0, seed=0, precision="bf16")


def test_spinning_needs_a_gpu() -> None:
    with pytest.raises(OptionError, match="--compute spin needs a GPU, on which it spins; use --compute sleep"):
        create("spin", ranks_per_core=1.0, seed=0)
