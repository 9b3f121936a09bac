"""Puts tokens in front of every sequence as constant keys and values: the model computes what it would with the tokens there.

Many causal models give their first token, whatever it is, activations hundreds of times those of all others, and attend to it
where they attend to nothing. One static range then holds that token or the text, not both. With such tokens as a prefix, kept in
full precision, the tokens of the text have no outliers (PrefixQuant, arXiv 2410.05265).
"""

# B batch, T tokens, P prefix tokens, G key/value heads, D features per head

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from quietformer.architectures.dataflow import trace
from quietformer.architectures.forward import Batch, check_model, in_eval_mode, run
from quietformer.attention.core import AttentionCore
from quietformer.attention.find_layers import CORE
from quietformer.attention.inject import apply_attention_, attention_cores, remove_attention_
from quietformer.attention.prefix import Prefix, prefixes
from quietformer.config.attention import AttentionSpec
from quietformer.config.model_changes import PrefixSpec
from quietformer.config.recorded_changes import changes_of, record_changes_
from quietformer.errors import CheckpointError, QuietformerError, UnsupportedModelError
from quietformer.transforms.equivalence import first_output, same_up_to_rounding
from quietformer.transforms.preconditions import refuse_quantized

TRIED = 8
"""Tokens after the prefix on which the model with constants is compared with the model that reads the prefix."""


def add_prefix_(model: PreTrainedModel, tokens: Sequence[int]) -> None:
    """Put tokens in front of every sequence, in place; raises and leaves the model unchanged where the result would differ.

    A model without a Quietformer attention core gets one with plain softmax. A model that learned its positions has fewer of
    them afterwards.
    """
    check_model(model)
    tokens = tuple(tokens)
    refuse_quantized(model, "add the prefix")
    check_prefix(model, tokens)
    injected = not any(True for _ in attention_cores(model))
    if injected:
        apply_attention_(model, AttentionSpec())
    kept: dict[nn.Embedding, Tensor] = {}
    try:
        with in_eval_mode(model), torch.no_grad():
            text_BT = _some_text(model, tokens)
            front_BP = torch.tensor(tokens).expand(len(text_BT), -1)
            tables = _position_tables(model, text_BT)
            expected = first_output(model, _batch(torch.cat([front_BP, text_BT], 1)))[:, len(tokens) :]
            found = _keys_and_values(model, tokens, rotary=not tables)
            kept = {table: table.weight for table in tables}
            for table in tables:
                _cut_(model, table, len(tokens))
            if any(len(key) != len(value) for key, value in found.values()):
                raise UnsupportedModelError(
                    f"{type(model).__name__} has grouped heads and gates of values, and gets no prefix; use gates of heads"
                )
            sizes = {name: (len(key), key.shape[-1], value.shape[-1]) for name, (key, value) in found.items()}
            place_prefix_(model, PrefixSpec(tokens=tokens, layers=sizes))
            for name, prefix in prefixes(model):
                prefix.key_GPD.copy_(found[name][0])
                prefix.value_GPD.copy_(found[name][1])
            if not same_up_to_rounding(expected, first_output(model, _batch(text_BT))):
                raise UnsupportedModelError(
                    f"{type(model).__name__} gives different outputs with constant keys and values than with the tokens in "
                    "front, so it gets no prefix"
                )
    except BaseException:
        _remove_prefix_(model, kept)
        if injected:
            remove_attention_(model)
        raise


def place_prefix_(model: PreTrainedModel, spec: PrefixSpec) -> None:
    """Put an empty prefix into every attention layer named, and record it in the config of each part that has its own."""
    like = next(parameter for parameter in model.parameters() if parameter.is_floating_point())
    for name, (heads, key_width, value_width) in spec.layers.items():
        core = _core(model, name)
        shape = (heads, len(spec.tokens))
        core.prefix = Prefix(like.new_zeros(*shape, key_width), like.new_zeros(*shape, value_width))
        core.prefix.train(core.training)
    written: set[int] = set()
    for name, part in model.named_modules():
        if isinstance(part, PreTrainedModel) and id(part.config) not in written:
            written.add(id(part.config))
            start = f"{name}." if name else ""
            inside = {layer[len(start) :]: sizes for layer, sizes in spec.layers.items() if layer.startswith(start)}
            if inside:
                update = {"prefix": spec.model_copy(update={"layers": inside})}
                record_changes_(part, changes_of(part).model_copy(update=update))


def _core(model: nn.Module, name: str) -> AttentionCore:
    try:
        core = model.get_submodule(name)._modules.get(CORE)
    except AttributeError:
        core = None
    if not isinstance(core, AttentionCore):
        raise CheckpointError(f"there is no attention layer {name!r} in {type(model).__name__} to give a prefix to")
    return core


