"""text-embeddings-inference: the graph, config.json, the tokenizer, and sentence-transformers' pooling."""

from __future__ import annotations

import shlex

from quietformer.deployment.sentence_files import text_refusal, unknown_pooling
from quietformer.deployment.shipment import ModelToShip, Shipment
from quietformer.deployment.target import TargetSpec, targets

NAMES = {"cls": "cls", "mean": "mean", "lasttoken": "last-token"}
"""The pooling that the server knows, as its `--pooling` calls it."""


@targets.register("text_embeddings_inference")
class TextEmbeddingsInferenceTarget(TargetSpec):
    """A server for embeddings, and for classifiers of texts."""

    name = "text-embeddings-inference"
    language = "bash"
    install = "text-embeddings-router"

    def refusal(self, model: ModelToShip) -> str:
        if model.class_name.endswith("ForSequenceClassification"):
            return ""
        return unknown_pooling(model, NAMES) or text_refusal(model)

    def code(self, shipment: Shipment) -> str:
        pooling = ""
        if shipment.model.embeds_text:
            pooling = f" --pooling {NAMES[shipment.settings.pooling[0]]}"
            if name := shipment.settings.default_prompt_name:
                pooling += f" --default-prompt-name {shlex.quote(name)}"
        return f"text-embeddings-router --model-id FOLDER{pooling} --port 8080"

    def note(self, shipment: Shipment) -> str:
        """It has a default prompt, and each request may name another."""
        if not shipment.model.embeds_text or not any(shipment.settings.prompts.values()):
            return ""
        names = ", ".join(f"`{name}`" for name in shipment.settings.prompts)
        return f"A request chooses a prompt of the folder with `prompt_name`: {names}."
