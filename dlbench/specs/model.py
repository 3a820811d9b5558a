"""Transformer models: the sizes that shape their computation and their messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from dlbench.specs.check import NonNegative, Positive, Text, require


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Architecture of a transformer. Parameter counts follow from it and are never stored.

    Raises `SpecError` where the sizes contradict each other.
    """

    name: Text
    family: Literal["decoder", "gpt2", "vit"]
    """decoder: Llama, Mistral, Mixtral; gpt2: tied embeddings and biases; vit: image patches instead of tokens."""
    hidden_size: Positive
    layers: Positive
    heads: Positive
    kv_heads: Positive
    """Heads of keys and values: fewer than `heads` with grouped-query attention."""
    feed_forward_size: Positive
    vocabulary_size: NonNegative = 0
    sequence_length: Positive
    """Tokens, or patches and class token, of one sample; a run may use another length."""
    experts: Positive = 1
    active_experts: Positive = 1
    """Experts that work on each token."""
    patch_size: NonNegative = 0
    """Edge of an image patch in pixels (vit)."""
    source: Text

    def __post_init__(self) -> None:
        _check_heads(self)
        _check_family(self)
        require(
            self.active_experts <= self.experts,
            "active_experts",
            f"at most experts = {self.experts}",
            self.active_experts,
        )

    @property
    def parameters(self) -> int:
        """Trainable parameters of the whole model, embeddings included."""
        return _PARAMETERS[self.family](self)

    @property
    def expert_parameters(self) -> int:
        """Parameters of the MLPs of all experts; 0 where there is one MLP for all tokens."""
        return self.layers * _gated_mlps(self) if self.experts > 1 else 0

    @property
    def non_expert_parameters(self) -> int:
        """Parameters that every rank of an expert group holds."""
        return self.parameters - self.expert_parameters


def _check_heads(model: ModelSpec) -> None:
    require(
        model.hidden_size % model.heads == 0,
        "heads",
        f"a divisor of hidden_size = {model.hidden_size}",
        model.heads,
    )
    require(model.heads % model.kv_heads == 0, "kv_heads", f"a divisor of heads = {model.heads}", model.kv_heads)


def _check_family(model: ModelSpec) -> None:
    family = f"for family {model.family}"
    if model.family == "vit":
        require(model.patch_size > 0, "patch_size", f"an integer >= 1 {family}", model.patch_size)
        require(model.vocabulary_size == 0, "vocabulary_size", f"none {family}", model.vocabulary_size)
    else:
        require(model.vocabulary_size > 0, "vocabulary_size", f"an integer >= 1 {family}", model.vocabulary_size)
        require(model.patch_size == 0, "patch_size", f"none {family}", model.patch_size)
    if model.family != "decoder":
        require(model.kv_heads == model.heads, "kv_heads", f"heads = {model.heads} {family}", model.kv_heads)
        require(model.experts == 1, "experts", f"1 {family}", model.experts)


def _gated_mlps(model: ModelSpec) -> int:
    return 3 * model.hidden_size * model.feed_forward_size * model.experts


def _decoder_parameters(model: ModelSpec) -> int:
    d = model.hidden_size
    kv_size = d // model.heads * model.kv_heads
    attention = 2 * d * d + 2 * d * kv_size
    router = d * model.experts if model.experts > 1 else 0
    norms = 2 * d
    layer = attention + _gated_mlps(model) + router + norms
    return 2 * model.vocabulary_size * d + model.layers * layer + d


def _biased_layers(model: ModelSpec) -> int:
    d, feed_forward = model.hidden_size, model.feed_forward_size
    attention = 4 * (d * d + d)
    mlp = 2 * d * feed_forward + feed_forward + d
    norms = 2 * 2 * d
    return model.layers * (attention + mlp + norms)


def _gpt2_parameters(model: ModelSpec) -> int:
    d = model.hidden_size
    embeddings = (model.vocabulary_size + model.sequence_length) * d
    return embeddings + _biased_layers(model) + 2 * d


def _vit_parameters(model: ModelSpec) -> int:
    d = model.hidden_size
    patches = model.patch_size**2 * 3 * d + d
    class_token = d
    positions = model.sequence_length * d
    pooler = d * d + d
    return patches + class_token + positions + _biased_layers(model) + 2 * d + pooler


_PARAMETERS: dict[str, Callable[[ModelSpec], int]] = {
    "decoder": _decoder_parameters,
    "gpt2": _gpt2_parameters,
    "vit": _vit_parameters,
}
