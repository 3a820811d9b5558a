"""Defaults, smaller runs, and the answers to impossible wishes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_worlds import GPU, small, small_model

from dlbench.errors import LayoutError, OptionError, SpecError
from dlbench.specs import load_gpu, load_model
from dlbench.strategies import STRATEGIES, Configuration, configure, get_strategy
from dlbench.strategies.computation import compute_seconds, ideal, phase_table
from dlbench.strategies.strategy import padded_share, share


def default(strategy: str, world_size: int, **options: Any) -> Configuration:
    """The strategy's default model on a B200."""
    model = load_model(options.pop("model", get_strategy(strategy).model))
    return configure(strategy, world_size=world_size, model=model, gpu=load_gpu("b200"), **options)


def test_the_strategies_are_those_of_the_paper_with_its_models() -> None:
    assert {name: strategy.model for name, strategy in STRATEGIES.items()} == {
        "dp": "vit-h",
        "fsdp": "llama3-8b",
        "dp_pp": "llama3-8b",
        "dp_pp_tp": "llama3-70b",
        "dp_pp_ep": "mixtral-8x7b",
    }


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_paper_s_own_runs_are_possible_and_its_larger_ones_need_no_note(name: str) -> None:
    strategy = STRATEGIES[name]
    for ranks in strategy.gpu_counts:
        default(name, ranks)
    assert default(name, strategy.gpu_counts[-1]).notes == ()


def test_defaults_are_those_of_table_iv() -> None:
    dp, fsdp = default("dp", 64).workload, default("fsdp", 256).workload
    pipelines = [default("dp_pp", 256), default("dp_pp_tp", 256), default("dp_pp_ep", 512)]
    assert (dp.local_batch, dp.microbatches, dp.buckets) == (16, 1, 50)
    assert (fsdp.local_batch, fsdp.microbatches, fsdp.units) == (16, 1, 16)
    assert default("fsdp", 256).degrees() == {"sharding": 8}
    assert {(c.workload.local_batch, c.workload.microbatches) for c in pipelines} == {(16, 16)}
    assert [c.degrees() for c in pipelines] == [{"pp": 8}, {"pp": 8, "tp": 4}, {"pp": 8, "ep": 8}]
    assert default("dp", 8).degrees() == {}


SMALLER_RUNS = [
    ("fsdp", 1, {"sharding": 1}),
    ("fsdp", 4, {"sharding": 4}),
    ("fsdp", 7, {"sharding": 7}),
    ("fsdp", 8, {"sharding": 8}),
    ("dp_pp", 1, {"pp": 1}),
    ("dp_pp", 2, {"pp": 2}),
    ("dp_pp", 4, {"pp": 2}),
    ("dp_pp", 8, {"pp": 2}),
    ("dp_pp", 16, {"pp": 8}),
    ("dp_pp_tp", 1, {"pp": 1, "tp": 1}),
    ("dp_pp_tp", 2, {"pp": 1, "tp": 2}),
    ("dp_pp_tp", 4, {"pp": 2, "tp": 2}),
    ("dp_pp_tp", 8, {"pp": 2, "tp": 4}),
    ("dp_pp_tp", 16, {"pp": 4, "tp": 4}),
    ("dp_pp_tp", 32, {"pp": 8, "tp": 4}),
    ("dp_pp_tp", 12, {"pp": 2, "tp": 2}),
    ("dp_pp_ep", 2, {"pp": 1, "ep": 2}),
    ("dp_pp_ep", 4, {"pp": 2, "ep": 2}),
    ("dp_pp_ep", 16, {"pp": 4, "ep": 4}),
    ("dp_pp_ep", 32, {"pp": 4, "ep": 8}),
    ("dp_pp_ep", 64, {"pp": 8, "ep": 8}),
]


@pytest.mark.parametrize(("strategy", "world_size", "degrees"), SMALLER_RUNS)
def test_smaller_runs_use_the_degrees_that_fit_and_say_so(
    strategy: str, world_size: int, degrees: dict[str, int]
) -> None:
    configuration = default(strategy, world_size)
    assert configuration.degrees() == degrees
    paper = get_strategy(strategy).defaults
    changed = ", ".join(f"{name} = {degree}" for name, degree in degrees.items() if degree != paper[name])
    product = f"{' × '.join(degrees)} = {' × '.join(str(paper[name]) for name in degrees)}"
    notes = [note for note in configuration.notes if "on so few ranks" in note]
    assert notes == ([f"{changed} on so few ranks; larger runs have {product}"] if changed else [])


