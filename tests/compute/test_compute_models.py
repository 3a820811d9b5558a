"""Compute models by name."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from dlbench.compute import COMPUTE_MODELS, create
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
