"""What a way of training decides: the model, its batches, the Trainer, and what a run keeps and reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, TrainerCallback, TrainingArguments

from quietformer.config.recipe import Recipe
from quietformer.data.collate import Collate
from quietformer.data.training_data import TrainingData, takes_images, training_data
from quietformer.progress import Progress
from quietformer.results.train import Best
from quietformer.training.callbacks import WarmupCallback
from quietformer.training.clock import Clock
from quietformer.training.lost_run import LossWatch
from quietformer.training.schedule import warmup_steps
from quietformer.training.trainer import QuietTrainer


@dataclass(frozen=True)
class Prepared:
    """What the caller has already, so that the run neither reads nor opens it again."""

    data: TrainingData | None = None
    teacher: PreTrainedModel | None = None  # balanced, if the recipe asks for it
    student: PreTrainedModel | None = None
    trust_remote_code: bool = False  # that of the model, when a checkpoint is opened


@dataclass(frozen=True)
class Setting:
    """What is fixed once the data is known."""

    recipe: Recipe
    run: Path
    arguments: TrainingArguments
    steps: int


@dataclass(frozen=True)
class Baselines:
    """What a model that learns next to nothing would reach on the same validation data; None where it says nothing."""

    bigram_perplexity: float | None = None
    majority_accuracy: float | None = None


class Strategy(ABC):
    """One way of training. The methods are called in the order in which they stand here."""

    def __init__(self, recipe: Recipe, prepared: Prepared) -> None:
        self.recipe, self.prepared = recipe, prepared

    @abstractmethod
    def check(self) -> None:
        """Find mistakes of the recipe before the data is read."""

    def data(self, run: Path, progress: Progress) -> TrainingData:
        if self.prepared.data is not None:
            return self.prepared.data
        progress.say(f"reading {', '.join(source.in_words for source in self.recipe.data.train)}")
        shape = self.image_shape() if takes_images(self.recipe) else (0, 0)
        return training_data(self.recipe, run, image_shape=shape)

    @abstractmethod
    def image_shape(self) -> tuple[int, int]:
        """Side and channels of the images the model takes."""

    @abstractmethod
    def model(self, data: TrainingData, resumed: Path | None) -> PreTrainedModel:
        """The model to train, as the checkpoint has it, or as it is before the first step."""

    @abstractmethod
    def collate(self, data: TrainingData, model: PreTrainedModel) -> Collate:
        """What makes batches of rows."""

    def trainer(
        self, setting: Setting, model: PreTrainedModel, data: TrainingData, callbacks: Sequence[TrainerCallback]
    ) -> QuietTrainer:
        training = setting.recipe.training
        collate = self.collate(data, model)
        kind, needs, own = self.trainer_parts(setting, data, collate)
        trained = setting.steps * training.batch_size
        return kind(
            model, setting.arguments, setting.recipe, setting.run,
            warmup=warmup_steps(setting.recipe.schedule, (data.examples or trained) / training.batch_size),
            train_dataset=data.training_set(trained, setting.recipe.seed, training.batch_size),
            eval_dataset=data.validation_set(),
            data_collator=collate,
            processing_class=data.tokenizer,
            callbacks=[WarmupCallback(), Clock(), LossWatch(training.explosion), *own, *callbacks],
            **needs,
        )  # fmt: skip

    @abstractmethod
    def trainer_parts(
        self, setting: Setting, data: TrainingData, collate: Collate
    ) -> tuple[type[QuietTrainer], dict[str, Any], list[TrainerCallback]]:
        """The class of the Trainer, what it takes besides what all take, and callbacks of its own."""

    def first_callbacks(self, trainer: QuietTrainer, steps: int) -> list[TrainerCallback]:
        """Callbacks that must come before all others."""
        return []

    def take_steps(self, trainer: QuietTrainer, resumed: Path | None) -> None:
        """Train to the end, from the beginning or from a checkpoint."""
        trainer.train(resume_from_checkpoint=None if resumed is None else str(resumed))

    def ended_early(self, trainer: QuietTrainer) -> bool:
        """Whether a run that is shorter than its recipe is finished all the same."""
        return False

    def kept_model(self, trainer: QuietTrainer, run: Path, progress: Progress) -> PreTrainedModel:
        """The model that the run leaves."""
        return trainer.released_model()

    def best(self, trainer: QuietTrainer) -> Best | None:
        """The evaluation that was kept, where one is chosen."""
        return None

    def baselines(self, data: TrainingData, model: PreTrainedModel) -> Baselines:
        """What to compare the result with."""
        return Baselines()
