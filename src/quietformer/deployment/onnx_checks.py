"""Whether an exported graph computes what the model and its simulation do."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from quietformer.analysis.output_quality import row_cosines
from quietformer.architectures.forward import Batch, model_inputs, token_mask, token_rows
from quietformer.deployment.cache_names import MASK, POSITIONS
from quietformer.deployment.runtime_model import RuntimeModel
from quietformer.deployment.seq2seq_model import Seq2SeqModel
from quietformer.errors import QuietformerError
from quietformer.models.pooling import Pooling, pooling_of
from quietformer.quant.calibration import full_precision
from quietformer.results.export import Agreement


def same_everywhere(signed: RuntimeModel, unsigned: RuntimeModel, batches: list[Batch]) -> bool:
    """Processors without VNNI add pairs of products in 16 bits, which signed weights can make overflow in silence."""
    return all(torch.equal(signed(batch)[signed.output], unsigned(batch)[unsigned.output]) for batch in batches)


def _torch(model: PreTrainedModel, batch: Batch, output: str) -> Tensor:
    with torch.no_grad():
        inputs = {name: tensor.to(model.device) for name, tensor in model_inputs(batch).items()}
        result: Tensor = getattr(model(**inputs), output)
    return result.float().cpu()


def fp32_difference(model: PreTrainedModel, runtime: RuntimeModel, batches: list[Batch], output: str) -> float:
    """Largest difference of fp32 ONNX from torch, relative to the largest value."""
    worst = 0.0
    with full_precision(model):
        for batch in batches[:4]:
            ours = token_rows(batch, _torch(model, batch, output))
            largest = float(ours.abs().max())
            if not 0 < largest < math.inf:
                raise QuietformerError(
                    f"{type(model).__name__} gives only zeros, or numbers that are not finite; its weights may be damaged"
                )
            ways = [runtime(batch)[output], *([read_in_two_steps(runtime, batch)] if runtime.has_cache else [])]
            for found in ways:
                difference = float((ours - token_rows(batch, found)).abs().max()) / largest
                worst = max(worst, math.inf if math.isnan(difference) else difference)
    return worst


def read_in_two_steps(runtime: RuntimeModel, batch: Batch) -> Tensor:
    """The output where the second half of every text is read with the keys and values of the first."""
    if isinstance(runtime, Seq2SeqModel):
        return torch.from_numpy(runtime.read_in_two_steps(batch))
    feeds = runtime.feeds(batch)
    length = feeds["input_ids"].shape[1]
    steps, found = runtime.steps(), []
    for begin, end in ((0, length // 2), (length // 2, length)):
        places = {"input_ids": slice(begin, end), MASK: slice(0, end), POSITIONS: slice(begin, end)}
        given = {name: feeds[name][:, place] for name, place in places.items() if name in feeds}
        found.append(torch.from_numpy(steps.read({name: np.ascontiguousarray(one) for name, one in given.items()})))
    return torch.cat(found, 1)


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
