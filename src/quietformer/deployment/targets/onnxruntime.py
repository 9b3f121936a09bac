"""ONNX Runtime by itself."""

from __future__ import annotations

from quietformer.deployment.sentence_files import pooling_note
from quietformer.deployment.shipment import ModelToShip, Shipment
from quietformer.deployment.target import TargetSpec, targets
from quietformer.deployment.usage_note import caution, onnxruntime_code


@targets.register("onnxruntime")
class OnnxRuntimeTarget(TargetSpec):
    """A graph and the tokenizer."""

    name = "onnxruntime"
    install = "onnxruntime"

    def refusal(self, model: ModelToShip) -> str:
        two = "an encoder-decoder is two graphs and a loop around the second"
        return f"{two}; quietformer, optimum and transformers.js have it" if model.writes else ""

    def code(self, shipment: Shipment) -> str:
        return onnxruntime_code("FOLDER", shipment.graph, shipment.inputs, has_processor=shipment.has_processor)

    def note(self, shipment: Shipment) -> str:
        return f"{pooling_note(shipment)}\n\n{caution(shipment.details)}".strip()
