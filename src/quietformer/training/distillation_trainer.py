"""A Trainer for self-distillation: the loss is the distance from the teacher, the metric what INT8 makes of the student."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel, TrainerCallback

from quietformer.analysis.evaluate import Evaluation, Reference, evaluate, reference_run
from quietformer.architectures.forward import Batch
from quietformer.architectures.task import task_of
from quietformer.config.quantization import QuantSpec
from quietformer.config.recipe import QatRecipe
from quietformer.models.pooling import pooling_of
from quietformer.quant.calibration import calibrate_, dequantize_, quantize_
from quietformer.quant.insertion import quantizers
from quietformer.training.best import BestWatch
from quietformer.training.distillation_loss import distillation_loss
from quietformer.training.state_files import random_states, set_random_states
from quietformer.training.student import without_dropout_
from quietformer.training.trainer import QuietTrainer

FP32, INT8 = "eval_fp32", "eval_int8"
"""What an evaluation says of the student: in fp32, and quantized in simulation."""


class TeacherAgreement:
    """How close a student is to its teacher on held-out data, in fp32 and in simulated INT8."""

    def __init__(
        self, teacher: PreTrainedModel, spec: QuantSpec, calibration: list[Batch], held_out: list[Batch]
    ) -> None:
        self.task, self.spec, self.calibration, self.held_out = task_of(teacher), spec, calibration, held_out
        self.reference: Reference = reference_run(teacher, held_out, self.task)

    @property
    def better(self) -> str:
        return self.reference.evaluation.better

    @property
    def primary(self) -> str:
        """The metric that is compared; for classes it is their agreement, whatever the labels say."""
        return self.reference.evaluation.primary

    def __call__(self, model: PreTrainedModel) -> dict[str, float]:
        """Measured on a copy: the model in training is left as it is."""
        measured: Any = copy.deepcopy(model)
        measured.eval()
        if quantizers(measured):
            dequantize_(measured)
        fp32 = evaluate(measured, self.held_out, self.task, self.reference)
        quantize_(measured, self.spec, self.calibration[0])
        calibrate_(measured, self.calibration)
        int8 = evaluate(measured, self.held_out, self.task, self.reference)
        return {FP32: self._value(fp32), INT8: self._value(int8)}

    def _value(self, evaluation: Evaluation) -> float:
        return float(evaluation.measured[self.primary])


class QatCallback(TrainerCallback):
    """Quantization-aware training (QAT): puts quantizers into the model for the last part of the run and recalibrates them."""

    def __init__(self, recipe: QatRecipe, calibration: list[Batch], model: PreTrainedModel, steps: int) -> None:
        self.recipe, self.calibration, self.model = recipe, calibration, model
        self.begins = first_qat_step(recipe, steps)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        since = state.global_step - self.begins
        if since < 0 or since % self.recipe.recalibrate_every:
            return
        if not quantizers(self.model):
            quantize_(self.model, self.recipe.spec, self.calibration[0])
        calibrate_(self.model, self.calibration)


def first_qat_step(recipe: QatRecipe, steps: int) -> int:
    return steps - round(recipe.share * steps)


class DistillationTrainer(QuietTrainer):
    """A trainer with a frozen teacher; evaluations are of the student's agreement with it."""

    def __init__(self, *args: Any, teacher: PreTrainedModel, agreement: TeacherAgreement, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        moved: Any = teacher
        self.teacher = moved.to(self.args.device).eval().requires_grad_(False)
        self.agreement = agreement
        self.pooling = pooling_of(teacher)
        self._evaluated: tuple[int, dict[str, float]] | None = None
        without_dropout_(self.model)

    def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        asked = {name: value for name, value in inputs.items() if name != "labels"}
        with torch.no_grad():
            theirs = self.teacher(**asked, output_hidden_states=True)
        ours = model(**asked, output_hidden_states=True)
        loss = distillation_loss(ours, theirs, asked, self.recipe.teacher, self.agreement.task, self.pooling)
        for regularizer in self._regularizers:
            if (term := regularizer.term()) is not None:
                loss = loss + term
        # A mean over the micro-batch; those of a step are added up.
        return loss / self.current_gradient_accumulation_steps

    def _kept_besides(self) -> list[int | None]:
        return [*super()._kept_besides(), self.best.step]

    @property
    def best(self) -> BestWatch:
        """Looked up each time: resuming from a checkpoint replaces it."""
        return next(item for item in self.callback_handler.callbacks if isinstance(item, BestWatch))

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """The agreement with the teacher, on every process alike; how often it is asked for changes nothing."""
        if self._evaluated is not None and self._evaluated[0] == self.state.global_step:
            return self._evaluated[1]
        states = random_states()
        try:
            found = self.agreement(self._inner())
        finally:
            set_random_states(states)
        self._evaluated = self.state.global_step, found
        self.log(dict(found))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, found)
        return found
