"""sentence-transformers: modules, pooling, normalization, length and prompts."""

from __future__ import annotations

from quietformer.deployment.openvino_runtime import OPENVINO_FILE
from quietformer.deployment.sentence_files import embedding_refusal
from quietformer.deployment.shipment import ModelToShip, Shipment
from quietformer.deployment.target import TargetSpec, targets
from quietformer.deployment.usage_note import INTEGER


@targets.register("sentence_transformers")
class SentenceTransformersTarget(TargetSpec):
    """A folder of modules, whose files every encoder has: the transformer, pooling and normalization."""

    name = "sentence-transformers"
    runtimes = ("onnxruntime", "openvino")
    install = "sentence-transformers"

    def refusal(self, model: ModelToShip) -> str:
        return embedding_refusal(model)

    def code(self, shipment: Shipment) -> str:
        begin = "from sentence_transformers import SentenceTransformer\n\nmodel = SentenceTransformer"
        end = '\nembeddings = model.encode(["A sentence."])'
        ways = []
        if shipment.has_onnx:
            named = "" if shipment.graph == INTEGER else f', model_kwargs={{"file_name": "{shipment.graph}"}}'
            ways.append(
                "# pip install 'sentence-transformers[onnx]', which needs transformers 4\n"
                f'{begin}("FOLDER", backend="onnx"{named}){end}'
            )
        if shipment.has_openvino:
            named = f'model_kwargs={{"file_name": "{OPENVINO_FILE}"}}'
            ways.append(
                "# With OpenVINO: pip install 'sentence-transformers[openvino]'\n"
                f'{begin}("FOLDER", backend="openvino", {named}){end}'
            )
        ways.append(
            "# Beside transformers 5: pip install sentence-transformers 'quietformer[onnx]'\n"
            f'import quietformer as qf\n\nmodel = qf.sentence_transformer("FOLDER"){end}'
        )
        return "\n\n".join(ways)
