"""Replaces the attention of a model by Quietformer's, and restores it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.utils.output_capturing import _active_collector

from quietformer.attention.adapters import find_swappable
from quietformer.attention.adapters.class_swap import Adapter
from quietformer.attention.call_settings import CoreOptions
from quietformer.attention.core import AttentionCore, LayerCall
from quietformer.attention.find_layers import (
    CORE,
    AttentionLayer,
    check_eager_parity,
    find_layers,
    find_other_attention,
)
from quietformer.attention.masks import late_mask
from quietformer.config.attention import AttentionSpec
from quietformer.config.recorded_changes import METHOD, changes_of, record_changes_, refuse_foreign_quantization
from quietformer.errors import QuietformerError, QuietformerWarning, UnsupportedModelError

ENCODER_STATES = ("key_value_states", "encoder_hidden_states", "cross_attention_states")
"""Argument names of the encoder states in cross-attention layers."""


def apply_attention_(model: nn.Module, spec: AttentionSpec) -> None:
    """Replace the attention of every layer, in place. Applying again keeps learned state where the spec did not change.

    Raises UnsupportedModelError for a model whose attention cannot be replaced, and leaves it unchanged.
    """
    if not isinstance(spec, AttentionSpec):
        raise QuietformerError(
            f"spec must be an AttentionSpec, got {type(spec).__name__}; write AttentionSpec(normalizer=...)"
        )
    _check_module(model)
    layers, swappable = find_layers(model), find_swappable(model)
    _check_model(model, layers, [adapter for adapter, _ in swappable])
    _check_not_quantized(model)
    _check_no_prefix(model, spec)
    for layer in layers:
        _check_parity(layer)
    attaching = [(_attach_, layer) for layer in layers] + [(adapter.attach_, layer) for adapter, layer in swappable]
    cores = [_core_for(layer, spec) for _, layer in attaching]
    for (_, layer), core in zip(attaching, cores, strict=True):
        _keep_learned_(core, layer.module._modules.get(CORE))
    if isinstance(model, PreTrainedModel):
        _own_configs_(model)
        if layers:
            _set_implementation_(model)
    for (attach_, layer), core in zip(attaching, cores, strict=True):
        attach_(layer.module, core)
    for part in model.modules():
        # Parts such as the text model of CLIP are also saved and loaded on their own, so each one records the change.
        if isinstance(part, PreTrainedModel) and any(True for _ in attention_cores(part)):
            record_changes_(part, changes_of(part).model_copy(update={"attention": spec}))
    if others := find_other_attention(model):
        shown = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        warnings.warn(
            f"not replaced, because they do not use transformers' attention interface: {shown}",
            QuietformerWarning,
            stacklevel=2,
        )


def remove_attention_(model: nn.Module) -> None:
    """Remove every core and restore the model's own attention."""
    if not any(True for _ in attention_cores(model)):
        raise QuietformerError(f"{type(model).__name__} has no Quietformer attention to remove")
    _check_not_quantized(model)
    _check_no_prefix(model, None)
    for adapter, layer in find_swappable(model):
        adapter.detach_(layer.module)
    for module in model.modules():
        if CORE in module._modules:
            _detach_(module)
    for part in model.modules():  # the attention may have been applied to a part of this model only
        for config, implementation in part.__dict__.pop("_quietformer_previous", []):
            config._attn_implementation_internal = implementation
        if isinstance(part, PreTrainedModel):
            record_changes_(part, changes_of(part).model_copy(update={"attention": None}))


def attention_cores(model: nn.Module) -> Iterator[tuple[str, AttentionCore]]:
    """The name of each replaced layer and its core."""
    _check_module(model)
    for name, module in model.named_modules():
        if isinstance(core := module._modules.get(CORE), AttentionCore):
            yield name, core


def advance_warmup_(model: nn.Module, steps: int = 1) -> None:
    """Advance the warm-up of every normalizer; call it after each optimizer step."""
    for _, core in attention_cores(model):
        core.normalizer.advance_(steps)


