"""The note beside an exported model: how to run it."""

from __future__ import annotations

from quietformer.deployment.cache_names import is_past
from quietformer.deployment.generation_code import onnxruntime_loop, openvino_loop
from quietformer.deployment.processor import adds_exactly_on
from quietformer.results import numbers
from quietformer.results.export import TITLES, Agreement, ExportDetails, RuntimeDetails

INTEGER = "model.onnx"
"""The name users look for."""
PREPARING_FILES = ("tokenizer.json", "vocab.txt", "tokenizer_config.json", "preprocessor_config.json")
"""What a tokenizer, an image processor or a feature extractor is read from."""


def usage_note(result: ExportDetails, inputs: list[str], *, has_processor: bool) -> str:
    """How to run what lies beside this note, in Markdown."""
    percent = numbers.percent(result.bytes.int8 / result.bytes.fp32, 0)
    written = {one.runtime: one for one in result.runtimes if one.error is None}
    parts = [
        f"# {result.model} in INT8\n",
        f"{result.label}: {result.weights} weights and {result.activations} activations are quantized, statically. "
        f"{numbers.megabytes(result.bytes.int8)} MB, {percent} of fp32. The output is `{result.output}`.\n",
    ]
    if "onnxruntime" in written:
        code = onnxruntime_code(".", INTEGER, inputs, has_processor=has_processor)
        parts += ["## ONNX Runtime\n", _fenced(code), f"{caution(result)}\n"]
    if "openvino" in written:
        code = openvino_code(".", written["openvino"].file or "", inputs, has_processor=has_processor)
        parts += ["## OpenVINO\n", _fenced(code), f"{PRECISION}\n"]
    parts += ["Agreement with the simulation, mean cosine (details in `export.json`):\n"]
    parts += [f"- {TITLES[one.runtime]}: {_agreement(one)}" for one in written.values()]
    return "\n".join(parts) + "\n"


PRECISION = (
    "With the hint, what is not an integer product is computed in f32, as in the simulation. Without it OpenVINO takes bf16 "
    "where the processor has it."
)


def onnxruntime_code(place: str, file: str, inputs: list[str], *, has_processor: bool) -> str:
    """ONNX Runtime by itself, but for the loop around a decoder; `place` is the folder as the code names it."""
    if "decoder_input_ids" in inputs:
        given = "A sentence." if "input_ids" in inputs else "speech.wav"
        return f'import quietformer as qf\n\nmodel = qf.OnnxModel("{place}")\ntexts = model.generate(["{given}"])'
    opened = f'import onnxruntime\n\nsession = onnxruntime.InferenceSession("{_at(place, file)}")\n'
    if any(map(is_past, inputs)):
        return onnxruntime_loop(opened, place, inputs)
    return _code(opened, "session.run(None, {})", place, inputs, has_processor)


def openvino_code(place: str, file: str, inputs: list[str], *, has_processor: bool) -> str:
    """OpenVINO by itself."""
    opened = (
        "import openvino\n\nmodel = openvino.Core().compile_model(\n"
        f'    "{_at(place, file)}", "CPU", {{"INFERENCE_PRECISION_HINT": "f32"}})\n'
    )
    if any(map(is_past, inputs)):
        return openvino_loop(opened, place, inputs)
    return _code(opened, "model({})", place, inputs, has_processor)


def _at(place: str, file: str) -> str:
    return file if place == "." else f"{place}/{file}"


def _fenced(code: str) -> str:
    return f"```python\n{code}\n```\n"


def _code(opened: str, call: str, place: str, inputs: list[str], has_processor: bool) -> str:
    if "pixel_values" in inputs and has_processor:
        opened = _importing("AutoImageProcessor", opened, "from PIL import Image\n")
        given = (
            f'processor = AutoImageProcessor.from_pretrained("{place}")\n'
            'batch = processor(Image.open("picture.png").convert("RGB"), return_tensors="np")\n'
        )
        fed = '{"pixel_values": batch["pixel_values"]}'
    elif "pixel_values" in inputs:
        given = "pixels = ...  # float32 (batch, channels, height, width), scaled as the model was trained\n"
        fed = '{"pixel_values": pixels}'
    elif inputs[0] in ("input_features", "input_values"):
        opened = _importing("AutoFeatureExtractor", opened)
        given = (
            f'extractor = AutoFeatureExtractor.from_pretrained("{place}")\n'
            "samples = ...  # float32 of [-1, 1], extractor.sampling_rate of them a second\n"
            'batch = extractor(samples, sampling_rate=extractor.sampling_rate, return_tensors="np")\n'
        )
        fed = f"{{name: batch[name] for name in {inputs!r}}}"
    else:
        opened = _importing("AutoTokenizer", opened) if has_processor else opened
        given = (
            f'tokenizer = AutoTokenizer.from_pretrained("{place}")\n'
            if has_processor
            else "tokenizer = ...  # the model's; pass processor=tokenizer to export_onnx to have it here\n"
        ) + 'batch = tokenizer(["A sentence."], return_tensors="np", padding=True, truncation=True)\n'
        fed = f'{{name: batch[name].astype("int64") for name in {inputs!r}}}'
    return f"{opened}{given}outputs = {call.format(fed)}"


def _importing(name: str, code: str, before: str = "") -> str:
    """Code with one more import, after its first."""
    first, _, rest = code.partition("\n")
    return f"{first}\n{before}from transformers import {name}\n{rest}"


def caution(result: ExportDetails) -> str:
    """On which processors the weights are exact."""
    if result.weight_type == "uint8":
        return "Weights are unsigned with zero point 128, which is exact on every processor."
    found = "whether they do was not checked. "
    if result.signed_equal and not adds_exactly_on(result.instruction_set):
        found = "on the data it was checked with none did. "
    return (
        "Weights are signed. On processors without VNNI, onnxruntime adds pairs of products in 16 bits, which can overflow; "
        f"{found}`quietformer export --weight-type uint8` is exact everywhere, and slower."
    )


def _agreement(one: RuntimeDetails) -> str:
    assert one.agreement is not None
    text = f"{_cosine(one.agreement)} with {one.precision}"
    return text if one.agreement_in_f32 is None else f"{text}, {_cosine(one.agreement_in_f32)} with f32"


def _cosine(agreement: Agreement) -> str:
    """Of embeddings, where that is what the model gives."""
    found = agreement.cosine if agreement.embedding_cosine is None else agreement.embedding_cosine
    return numbers.metric(found, "cosine")
