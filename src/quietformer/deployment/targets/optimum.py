"""optimum: ORTModel of optimum-onnx and OVModel of optimum-intel."""

from __future__ import annotations

from quietformer.data.batches_from_options import InputKind
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
PROCESSORS: dict[InputKind, str] = {
    "text": "AutoTokenizer",
    "images": "AutoImageProcessor",
    "audio": "AutoFeatureExtractor",
}
GIVEN: dict[InputKind, str] = {
    "text": '(["A sentence."], return_tensors="pt", padding=True, truncation=True)',
    "images": '(pictures, return_tensors="pt")  # a list of pictures, of PIL or numpy',
    "audio": '(samples, sampling_rate=16_000, return_tensors="pt")  # float32 of [-1, 1]',
}
"""How each kind of input is made."""
GENERATES = "model.generate(**batch, max_new_tokens=64)"


def optimum_class(model: ModelToShip) -> str:
    """`SequenceClassification`; empty where optimum has no class for such a model."""
    if model.writes:
        return "SpeechSeq2Seq" if model.kind == "audio" else "Seq2SeqLM"
    found = next((name for ending, name in CLASSES.items() if model.class_name.endswith(ending)), "")
    if found == "FeatureExtraction" and model.task != "embedding":
        return ""  # GPT2DoubleHeadsModel has heads, whatever its name ends in
    return found


def openvino_runs(model: ModelToShip) -> bool:
    """Whether optimum-intel has a class for it too: it takes texts alone for hidden states, and has none for choices."""
    kind = optimum_class(model)
    return kind != "MultipleChoice" and (kind != "FeatureExtraction" or model.kind == "text")


@targets.register("optimum")
class OptimumTarget(TargetSpec):
    """`model.onnx` or `openvino/openvino_model.xml`, beside config.json."""

    name = "optimum"
    runtimes = ("onnxruntime", "openvino")
    install = "optimum-onnx"

    def refusal(self, model: ModelToShip) -> str:
        return "" if optimum_class(model) else f"optimum has no class that runs the ONNX file of a {model.class_name}"

    def code(self, shipment: Shipment) -> str:
        model, ways = shipment.model, []
        if shipment.has_onnx:
            # Of two graphs it finds both by their names.
            named = "" if shipment.has_two_graphs else f', file_name="{shipment.graph.rpartition("/")[2]}"'
            ways.append(f"# pip install optimum-onnx\n{_loaded(model, 'onnxruntime', 'ORT', named)}")
        if shipment.has_openvino and openvino_runs(model):
            place = ', subfolder="openvino"'
            ways.append(f"# pip install optimum-intel\n{_loaded(model, 'intel', 'OV', place)}")
        return "\n\n".join(ways)


def _loaded(model: ModelToShip, package: str, prefix: str, place: str) -> str:
    """The class of one of the two libraries, and one pass of it."""
    name, auto = f"{prefix}ModelFor{optimum_class(model)}", PROCESSORS[model.kind]
    given = GIVEN[model.kind]
    call = "model(**batch)"
    if optimum_class(model) == "CausalLM":
        given, call = '(["Once upon a time"], return_tensors="pt")', GENERATES
    elif model.writes:
        call = GENERATES
    return (
        f"from optimum.{package} import {name}\nfrom transformers import {auto}\n\n"
        f'model = {name}.from_pretrained("FOLDER"{place})\n'
        f'batch = {auto}.from_pretrained("FOLDER"){given}\n'
        f"outputs = {call}"
    )
