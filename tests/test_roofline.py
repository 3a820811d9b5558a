"""The roofline against the published times, and against its own matrix products."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbench.errors import SpecError
from dlbench.roofline import Gemm, Phase, attention, backward, combined, forward, mlp
from dlbench.specs import GpuSpec, ModelSpec, load_gpu, load_model

MICROSECONDS = 1e-6

WORKED_FORWARD = [
    ("b200", "vit-h", 257, 2376.55),
    ("b200", "llama3-8b", 8192, 938_249.92),
    ("b200", "llama3-70b", 8192, 8_131_499.33),
    ("b200", "minerva-7b", 4096, 406_574.97),
    ("b200", "mixtral-8x7b", 4096, 625_499.95),
    ("a100", "vit-h", 257, 17_138.58),
    ("a100", "llama3-8b", 8192, 6_766_225.40),
]
WORKED_MLP = [
    ("vit-h", 1533.06),
    ("llama3-8b", 437_849.96),
    ("llama3-70b", 4_378_499.64),
    ("minerva-7b", 218_924.98),
]


def gpu(peak: float = 1e15, bandwidth: float = 1e12) -> GpuSpec:
    source = {"peak_flops": "made up", "memory_bandwidth": "made up", "memory_bytes": "made up"}
    return GpuSpec(
        name="abacus",
        vendor="none",
        peak_flops={"bf16": peak, "fp32": peak / 2},
        memory_bandwidth=bandwidth,
        memory_bytes=1,
        source=source,
    )


def model(**sizes: Any) -> ModelSpec:
    defaults: dict[str, Any] = {
        "name": "small",
        "family": "decoder",
        "hidden_size": 8,
        "layers": 3,
        "heads": 2,
        "kv_heads": 1,
        "feed_forward_size": 20,
        "vocabulary_size": 5,
        "sequence_length": 7,
        "source": "made up",
    }
    return ModelSpec(**{**defaults, **sizes})


@pytest.mark.parametrize(("device", "name", "length", "microseconds"), WORKED_FORWARD)
def test_forward_of_a_whole_model_takes_the_published_time(
    device: str, name: str, length: int, microseconds: float
) -> None:
    spec = load_model(name)
    assert spec.sequence_length == length
    phase = forward(spec, load_gpu(device), dtype="bf16", samples=16, sequence_length=length)
    assert phase.seconds == pytest.approx(microseconds * MICROSECONDS, abs=0.005 * MICROSECONDS)


@pytest.mark.parametrize(("name", "microseconds"), WORKED_MLP)
def test_the_mlps_of_a_whole_model_take_the_published_part_of_it(name: str, microseconds: float) -> None:
    spec = load_model(name)
    layer = mlp(spec, load_gpu("b200"), dtype="bf16", samples=16, sequence_length=spec.sequence_length)
    assert layer.scaled(spec.layers).seconds == pytest.approx(microseconds * MICROSECONDS, abs=0.005 * MICROSECONDS)


def test_attention_counts_projections_scores_and_values() -> None:
    # B = 2, N = 7, d = 8: 8·2·7·64 + 4·2·49·8 FLOPs; 4·64·2 + 2·2·7·8·2 bytes.
    phase = attention(model(), gpu(), dtype="bf16", samples=2, sequence_length=7)
    assert (phase.name, phase.flops, phase.bytes) == ("attention", 7168 + 3136, 512 + 448)
    # Four projections of 14 tokens; scores and values of 2 samples × 2 heads of size 4.
    assert phase.gemms == (Gemm(14, 8, 8, 4), Gemm(7, 7, 4, 4), Gemm(7, 4, 7, 4))


def test_mlp_works_with_active_experts_and_reads_all_of_them() -> None:
    # k = 2 of E = 4, H = 20: 4·2·7·8·20·2 FLOPs; 2·8·20·2·4 + 2·2·7·8·2 bytes.
    phase = mlp(model(experts=4, active_experts=2), gpu(), dtype="bf16", samples=2, sequence_length=7)
    assert (phase.name, phase.flops, phase.bytes) == ("mlp", 17920, 2560 + 448)
    assert phase.gemms == (Gemm(14, 20, 8, 2), Gemm(14, 8, 20, 2))


def test_a_phase_is_bound_by_arithmetic_or_by_memory() -> None:
    compute_bound = mlp(model(), gpu(peak=8960.0, bandwidth=1e9), dtype="bf16", samples=2, sequence_length=7)
    assert compute_bound.seconds == pytest.approx(1.0)  # 4·2·7·8·20 = 8960 FLOPs
    memory_bound = mlp(model(), gpu(peak=1e9, bandwidth=1088.0), dtype="bf16", samples=2, sequence_length=7)
    assert memory_bound.seconds == pytest.approx(1.0)  # 2·8·20·2 + 2·2·7·8·2 = 1088 bytes
    assert memory_bound.intensity == pytest.approx(8960 / 1088)


def test_wider_elements_move_more_bytes_at_the_peak_of_their_dtype() -> None:
    narrow = mlp(model(), gpu(peak=1e4, bandwidth=1e12), dtype="bf16", samples=1, sequence_length=7)
    wide = mlp(model(), gpu(peak=1e4, bandwidth=1e12), dtype="fp32", samples=1, sequence_length=7)
    assert (wide.flops, wide.bytes) == (narrow.flops, 2 * narrow.bytes)
    assert wide.seconds == pytest.approx(2 * narrow.seconds)


def test_a_dtype_without_a_peak_is_an_error_that_names_those_with_one() -> None:
    with pytest.raises(SpecError, match="bf16, fp32"):
        attention(model(), gpu(), dtype="fp8", samples=1, sequence_length=7)


def test_backward_is_twice_the_forward_with_two_products_for_each() -> None:
    phase = Phase("mlp", flops=24.0, bytes=10.0, seconds=3.0, gemms=(Gemm(2, 3, 4, 0.5),))
    assert backward(phase, "mlp_backward") == Phase(
        "mlp_backward", 48.0, 20.0, 6.0, (Gemm(2, 4, 3, 0.5), Gemm(4, 3, 2, 0.5))
    )


def test_scaled_phases_do_a_part_of_everything() -> None:
    phase = Phase("forward", flops=24.0, bytes=10.0, seconds=3.0, gemms=(Gemm(2, 3, 4, 1),))
    assert phase.scaled(0.5) == Phase("forward", 12.0, 5.0, 1.5, (Gemm(2, 3, 4, 0.5),))
    assert phase.scaled(2, "both").name == "both"


def test_combined_phases_add_up() -> None:
    first = Phase("a", 1.0, 2.0, 3.0, (Gemm(1, 1, 1, 1),))
    second = Phase("b", 10.0, 20.0, 30.0, (Gemm(2, 2, 2, 1),))
    assert combined("ab", [first, second]) == Phase("ab", 11.0, 22.0, 33.0, (Gemm(1, 1, 1, 1), Gemm(2, 2, 2, 1)))


@given(
    heads=st.integers(1, 8),
    head_size=st.integers(1, 128),
    feed_forward=st.integers(1, 4096),
    experts=st.integers(1, 8),
    samples=st.integers(1, 32),
    length=st.integers(1, 8192),
    factor=st.floats(1e-3, 1e3),
)
def test_the_products_of_a_phase_have_all_its_flops(
    heads: int, head_size: int, feed_forward: int, experts: int, samples: int, length: int, factor: float
) -> None:
    spec = model(
        heads=heads,
        kv_heads=heads,
        hidden_size=heads * head_size,
        feed_forward_size=feed_forward,
        experts=experts,
        active_experts=(experts + 1) // 2,
    )
    phases = [f(spec, gpu(), dtype="bf16", samples=samples, sequence_length=length) for f in (attention, mlp, forward)]
    for phase in [*phases, *(backward(phase) for phase in phases)]:
        part = phase.scaled(factor)
        assert sum(gemm.flops for gemm in part.gemms) == pytest.approx(part.flops)
