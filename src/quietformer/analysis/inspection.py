"""Everything there is to say about a model's outliers, from one pass over some batches."""

# B sequences, T tokens, d features

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from quietformer.analysis.activation_statistics import RunningMetrics
from quietformer.analysis.attention_pictures import AttentionPictures
from quietformer.analysis.heads import MEASURES, HeadTally, head_measures, mean_gate
from quietformer.analysis.outliers import OutlierTally, TokenNames
from quietformer.analysis.recorder import AttentionRecord, record, visible_pairs, with_cores
from quietformer.analysis.verdict import verdict
from quietformer.architectures.forward import Batch, check_batches, check_model, in_eval_mode, run
from quietformer.architectures.layout import (
    Block,
    Watch,
    final_norm,
    find_blocks,
    find_residuals,
    headline,
    in_passes,
    is_post_norm,
    layers_of,
)
from quietformer.architectures.layout import Headline as HeadlineSites
from quietformer.config.recorded_changes import changes_of
from quietformer.errors import QuietformerError
from quietformer.models.check_folder import check_finite
from quietformer.progress import SILENT, Progress
from quietformer.results.data import DataInfo
from quietformer.results.inspect import Headline, InspectReport, OutlierMetrics, Place, TensorMetrics
from quietformer.results.labels import printable
from quietformer.results.model import ModelInfo

TALLIED = (
    "attention_output", "attention_residual", "attention_norm", "ffn_output", "ffn_residual", "ffn_norm", "block_output"
)  # fmt: skip


class Inspection:
    """Running metrics of one model over batches."""

    def __init__(self, names: TokenNames | None = None, picture_sequences: int = 2) -> None:
        self.names = names or TokenNames(None)
        self.sites: dict[tuple[str, int], RunningMetrics] = {}
        self.tallies: dict[tuple[str, int], OutlierTally] = {}
        self.heads: dict[int, HeadTally] = {}
        self.pictures = AttentionPictures(picture_sequences)
        self.sequences = 0
        self.tokens = 0
        self._valid: Tensor | None = None
        self._token_ids: Tensor | None = None

    def begin(self, batch: Batch) -> None:
        self._valid = batch["attention_mask"].bool().cpu() if "attention_mask" in batch else None
        self._token_ids = batch["input_ids"].cpu() if "input_ids" in batch else None
        self.sequences += _sequences_in(batch)
        self.tokens += int(self._valid.sum()) if self._valid is not None else 0
        self.pictures.begin(self._token_ids, self._valid, batch.get("pixel_values"))

    def on_site(self, site: str, layer: int, x: Tensor) -> None:
        x_BTd = self._by_sequence(x.cpu())
        if x_BTd.dim() != 3:
            return
        valid = self._valid if self._valid is not None and self._valid.shape == x_BTd.shape[:2] else None
        outlier_BTd = torch.zeros_like(x_BTd, dtype=torch.bool)
        for row, values in enumerate(x_BTd):
            kept = slice(None) if valid is None or bool(valid[row].all()) else valid[row]
            outlier_BTd[row, kept] = self._add(site, layer, values[kept])
        if site in TALLIED and bool(outlier_BTd.any()):
            tally = self.tallies.setdefault((site, layer), OutlierTally(x_BTd.shape[-1]))
            tally.add(x_BTd, outlier_BTd, self._token_ids)
        if site in ("ffn_output", "ffn_residual"):
            self.pictures.on_site(site, layer, outlier_BTd)

    def on_attention(self, layer: int, seen: AttentionRecord) -> None:
        pairs = visible_pairs(seen, self._valid)
        queries = pairs.any(-1)  # (B, 1, Q)
        self._add_masked("query", layer, seen.query, queries[..., None])
        self._add_masked("key", layer, seen.key, pairs.any(-2)[..., None])
        self._add_masked("value", layer, seen.value_BHKD, pairs.any(-2)[..., None])
        self._add_masked("scores", layer, seen.scores, pairs)
        self._add_masked("probabilities", layer, seen.probabilities_BHQK, pairs)
        by_query = queries[:, 0, :, None, None]
        self._add_masked("context", layer, seen.context_BQHD, by_query)
        if seen.gate is not None:
            by_key = pairs.any(-2)[:, 0, :, None, None]
            self._add_masked("gate", layer, seen.gate, by_key if seen.gate_of_values else by_query)
        self.on_heads(layer, seen)
        self.pictures.on_attention(layer, seen)

    def on_heads(self, layer: int, seen: AttentionRecord) -> None:
        pairs = visible_pairs(seen, self._valid)
        gated = seen.gate is not None
        tally = self.heads.setdefault(layer, HeadTally.empty(seen.probabilities_BHQK.shape[1], gated=gated))
        measures = head_measures(seen.probabilities_BHQK, seen.value_BHKD, seen.context_BQHD, pairs)
        if seen.gate is not None:
            measures["gate"] = mean_gate(seen.gate, pairs.any(-2 if seen.gate_of_values else -1))
        tally.add(measures)

    def _add_masked(self, site: str, layer: int, x: Tensor, valid: Tensor) -> None:
        """Only what is valid of each sequence; `valid` broadcasts over x."""
        for row, values in enumerate(x):
            real = valid[row].expand_as(values)
            self._add(site, layer, values if bool(valid[row].all()) else values[real])

    def _add(self, site: str, layer: int, values: Tensor) -> Tensor:
        metrics = self.sites.setdefault((site, layer), RunningMetrics()).add(values)
        if not math.isfinite(metrics.variance):
            raise QuietformerError(f"{site} of layer {layer} holds NaN or infinity; the model is broken or overflows")
        return metrics.outlier

    def _by_sequence(self, x: Tensor) -> Tensor:
        """OPT flattens to (B*T, d) before its FFN: sequences are put back together."""
        if x.dim() == 2 and self._token_ids is not None and len(x) == self._token_ids.numel():
            return x.view(*self._token_ids.shape, -1)
        return x


