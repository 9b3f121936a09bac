"""One forward pass: the batch as the model expects it, errors in one line, and evaluation mode as a context."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from quietformer.errors import QuietformerError, in_one_line

Batch = dict[str, Tensor]
"""The arguments of a model: tensors by name; and "labels" and `AUDIBLE`, which are about them."""

AUDIBLE = "audible"
"""Which share of each window of audio is a recording; the rest is silence that fills it up."""


def check_model(model: object) -> None:
    """Refuse what is not a transformers model."""
    if not isinstance(model, PreTrainedModel):
        raise QuietformerError(
            f"{type(model).__name__} is not a transformers model; open a name with open_model, take a model out of its wrapper"
        )


def check_batch(batch: object) -> None:
    """Refuse what is not one batch."""
    if not isinstance(batch, Mapping):
        raise QuietformerError(
            f"a batch is a mapping of tensors by name, e.g. tokenizer(texts, return_tensors='pt'), got {type(batch).__name__}"
        )


def check_batches(batches: object) -> None:
    """Refuse what is not several batches."""
    if isinstance(batches, Mapping):
        raise QuietformerError("a list of batches is needed, got one batch; put it into a list")
    if not isinstance(batches, Iterable) or isinstance(batches, str):
        raise QuietformerError(f"batches are a list of mappings of tensors by name, got {type(batches).__name__}")


def model_inputs(batch: Batch) -> Batch:
    """What the model computes its outputs from."""
    check_batch(batch)
    return {name: tensor for name, tensor in batch.items() if name not in ("labels", AUDIBLE)}


def token_mask(batch: Batch, tokens: int) -> Tensor | None:
    """Which of a model's output tokens are of text or sound and not padding, as (B, tokens); None if all are, or none knows."""
    written = batch.get("decoder_attention_mask")
    if written is not None:
        return written if written.dim() == 2 and written.shape[1] == tokens else None
    if AUDIBLE in batch:
        return torch.arange(tokens) < (batch[AUDIBLE][:, None] * tokens).ceil()
    mask = batch.get("attention_mask")
    # Latents and pooled tokens are not the tokens that the mask speaks of.
    return mask if mask is not None and mask.dim() == 2 and mask.shape[1] == tokens else None


def token_rows(batch: Batch, output: Tensor) -> Tensor:
    """Rows of a model's output that belong to tokens or images rather than to padding."""
    mask = token_mask(batch, output.shape[1]) if output.dim() == 3 else None
    return output.flatten(0, -2) if mask is None else output[mask.bool()]


def has_decoder(model: PreTrainedModel) -> bool:
    """Whether the model is an encoder-decoder; encoders of one may say so in their config, but take no decoder's input."""
    return bool(model.config.is_encoder_decoder) and "decoder_input_ids" in inspect.signature(model.forward).parameters


def fitting(model: nn.Module, batch: Batch) -> Batch:
    """The batch on the model's device, without labels; the decoder of an encoder-decoder gets the encoder's input."""
    first = next(model.parameters(), None)
    device = None if first is None else first.device
    moved = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in model_inputs(batch).items()}
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False) and "input_ids" in moved:
        moved.setdefault("decoder_input_ids", moved["input_ids"])
    return moved


def run(model: nn.Module, batch: Batch) -> Any:
    """The model's output for the batch; an error in its forward pass becomes one line for the user."""
    try:
        return model(**fitting(model, batch))
    except QuietformerError:
        raise
    # Any error of the model's own code; transformers raises NotImplementedError for missing inputs.
    except (TypeError, ValueError, AttributeError, IndexError, NotImplementedError, RuntimeError) as error:
        text = in_one_line(error, 200)
        raise QuietformerError(
            f"{type(model).__name__} does not accept this input ({', '.join(batch)}): {text}"
        ) from error


def mean_pooled(states: Tensor, mask_BT: Tensor | None) -> Tensor:
    """One embedding a sequence or image: the mean over its tokens, or over the places of a feature map; gradients pass."""
    if states.dim() == 4:
        return states.flatten(2).mean(-1)
    # Latents and pooled tokens are not the tokens that the mask speaks of.
    if mask_BT is None or mask_BT.shape != states.shape[:2]:
        return states.mean(1)
    real = mask_BT.to(states.device).bool()[..., None]
    # Padding may hold anything, NaN included, and NaN times zero is NaN.
    return states.masked_fill(~real, 0.0).sum(1) / real.sum(1).clamp(min=1)


@contextlib.contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards every module is in the mode it was in before, including frozen parts."""
    modes = [(module, module.training) for module in model.modules()]
    model.train(False)
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