def _remove_prefix_(model: PreTrainedModel, tables: dict[nn.Embedding, Tensor]) -> None:
    """As the model was before; `tables` are the learned positions it had."""
    for _, core in attention_cores(model):
        core.prefix = None
    for table, weight in tables.items():
        cut = len(weight) - len(table.weight)
        table.weight, table.num_embeddings = weight, len(weight)
        model.config.max_position_embeddings += cut
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and changes_of(part).prefix is not None:
            record_changes_(part, changes_of(part).model_copy(update={"prefix": None}))


def check_prefix(model: PreTrainedModel, tokens: tuple[int, ...]) -> None:
    """Raise if the model cannot have these tokens as its prefix."""
    name = type(model).__name__
    if (spec := changes_of(model).prefix) is not None:
        raise QuietformerError(
            f"{name} has a prefix already, the tokens {list(spec.tokens)}; add one prefix to the model it was made from"
        )
    words: Any = model.get_input_embeddings() if model.main_input_name == "input_ids" else None
    if model.config.is_encoder_decoder or not isinstance(words, nn.Embedding):
        raise UnsupportedModelError(f"{name} is no causal language model, and only they can have a prefix of tokens")
    if getattr(model.config.get_text_config(), "attention_chunk_size", None):
        raise UnsupportedModelError(
            f"{name} attends within chunks, which tokens in front would shift, so it gets no prefix"
        )
    if not tokens:
        raise QuietformerError("a prefix needs at least one token; pass their ids, e.g. [tokenizer.bos_token_id]")
    if wrong := [token for token in tokens if not isinstance(token, int) or not 0 <= token < words.num_embeddings]:
        raise QuietformerError(
            f"there is no token {wrong[0]!r} in {name}; a prefix is token ids from 0 to {words.num_embeddings - 1}"
        )
    most = getattr(model.config, "max_position_embeddings", None)
    if isinstance(most, int) and len(tokens) >= most:
        raise QuietformerError(
            f"a prefix of {len(tokens)} tokens leaves no room for text: {name} has {most} positions; use fewer tokens"
        )


def _some_text(model: PreTrainedModel, tokens: tuple[int, ...]) -> Tensor:
    """Two sequences of random tokens, as long as the positions left allow."""
    words: Any = model.get_input_embeddings()
    most = getattr(model.config, "max_position_embeddings", None)
    length = min(TRIED, most - len(tokens)) if isinstance(most, int) else TRIED
    return torch.randint(0, words.num_embeddings, (2, length), generator=torch.Generator().manual_seed(0))


def _batch(ids_BT: Tensor) -> Batch:
    return {"input_ids": ids_BT, "attention_mask": torch.ones_like(ids_BT)}


def _position_tables(model: PreTrainedModel, ids_BT: Tensor) -> list[nn.Embedding]:
    """Tables of learned positions: embeddings that are used and have a row for every position."""
    most = getattr(model.config, "max_position_embeddings", None)
    words = model.get_input_embeddings()
    steps = trace(model, lambda: run(model, _batch(ids_BT))).steps
    tables = {step.module for step in steps if step.kind == "embedding" and step.module is not words}
    return [t for t in tables if isinstance(t, nn.Embedding) and isinstance(most, int) and len(t.weight) >= most]


def _cut_(model: PreTrainedModel, table: nn.Embedding, length: int) -> None:
    """Take away the positions of the prefix; the rows before the first position, for padding, stay."""
    start = len(table.weight) - model.config.max_position_embeddings
    weight = table.weight
    left = torch.cat([weight[:start], weight[start + length :]])
    table.weight, table.num_embeddings = nn.Parameter(left, requires_grad=weight.requires_grad), len(left)
    model.config.max_position_embeddings -= length


def _keys_and_values(
    model: PreTrainedModel, tokens: tuple[int, ...], *, rotary: bool
) -> dict[str, tuple[Tensor, Tensor]]:
    """The keys and values of every layer for the prefix alone; at positions before zero where only distances matter."""
    given = _batch(torch.tensor([tokens]))
    if rotary:
        given["position_ids"] = torch.arange(-len(tokens), 0)[None]
    with _recorded(model) as found:
        run(model, given)
    return {name: (taps["key"], taps["value"]) for name, taps in found.items()}


@contextlib.contextmanager
def _recorded(model: PreTrainedModel) -> Iterator[dict[str, dict[str, Tensor]]]:
    """Keys and values of each attention layer as its core reads them."""
    found: dict[str, dict[str, Tensor]] = {}

    def keep(name: str, tap: str) -> Any:
        def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            found.setdefault(name, {}).setdefault(tap, output[0].detach().clone())

        return hook

    handles = [
        core.taps[tap].register_forward_hook(keep(name, tap))
        for name, core in attention_cores(model)
        for tap in ("key", "value")
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
