"""compressed-tensors: safetensors with int8 weights, for vLLM and for transformers."""

from __future__ import annotations

from quietformer.deployment.compressed_weights import write_compressed
from quietformer.deployment.shipment import ModelToShip, Shipment, write_json
from quietformer.deployment.target import TargetSpec, targets

ENDINGS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice")
HEADS = {"causal": "ForCausalLM", "masked": "ForMaskedLM"}
"""The class that loads a model, by the end of its name or by its task."""


@targets.register("compressed_tensors")
class CompressedTensorsTarget(TargetSpec):
    """model.safetensors, and a `quantization_config` in config.json."""

    name = "compressed-tensors"
    runtimes = ("onnxruntime", "openvino")  # what it is measured in
    by_default = False
    install = "transformers compressed-tensors"

    def refusal(self, model: ModelToShip) -> str:
        if model.writes:
            return f"vLLM does not run encoder-decoders such as {model.class_name}"
        return (
            ""
            if model.kind == "text"
            else f"vLLM and transformers read it for models of text, not for a {model.class_name}"
        )

    def write(self, shipment: Shipment) -> None:
        described = write_compressed(shipment.calibrated, shipment.folder)
        # save_pretrained has written a config.json of its own
        write_json(shipment.folder / "config.json", shipment.model.config | {"quantization_config": described})

    def code(self, shipment: Shipment) -> str:
        loader = f"AutoModel{HEADS.get(shipment.model.task, '')}"
        for ending in ENDINGS:
            if shipment.model.class_name.endswith(ending):
                loader = f"AutoModel{ending}"
        return f'from transformers import {loader}\n\nmodel = {loader}.from_pretrained("FOLDER")'

    def note(self, shipment: Shipment) -> str:
        return (
            "vLLM serves the same folder: `vllm serve FOLDER`. The products inside attention, the embeddings, the pooler and "
            "the head are in full precision here."
        )
