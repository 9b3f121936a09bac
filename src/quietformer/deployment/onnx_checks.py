"""Whether an exported graph computes what the model and its simulation do."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from quietformer.architectures.forward import Batch, model_inputs, token_mask
from quietformer.deployment.onnx_runtime import OnnxModel
from quietformer.deployment.runtime_model import RuntimeModel
from quietformer.quant.calibration import full_precision
from quietformer.results.export import Agreement


def same_everywhere(one: Path, other: Path, batches: list[Batch]) -> bool:
    """Processors without VNNI add pairs of products in 16 bits, which signed weights can make overflow in silence."""
    signed, unsigned = OnnxModel(one), OnnxModel(other)
    return all(torch.equal(signed(batch)[signed.output], unsigned(batch)[unsigned.output]) for batch in batches)


def _valid(batch: Batch, output: Tensor) -> Tensor:
    """Rows of the output that belong to tokens rather than to padding."""
    mask = token_mask(batch, output.shape[1]) if output.dim() == 3 else None
    return output.reshape(-1, output.shape[-1]) if mask is None else output[mask.bool()]


def _torch(model: PreTrainedModel, batch: Batch, output: str) -> Tensor:
    with torch.no_grad():
        inputs = {name: tensor.to(model.device) for name, tensor in model_inputs(batch).items()}
        result: Tensor = getattr(model(**inputs), output)
    return _valid(batch, result.float().cpu())


def fp32_difference(model: PreTrainedModel, path: Path, batches: list[Batch], output: str) -> float:
    """Largest difference of fp32 ONNX from torch, relative to the largest value."""
    runtime, worst = OnnxModel(path), 0.0
    with full_precision(model):
        for batch in batches[:4]:
            ours = _torch(model, batch, output)
            theirs = _valid(batch, runtime(batch)[output])
            difference = float((ours - theirs).abs().max() / ours.abs().max())
            worst = max(worst, math.inf if math.isnan(difference) else difference)
    return worst


def agreement_with_simulation(
    model: PreTrainedModel, runtimes: list[RuntimeModel], batches: list[Batch], output: str
) -> list[Agreement]:
    """Of each runtime the mean cosine to the simulation over tokens, and the share of values equal to 1e-5 of the largest."""
    cosines: list[list[Tensor]] = [[] for _ in runtimes]
    same: list[list[Tensor]] = [[] for _ in runtimes]
    for batch in batches:
        ours = _torch(model, batch, output)
        for place, runtime in enumerate(runtimes):
            theirs = _valid(batch, runtime(batch)[output])
            cosines[place].append(torch.nn.functional.cosine_similarity(ours.double(), theirs.double(), dim=-1))
            same[place].append(((ours - theirs).abs() <= 1e-5 * ours.abs().max()).double().mean()[None])
    return [
        Agreement(cosine=float(torch.cat(close).mean()), equal=float(torch.cat(equal).mean()))
        for close, equal in zip(cosines, same, strict=True)
    ]
