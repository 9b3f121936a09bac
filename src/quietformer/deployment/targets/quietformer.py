"""Our own class: `OnnxModel(folder)`."""

from __future__ import annotations

from quietformer.deployment.media_inputs import PIXELS
from quietformer.deployment.sentence_files import embedding_refusal
from quietformer.deployment.shipment import Shipment
from quietformer.deployment.target import TargetSpec, targets


@targets.register("quietformer")
class QuietformerTarget(TargetSpec):
    """Whatever graph there is, with pooling, labels and length read from beside it."""

    name = "quietformer"
    runtimes = ("onnxruntime", "openvino")
    install = "quietformer[onnx]"

    def code(self, shipment: Shipment) -> str:
        begin = 'import quietformer as qf\n\nmodel = qf.OnnxModel("FOLDER")\n'
        if not embedding_refusal(shipment.model):
            return f'{begin}embeddings = model.encode(["A sentence."])'
        if shipment.model.writes and shipment.model.kind == "audio":
            return f'{begin}texts = model.generate(["speech.wav"])'
        if shipment.model.writes:
            return f'{begin}texts = model.generate(["A sentence."])'
        if shipment.generates:
            return f'{begin}texts = model.generate(["Once upon a time"], max_new_tokens=64)'
        if shipment.model.gives_one_score:
            return f'{begin}scores = model([("A question.", "A passage.")])  # one of each pair'
        if shipment.model.kind == "text":
            return f'{begin}outputs = model(["A sentence."])'
        if shipment.inputs[0] == PIXELS:
            return f'{begin}outputs = model(["picture.png"])  # paths, PIL images or pixels'
        return f'{begin}outputs = model(["speech.wav"])  # paths, or samples as the extractor takes them'
