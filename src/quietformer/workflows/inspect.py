"""`inspect`: does a model have outliers, where, what makes them, will INT8 break it, and what to do."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import cast

from quietformer.analysis.annihilation import find_annihilated
from quietformer.analysis.inspection import inspect_model
from quietformer.analysis.interventions import intervene
from quietformer.analysis.outliers import TokenNames
from quietformer.analysis.verdict import verdict, with_annihilated
from quietformer.config.options.inspect import InspectOptions
from quietformer.data.batches_from_options import KINDS, batches_of
from quietformer.errors import QuietformerError
from quietformer.progress import SILENT, Progress
from quietformer.results.inspect import CheckpointHeadline, InspectReport
from quietformer.workflows.open_once import ModelName, check_is_model, command_on, open_once

FEW = 16
"""Sequences on which annihilated tensors are looked for, and outliers are set to zero."""


def inspect(
    models: ModelName | Sequence[ModelName], options: InspectOptions | None = None, progress: Progress = SILENT
) -> InspectReport:
    """Find the outliers of a model and say what they mean; of several checkpoints, the last is shown in full."""
    options = options or InspectOptions()
    several = list(models) if isinstance(models, list | tuple) else [cast(ModelName, models)]
    if not several:
        raise QuietformerError("there is no model to inspect; give one, or a list of checkpoints")
    for model in several:  # told before the first is opened
        check_is_model(model)
    reports = [_inspect_one(model, options, progress) for model in several]
    growth = [
        CheckpointHeadline(**dict(report.headline), model=report.model.name, severity=report.verdict.severity)
        for report in reports
    ]
    return reports[-1].model_copy(
        update={
            "growth": growth if len(growth) > 1 else [],
            "command": command_on(several, "inspect", options),
        }
    )


def _inspect_one(model: ModelName, options: InspectOptions, progress: Progress) -> InspectReport:
    opened = open_once(model, options, progress)
    progress.step("reading the data")
    inputs = batches_of(opened.model, opened.name, options)
    report = inspect_model(
        opened.model, inputs.batches, names=TokenNames.of(inputs.tokenizer), name=opened.name, progress=progress
    )
    few = inputs.batches[: max(1, FEW // len(next(iter(inputs.batches[0].values()))))]
    progress.step("looking for annihilated tensors")
    annihilated = find_annihilated(opened.model, few)
    found = verdict(
        report, shlex.join(options.source_words()), heals=KINDS.get(opened.model.main_input_name) != "audio"
    )
    report = report.model_copy(
        update={
            "data": inputs.info.adding(sequences=report.data.sequences, tokens=report.data.tokens),
            "annihilated": annihilated,
            "verdict": with_annihilated(found, annihilated),
        }
    )
    if not options.interventions or report.verdict.severity == "quiet":
        return report
    progress.step("setting outliers to zero")
    mask_token = None if inputs.tokenizer is None else inputs.tokenizer.mask_token_id
    return report.model_copy(update={"interventions": intervene(opened.model, few, report, mask_token)})
