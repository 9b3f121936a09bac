"""optimum: ORTModel of optimum-onnx and OVModel of optimum-intel."""

from __future__ import annotations

from quietformer.deployment.shipment import ModelToShip, Shipment
from quietformer.deployment.target import TargetSpec, targets

CLASSES = {
    "Model": "FeatureExtraction",
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
}
"""How the name of a model's class ends, and what optimum calls the class that runs it."""


def optimum_class(model: ModelToShip) -> str:
    """`SequenceClassification`; empty where optimum has no class for such a model."""
    if model.writes:
        return "SpeechSeq2Seq" if model.kind == "audio" else "Seq2SeqLM"
    found = next((name for ending, name in CLASSES.items() if model.class_name.endswith(ending)), "")
    if (
        found == "FeatureExtraction" and model.task != "embedding"
    ):  # GPT2LMHeadModel has a head, whatever its name ends in
        return ""
    return "" if found == "FeatureExtraction" and model.kind != "text" else found


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
        if shipment.has_two_graphs:
            lines += [
                f"from optimum.onnxruntime import ORTModelFor{kind}  # pip install optimum-onnx",
                f'model = ORTModelFor{kind}.from_pretrained("FOLDER")',
            ]
        elif shipment.has_onnx:
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
