"""Are the outliers load-bearing? Set them to zero or to their mean, and see what the model loses."""

# B sequences, T tokens, d features

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from quietformer.analysis.output_quality import pooled
from quietformer.analysis.recorder import Passes, with_cores
from quietformer.architectures.forward import Batch, fitting, token_mask
from quietformer.architectures.layout import Block, Watch, find_blocks, in_passes
from quietformer.attention.inject import attention_cores
from quietformer.models.pooling import pooling_of
from quietformer.results.inspect import InspectReport, Intervention, TouchedDimensions

MASKED_SHARE = 0.15


def intervene(
    model: PreTrainedModel, batches: list[Batch], found: InspectReport, mask_token: int | None = None
) -> list[Intervention]:
    """What each intervention does to the loss, or for a model without a head to its embeddings."""
    batches = [fitting(model, batch) for batch in batches]
    score, unit = _score(model, mask_token)
    before = score(model, batches)
    targets = _targets(found)
    with torch.no_grad():
        blocks = in_passes(find_blocks(model), lambda: model(**batches[0]))
    rows = []
    for how in ("zero", "mean"):
        if targets:
            with _dimensions_set(model, blocks, targets, how):
                rows.append(_row(f"outlier dimensions set to {how}", before, score(model, batches), unit, targets))
            random = {key: _others(dimensions, found.model.width) for key, dimensions in targets.items()}
            with _dimensions_set(model, blocks, random, how):
                rows.append(_row(f"as many other dimensions set to {how}", before, score(model, batches), unit, random))
    if found.heads:
        with with_cores(model) as seen:
            if seen:
                with _sink_values_zeroed(model):
                    rows.append(_row("values of the first token set to zero", before, score(model, batches), unit, {}))
    return rows


def _row(what: str, before: float, after: float, unit: str, targets: dict[tuple[str, int], list[int]]) -> Intervention:
    touched = [
        TouchedDimensions(site=site, layer=layer, dimensions=dimensions)
        for (site, layer), dimensions in targets.items()
    ]
    return Intervention(what=what, measure=unit, before=before, after=after, touched=touched)


def _targets(found: InspectReport) -> dict[tuple[str, int], list[int]]:
    """The few dimensions of FFN outputs that hold the outliers, where they are few."""
    return {
        (row.site, row.layer): row.few_dimensions
        for row in found.outliers
        if row.site == "ffn_output" and 0 < len(row.few_dimensions) <= 8
    }


def _others(dimensions: list[int], width: int | None) -> list[int]:
    """As many dimensions that hold no outliers: what setting any dimension would cost."""
    width = width or max(dimensions) + 2
    free = [dimension for dimension in range(width) if dimension not in dimensions]
    return [free[(index + 1) * len(free) // (len(dimensions) + 1)] for index in range(len(dimensions))]


@contextlib.contextmanager
def _dimensions_set(
    model: nn.Module, blocks: list[Block], targets: dict[tuple[str, int], list[int]], how: str
) -> Iterator[None]:
    handles = []

    passes = Passes(model, blocks)

    def setter(watch: Watch) -> Callable[..., Any]:
        def hook(_: nn.Module, args: Any, output: Any) -> Any:
            dimensions = targets.get((watch.site, passes.layer(watch.layer)))
            if dimensions is None:
                return output
            tensor = output[0] if isinstance(output, tuple) else output
            changed = tensor.clone()
            # The mean over tokens keeps what the dimension adds to every token and takes its spikes away.
            mean = tensor[..., dimensions].flatten(0, -2).mean(0)
            changed[..., dimensions] = 0.0 if how == "zero" else mean
            return (changed, *output[1:]) if isinstance(output, tuple) else changed

        return hook

    try:
        for watch in (watch for block in blocks for watch in block.watches()):
            if watch.site in {site for site, _ in targets} and watch.end == "output":
                handles.append(watch.module.register_forward_hook(setter(watch)))
        yield
    finally:
        for handle in (*handles, *passes.handles):
            handle.remove()


@contextlib.contextmanager
def _sink_values_zeroed(model: nn.Module) -> Iterator[None]:
    """The first token is where heads park their weight; without its values, what they get there is exactly nothing."""

    def hook(_: nn.Module, args: Any, output: Tensor) -> Tensor:
        changed = output.clone()
        changed[:, :, 0] = 0.0
        return changed

    handles = [core.taps["value"].register_forward_hook(hook) for _, core in attention_cores(model)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


Score = Callable[[PreTrainedModel, list[Batch]], float]


def _score(model: PreTrainedModel, mask_token: int | None) -> tuple[Score, str]:
    """Perplexity for a model with a language head, else how close embeddings stay to those of the untouched model."""
    name = type(model).__name__
    if name.endswith(("ForCausalLM", "LMHeadModel")):
        return _causal_loss, "loss per token"
    if name.endswith("ForMaskedLM") and mask_token is not None:
        return lambda model, batches: _masked_loss(model, batches, mask_token), "loss per masked token"
    return _EmbeddingDistance(), "1 - cosine of embeddings to the untouched model"


@torch.no_grad()
def _causal_loss(model: PreTrainedModel, batches: list[Batch]) -> float:
    total, count = 0.0, 0
    for batch in batches:
        logits = model(**batch).logits[:, :-1].float()
        targets = batch["input_ids"][:, 1:]
        kept = batch["attention_mask"][:, 1:].bool()
        total += float(nn.functional.cross_entropy(logits[kept], targets[kept], reduction="sum"))
        count += int(kept.sum())
    return total / max(count, 1)


@torch.no_grad()
def _masked_loss(model: PreTrainedModel, batches: list[Batch], mask_token: int) -> float:
    total, count = 0.0, 0
    for number, batch in enumerate(batches):
        # Masks fixed by the batch's number: before and after are asked the same questions.
        chance = torch.rand(batch["input_ids"].shape, generator=torch.Generator().manual_seed(number))
        chosen = (chance < MASKED_SHARE) & batch["attention_mask"].bool()
        corrupted = batch["input_ids"].masked_fill(chosen, mask_token)
        logits = model(**(batch | {"input_ids": corrupted})).logits.float()
        total += float(nn.functional.cross_entropy(logits[chosen], batch["input_ids"][chosen], reduction="sum"))
        count += int(chosen.sum())
    return total / max(count, 1)


class _EmbeddingDistance:
    """Remembers the embeddings of the first call, which is the untouched model's."""

    def __init__(self) -> None:
        self.reference: Tensor | None = None

    @torch.no_grad()
    def __call__(self, model: PreTrainedModel, batches: list[Batch]) -> float:
        embeddings = torch.cat([_embedding(model, batch) for batch in batches])
        if self.reference is None:
            self.reference = embeddings
        return float(1 - nn.functional.cosine_similarity(embeddings, self.reference).mean())


def _embedding(model: PreTrainedModel, batch: Batch) -> Tensor:
    output = model(**batch)
    hidden: Tensor = (output["last_hidden_state"] if "last_hidden_state" in output else output["logits"]).float()
    return hidden if hidden.dim() == 2 else pooled(hidden, token_mask(batch, hidden.shape[1]), pooling_of(model))
