"""optimum: ORTModel of optimum-onnx and OVModel of optimum-intel."""

from __future__ import annotations

from quietformer.deployment.shipment import ModelToShip, Shipment
from quietformer.deployment.target import TargetSpec, targets

CLASSES = {
    "ForSequenceClassification": "SequenceClassification",
    "ForTokenClassification": "TokenClassification",
    "ForQuestionAnswering": "QuestionAnswering",
    "ForMultipleChoice": "MultipleChoice",
    "ForImageClassification": "ImageClassification",
    "ForMaskedLM": "MaskedLM",
    "ForCausalLM": "CausalLM",
    "LMHeadModel": "CausalLM",
    "ForAudioClassification": "AudioClassification",
    "ForCTC": "CTC",
    "Model": "FeatureExtraction",
}
"""How the name of a model's class ends, and what optimum calls the class that runs it; the first that fits."""


def optimum_class(model: ModelToShip) -> str:
    """`SequenceClassification`; empty where optimum has no class for such a model."""
    found = next((name for ending, name in CLASSES.items() if model.class_name.endswith(ending)), "")
    embeds_text = model.task == "embedding" and model.kind == "text"
    return "" if found == "FeatureExtraction" and not embeds_text else found  # OpenAIGPTDoubleHeadsModel has heads


@targets.register("optimum")
class OptimumTarget(TargetSpec):
    """`model.onnx` or `openvino/openvino_model.xml`, beside config.json."""

    name = "optimum"
    runtimes = ("onnxruntime", "openvino")
    install = "optimum-onnx"

    def refusal(self, model: ModelToShip) -> str:
        return "" if optimum_class(model) else f"optimum has no class that runs the ONNX file of a {model.class_name}"

    def code(self, shipment: Shipment) -> str:
        kind = optimum_class(shipment.model)
        lines = []
        if shipment.has_onnx:
            lines += [
                f"from optimum.onnxruntime import ORTModelFor{kind}  # pip install optimum-onnx",
                f'model = ORTModelFor{kind}.from_pretrained("FOLDER", file_name="{shipment.graph.rpartition("/")[2]}")',
            ]
        if shipment.has_openvino:
            lines += [
                f"from optimum.intel import OVModelFor{kind}  # pip install optimum-intel",
                f'model = OVModelFor{kind}.from_pretrained("FOLDER", subfolder="openvino")',
            ]
        return "\n".join(lines)