GIVEN_ONE = [
    (8, {"pp": 1}, {"pp": 1, "tp": 4}),
    (8, {"pp": 4}, {"pp": 4, "tp": 2}),
    (8, {"tp": 1}, {"pp": 8, "tp": 1}),
    (8, {"tp": 8}, {"pp": 1, "tp": 8}),
    (6, {"pp": 3}, {"pp": 3, "tp": 2}),
    (64, {"pp": 16}, {"pp": 16, "tp": 4}),
    (8, {"pp": 2, "tp": 2}, {"pp": 2, "tp": 2}),
]


@pytest.mark.parametrize(("world_size", "given_degrees", "degrees"), GIVEN_ONE)
def test_a_given_degree_is_kept_and_the_other_takes_what_remains(
    world_size: int, given_degrees: dict[str, int], degrees: dict[str, int]
) -> None:
    configuration = default("dp_pp_tp", world_size, **given_degrees)
    assert configuration.degrees() == degrees
    for name, value in given_degrees.items():
        assert any(note.startswith(f"{name} = {value} as asked; the paper's is") for note in configuration.notes)


@pytest.mark.parametrize(
    ("strategy", "world_size", "options", "message"),
    [
        ("dp_pp_tp", 48, {},
         "world size 48 is not a multiple of pp × tp = 8 × 4 = 32; "
         "use 32, 64, 96, … (or set --pp/--tp)"),
        ("dp_pp_tp", 48, {"tp": 4},
         "world size 48 is not a multiple of pp × tp = 8 × 4 = 32; "
         "use 32, 64, 96, … (or set --pp)"),
        ("dp_pp_ep", 100, {},
         "world size 100 is not a multiple of pp × ep = 8 × 8 = 64; "
         "use 64, 128, 192, … (or set --pp/--ep)"),
        ("dp_pp", 12, {}, "world size 12 is not a multiple of pp = 8; use 8, 16, 24, … (or set --pp)"),
        ("dp_pp", 3, {}, "world size 3 is not a multiple of pp = 2; use 2, 4, 6, … (or set --pp)"),
        ("fsdp", 12, {}, "world size 12 is not a multiple of sharding = 8; use 8, 16, 24, … (or set --sharding)"),
        ("fsdp", 6, {"sharding": 4}, "world size 6 is not a multiple of sharding = 4; use 4, 8, 12, …"),
        ("dp_pp_tp", 10, {"pp": 3},
         "world size 10 is not a multiple of pp × tp = 3 × 4 = 12; "
         "use 12, 24, 36, … (or set --tp)"),
        ("dp", 0, {}, "world size = 0 is impossible; use 1 or more"),
        ("fsdp", -1, {}, "world size = -1 is impossible; use 1 or more"),
    ],
)  # fmt: skip
def test_a_world_that_does_not_fit_is_answered_with_all_factors(
    strategy: str, world_size: int, options: dict[str, int], message: str
) -> None:
    with pytest.raises(LayoutError) as error:
        default(strategy, world_size, **options)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("strategy", "options", "message"),
    [
        ("dp", {"tp": 4}, "dp has no option --tp; its own options are --buckets"),
        ("dp", {"microbatches": 4}, "dp has no option --microbatches; its own options are --buckets"),
        ("dp_pp_tp", {"ep": 4}, "dp_pp_tp has no option --ep; its own options are --microbatches, --pp, --tp"),
        ("dp", {"buckets": 0}, "--buckets 0 is out of range; use 1 or more"),
        ("fsdp", {"units": -3}, "--units -3 is out of range; use 1 or more"),
        ("dp_pp", {"pp": 0}, "--pp 0 is out of range; use 1 or more"),
        ("dp", {"local_batch": 0}, "--local-batch 0 is out of range; use 1 or more"),
        ("dp", {"sequence_length": 0}, "--sequence-length 0 is out of range; use 1 or more"),
        ("dp", {"scale": math.nan}, "--scale nan is out of range; use a number from 1e-12 to 1e+12"),
        ("dp", {"scale": 0.0}, "--scale 0 is out of range; use a number from 1e-12 to 1e+12"),
        ("dp", {"time_scale": math.inf}, "--time-scale inf is out of range; use a number from 1e-12 to 1e+12"),
        ("dp", {"time_scale": -1.0}, "--time-scale -1 is out of range; use a number from 1e-12 to 1e+12"),
        ("dp_pp", {"scale": 1e12},
         "activation_in would have 3.36e+19 elements, more than 2^63 - 1; use a smaller --scale"),
        ("dp", {"dtype": "bf15"}, "unknown dtype 'bf15'; messages can be bf16, fp16, fp32, fp64, fp8"),
        ("dp", {"dtype": "tf32"}, "unknown dtype 'tf32'; messages can be bf16, fp16, fp32, fp64, fp8"),
        ("dp_pp", {"microbatches": 3}, "--microbatches 3 does not divide --local-batch 16; use 1, 2, 4, 8, 16"),
        ("dp_pp", {"local_batch": 12}, "--microbatches 16 does not divide --local-batch 12; use 1, 2, 3, 4, 6, 12"),
        ("dp_pp", {"microbatches": 11, "local_batch": 720},
         "--microbatches 11 does not divide --local-batch 720; use 5, 6, 8, 9, 10, 12, 15, 16"),
        ("dp", {"buckets": 100_001}, "--buckets 100001 is out of range; use 100000 or less"),
        ("dp", {"buckets": 10**12}, "--buckets 1000000000000 is out of range; use 100000 or less"),
        ("fsdp", {"units": 5_000_000}, "--units 5000000 is out of range; use 100000 or less"),
        ("dp_pp", {"microbatches": 10**6, "local_batch": 10**6},
         "--microbatches 1000000 is out of range; use 100000 or less"),
        # Forward, then backward and all-reduce of each bucket, and the wait: 2 ops and 2 per bucket.
        ("dp", {"buckets": 50_000}, "a rank would have more than 100000 ops in an iteration; use fewer --buckets"),
        # Middle stages have most: receive, compute and send of each microbatch, forward and backward, and the gradient.
        ("dp_pp", {"microbatches": 20_000, "local_batch": 20_000, "sequence_length": 1},
         "a rank would have more than 100000 ops in an iteration; use fewer --microbatches"),
        ("dp", {"sequence_length": 2**63 - 1},
         "forward would take 9.91e+28 s, more than 1e+06 s; "
         "use a smaller --time-scale, --local-batch or --sequence-length"),
        ("dp_pp", {"pp": 64}, "pp = 64 is more than the 32 layers of llama3-8b; set --pp to 32 or less"),
        ("dp_pp_ep", {"ep": 16}, "ep = 16 does not divide the 8 experts of mixtral-8x7b; set --ep to 1, 2, 4, 8"),
        ("dp_pp_ep", {"model": "llama3-8b"},
         "llama3-8b has no experts, which expert parallelism needs; "
         "use mixtral-8x7b or its like"),
    ],
)  # fmt: skip
def test_an_impossible_option_is_answered_with_what_is_possible(
    strategy: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError) as error:
        default(strategy, 1024, **options)
    assert str(error.value) == message


