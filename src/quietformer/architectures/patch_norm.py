"""LayerNorm after the patch embedding: the paper's option for vision transformers."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from quietformer.config.attention import PatchNormSpec
from quietformer.config.recorded_changes import changes_of, record_changes_
from quietformer.errors import UnsupportedModelError

NORM = "quiet_norm"

PATCH_EMBEDDING = "patch_embeddings"


def add_patch_norm_(model: nn.Module, spec: PatchNormSpec | None = None) -> None:
    """Add a LayerNorm over each patch embedding, before class token and positions are added, in place; saved with the model."""
    spec = spec or PatchNormSpec()
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedModelError(f"{type(model).__name__} is not a transformers model")
    width = getattr(model.config, "hidden_size", None)
    found = [module for name, module in model.named_modules() if name.rpartition(".")[2] == PATCH_EMBEDDING]
    if len(found) != 1 or not isinstance(width, int):
        raise UnsupportedModelError(
            f"{type(model).__name__} has {len(found)} modules named {PATCH_EMBEDDING!r}; the norm needs exactly one"
        )
    (embedding,) = found
    like = next(embedding.parameters())
    norm = nn.LayerNorm(width, eps=spec.eps, device=like.device, dtype=like.dtype)
    record_changes_(model, changes_of(model).model_copy(update={"patch_norm": spec}))
    if NORM not in embedding._modules:
        embedding.register_forward_hook(_normalise)
    embedding.add_module(NORM, norm.train(embedding.training))


def _normalise(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    if not isinstance(output, Tensor):
        raise UnsupportedModelError(
            f"{type(module).__name__} returns more than one tensor, so it cannot have a patch norm"
        )
    normalised: Tensor = module._modules[NORM](output)  # type: ignore[misc]
    return normalised
