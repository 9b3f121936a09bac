"""sentence-transformers: modules, pooling, normalization, length and prompts."""

from __future__ import annotations

from quietformer.deployment.openvino_runtime import OPENVINO_FILE
from quietformer.deployment.sentence_files import embedding_refusal
from quietformer.deployment.shipment import ModelToShip, Shipment
from quietformer.deployment.target import TargetSpec, targets


@targets.register("sentence_transformers")
class SentenceTransformersTarget(TargetSpec):
    """A folder of modules, whose files every encoder has: the transformer, pooling and normalization."""

    name = "sentence-transformers"
    runtimes = ("onnxruntime", "openvino")
    install = "sentence-transformers"

    def refusal(self, model: ModelToShip) -> str:
        return embedding_refusal(model)

    def code(self, shipment: Shipment) -> str:
        begin = "from sentence_transformers import SentenceTransformer\n\n"
        lines = []
        if shipment.has_onnx:
            named = "" if shipment.graph == "model.onnx" else f', model_kwargs={{"file_name": "{shipment.graph}"}}'
            lines += [
                "# pip install 'sentence-transformers[onnx]'; beside transformers 5: modules=[quietformer.OnnxModel(\"FOLDER\")]",
                f'model = SentenceTransformer("FOLDER", backend="onnx"{named})',
            ]
        if shipment.has_openvino:
            named = f'model_kwargs={{"file_name": "{OPENVINO_FILE}"}}'
            lines += [
                "# pip install 'sentence-transformers[openvino]'",
                f'model = SentenceTransformer("FOLDER", backend="openvino", {named})',
            ]
        return begin + "\n".join([*lines, 'embeddings = model.encode(["A sentence."])'])
