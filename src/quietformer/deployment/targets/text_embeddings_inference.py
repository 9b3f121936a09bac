"""text-embeddings-inference: the graph, config.json, the tokenizer, and sentence-transformers' pooling."""

from __future__ import annotations

from quietformer.deployment.sentence_files import unknown_pooling
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
        return unknown_pooling(model, NAMES)

    def code(self, shipment: Shipment) -> str:
        pooling = ""
        if shipment.model.embeds_text:
            pooling = f" --pooling {NAMES[shipment.settings.pooling[0]]}"
        return f"text-embeddings-router --model-id FOLDER{pooling} --port 8080"
