"""fastembed: the graph and tokenizer.json; the pooling is told to it in code."""

from __future__ import annotations

from quietformer.deployment.sentence_files import embedding_refusal
from quietformer.deployment.shipment import ModelToShip, Shipment
from quietformer.deployment.target import TargetSpec, targets

NAMES = {"cls": "CLS", "mean": "MEAN", "lasttoken": "LAST_TOKEN"}
"""The pooling that it knows, as members of its PoolingType."""


@targets.register("fastembed")
class FastembedTarget(TargetSpec):
    """A custom model with a local path."""

    name = "fastembed"
    install = "fastembed"

    def refusal(self, model: ModelToShip) -> str:
        if why := embedding_refusal(model):
            return why
        assert model.settings is not None
        if len(model.settings.pooling) > 1 or not set(model.settings.pooling) <= set(NAMES):
            return f"it cannot pool by {' and '.join(model.settings.pooling)}; it knows {', '.join(NAMES)}"
        return ""

    def code(self, shipment: Shipment) -> str:
        settings = shipment.settings
        pooling = NAMES[(settings.pooling or ("mean",))[0]]
        return (
            "from fastembed import TextEmbedding\n"
            "from fastembed.common.model_description import ModelSource, PoolingType\n\n"
            "TextEmbedding.add_custom_model(\n"
            f'    model="mine", pooling=PoolingType.{pooling}, normalization={settings.normalize},\n'
            f'    sources=ModelSource(hf="mine"), dim={shipment.model.hidden_size}, model_file="{shipment.graph}",\n'
            ")\n"
            'model = TextEmbedding("mine", specific_model_path="FOLDER")\n'
            'embeddings = list(model.embed(["A sentence."]))'
        )
