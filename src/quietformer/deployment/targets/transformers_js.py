"""transformers.js: the graph under `onnx/`, by the names that its dtypes stand for."""

from __future__ import annotations

import os
import shutil

from quietformer.deployment.sentence_files import prompt_note, text_refusal, unknown_pooling
from quietformer.deployment.shipment import IN_BROWSERS, ModelToShip, Shipment
from quietformer.deployment.target import TargetSpec, targets
from quietformer.errors import QuietformerError

GENERATES = "text-generation"
LISTENS, TRANSLATES, REWRITES = "automatic-speech-recognition", "translation", "text2text-generation"
"""What encoder-decoders do."""

PIPELINES = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMaskedLM": "fill-mask",
    "ForCausalLM": GENERATES,
    "LMHeadModel": GENERATES,
    "ForImageClassification": "image-classification",
    "Model": "feature-extraction",
}
"""How the name of a model's class ends, and the pipeline that runs it."""

POOLINGS = {"cls": "cls", "mean": "mean", "lasttoken": "last_token"}
"""The pooling that it knows, as its option calls it."""


def pipeline_of(model: ModelToShip) -> str:
    if model.writes:
        return LISTENS if model.kind == "audio" else TRANSLATES if model.class_name == "MarianMTModel" else REWRITES
    found = next((task for ending, task in PIPELINES.items() if model.class_name.endswith(ending)), "")
    if found == "feature-extraction" and model.task != "embedding":
        return ""
    return f"image-{found}" if found == "feature-extraction" and model.kind == "images" else found


@targets.register("transformers_js")
class TransformersJsTarget(TargetSpec):
    """`onnx/model_quantized.onnx` for the dtype q8; fp32, where it is kept, is `onnx/model.onnx`."""

    name = "transformers.js"
    by_default = False  # it needs another name for the graph, so beside other clients the file is there twice
    language = "js"
    install = "@huggingface/transformers"

    def refusal(self, model: ModelToShip) -> str:
        if not pipeline_of(model) or (model.kind == "audio" and not model.writes):
            return f"transformers.js has no pipeline for the ONNX file of a {model.class_name}"
        if (
            model.origin is not None
            and (model.kind == "text" or model.writes)
            and not (model.origin / "tokenizer.json").is_file()
        ):
            return "it needs a tokenizer.json, which this model has not; save its tokenizer as a fast one first"
        return unknown_pooling(model, POOLINGS) or text_refusal(model) if model.embeds_text else ""

    def note(self, shipment: Shipment) -> str:
        return prompt_note(shipment)

    def write(self, shipment: Shipment) -> None:
        there = (shipment.folder / IN_BROWSERS).parent
        there.mkdir(exist_ok=True)
        for stem in shipment.stems:
            here = shipment.folder / f"{stem}.onnx"
            if here.with_name(f"{here.name}.data").is_file():
                raise QuietformerError(
                    "--for transformers.js: the graph is too large for one file, and it takes one file"
                )
            shutil.copy2(here, there / f"{stem}_quantized.onnx")
            fp32 = shipment.folder / f"{stem}_fp32.onnx"
            if fp32.is_file() and not fp32.with_name(f"{fp32.name}.data").is_file():
                os.replace(fp32, there / f"{stem}.onnx")

    def code(self, shipment: Shipment) -> str:
        task = pipeline_of(shipment.model)
        options = ""
        if shipment.model.embeds_text:
            pooling = POOLINGS[shipment.settings.pooling[0]]
            options = f", {{ pooling: '{pooling}', normalize: {str(shipment.settings.normalize).lower()} }}"
        given = "'picture.png'" if shipment.model.kind == "images" else "['A sentence.']"
        if task == LISTENS:
            given = "'speech.wav'"
        if task == GENERATES:
            given, options = "'Once upon a time'", ", { max_new_tokens: 64 }"
        return (
            "import { env, pipeline } from '@huggingface/transformers';\n\n"
            "env.localModelPath = '/path/to/';  // the folder above FOLDER\n"
            "env.allowRemoteModels = false;\n"
            f"const run = await pipeline('{task}', 'FOLDER', {{ dtype: 'q8' }});\n"
            f"const output = await run({given}{options});"
        )
