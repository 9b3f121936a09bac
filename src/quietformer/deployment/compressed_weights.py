"""A calibrated model as compressed-tensors, which vLLM and transformers load: int8 weights and the scales of their inputs.

The format knows linear layers and what they read. Products inside attention and embeddings stay in full precision.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import PreTrainedModel

from quietformer.attention.inject import attention_cores, remove_attention_
from quietformer.config.quantization import QuantSpec
from quietformer.config.recorded_changes import changes_of
from quietformer.config.spec_base import JsonObject
from quietformer.errors import QuietformerError, in_one_line
from quietformer.models.generation_settings import save_with_settings
from quietformer.models.silence_transformers import silenced_transformers
from quietformer.quant.affine import quantize
from quietformer.quant.insertion import quantizers, remove_quantizers_
from quietformer.quant.quantizer import Quantizer
from quietformer.transforms.smoothquant import MIGRATION

BITS, SHIFT = 8, 128
"""The format stores signed bytes; our integers are unsigned, with the zero point among them."""

AT_ONCE = 2**22
"""So many weights are turned into integers at a time."""


Pairs = dict[str, tuple[Quantizer, Quantizer]]
"""The quantizers of the weight and of the input of every linear layer that is written as integers, by its name."""


def write_compressed(calibrated: PreTrainedModel, folder: Path) -> JsonObject:
    """Write model.safetensors and return the `quantization_config` that describes it."""
    spec = describable(calibrated)
    plain: Any = copy.deepcopy(calibrated)
    remove_quantizers_(plain)
    if any(True for _ in attention_cores(plain)):
        remove_attention_(plain)
    pairs = integer_layers(calibrated, plain)
    with torch.no_grad():
        for name, (weight, read) in pairs.items():
            store_(plain.get_submodule(name), weight, read)
    try:
        with silenced_transformers():
            save_with_settings(plain, folder)
    except (SafetensorError, OSError) as error:
        raise QuietformerError(f"cannot write {folder}: {in_one_line(error)}") from error
    return scheme(spec, plain, pairs)


def integer_layers(calibrated: PreTrainedModel, plain: PreTrainedModel) -> Pairs:
    """Which linear layers are written as integers: those of blocks, so neither heads nor poolers.

    `plain` is the model without quantizers and without our attention.
    """
    placed = quantizers(calibrated)
    # vLLM builds poolers and heads as plain layers, which read no integers: only what is repeated block by block is.
    repeated = tuple(f"{name}." for name, module in calibrated.named_modules() if isinstance(module, nn.ModuleList))
    linear = {
        name
        for name, module in calibrated.named_modules()
        if isinstance(module, nn.Linear) and name.startswith(repeated)
    }
    pairs = {
        name: (placed[f"{name}:weight"], placed[f"{name}:input"])
        for name in sorted(linear)
        if f"{name}:weight" in placed and f"{name}:input" in placed
    }
    embeddings: Any = plain.get_input_embeddings()
    tied = set() if embeddings is None else {id(embeddings.weight)}
    pairs = {
        name: pair for name, pair in pairs.items() if id(plain.get_submodule(name)._parameters["weight"]) not in tied
    }
    _check(calibrated, pairs, describable(calibrated))
    return pairs


def describable(model: PreTrainedModel) -> QuantSpec:
    """How the model is quantized, where the format can say it and all else that was changed."""
    changes = changes_of(model)
    assert changes.quantized is not None
    spec, remedy = changes.quantized.spec, ""
    if changes.attention is not None and changes.attention.label not in ("softmax", "softmax()"):
        remedy = f"it has no attention like {changes.attention.label}, only the model's own"
    elif changes.patch_norm is not None or changes.gained_norms or changes.gained_activations:
        remedy = "it has no norms with gains; export without --balance"
    elif changes.prefix is not None:
        remedy = "it has no place for the keys and values of a prefix; export the model without one"
    elif any(hasattr(module, MIGRATION) for module in model.modules()):
        remedy = "it has no scaled inputs; pass --no-search"
    elif (spec.weight_bits, spec.activation_bits) != (BITS, BITS) or not spec.weight_symmetric:
        remedy = f"it is written as W8A8 with symmetric weights, not as {spec.label}"
    elif spec.placement.everywhere:
        remedy = "it quantizes what linear layers read; pass --placement linear"
    if remedy:
        raise QuietformerError(f"--for compressed-tensors: {remedy}")
    return spec


def _check(model: PreTrainedModel, pairs: Pairs, spec: QuantSpec) -> None:
    if not pairs:
        raise QuietformerError(
            f"--for compressed-tensors: {type(model).__name__} has no block with a linear layer that is quantized"
        )
    for name, pair in pairs.items():
        for one in pair:
            if one.grid.bits != BITS:
                raise QuietformerError(
                    f"--for compressed-tensors: {one.site} has {one.grid.bits} bits; only 8 can be written"
                )
        if pair[1].grid.passes is not None:
            raise QuietformerError(
                f"--for compressed-tensors: {name} is called several times and has a range for each; pass --no-per-pass"
            )
        if (pair[0].grid.axis is not None) != spec.per_channel or pair[0].grid.axis not in (None, 0):
            raise QuietformerError(
                f"--for compressed-tensors: {name} has scales that the others have not; export without --keep"
            )


def store_(module: nn.Module, weight: Quantizer, read: Quantizer) -> None:
    """Put the integers in the place of the weight, and the scales beside them."""
    floating: Any = module._parameters["weight"]
    module._parameters["weight"] = nn.Parameter(_integers(floating, weight), requires_grad=False)
    scale = weight.scale.reshape(-1, 1) if weight.grid.axis is not None else weight.scale.reshape(1)
    module.register_buffer("weight_scale", scale.clone())
    if read.grid.token:
        return
    module.register_buffer("input_scale", read.scale.reshape(1).clone())
    if not read.grid.symmetric:
        module.register_buffer("input_zero_point", (read.zero_point - SHIFT).reshape(1).to(torch.int8))


def _integers(floating: Tensor, weight: Quantizer) -> Tensor:
    """The signed bytes of a weight, made of some rows at a time: what is between would take four times the weight's memory."""
    written = torch.empty(floating.shape, dtype=torch.int8, device=floating.device)
    step = max(1, AT_ONCE // floating[0].numel())
    for rows in (slice(first, first + step) for first in range(0, len(floating), step)):
        scale, zero_point = weight.scale, weight.zero_point
        if weight.grid.axis is not None:
            scale, zero_point = scale[rows], zero_point[rows]
        integers = quantize(floating[rows], scale, zero_point, bits=BITS, axis=weight.grid.axis)
        written[rows] = (integers - SHIFT).to(torch.int8)
    return written


def scheme(spec: QuantSpec, model: PreTrainedModel, pairs: Pairs) -> JsonObject:
    """The `quantization_config` of a model with these layers as integers."""
    left = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and name not in pairs]
    common: JsonObject = {"num_bits": BITS, "type": "int"}
    token = spec.granularity == "token"
    weights: JsonObject = {"symmetric": True, "strategy": "channel" if spec.per_channel else "tensor", "dynamic": False}
    inputs: JsonObject = {
        "symmetric": token or spec.activation_symmetric,
        "strategy": "token" if token else "tensor",
        "dynamic": token,
    }
    group: JsonObject = {"targets": ["Linear"], "weights": common | weights, "input_activations": common | inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": [*left],
    }