def test_the_longest_program_is_as_long_as_allowed() -> None:
    assert len(default("dp", 2, buckets=49_999).program(0)) == 100_000


def test_a_local_batch_beyond_all_bounds_is_answered_at_once() -> None:
    # 2^63 - 1 = 7² × 73 × 127 × 337 × 92737 × 649657.
    with pytest.raises(OptionError, match=r"9223372036854775807; use 1, 7, 49, 73, 127, 337, 511, 889$"):
        default("dp_pp", 8, local_batch=2**63 - 1)


def test_parts_are_no_more_than_the_parameters() -> None:
    model = small_model()
    with pytest.raises(OptionError) as error:
        configure("dp", world_size=2, model=model, gpu=GPU, buckets=model.parameters + 1)
    assert str(error.value) == (
        f"--buckets {model.parameters + 1} is more than the {model.parameters} parameters of {model.name}"
    )


def test_a_model_of_endless_layers_is_refused() -> None:
    model = small_model(layers=10**15)
    with pytest.raises(OptionError, match="has 1000000000000000 layers; a rank can have 100000 ops"):
        configure("dp_pp_tp", world_size=1, model=model, gpu=GPU)


def test_a_dtype_that_the_gpu_cannot_multiply_is_answered_with_those_it_can() -> None:
    with pytest.raises(SpecError, match="bf16, fp32"):
        configure("dp", world_size=2, model=small_model(), gpu=GPU, dtype="fp8")


def test_an_unknown_strategy_is_answered_with_all_of_them() -> None:
    with pytest.raises(OptionError) as error:
        get_strategy("dp_tp")
    assert str(error.value).startswith("unknown strategy 'dp_tp', did you mean dp_")
    assert str(error.value).endswith("there are dp, fsdp, dp_pp, dp_pp_tp, dp_pp_ep")
    with pytest.raises(OptionError, match="^unknown strategy 'zzz'; there are dp"):
        get_strategy("zzz")


@pytest.mark.parametrize("rank", [-1, 8])
def test_a_rank_outside_the_world_has_no_program(rank: int) -> None:
    with pytest.raises(OptionError, match="ranks are 0 to 7"):
        default("dp", 8).program(rank)


