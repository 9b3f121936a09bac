"""Training a model to stay what it is while its outliers go: the teacher is its own frozen original."""

# B examples, T tokens, d features, V words or classes

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, TrainerCallback

from quietformer.analysis.evaluate import Reference, evaluate, reference_run
from quietformer.architectures.forward import Batch
from quietformer.attention.inject import apply_attention_, remove_attention_
from quietformer.config.attention import AttentionSpec
from quietformer.config.quantization import QuantSpec
from quietformer.config.recipe import Recipe, RoundingRecipe, TeacherRecipe
from quietformer.config.recorded_changes import changes_of
from quietformer.config.tasks import MeasuredTask
from quietformer.data.collate import Collate, example_batches
from quietformer.data.token_labels import IGNORED, next_tokens
from quietformer.data.training_data import TrainingData
from quietformer.errors import QuietformerError
from quietformer.quant.calibration import calibrate_, dequantize_, quantize_
from quietformer.quant.insertion import quantizers
from quietformer.training.best import BestWatch
from quietformer.training.state_files import random_states, set_random_states
from quietformer.training.trainer import QuietTrainer
from quietformer.transforms.gated_ffn import damp_, equalise_
from quietformer.transforms.rotation import rotate_

MASSIVE = 100.0
"""Hidden states past so many times the median magnitude are what is to go, not what is to be kept."""

FLOAT, INTEGER = "eval_float", "eval_int8"
"""What an evaluation says of the model: in floating point, and quantized in simulation."""


def imitation_loss(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], inputs: Batch, weights: TeacherRecipe, task: str
) -> Tensor:
    """The weighted differences of a student from its teacher on one batch; padding counts nowhere."""
    terms: list[Tensor] = []
    states = list(zip(ours.get("hidden_states") or (), theirs.get("hidden_states") or (), strict=True))[1:]
    mask = inputs.get("attention_mask")
    if states and (weights.hidden or weights.last_hidden):
        differences = [relative_difference(x, y, mask) for x, y in states]
        terms += [weights.hidden * torch.stack(differences).mean(), weights.last_hidden * differences[-1]]
    if task == "embedding" and weights.pooled:
        x, y = (pooled_states(output["last_hidden_state"], mask) for output in (ours, theirs))
        terms.append(weights.pooled * (1 - nn.functional.cosine_similarity(x, y, dim=-1)).mean())
    if "logits" in ours and weights.logits:
        terms.append(weights.logits * divergence(ours["logits"], theirs["logits"], mask))
    if task == "causal" and weights.objective:
        labels = next_tokens(inputs)
        flat = ours["logits"].float().flatten(0, -2)
        terms.append(weights.objective * nn.functional.cross_entropy(flat, labels.flatten(), ignore_index=IGNORED))
    if not terms:
        raise QuietformerError(
            "nothing of this model is compared with its teacher; give teacher.hidden or teacher.logits"
        )
    return torch.stack(terms).sum()


def relative_difference(x: Tensor, y: Tensor, mask: Tensor | None) -> Tensor:
    """sum (x - y)^2 / sum (y - mean y)^2 over the tokens that are text, without the teacher's massive values.

    One value of 20,000 would be all of the variance: keeping it would be everything, and the rest nothing.
    """
    if mask is not None and mask.shape == x.shape[:2]:
        x, y = x[mask.bool()], y[mask.bool()]
    x, y = x.float(), y.float()
    ordinary = y.abs() <= MASSIVE * y.abs().median()
    if bool(ordinary.any()) and not bool(ordinary.all()):
        x, y = x[ordinary], y[ordinary]
    return (x - y).square().mean() / y.var(correction=0).clamp(min=torch.finfo(torch.float32).tiny)


def pooled_states(states_BTd: Tensor, mask: Tensor | None) -> Tensor:
    """The mean over a sequence's tokens, as sentence encoders take it; gradients pass."""
    if mask is None or mask.shape != states_BTd.shape[:2]:
        return states_BTd.float().flatten(1, -2).mean(1)
    real = mask[..., None].float()
    return (states_BTd.float() * real).sum(1) / real.sum(1).clamp(min=1)


def divergence(ours: Tensor, theirs: Tensor, mask: Tensor | None) -> Tensor:
    """KL(teacher | student), the mean over predictions."""
    if mask is not None and mask.shape == ours.shape[:2]:
        ours, theirs = ours[mask.bool()], theirs[mask.bool()]
    ours, theirs = ours.float().flatten(0, -2), theirs.float().flatten(0, -2)
    found: Tensor = nn.functional.kl_div(
        torch.log_softmax(ours, -1), torch.log_softmax(theirs, -1), log_target=True, reduction="batchmean"
    )
    return found


class IntegerQuality:
    """How near a model is to its original on held-out data, in floating point and in simulated INT8."""

    def __init__(
        self,
        teacher: PreTrainedModel,
        task: MeasuredTask,
        spec: QuantSpec,
        calibration: list[Batch],
        held_out: list[Batch],
    ) -> None:
        self.task, self.spec, self.calibration, self.held_out = task, spec, calibration, held_out
        self.reference: Reference = reference_run(teacher, held_out, task)

    @property
    def better(self) -> str:
        return self.reference.evaluation.better

    def __call__(self, model: PreTrainedModel) -> dict[str, float]:
        """Measured on a copy: the model in training is left as it is."""
        measured: Any = copy.deepcopy(model)
        measured.eval()
        if quantizers(measured):
            dequantize_(measured)
        floating = evaluate(measured, self.held_out, self.task, self.reference)
        quantize_(measured, self.spec, self.calibration[0])
        calibrate_(measured, self.calibration)
        integer = evaluate(measured, self.held_out, self.task, self.reference)
        return {FLOAT: _value(floating, self.primary), INTEGER: _value(integer, self.primary)}

    @property
    def primary(self) -> str:
        """What is compared; of class predictions how many agree, whatever labels say."""
        return self.reference.evaluation.primary