def inspect_model(
    model: PreTrainedModel,
    batches: Iterable[Batch],
    *,
    names: TokenNames | None = None,
    name: str = "",
    picture_sequences: int = 2,
    progress: Progress = SILENT,
) -> InspectReport:
    """Run the batches through the model and report its outliers; the model is left as it was."""
    check_model(model)
    check_batches(batches)
    check_finite(model)
    blocks = find_blocks(model)
    if not blocks:
        raise QuietformerError(f"{type(model).__name__} has no transformer blocks to inspect")
    inspection = Inspection(names, picture_sequences)
    total = sum(map(_sequences_in, batches)) if isinstance(batches, list) else 0
    progress.step("looking for outliers", 0, total)  # one batch may take long
    with in_eval_mode(model), with_cores(model) as seen, torch.no_grad():
        watches: list[Watch] | None = None
        residuals: list[Watch] = []
        for batch in batches:
            if watches is None:
                once = partial(run, model, {name: tensor[:1] for name, tensor in batch.items()})
                blocks = in_passes(blocks, once)
                residuals = find_residuals(blocks, once)
                watches = [watch for block in blocks for watch in block.watches()] + residuals
            on_attention = inspection.on_attention if seen else None
            inspection.begin(batch)
            with (
                record(model, inspection.on_site, on_attention, watches=watches, blocks=blocks),
                _watch_final_norm(model, inspection, layers_of(blocks)),
            ):
                run(model, batch)
            progress.step("looking for outliers", inspection.sequences, total)
    if not inspection.sequences:
        raise QuietformerError("there are no sequences to inspect; give some text or images")
    found = _measured(model, inspection, printable(name), blocks, residuals, seen=seen)
    return InspectReport(**dict(found), verdict=verdict(found))


def _sequences_in(batch: Batch) -> int:
    return len(next(iter(batch.values())))


def _measured(
    model: PreTrainedModel,
    inspection: Inspection,
    name: str,
    blocks: list[Block],
    residuals: list[Watch],
    *,
    seen: bool,
) -> OutlierMetrics:
    heads = next((len(tally.sums["sink"]) for tally in inspection.heads.values()), None)
    chosen = headline(model.config.model_type, residuals)
    sites = [metrics.tensor_metrics(*place) for place, metrics in sorted(inspection.sites.items(), key=_by_layer)]

    def d_head(tally: OutlierTally) -> int | None:
        return len(tally.by_dimension) // heads if heads and len(tally.by_dimension) % heads == 0 else None

    return OutlierMetrics(
        model=ModelInfo(
            name=name or printable(str(model.config.name_or_path)) or type(model).__name__,
            class_name=type(model).__name__,
            type=model.config.model_type,
            layers=layers_of(blocks),
            heads=heads,
            width=getattr(model.config, "hidden_size", None),
            parameters=model.num_parameters(),
            attention=spec.label if (spec := changes_of(model).attention) else "softmax" if seen else "its own",
            attention_seen=seen,
            post_norm=is_post_norm(residuals),
        ),
        data=DataInfo(sequences=inspection.sequences, tokens=inspection.tokens),
        headline=_headline(chosen, sites),
        sites=sites,
        outliers=[
            tally.tensor_outliers(Place(site=site, layer=layer), inspection.names, d_head(tally))
            for (site, layer), tally in sorted(inspection.tallies.items(), key=_by_layer)
        ],
        heads=[tally.head_metrics(layer) for layer, tally in sorted(inspection.heads.items())],
        head_measures=MEASURES,
        pictures=inspection.pictures.pictures(inspection.names.text),
    )


def _by_layer(item: tuple[tuple[str, int], object]) -> tuple[int, str]:
    (site, layer), _ = item
    return layer, site


def _headline(chosen: HeadlineSites, sites: list[TensorMetrics]) -> Headline:
    norms = [row.infinity_norm for row in sites if row.site == chosen.infinity]
    averaged = [row.kurtosis for row in sites if row.site in chosen.kurtosis and row.kurtosis is not None]
    return Headline(
        source=chosen.source,
        infinity_site=chosen.infinity,
        infinity_norm=max(norms, default=None),
        kurtosis_sites=list(chosen.kurtosis),
        kurtosis=sum(averaged) / len(averaged) if averaged else None,
    )


@contextlib.contextmanager
def _watch_final_norm(model: nn.Module, inspection: Inspection, layer: int) -> Iterator[None]:
    norm = final_norm(model)

    def after(_: nn.Module, args: Any, output: Tensor) -> None:
        inspection.on_site("final_norm", layer, output.detach())

    handle = None if norm is None else norm.register_forward_hook(after)
    try:
        yield
    finally:
        if handle is not None:
            handle.remove()
