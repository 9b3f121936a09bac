"""Self-distillation: a student is trained to agree with its own frozen original, the teacher, without its outliers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedModel, TrainerCallback

from quietformer.architectures.forward import Batch
from quietformer.architectures.task import task_of
from quietformer.config.recipe import Recipe
from quietformer.data.batches_from_options import check_length, image_size
from quietformer.data.collate import Collate, example_batches
from quietformer.data.training_data import TrainingData, collate_for, takes_images, vocabulary_of
from quietformer.models.open_any import open_model
from quietformer.progress import Progress
from quietformer.results.train import Best
from quietformer.training.best import BestWatch, gave_up_at
from quietformer.training.checkpoints import checkpoint_before
from quietformer.training.clock import Clock
from quietformer.training.distillation_trainer import (
    INT8,
    DistillationTrainer,
    QatCallback,
    TeacherAgreement,
    first_qat_step,
)
from quietformer.training.strategies.base import Prepared, Setting, Strategy
from quietformer.training.student import batch_size, calibration_batches, remove_qat_, student_of
from quietformer.training.trainer import QuietTrainer
from quietformer.transforms.balance import balance_


class Distillation(Strategy):
    """The evaluation that is best in simulated INT8 is kept, and a run may end early if none is better for a while."""

    def __init__(self, recipe: Recipe, prepared: Prepared) -> None:
        super().__init__(recipe, prepared)
        self._teacher = prepared.teacher
        self._calibration: list[Batch] = []

    @property
    def teacher(self) -> PreTrainedModel:
        if self._teacher is None:
            self._teacher = self._open(self.recipe.model.pretrained)
        return self._teacher

    def _open(self, source: str | Path) -> PreTrainedModel:
        return open_model(source, trust_remote_code=self.prepared.trust_remote_code)

    def check(self) -> None:
        if not takes_images(self.recipe):
            check_length(self.teacher, self.recipe.data.length)

    def image_shape(self) -> tuple[int, int]:
        return image_size(self.teacher)

    def model(self, data: TrainingData, resumed: Path | None) -> PreTrainedModel:
        self._calibration = calibration_batches(self.recipe, data, self.teacher)
        if self.recipe.model.balance and self.prepared.teacher is None:
            # The teacher too, so that hidden states are compared on the same scale; its outputs stay what they were.
            balance_(self.teacher, self._calibration, alpha=self.recipe.model.balance)
        if resumed is not None:
            return self._open(resumed)
        if self.prepared.student is not None:
            return self.prepared.student
        return student_of(self.teacher, self.recipe, self._calibration)

    def collate(self, data: TrainingData, model: PreTrainedModel) -> Collate:
        vocabulary = vocabulary_of(model, self.recipe)
        return collate_for(self.recipe, data, vocabulary, seed=self.recipe.seed, distilled=task_of(self.teacher))

    def trainer_parts(
        self, setting: Setting, data: TrainingData, collate: Collate
    ) -> tuple[type[QuietTrainer], dict[str, Any], list[TrainerCallback]]:
        recipe = self.recipe
        labelled = task_of(self.teacher) == "masked"
        places = range(len(data.validation))
        held_out = example_batches(data.validation, places, collate, batch_size(recipe), labelled=labelled)
        agreement = TeacherAgreement(self.teacher, recipe.qat.spec, self._calibration, held_out)
        # Before QAT begins, a run without a better evaluation is not ended: QAT may still help.
        patient_until = first_qat_step(recipe.qat, setting.steps) if recipe.qat.share else 0
        watch = BestWatch(INT8, agreement.better, recipe.training.patience, patient_until=patient_until)
        return DistillationTrainer, {"teacher": self.teacher, "agreement": agreement}, [watch]

    def first_callbacks(self, trainer: QuietTrainer, steps: int) -> list[TrainerCallback]:
        # First, since what watches the attention of a step must find the taps it will use.
        recipe = self.recipe.qat
        return [QatCallback(recipe, self._calibration, trainer.model, steps)] if recipe.share else []

    def take_steps(self, trainer: QuietTrainer, resumed: Path | None) -> None:
        if resumed is None or (known := gave_up_at(resumed)) is None:
            return super().take_steps(trainer, resumed)
        # A run that had ended early when it was killed trains no further.
        trainer.state = transformers.TrainerState.load_from_json(str(resumed / "trainer_state.json"))
        vars(_distilling(trainer).best).update(known)
        callbacks: Any = trainer.state.stateful_callbacks
        trainer.clock.before = callbacks[Clock.__name__]["attributes"]["before"]
        return None

    def ended_early(self, trainer: QuietTrainer) -> bool:
        return _distilling(trainer).best.gave_up

    def kept_model(self, trainer: QuietTrainer, run: Path, progress: Progress) -> PreTrainedModel:
        best, last = _distilling(trainer).best.step, trainer.state.global_step
        model = trainer.released_model()
        if best is not None:
            progress.say(f"the best evaluation was that of step {best}; its checkpoint is kept")
        if best not in (None, last) and (kept := checkpoint_before(run, best)) is not None:
            model = self._open(kept)
        remove_qat_(model, self.recipe.attention)
        return model

    def best(self, trainer: QuietTrainer) -> Best | None:
        distilling = _distilling(trainer)
        watch = distilling.best
        return Best(step=watch.step, value=watch.value, measure=distilling.agreement.primary)


def _distilling(trainer: QuietTrainer) -> DistillationTrainer:
    assert isinstance(trainer, DistillationTrainer)
    return trainer
