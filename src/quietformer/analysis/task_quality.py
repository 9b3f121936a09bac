"""A model measured as its users will: beside the outputs on evaluation data, what they are used for.

Encoders of text retrieve known items; speech models write down what they hear.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from quietformer.analysis.evaluate import Evaluation, Reference, Run, evaluate, output_of, reference_run
from quietformer.analysis.output_quality import known_item_ndcg, pooled
from quietformer.analysis.speech import transcriber_of
from quietformer.architectures.forward import Batch, token_mask
from quietformer.config.tasks import MeasuredTask
from quietformer.data.calibration_data import CalibrationData
from quietformer.models.pooling import Pooling
from quietformer.progress import SILENT, Progress


@dataclasses.dataclass(frozen=True)
class Original:
    """The model that is measured first: what it is opened by, and the whole that it is the encoder of."""

    model: PreTrainedModel
    name: str
    task: MeasuredTask
    whole: PreTrainedModel | None = None


def reference_on(original: Original, data: CalibrationData, *, progress: Progress = SILENT) -> Reference:
    """The model that others will be compared with, measured by everything that the data allows."""
    model = original.model
    found = reference_run(model, data.evaluation, original.task, progress=progress)
    listening = transcriber_of(model, original.whole, original.name, data.transcripts)
    found = dataclasses.replace(found, transcriber=listening)
    return dataclasses.replace(found, evaluation=found.evaluation.adding(_further(model, data, found)))


def evaluate_on(
    model: nn.Module | Run,
    data: CalibrationData,
    reference: Reference,
    *,
    progress: Progress = SILENT,
    what: str = "evaluating",
) -> Evaluation:
    """A model, or any function from batch to outputs, by all that the reference was measured by."""
    found = evaluate(model, data.evaluation, reference.task, reference, progress=progress, what=what)
    return found.adding(_further(model, data, reference))


def _further(model: nn.Module | Run, data: CalibrationData, reference: Reference) -> dict[str, float]:
    found: dict[str, float] = {}
    if data.known_items is not None:
        sides = (data.known_items.queries, data.known_items.documents)
        queries, documents = (_embedded(model, side, reference.pooling) for side in sides)
        found["ndcg10"] = known_item_ndcg(queries, documents)
    if reference.transcriber is not None and reference.transcriber.first is not None:
        found["wer"] = reference.transcriber.word_error_rate_of(model, data.evaluation)
    elif reference.transcriber is not None:
        found["wer"] = reference.transcriber.word_error_rate(lambda batch: output_of(model, batch), data.evaluation)
    return found


def _embedded(model: nn.Module | Run, batches: Iterable[Batch], pooling: Pooling) -> Tensor:
    """One row a text."""
    found = [(output_of(model, batch)["last_hidden_state"], batch) for batch in batches]
    return torch.cat([pooled(hidden, token_mask(batch, hidden.shape[1]), pooling) for hidden, batch in found])
