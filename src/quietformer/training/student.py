"""The student of a self-distillation: a copy of its teacher with the attention and the basis it is to have."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from quietformer.architectures.forward import Batch
from quietformer.architectures.task import task_of
from quietformer.attention.inject import apply_attention_, remove_attention_
from quietformer.config.attention import AttentionSpec
from quietformer.config.recipe import Recipe
from quietformer.config.recorded_changes import changes_of
from quietformer.data.collate import example_batches
from quietformer.data.training_data import TrainingData, collate_for, vocabulary_of
from quietformer.errors import QuietformerError
from quietformer.quant.calibration import dequantize_
from quietformer.quant.insertion import quantizers
from quietformer.transforms.gated_ffn import damp_, equalise_
from quietformer.transforms.rotation import rotate_


def calibration_batches(recipe: Recipe, data: TrainingData, teacher: PreTrainedModel) -> list[Batch]:
    """Some of the training data, always the same: transforms of the model and ranges of quantizers are found on it."""
    task, rows = task_of(teacher), data.rows
    assert not isinstance(rows, torch.utils.data.IterableDataset), "a distillation is not streamed"
    collate = collate_for(recipe, data, vocabulary_of(teacher, recipe), seed=recipe.seed, distilled=task)
    places = np.linspace(0, len(rows) - 1, min(recipe.qat.calibration, len(rows))).astype(int).tolist()
    return example_batches(rows, places, collate, batch_size(recipe), labelled=task == "masked")


def batch_size(recipe: Recipe) -> int:
    """Examples that are evaluated or calibrated on at once."""
    return recipe.training.micro_batch or recipe.training.batch_size


def student_of(teacher: PreTrainedModel, recipe: Recipe, batches: list[Batch]) -> PreTrainedModel:
    """A copy in fp32 to be trained, in the basis and with the attention it is to have."""
    if changes_of(teacher).quantized is not None:
        raise QuietformerError(f"{type(teacher).__name__} is quantized; distill the model it was made from")
    student: Any = copy.deepcopy(teacher)
    student.float()
    if recipe.model.damp < 1:
        damp_(student, batches, recipe.model.damp)
    if recipe.model.rotate:
        rotate_(student, batches[0])
        equalise_(student, batches)
    if recipe.attention != AttentionSpec():
        torch.manual_seed(recipe.seed)  # for the weights of new gates
        apply_attention_(student, recipe.attention)
    found: PreTrainedModel = student
    return found


def remove_qat_(model: PreTrainedModel, attention: AttentionSpec) -> None:
    """Take out the quantizers that quantization-aware training has put in."""
    if quantizers(model):
        dequantize_(model)
        if attention == AttentionSpec() and changes_of(model).attention == AttentionSpec():
            remove_attention_(model)


def without_dropout_(model: nn.Module) -> None:
    """Nothing random between a student and its teacher; the config keeps its own values."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def freeze_embeddings_(model: nn.Module) -> None:
    """Embeddings of tokens and positions, and what is tied to them, get no gradient."""
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.weight.requires_grad_(False)