@pytest.mark.parametrize(
    ("strategy", "options", "note"),
    [
        ("dp", {"buckets": 10}, "buckets = 10 as asked; the paper's is 50"),
        ("dp", {"local_batch": 4}, "local batch 4; the paper's is 16"),
        ("dp", {"dtype": "fp32"}, "dtype fp32; the paper's is bf16"),
        ("dp", {"scale": 0.01}, "messages have 0.01 times their elements"),
        ("dp", {"time_scale": 2.0}, "compute has 2 times its FLOPs, bytes and time"),
        ("fsdp", {"model": "gpt2-l"}, "model gpt2-l; the paper trains llama3-8b or minerva-7b"),
        (
            "dp",
            {"sequence_length": 100},
            "sequence length 100 for compute and messages; vit-h has 257, and its parameters stay as published",
        ),
    ],
)
def test_every_departure_from_the_paper_is_a_note(strategy: str, options: dict[str, Any], note: str) -> None:
    assert default(strategy, 16, **options).notes == (note,)


def test_options_given_as_their_default_are_no_departure() -> None:
    assert default("dp_pp_tp", 64, pp=8, tp=4, microbatches=16, local_batch=16, dtype="bf16").notes == ()


def test_groups_of_one_are_a_note() -> None:
    assert default("dp", 1).notes == ("no world communication: a group of one exchanges nothing",)
    assert default("fsdp", 8).notes == ("no replica communication: a group of one exchanges nothing",)
    tensor_alone = default("dp_pp_tp", 16, tp=1)
    assert "no tensor communication: a group of one exchanges nothing" in tensor_alone.notes


def test_another_sequence_length_changes_compute_and_activations_but_no_parameters() -> None:
    published, shorter = small("dp_pp", 2, pp=2), small("dp_pp", 2, pp=2, sequence_length=1)
    assert published.workload.activation_elements == 12
    assert shorter.workload.activation_elements == 4
    # 8 B N d² + 4 B N² d + 4 B N d H = 128 + 16 + 80 a layer for one token of one sample.
    assert shorter.workload.forward().flops == 2 * (128 + 16 + 80)


def test_the_phase_table_counts_phases_on_the_rank_that_runs_most() -> None:
    # 5 layers on 2 stages: 3 and 2; forward and backward of 2 microbatches.
    table = phase_table(small("dp_pp_tp", 4, small_model(layers=5), pp=2, tp=2))
    assert [(phase.name, count) for phase, count in table] == [
        ("attention", 6),
        ("mlp", 6),
        ("attention_backward", 6),
        ("mlp_backward", 6),
    ]


def test_stages_of_different_depth_have_different_phases() -> None:
    configuration = small("dp_pp", 2, small_model(layers=5), pp=2)
    layer = configuration.workload.forward().seconds / 5
    table = phase_table(configuration)
    assert [(phase.name, count) for phase, count in table] == [("forward", 2), ("backward", 2)] * 2
    assert [phase.seconds / layer for phase, _ in table] == pytest.approx([3, 6, 2, 4])
    assert compute_seconds(configuration, 1) == pytest.approx(2 * (2 + 4) * layer)


def test_without_a_pipeline_the_ideal_iteration_is_the_compute() -> None:
    # 3 × 2376.55 µs for 16 samples on each of 8 replicas.
    best = ideal(default("dp", 8))
    assert best.seconds == pytest.approx(3 * 2376.55e-6, rel=1e-5)
    assert best.samples_per_second == pytest.approx(16 * 8 / (3 * 2376.55e-6), rel=1e-5)
    assert best.bubble == pytest.approx(0, abs=1e-12)


def test_a_pipeline_s_bubble_is_one_less_than_its_stages_in_microbatches_and_stages() -> None:
    # GPipe with equal stages: (pp − 1) / (m + pp − 1) = 7 / 23.
    assert ideal(default("dp_pp", 16)).bubble == pytest.approx(7 / 23)


def test_the_ideal_iteration_waits_for_the_slowest_stage() -> None:
    # 3 layers on 2 stages: 2 and 1. Two microbatches of one sample: 3 (f0 + f1) + 3 max f, with f = 480 + ... a layer.
    configuration = small("dp_pp", 2, small_model(layers=3), pp=2)
    layer = configuration.workload.forward().seconds / 3
    assert ideal(configuration).seconds == pytest.approx(3 * (2 + 1) * layer + 3 * 2 * layer)


@given(st.integers(0, 10**12), st.integers(1, 1000))
def test_shares_add_up_and_differ_by_one_at_most_and_the_padded_one_is_the_largest(total: int, parts: int) -> None:
    shares = [share(total, parts, index) for index in range(parts)]
    assert sum(shares) == total
    assert shares == sorted(shares, reverse=True)
    assert shares[0] - shares[-1] <= 1
    assert padded_share(total, parts) == shares[0]
