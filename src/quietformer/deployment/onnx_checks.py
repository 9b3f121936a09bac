"""Whether an exported graph computes what the model and its simulation do."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from quietformer.analysis.output_quality import row_cosines
from quietformer.architectures.forward import Batch, model_inputs, token_mask, token_rows
from quietformer.deployment.onnx_runtime import OnnxModel
from quietformer.deployment.runtime_model import RuntimeModel
from quietformer.models.pooling import Pooling, pooling_of
from quietformer.quant.calibration import full_precision
from quietformer.results.export import Agreement


def same_everywhere(one: Path, other: Path, batches: list[Batch]) -> bool:
    """Processors without VNNI add pairs of products in 16 bits, which signed weights can make overflow in silence."""
    signed, unsigned = OnnxModel(one), OnnxModel(other)
    return all(torch.equal(signed(batch)[signed.output], unsigned(batch)[unsigned.output]) for batch in batches)


def _torch(model: PreTrainedModel, batch: Batch, output: str) -> Tensor:
    with torch.no_grad():
        inputs = {name: tensor.to(model.device) for name, tensor in model_inputs(batch).items()}
        result: Tensor = getattr(model(**inputs), output)
    return result.float().cpu()


def fp32_difference(model: PreTrainedModel, path: Path, batches: list[Batch], output: str) -> float:
    """Largest difference of fp32 ONNX from torch, relative to the largest value."""
    runtime, worst = OnnxModel(path), 0.0
    with full_precision(model):
        for batch in batches[:4]:
            ours = token_rows(batch, _torch(model, batch, output))
            theirs = token_rows(batch, runtime(batch)[output])
            difference = float((ours - theirs).abs().max() / ours.abs().max())
            worst = max(worst, math.inf if math.isnan(difference) else difference)
    return worst


def agreement_with_simulation(
    model: PreTrainedModel, runtimes: list[RuntimeModel], batches: list[Batch], output: str
) -> list[Agreement]:
    """How close each runtime is to the simulation."""
    pooling = pooling_of(model)
    found = [_Closeness(pooling) for _ in runtimes]
    for batch in batches:
        ours = _torch(model, batch, output)
        for runtime, closeness in zip(runtimes, found, strict=True):
            closeness.add(batch, ours, runtime(batch)[output])
    return [closeness.result(embeds=output == "last_hidden_state") for closeness in found]


@dataclass
class _Closeness:
    """Cosines of tokens and of embeddings, and shares of equal values, batch by batch."""

    pooling: Pooling
    tokens: list[Tensor] = field(default_factory=list)
    embeddings: list[Tensor] = field(default_factory=list)
    equal: list[Tensor] = field(default_factory=list)

    def add(self, batch: Batch, ours: Tensor, theirs: Tensor) -> None:
        one, other = token_rows(batch, ours), token_rows(batch, theirs)
        self.tokens.append(row_cosines(one, other))
        self.equal.append(((one - other).abs() <= 1e-5 * one.abs().max()).double().mean()[None])
        if ours.dim() > 2:
            mask = token_mask(batch, ours.shape[1]) if ours.dim() == 3 else None
            one, other = (self.pooling(states.double(), mask) for states in (ours, theirs))
            self.embeddings.append(row_cosines(one, other))

    def result(self, *, embeds: bool) -> Agreement:
        return Agreement(
            cosine=float(torch.cat(self.tokens).mean()),
            embedding_cosine=float(torch.cat(self.embeddings).mean()) if embeds and self.embeddings else None,
            equal=float(torch.cat(self.equal).mean()),
        )
