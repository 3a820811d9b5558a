"""Models: parameter counts that equal the published ones, and sizes that cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbench.errors import SpecError
from dlbench.specs import ModelSpec, load_model, model_names

DECODER: dict[str, Any] = {
    "name": "small",
    "family": "decoder",
    "hidden_size": 8,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "feed_forward_size": 16,
    "vocabulary_size": 10,
    "sequence_length": 6,
    "source": "by hand",
}
GPT2 = {**DECODER, "family": "gpt2", "kv_heads": 4}
VIT = {**DECODER, "family": "vit", "kv_heads": 4, "vocabulary_size": 0, "patch_size": 2}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("vit-b", 86_389_248),
        ("vit-l", 304_351_232),
        ("vit-h", 632_404_480),
        ("gpt2-l", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("minerva-7b", 7_399_542_784),
        ("mixtral-8x7b", 46_702_792_704),
    ],
)
def test_a_shipped_model_has_the_published_number_of_parameters(name: str, parameters: int) -> None:
    assert load_model(name).parameters == parameters


def test_the_shipped_models_are_those_of_the_study_and_four_smaller_ones() -> None:
    expected = "gpt2-l gpt2-xl llama3-70b llama3-8b minerva-7b mixtral-8x7b vit-b vit-h vit-l"
    assert model_names() == expected.split()


@pytest.mark.parametrize("name", model_names())
def test_a_shipped_model_bears_the_name_of_its_file(name: str) -> None:
    assert load_model(name).name == name


def test_mixtral_splits_into_experts_and_what_every_rank_holds() -> None:
    mixtral = load_model("mixtral-8x7b")
    assert mixtral.non_expert_parameters == 1_605_636_096
    assert mixtral.expert_parameters == 46_702_792_704 - 1_605_636_096


def test_a_model_without_experts_holds_everything_on_every_rank() -> None:
    llama = load_model("llama3-8b")
    assert llama.expert_parameters == 0
    assert llama.non_expert_parameters == 8_030_261_248


@pytest.mark.parametrize(
    ("fields", "parameters"),
    [
        # embeddings 2·10·8; per layer 2·64 + 2·8·4 attention, 3·8·16 gated MLP, 16 norms; final norm 8
        (DECODER, 160 + 2 * (192 + 384 + 16) + 8),
        # three experts: three MLPs and a router of 8·3
        ({**DECODER, "experts": 3}, 160 + 2 * (192 + 3 * 384 + 24 + 16) + 8),
        # embeddings (10 + 6)·8; per layer 4·(64 + 8), 2·8·16 + 16 + 8, 2 norms of 16; final norm 16
        (GPT2, 128 + 2 * (288 + 280 + 32) + 16),
        # patches 2²·3·8 + 8, class token 8, positions 6·8, the same layers, final norm 16, pooler 64 + 8
        (VIT, 104 + 8 + 48 + 2 * (288 + 280 + 32) + 16 + 72),
    ],
)
def test_parameters_of_a_small_model_agree_with_a_count_by_hand(fields: dict[str, Any], parameters: int) -> None:
    assert ModelSpec(**fields).parameters == parameters


@given(st.integers(1, 64), st.integers(1, 64), st.sampled_from([DECODER, GPT2, VIT]))
def test_every_layer_adds_the_same_number_of_parameters(layers: int, more: int, fields: dict[str, Any]) -> None:
    def parameters(count: int) -> int:
        return ModelSpec(**{**fields, "layers": count}).parameters

    assert (parameters(layers + more) - parameters(layers)) == more * (parameters(2) - parameters(1))


@given(st.integers(2, 128))
def test_more_experts_leave_all_but_the_router_of_the_other_parameters_alone(experts: int) -> None:
    model = ModelSpec(**{**DECODER, "experts": experts})
    router = DECODER["layers"] * DECODER["hidden_size"] * experts
    single = ModelSpec(**DECODER)
    mlps = DECODER["layers"] * 3 * DECODER["hidden_size"] * DECODER["feed_forward_size"]
    assert model.non_expert_parameters == single.parameters - mlps + router
    assert model.expert_parameters == mlps * experts


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({**DECODER, "heads": 3}, "at heads: expected a divisor of hidden_size = 8, found 3"),
        ({**DECODER, "kv_heads": 3}, "at kv_heads: expected a divisor of heads = 4, found 3"),
        ({**DECODER, "kv_heads": 8}, "at kv_heads: expected a divisor of heads = 4, found 8"),
        (
            {**DECODER, "experts": 2, "active_experts": 3},
            "at active_experts: expected at most experts = 2, found 3",
        ),
        (
            {**DECODER, "vocabulary_size": 0},
            "at vocabulary_size: expected an integer >= 1 for family decoder, found 0",
        ),
        ({**DECODER, "patch_size": 14}, "at patch_size: expected none for family decoder, found 14"),
        ({**GPT2, "vocabulary_size": 0}, "at vocabulary_size: expected an integer >= 1 for family gpt2, found 0"),
        ({**GPT2, "kv_heads": 2}, "at kv_heads: expected heads = 4 for family gpt2, found 2"),
        ({**GPT2, "experts": 4}, "at experts: expected 1 for family gpt2, found 4"),
        ({**VIT, "patch_size": 0}, "at patch_size: expected an integer >= 1 for family vit, found 0"),
        ({**VIT, "vocabulary_size": 10}, "at vocabulary_size: expected none for family vit, found 10"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        ModelSpec(**fields)
    assert str(caught.value) == message


def test_a_spec_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        load_model("vit-h").layers = 1  # type: ignore[misc]


@pytest.mark.parametrize("encode", [msgspec.msgpack.encode, msgspec.json.encode])
@pytest.mark.parametrize("name", model_names())
def test_a_model_survives_a_broadcast(name: str, encode: Callable[[Any], bytes]) -> None:
    model = load_model(name)
    decode = {msgspec.msgpack.encode: msgspec.msgpack.decode, msgspec.json.encode: msgspec.json.decode}[encode]
    assert decode(encode(model), type=ModelSpec) == model