def quiet_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function that transformers calls; keyword arguments not read here serve kernels that build masks."""
    core = module._modules.get(CORE)
    if not isinstance(core, AttentionCore):
        raise UnsupportedModelError(
            f"{type(module).__name__} is configured for Quietformer attention but has none; "
            "load its folder with quietformer.load, or call quietformer.apply_attention_"
        )
    options = CoreOptions(
        scaling=kwargs.get("scaling"),
        dropout=kwargs.get("dropout", 0.0),
        softcap=kwargs.get("softcap"),
        weights=bool(kwargs.get("output_attentions")) or core.weights_asked(),
    )
    output: tuple[Tensor, Tensor | None] = core(query, key, value, attention_mask, kwargs.get("position_bias"), options)
    return output


def _check_module(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise QuietformerError(f"{type(model).__name__} is not a model; open a name with open_model first")


def _check_model(model: nn.Module, layers: list[AttentionLayer], adapters: list[Adapter]) -> None:
    name = type(model).__name__
    bare = all(adapter.bare for adapter in adapters)
    if isinstance(model, PreTrainedModel):
        refuse_foreign_quantization(model)
        if any(getattr(config, "output_attentions", False) for config in all_configs(model)):
            raise UnsupportedModelError(
                f"the config of {name} has output_attentions=True, which transformers saves for its eager attention only; set "
                "config.output_attentions = False, and pass output_attentions=True where you call the model"
            )
    elif layers or not bare or any(isinstance(module, PreTrainedModel) for module in model.modules()):
        raise UnsupportedModelError(
            f"{name} is not a transformers model; apply to the transformers model inside, before wrapping it"
        )
    elif not adapters:
        raise UnsupportedModelError(f"{name} is neither a transformers model nor a timm model with timm's Attention")
    if not layers and not adapters:
        own = find_other_attention(model)
        why = f"it computes attention itself in {own[0]}" if own else "it has no attention layers"
        raise UnsupportedModelError(f"{name} does not use transformers' attention interface: {why}")


def _check_not_quantized(model: nn.Module) -> None:
    """Raise if the model is quantized: its quantizers are calibrated for its current attention."""
    if any(not isinstance(tap, nn.Identity) for _, core in attention_cores(model) for tap in core.taps.values()):
        raise QuietformerError(
            f"{type(model).__name__} is quantized; remove the quantizers with quietformer.dequantize_ first"
        )


def _check_no_prefix(model: nn.Module, spec: AttentionSpec | None) -> None:
    """Raise if the model has a prefix and another attention: its keys and values were computed with this one."""
    if any(core.prefix is not None and core.spec != spec for _, core in attention_cores(model)):
        raise QuietformerError(
            f"{type(model).__name__} has a prefix, which was computed with its attention; change the attention of the model "
            "without prefix, then add the prefix"
        )


def _check_parity(layer: AttentionLayer) -> None:
    with torch.device("cpu"):  # the comparison needs real numbers, even while transformers builds on the meta device
        check_eager_parity(layer, AttentionCore(AttentionSpec(), layer.geometry).eval())


def _core_for(layer: AttentionLayer, spec: AttentionSpec) -> AttentionCore:
    like = next((p for p in layer.module.parameters() if p.is_floating_point()), None)
    if like is None:
        return AttentionCore(spec, layer.geometry, input_name=layer.input_name).train(layer.module.training)
    with torch.device(like.device):
        core = AttentionCore(spec, layer.geometry, input_name=layer.input_name)
    return core.to(like.dtype).train(layer.module.training)


def _set_implementation_(model: PreTrainedModel) -> None:
    """Point every config of the model at our attention function, including the configs of its parts.

    Not `set_attn_implementation`, which skips configs that a part has copied and only logs it.
    """
    for config in all_configs(model):
        config._attn_implementation_internal = METHOD


def _own_configs_(model: PreTrainedModel) -> None:
    """Give the model its own config objects: two models may share one, and only this model is changed."""
    if "_quietformer_previous" in model.__dict__:
        return
    copies: dict[int, Any] = {}
    for config in all_configs(model):
        copy.deepcopy(config, copies)
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, PreTrainedConfig) and id(value) in copies:
                vars(module)[name] = copies[id(value)]
    previous = [(config, config._attn_implementation) for config in all_configs(model)]
    model.__dict__["_quietformer_previous"] = previous


def all_configs(model: PreTrainedModel) -> list[Any]:
    found: dict[int, Any] = {}
    waiting = [getattr(module, "config", None) for module in model.modules()]
    while waiting:
        config = waiting.pop()
        if isinstance(config, PreTrainedConfig) and id(config) not in found:
            found[id(config)] = config
            waiting.extend(getattr(config, name, None) for name in config.sub_configs)
    return list(found.values())


def _keep_learned_(core: AttentionCore, old: nn.Module | None) -> None:
    """Copy the learned state of the normalizer and the gate where their spec stays the same."""
    if isinstance(old, AttentionCore):
        if old.spec.normalizer == core.spec.normalizer:
            core.normalizer.load_state_dict(old.normalizer.state_dict())
        if old.gating is not None and core.gating is not None and old.spec.gate == core.spec.gate:
            core.gating.load_state_dict(old.gating.state_dict())
        core.prefix = old.prefix


def _config(module: nn.Module) -> Any:
    return module.config


# Register the mask function too: without it a causal model silently stops being causal.
AttentionInterface.register(METHOD, quiet_attention)

AttentionMaskInterface.register(METHOD, late_mask)


# Hooks are plain functions that find the core through the module, so that copied and pickled models keep working.
def _before_layer(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    implementation = _config(module)._attn_implementation
    if implementation != METHOD:
        raise QuietformerError(
            f"the attention implementation was set to {implementation!r} after Quietformer's was applied, "
            "which would run vanilla attention; call quietformer.remove_attention_ first, or do not set it"
        )
    core = module._modules[CORE]
    assert isinstance(core, AttentionCore)
    inputs = args[0] if args else kwargs.get(core.input_name)
    cross = next((kwargs[name] for name in ENCODER_STATES if isinstance(kwargs.get(name), Tensor)), None)
    core.begin(
        LayerCall(
            inputs=inputs if core.gating is not None else None,
            cached=any(isinstance(value, Cache) for value in (*args, *kwargs.values())),
            cross_length=None if cross is None else cross.shape[1],
            weights=_weights_asked(module, args, kwargs),
        )
    )


def _weights_asked(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the caller, the config or transformers' output collector asks for the probabilities."""
    collector: Any = _active_collector
    collected = collector.get() or {}
    return (
        bool(kwargs.get("output_attentions"))
        or any(given is True for given in args)  # older layers take it as a positional argument
        or bool(getattr(_config(module), "output_attentions", False))
        or any("attentions" in name for name in collected)
    )


def _after_layer(module: nn.Module, args: Any, output: Any) -> None:
    core = module._modules[CORE]
    assert isinstance(core, AttentionCore)
    core.end()


def _attach_(module: nn.Module, core: AttentionCore) -> None:
    _detach_(module)
    module.add_module(CORE, core)
    module.register_forward_pre_hook(_before_layer, with_kwargs=True, prepend=True)
    module.register_forward_hook(_after_layer, always_call=True)


def _detach_(module: nn.Module) -> None:
    """Remove the core and our hooks from one layer."""
    module._modules.pop(CORE, None)
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        for key in [key for key, hook in hooks.items() if hook in (_before_layer, _after_layer)]:
            del hooks[key]
            module._forward_pre_hooks_with_kwargs.pop(key, None)
            module._forward_hooks_always_called.pop(key, None)