def _value(evaluation: Any, primary: str) -> float:
    return float(evaluation.measured[primary])


class RoundingCallback(TrainerCallback):
    """Puts quantizers into the model for the last part of the run, and finds their ranges anew every so often."""

    def __init__(self, recipe: RoundingRecipe, calibration: list[Batch], model: PreTrainedModel, steps: int) -> None:
        self.recipe, self.calibration, self.model = recipe, calibration, model
        self.begins = steps - round(recipe.share * steps)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        since = state.global_step - self.begins
        if since < 0 or since % self.recipe.recalibrate_every:
            return
        if not quantizers(self.model):
            quantize_(self.model, self.recipe.spec, self.calibration[0])
        calibrate_(self.model, self.calibration)


class ImitationTrainer(QuietTrainer):
    """A trainer whose loss is the distance from the original, and whose measure is what INT8 makes of the model."""

    def __init__(self, *args: Any, teacher: PreTrainedModel, quality: IntegerQuality, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        moved: Any = teacher
        self.teacher = moved.to(self.args.device).eval().requires_grad_(False)
        self.quality = quality
        self._evaluated: tuple[int, dict[str, float]] | None = None
        without_dropout_(self.model)

    def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        asked = {name: value for name, value in inputs.items() if name != "labels"}
        with torch.no_grad():
            theirs = self.teacher(**asked, output_hidden_states=True)
        ours = model(**asked, output_hidden_states=True)
        loss = imitation_loss(ours, theirs, asked, self.recipe.teacher, self.quality.task)
        for regularizer in self._regularizers:
            if (term := regularizer.term()) is not None:
                loss = loss + term
        # A mean over the micro-batch; those of a step are added up.
        return loss / self.current_gradient_accumulation_steps

    def _kept_besides(self) -> list[int | None]:
        return [*super()._kept_besides(), self.best.step]

    @property
    def best(self) -> BestWatch:
        """Looked up each time: going on from a checkpoint replaces it."""
        return next(item for item in self.callback_handler.callbacks if isinstance(item, BestWatch))

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """The agreement with the original, on every process alike; how often it is asked for changes nothing."""
        if self._evaluated is not None and self._evaluated[0] == self.state.global_step:
            return self._evaluated[1]
        states = random_states()
        try:
            found = self.quality(self._inner())
        finally:
            set_random_states(states)
        self._evaluated = self.state.global_step, found
        self.log(dict(found))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, found)
        return found


def quality_of(
    recipe: Recipe, data: TrainingData, collate: Collate, teacher: PreTrainedModel, task: MeasuredTask
) -> IntegerQuality:
    """Measured on what is held out, after calibration on some of what is trained on."""
    size = recipe.training.micro_batch or recipe.training.batch_size
    calibration = calibration_of(recipe, data, collate, task)
    masked = task == "masked"
    held_out = example_batches(data.validation, range(len(data.validation)), collate, size, labelled=masked)
    return IntegerQuality(teacher, task, recipe.rounding.spec, calibration, held_out)


def calibration_of(recipe: Recipe, data: TrainingData, collate: Collate, task: str) -> list[Batch]:
    """Some of what is trained on, always the same."""
    rows: Any = data.rows
    places = np.linspace(0, len(rows) - 1, min(recipe.rounding.calibration, len(rows))).astype(int).tolist()
    size = recipe.training.micro_batch or recipe.training.batch_size
    return example_batches(rows, places, collate, size, labelled=task == "masked")


def student_of(teacher: PreTrainedModel, recipe: Recipe, batches: Callable[[], list[Batch]]) -> PreTrainedModel:
    """A copy in float32 to be trained, in the basis and with the attention it is to have."""
    if changes_of(teacher).quantized is not None:
        raise QuietformerError(f"{type(teacher).__name__} is quantized; imitate the model it was made from")
    student: Any = copy.deepcopy(teacher)
    student.float()
    if recipe.model.rotate or recipe.model.damp < 1:
        examples = batches()
        if recipe.model.damp < 1:
            damp_(student, examples, recipe.model.damp)
        if recipe.model.rotate:
            rotate_(student, examples[0])
            equalise_(student, examples)
    if recipe.attention != AttentionSpec():
        torch.manual_seed(recipe.seed)  # for the weights of new gates
        apply_attention_(student, recipe.attention)
    found: PreTrainedModel = student
    return found


def as_floating_point(model: PreTrainedModel, attention: AttentionSpec) -> None:
    """Take out what training with rounding has put in."""
    if quantizers(model):
        dequantize_(model)
        if attention == AttentionSpec() and changes_of(model).attention == AttentionSpec():
            remove_attention_(model)


def without_dropout_(model: nn.Module) -> None:
    """Nothing at random between a student and its teacher; the config keeps what it says."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def freeze_embeddings_(model: nn.Module) -> None:
    """Tables of tokens and positions, and what is tied to them, get no gradient."""
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.weight.requires_grad_(False)
