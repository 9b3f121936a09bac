"""fastembed: the graph and tokenizer.json; the pooling is told to it in code."""

from __future__ import annotations

from typing import Any

from quietformer.data.tokenizers import tokenizer_of
from quietformer.deployment.sentence_files import prompt_note, text_refusal, unknown_pooling
from quietformer.deployment.shipment import ModelToShip, Shipment, write_json
from quietformer.deployment.target import TargetSpec, targets

NAMES = {"cls": "CLS", "mean": "MEAN", "lasttoken": "LAST_TOKEN"}
"""The pooling that it knows, as members of its PoolingType."""


@targets.register("fastembed")
class FastembedTarget(TargetSpec):
    """A custom model with a local path."""

    name = "fastembed"
    install = "fastembed"

    def refusal(self, model: ModelToShip) -> str:
        if why := unknown_pooling(model, NAMES) or text_refusal(model):
            return why
        if model.origin is not None and not (model.origin / "tokenizer.json").is_file():
            return "it needs a tokenizer.json, which this model has not; save its tokenizer as a fast one first"
        return ""

    def write(self, shipment: Shipment) -> None:
        """It refuses a folder without this file, which transformers 5 does not write any more."""
        path = shipment.folder / "special_tokens_map.json"
        if not path.is_file():
            write_json(path, {name: str(token) for name, token in _special_tokens(shipment).items()})

    def code(self, shipment: Shipment) -> str:
        settings = shipment.settings
        pooling = NAMES[settings.pooling[0]]
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

    def note(self, shipment: Shipment) -> str:
        return prompt_note(shipment)


def _special_tokens(shipment: Shipment) -> dict[str, Any]:
    found = tokenizer_of(str(shipment.folder)).special_tokens_map
    return {name: token for name, token in found.items() if not isinstance(token, list)}
