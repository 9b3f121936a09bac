"""The tensors that SmoothQuant, as published, quantizes."""

from __future__ import annotations

from collections.abc import Iterator

from transformers import PreTrainedModel

from quietformer.architectures.dataflow import Step, Trace, trace
from quietformer.architectures.forward import Batch, in_eval_mode, run
from quietformer.quant.insertion import quantizers
from quietformer.quant.quantizer import Quantizer


def published_sites(model: PreTrainedModel, example: Batch) -> set[str]:
    """The tensors that SmoothQuant quantizes: weights and inputs of projections, and inputs of attention's products."""
    few = {name: tensor[:2] for name, tensor in example.items()}
    placed = quantizers(model)
    with in_eval_mode(model):
        seen = trace(model, lambda: run(model, few))
    wanted = {site for site in placed if site.rpartition(":")[2] in ("query", "key", "value", "probabilities")}
    for step in seen.steps:
        if step.kind == "projection" and f"{step.site}:weight" in placed:
            wanted |= {f"{step.site}:weight", *_input_sites(seen, step)}
    return wanted & set(placed)


def _input_sites(seen: Trace, projection: Step) -> Iterator[str]:
    """The quantizers of a projection's input: its own, or those of the steps that produced the tensor."""
    for source in projection.sources:
        for _, origin in seen.origins(source):
            yield origin.module.site if isinstance(origin.module, Quantizer) else f"{origin.site}:output"
