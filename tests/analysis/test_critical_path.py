"""Comparing two paths: the culprit, what classes make of the difference, and how well it is the tax."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dlbench.analysis.critical_path import (
    Blame,
    Culprit,
    Part,
    Reason,
    blame,
    determination,
    explained,
    reason,
)
from dlbench.analysis.critical_path import (
    Path as Way,
)
from dlbench.analysis.culprit_tables import culprit_classes, culprits, paths
from dlbench.analysis.culprits import CulpritClasses, may_wait_for_copy, waits_for_gpu
from dlbench.errors import SpecError

A, B, SECOND_B, IDLE = Part(0, 0), Part(1, 0), Part(1, 1), Part(0, 0, idle=True)


def test_the_largest_difference_is_to_blame_and_not_the_longest_part() -> None:
    slow, fast = Way({A: 5.0, B: 3.0}), Way({A: 4.5, B: 1.0})
    assert blame(slow, fast) == Blame(B, 2.0)


def test_what_has_no_counterpart_counts_in_full() -> None:
    slow, fast = Way({A: 5.0, SECOND_B: 1.0}), Way({A: 4.5, B: 1.0})
    assert blame(slow, fast) == Blame(SECOND_B, 1.0)


def test_idle_time_is_compared_with_idle_time() -> None:
    slow, fast = Way({A: 1.0, IDLE: 2.0}), Way({A: 3.0, IDLE: 0.5})
    assert blame(slow, fast) == Blame(IDLE, 1.5)
    assert (slow.length, slow.idle) == (3.0, 2.0)


def test_nothing_is_to_blame_where_nothing_took_longer() -> None:
    assert blame(Way({A: 1.0}), Way({A: 1.0, B: 1.0})) is None


def test_classes_add_up_to_what_is_predicted() -> None:
    slow, fast = Way({A: 5.0, B: 3.0, IDLE: 0.5}), Way({A: 4.0, SECOND_B: 0.5})
    found = reason(slow, fast, Culprit(), lambda part: "idle" if part.idle else "AB"[part.what])
    assert found.classes == {"A": 1.0, "B": 2.5, "idle": 0.5}
    assert (found.predicted, found.gap, found.window) == (4.0, 0.5, 8.5)


def test_reasons_stand_by_column_and_those_that_are_missing_are_no_numbers() -> None:
    found = explained([Reason(1.0, 0.25, 3.0, Culprit("a"), {"x": 1.0}), Reason()])
    assert np.isnan([each[1] for each in (found.predicted, found.gap, found.window)]).all()
    assert (found.predicted[0], found.gap[0], found.window[0]) == (1.0, 0.25, 3.0)
    assert [culprit.name for culprit in found.culprits] == ["a", ""]
    assert len(explained([]).predicted) == 0


def test_r_squared_is_that_of_the_prediction_itself() -> None:
    measured = np.array([1.0, 2.0, 3.0])
    assert determination(measured, measured) == 1.0
    # A prediction that is twice the tax lies on a line, but on the wrong one: 1 − (1 + 4 + 9) / 2.
    assert determination(measured, 2 * measured) == pytest.approx(-6.0)
    assert determination(measured, np.array([1.0, math.nan, 3.0])) == 1.0


@pytest.mark.parametrize("measured", [[], [1.0], [2.0, 2.0]])
def test_there_is_no_r_squared_where_nothing_varies(measured: list[float]) -> None:
    assert math.isnan(determination(np.array(measured), np.array(measured)))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ampere_sgemm_128x64_tn", "GEMM"),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", "GEMM"),
        ("Cijk_Ailk_Bljk_BBS_BH_MT128x128x32", "GEMM"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu>", "GEMM"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits>", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", "attention"),
        ("void cudnn::winograd_nonfused::winogradForwardData4x4", "convolution"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel", "optimizer"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel", "normalization"),
        ("Memcpy HtoD (Pageable -> Device)", "copy"),
        ("void at::native::vectorized_elementwise_kernel<4>", "elementwise"),
        ("my_kernel", "other kernel"),
    ],
)
def test_kernels_have_classes_by_their_names(name: str, kind: str) -> None:
    assert CulpritClasses().of(name, "gpu") == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaLaunchKernel", "launch"),
        ("hipExtModuleLaunchKernel", "launch"),
        ("cuLaunchKernelEx", "launch"),
        ("cudaGraphLaunch", "launch"),
        ("cudaDeviceSynchronize", "synchronization"),
        ("hipMemcpyWithStream", "synchronization"),
        ("cudaMemcpyAsync", "driver call"),
        ("cudaMalloc", "memory"),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "data loading"),
        ("train.py(12): step", "Python"),
        ("aten::mm", "CPU op"),
    ],
)
def test_what_a_cpu_does_has_classes_by_its_name(name: str, kind: str) -> None:
    assert CulpritClasses().of(name, "cpu") == kind


def test_calls_that_block_are_told_from_those_that_do_not() -> None:
    blocking = [
        "cudaStreamSynchronize",
        "hipDeviceSynchronize",
        "cuCtxSynchronize",
        "cudaMemcpy",
        "hipMemcpyWithStream",
    ]
    assert all(map(waits_for_gpu, [*blocking, "cudaEventSynchronize", "cudaFree"]))
    others = ["cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamWaitEvent", "cudaEventQuery", "cudaFreeHost"]
    assert not any(map(waits_for_gpu, others))
    assert may_wait_for_copy("cudaMemcpyAsync")
    assert not may_wait_for_copy("cudaMemsetAsync")


def test_classes_of_the_user_come_first(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("classes:\n  - {name: my GEMM, on: gpu, pattern: 'sgemm'}\n")
    classes = CulpritClasses(file)
    assert (classes.of("ampere_sgemm", "gpu"), classes.of("nvjet", "gpu")) == ("my GEMM", "GEMM")
    assert classes.of("sgemm", "cpu") == "CPU op"


def test_a_pattern_that_is_none_is_named_with_its_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("classes:\n  - {name: x, on: gpu, pattern: '('}\n")
    with pytest.raises(SpecError) as error:
        CulpritClasses(file)
    assert str(error.value).startswith(f"{file}: pattern '(' is no regular expression: missing )")
    file.write_text("classes:\n  - {name: x, on: tpu, pattern: a}\n")
    with pytest.raises(SpecError, match=r"at classes\[0\].on: expected one of gpu, cpu, found \"tpu\""):
        CulpritClasses(file)


COLLECTIVES = pd.DataFrame(
    {
        "run": 0,
        "run_id": "r",
        "name": "allreduce/world",
        "resolved": [True, True, False, True],
        "tau_range": [1.0, 3.0, 9.0, 2.0],
        "predicted": [1.0, 2.0, 9.0, math.nan],
        "gap": [0.0, 1.0, 0.0, math.nan],
        "window": [4.0, 5.0, 6.0, math.nan],
        "end_skew": [0.1, 0.2, 0.3, 0.4],
        "culprit": ["a", "a", "a", ""],
        "culprit_class": ["x", "x", "x", ""],
        "culprit_rank": [2, 1, 1, -1],
        "culprit_idle": False,
        "culprit_seconds": [0.5, 1.5, 9.0, 0.0],
    }
)
"""Of four collectives, the clocks cannot tell the third, and the last has no path."""


def test_culprits_are_summed_over_what_the_clocks_can_tell() -> None:
    (row,) = culprits(COLLECTIVES).to_dict("records")
    assert (row["times"], row["explained"], row["blamed"], row["taxed"]) == (2, 2, 2.0, 4.0)
    assert (row["blamed_share"], row["culprit_rank"], row["culprit_rank_share"]) == (0.5, 1, 0.5)


def test_classes_are_shares_of_the_tax_the_largest_first() -> None:
    found = culprit_classes(COLLECTIVES, [{"x": 0.5, "y": 0.5}, {"x": 3.0, "y": -1.0}, {"x": 99.0}, {}])
    assert found["culprit_class"].tolist() == ["x", "y"]
    assert found["path_difference"].tolist() == [3.5, -0.5]
    assert found["path_share"].tolist() == [0.875, -0.125]
    assert (found["times"].tolist(), found["explained"].tolist()) == ([2, 0], [2, 2])


def test_paths_say_how_much_they_leave_open() -> None:
    (row,) = paths(COLLECTIVES).to_dict("records")
    assert (row["collectives"], row["explained"]) == (4, 3)
    # Squares about the mean 13/3: 312/9; of the residuals 0, 1, 0, and without idle time 0, 2, 0.
    assert row["determination"] == pytest.approx(1 - 9 / 312)
    assert row["determination_busy"] == pytest.approx(1 - 4 * 9 / 312)
    assert (row["gap"], row["gap_share"], row["end_skew"], row["window"]) == (0.0, pytest.approx(1 / 13), 0.2, 5.0)


def test_without_paths_the_tables_are_empty() -> None:
    nothing = COLLECTIVES.assign(predicted=math.nan)
    assert [len(found) for found in (culprits(nothing), culprit_classes(nothing, [{}] * 4), paths(nothing))] == [
        0,
        0,
        0,
    ]
