"""Supervised training: labels, masked tokens or next tokens say what is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, TrainerCallback

from quietformer.analysis.bigram import bigram_perplexity
from quietformer.data.batches_from_options import image_size
from quietformer.data.collate import Collate
from quietformer.data.tokenizers import special_ids
from quietformer.data.training_data import TrainingData, collate_for, vocabulary_of
from quietformer.models.open_any import open_model
from quietformer.training.model_building import build_model
from quietformer.training.model_config import make_config
from quietformer.training.strategies.base import Baselines, Setting, Strategy
from quietformer.training.trainer import QuietTrainer

BIGRAM_SEQUENCES = 50_000
"""Training sequences that are counted for the bigram model to compare with."""


class Supervised(Strategy):
    """A model built from its recipe, or a pretrained one, trained for a task; the last step is kept."""

    def check(self) -> None:
        make_config(self.recipe)

    def image_shape(self) -> tuple[int, int]:
        return image_size(make_config(self.recipe))

    def model(self, data: TrainingData, resumed: Path | None) -> PreTrainedModel:
        if resumed is not None:
            return open_model(str(resumed))
        return build_model(
            self.recipe,
            vocabulary=None if data.tokenizer is None else len(data.tokenizer),
            labels=data.classes,
            special_tokens=None if data.tokenizer is None else special_ids(data.tokenizer),
        )

    def collate(self, data: TrainingData, model: PreTrainedModel) -> Collate:
        return collate_for(self.recipe, data, vocabulary_of(model, self.recipe), seed=self.recipe.seed)

    def trainer_parts(
        self, setting: Setting, data: TrainingData, collate: Collate
    ) -> tuple[type[QuietTrainer], dict[str, Any], list[TrainerCallback]]:
        return QuietTrainer, {}, []

    def baselines(self, data: TrainingData, model: PreTrainedModel) -> Baselines:
        return Baselines(self._bigram(data, model), data.majority)

    def _bigram(self, data: TrainingData, model: PreTrainedModel) -> float | None:
        """The perplexity of a table of token pairs on the same validation text."""
        if self.recipe.task not in ("masked", "causal") or data.examples is None:
            return None
        count = min(BIGRAM_SEQUENCES, data.examples)
        rows: Any = data.rows
        chunks = (range(begin, min(begin + 1000, count)) for begin in range(0, count, 1000))
        train = [row["input_ids"] for chunk in chunks for row in rows.take(chunk, None)]
        asked = [row["input_ids"] for row in data.validation.take(range(len(data.validation)), None)]
        never = data.tokenizer.all_special_ids if self.recipe.task == "masked" else ()
        return bigram_perplexity(train, asked, vocabulary=vocabulary_of(model, self.recipe), never_asked=never)
