"""INT8 of a model without training, searched, exported and measured: what a retrofit is to beat."""

from __future__ import annotations

from pathlib import Path

from transformers import PreTrainedModel

from quietformer.analysis.evaluate import evaluate
from quietformer.config.quantization import QuantSpec
from quietformer.errors import QuietformerError
from quietformer.results.export import ExportFacts
from quietformer.results.retrofit import TrainingFree
from quietformer.workflows.measure_before_after import Measuring, export_and_measure
from quietformer.workflows.search import Search

SECONDS = 60.0
"""No further step of the search begins after so long."""


def without_training(
    model: PreTrainedModel, by: Measuring, spec: QuantSpec, folder: Path | None, target: PreTrainedModel | None = None
) -> TrainingFree:
    """The best INT8 that the search finds; real INT8 stays in `folder`, simulated only if there is none.

    A healed model is compared with its `target`, the original: quantization-aware training brings INT8 closer to that than to the
    healed model in fp32.
    """
    found = Search(model, by.data, spec, by.progress, target).run(seconds=SECONDS, ranges=True)
    facts = ExportFacts()
    if folder is not None:
        try:
            exported = export_and_measure(found.model, by, folder, timed=True)
            return TrainingFree(
                placement=spec.placement.kind,
                metrics=exported.metrics,
                real=True,
                steps=found.steps,
                facts=exported.facts,
            )
        except QuietformerError as error:  # a graph that does not export is still simulated
            facts = ExportFacts(error=str(error))
    measured = evaluate(found.model, by.data.evaluation, by.reference.task, by.reference, progress=by.progress)
    return TrainingFree(
        placement=spec.placement.kind, metrics=measured.metrics, real=False, steps=found.steps, facts=facts
    )
