"""ONNX Runtime by itself, and our own class around it."""

from __future__ import annotations

from quietformer.deployment.shipment import Shipment
from quietformer.deployment.target import TargetSpec, targets


@targets.register("onnxruntime")
class OnnxRuntimeTarget(TargetSpec):
    """A graph and the tokenizer."""

    name = "onnxruntime"
    install = "quietformer[onnx]"

    def code(self, shipment: Shipment) -> str:
        begin = 'import quietformer as qf\n\nmodel = qf.OnnxModel("FOLDER")\n'
        if shipment.model.embeds_text:
            return f'{begin}embeddings = model.encode(["A sentence."])'
        if shipment.model.kind == "text":
            return f'{begin}outputs = model(["A sentence."])'
        return f"{begin}outputs = model({shipment.inputs[0]}=values)"
