"""What a model is worth on some batches, and how far it is from a reference: one measure for simulation and real INT8."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from quietformer.analysis.output_quality import (
    agreement,
    mean_cosine,
    neighbour_agreement,
    perplexity,
    pooled,
    predicted,
    token_scores,
)
from quietformer.analysis.speech import Transcriber
from quietformer.architectures.forward import Batch, in_eval_mode, model_inputs, run, token_mask
from quietformer.architectures.task import task_of
from quietformer.config.tasks import MEASURED, MeasuredTask
from quietformer.data.token_labels import IGNORED, next_tokens
from quietformer.errors import QuietformerError
from quietformer.models.pooling import MEAN, Pooling, pooling_of
from quietformer.progress import SILENT, Progress
from quietformer.results.quality import SCALES, Better, Metrics, Yardstick, better_of

Run = Callable[[Batch], Mapping[str, Tensor]]
"""Anything that takes a batch and gives "logits" or "last_hidden_state", such as an onnxruntime session."""


@dataclass(frozen=True)
class Evaluation:
    """The metrics of one model on some batches; `primary` names the one to look at first."""

    task: MeasuredTask
    primary: str
    measured: dict[str, float]  # NaN or infinite where the model is broken
    sequences: int
    scored: int
    """Tokens, images, predictions or embeddings that the metrics are over."""

    @property
    def better(self) -> Better:
        """In which direction the primary metric improves."""
        return better_of(self.primary)

    @property
    def value(self) -> float:
        """The primary metric, as it was measured."""
        return self.measured[self.primary]

    @property
    def metrics(self) -> Metrics:
        """All metrics as a report holds them: None where the model is broken."""
        return Metrics(**self.measured)

    def adding(self, metrics: dict[str, float]) -> Evaluation:
        """The same with further metrics; the primary one stays."""
        return dataclasses.replace(self, measured=self.measured | metrics)

    @property
    def yardstick(self) -> Yardstick:
        """What the model was measured by."""
        return Yardstick(task=self.task, primary=self.primary, better=self.better, scale=SCALES[self.better])


@dataclass
class _Answers:
    """What one pass gives, before it is compared with anything."""

    task: MeasuredTask
    pooling: Pooling
    sequences: int = 0
    nll: float = 0.0
    correct: int = 0
    labelled: int = 0
    predictions: list[Tensor] = field(default_factory=list)
    targets: list[Tensor] = field(default_factory=list)
    embeddings: list[Tensor] = field(default_factory=list)

    def add(self, batch: Batch, output: Mapping[str, Tensor]) -> None:
        self.sequences += len(next(iter(batch.values())))
        if self.task in ("masked", "causal"):
            self._add_tokens(batch, _named(output, "logits", "prediction_logits"))
        elif self.task == "embedding":
            hidden = _named(output, "last_hidden_state")
            self.embeddings.append(pooled(hidden, token_mask(batch, hidden.shape[1]), self.pooling))
        else:
            self._add_classes(batch, _named(output, "logits"))

    def _add_tokens(self, batch: Batch, logits: Tensor) -> None:
        if self.task == "masked" and "labels" not in batch:
            raise QuietformerError("these batches have no masked tokens; a masked model is asked with mask_tokens")
        labels = batch["labels"] if "labels" in batch else next_tokens(batch)
        if logits.shape[:2] != labels.shape:
            raise QuietformerError(f"logits of shape {list(logits.shape)} do not fit tokens of {list(labels.shape)}")
        nll, predictions = token_scores(logits, labels)
        self.nll += nll
        self.predictions.append(predictions)
        self.targets.append(labels[labels != IGNORED].cpu())

    def _add_classes(self, batch: Batch, logits: Tensor) -> None:
        if logits.dim() == 3 and (mask := token_mask(batch, logits.shape[1])) is not None:  # a class a token
            logits = logits[mask.bool().to(logits.device)]
        predictions = predicted(logits.flatten(0, -2))
        self.predictions.append(predictions)
        labels = batch.get("labels")
        if labels is not None and labels.shape == predictions.shape:
            self.correct += int((predictions == labels.cpu()).sum())
            self.labelled += len(labels)

    @property
    def kept(self) -> Tensor:
        """What a later run is compared with: embeddings, or else predictions."""
        return torch.cat(self.embeddings or self.predictions)


@dataclass(frozen=True)
class Reference:
    """A model that others are compared with: run once, by `reference_run`, and not needed again."""

    evaluation: Evaluation
    kept: Tensor
    targets: Tensor
    pooling: Pooling = MEAN
    transcriber: Transcriber | None = None
    """Measures speech models; None for others, and where nothing says what is spoken."""

    @property
    def task(self) -> MeasuredTask:
        return self.evaluation.task


def reference_run(
    model: nn.Module | Run,
    batches: Iterable[Batch],
    task: MeasuredTask | None = None,
    *,
    progress: Progress = SILENT,
    what: str = "evaluating in fp32",
) -> Reference:
    """Run the model that others will be compared with; `evaluation` of the result has its own metrics."""
    if task is None:
        if not isinstance(model, nn.Module):
            raise QuietformerError(f"name the task of a function: {', '.join(MEASURED)}")
        task = task_of(model)
    answers = _Answers(task, _pooling(model))
    _run(model, batches, answers, progress, what)
    kept, targets = answers.kept, _joined(answers.targets)
    return Reference(_evaluation(answers, kept), kept, targets, answers.pooling)


def evaluate(
    model: nn.Module | Run,
    batches: Iterable[Batch],
    task: MeasuredTask,
    reference: Reference | None = None,
    *,
    progress: Progress = SILENT,
    what: str = "evaluating",
) -> Evaluation:
    """The metrics of a model, or of any function from batch to outputs, on the batches the reference was run on."""
    if reference is not None and reference.task != task:
        raise QuietformerError(f"the reference was run for {reference.task!r}, not for {task!r}")
    answers = _Answers(task, _pooling(model) if reference is None else reference.pooling)
    _run(model, batches, answers, progress, what)
    if reference is not None and not (
        answers.kept.shape == reference.kept.shape and torch.equal(_joined(answers.targets), reference.targets)
    ):
        raise QuietformerError("the reference was run on other batches; give both the same")
    return _evaluation(answers, None if reference is None else reference.kept)


def _pooling(model: nn.Module | Run) -> Pooling:
    return pooling_of(model) if isinstance(model, nn.Module) else MEAN


def _run(model: nn.Module | Run, batches: Iterable[Batch], answers: _Answers, progress: Progress, what: str) -> None:
    if answers.task not in MEASURED:
        raise QuietformerError(f"unknown task {answers.task!r}; there are {', '.join(MEASURED)}")
    total = len(batches) if isinstance(batches, Sized) else 0
    progress.step(what, 0, total)  # one batch may take long
    for done, batch in enumerate(batches, start=1):
        answers.add(batch, output_of(model, batch))
        progress.step(what, done, total)
    if not answers.sequences or not len(answers.kept):
        raise QuietformerError("there is nothing to evaluate; give longer texts, or more of them")


def _evaluation(answers: _Answers, reference: Tensor | None) -> Evaluation:
    task, kept = answers.task, answers.kept
    found: dict[str, float] = {}
    if task in ("masked", "causal"):
        loss = answers.nll / len(kept)
        found = {"perplexity": perplexity(loss), "loss": loss}
        if reference is not None:
            found["token_agreement"] = agreement(kept, reference)
    elif task == "embedding":
        if reference is not None and len(kept) < 2:
            raise QuietformerError("neighbours of embeddings need at least 2 sequences; there is 1")
        if reference is not None:
            found["cosine"] = mean_cosine(kept, reference)
            found["neighbour_agreement"] = neighbour_agreement(kept, reference)
    else:
        if answers.labelled == len(kept):
            found["top1"] = answers.correct / answers.labelled
        if reference is not None:
            found["agreement"] = agreement(kept, reference)
    if not found:
        raise QuietformerError(f"the task {task!r} without labels is measured against a reference; there is none")
    return Evaluation(task, next(iter(found)), found, sequences=answers.sequences, scored=len(kept))


def output_of(model: nn.Module | Run, batch: Batch) -> Mapping[str, Tensor]:
    """What a model, or a function, gives for a batch, without dropout and gradients."""
    # With labels a model would compute a loss of its own, and a session knows no such input.
    inputs = model_inputs(batch)
    if not isinstance(model, nn.Module):
        return model(inputs)
    with in_eval_mode(model), torch.no_grad():
        output: Mapping[str, Tensor] = run(model, inputs)
    return output


def _named(output: Mapping[str, Tensor], *names: str) -> Tensor:
    for name in names:
        if name in output:
            return output[name]
    raise QuietformerError(f"the model gives {', '.join(output)} and no {names[0]}; this task cannot be measured on it")


def _joined(tensors: list[Tensor]) -> Tensor:
    return torch.cat(tensors) if tensors else torch.zeros(0, dtype=torch.int64)
