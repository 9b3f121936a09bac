"""The task of a model, which decides how it is measured."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from quietformer.architectures.forward import has_decoder
from quietformer.architectures.layout import output_embeddings
from quietformer.config.tasks import MeasuredTask


def task_of(model: nn.Module) -> MeasuredTask:
    """The task of the model, from the name of its class or the nearest base class that says it, and from its head."""
    config: Any = getattr(model, "config", None)
    words = _output_words(model)
    for name in (kind.__name__ for kind in type(model).__mro__):
        if "ForMaskedLM" in name or ("ForPreTraining" in name and words):
            return "masked"
        if name.endswith(("ForCausalLM", "LMHeadModel")):
            # XLM and FlauBERT have one class for both tasks; their config says which.
            return "masked" if getattr(config, "causal", None) is False else "causal"
        if "ForImageClassification" in name:
            return "images"
        # A CTC model gives a token for each moment of its audio.
        if (
            "Classification" in name
            or "ForCTC" in name
            or name.endswith(("ForMultipleChoice", "ForNextSentencePrediction"))
        ):
            return "classes"
    if words and isinstance(model, PreTrainedModel) and model.can_generate():
        # An encoder-decoder that reads the text it scores gives no likelihood of it; its choices can still be compared.
        return "classes" if config.is_encoder_decoder else "causal"
    return "embedding"


def _output_words(model: nn.Module) -> bool:
    """Whether the model takes tokens, or as an encoder-decoder sound, and outputs scores of tokens."""
    if not isinstance(model, PreTrainedModel):
        return False
    listens = model.main_input_name == "input_features" and has_decoder(model)
    return (listens or model.main_input_name == "input_ids") and output_embeddings(model) is not None
