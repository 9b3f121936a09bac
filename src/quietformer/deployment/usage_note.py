"""The note beside an exported model: how to run it."""

from __future__ import annotations

from quietformer.results import numbers
from quietformer.results.export import ExportDetails

INTEGER = "model.onnx"
"""The name users look for."""


def usage_note(result: ExportDetails, inputs: list[str], *, has_tokenizer: bool) -> str:
    """How to run what lies beside this note, in Markdown."""
    feed = _feed(inputs, has_tokenizer)
    percent = numbers.percent(result.bytes.int8 / result.bytes.fp32, 0)
    cosine = numbers.metric(result.cosine_to_simulation, "cosine")
    caution = {
        "int8": "Weights are signed. On processors without VNNI, onnxruntime adds pairs of products in 16 bits, which can "
        "overflow; "
        + ("on the texts it was checked with none did. " if result.signed_equal else "")
        + "`quietformer export --weight-type uint8` is exact everywhere, and slower.",
        "uint8": "Weights are unsigned with zero point 128, which is exact on every processor.",
    }[result.weight_type]
    return (
        f"# {result.model} in INT8\n\n"
        f"{result.label}: {result.weights} weights and {result.activations} activations are quantized, statically. "
        f"{numbers.megabytes(result.bytes.int8)} MB, {percent} of fp32.\n\n"
        f'```python\nimport onnxruntime\nsession = onnxruntime.InferenceSession("{INTEGER}")\n{feed}\n```\n\n'
        f"The output is `{result.output}`. {caution}\n\n"
        f"Agreement with the simulation: mean cosine {cosine}. Metrics: `export.json`.\n"
    )


def _feed(inputs: list[str], has_tokenizer: bool) -> str:
    """From what a user has to the outputs."""
    if "pixel_values" in inputs:
        return (
            "pixels = ...  # float32 (batch, channels, height, width), scaled as the model was trained\n"
            'outputs = session.run(None, {"pixel_values": pixels})'
        )
    if inputs[0] in ("input_features", "input_values"):
        return (
            'from transformers import AutoFeatureExtractor\nextractor = AutoFeatureExtractor.from_pretrained(".")\n'
            "samples = ...  # float32 of [-1, 1], extractor.sampling_rate of them a second\n"
            'batch = extractor(samples, sampling_rate=extractor.sampling_rate, return_tensors="np")\n'
            f"outputs = session.run(None, {{name: batch[name] for name in {inputs!r}}})"
        )
    tokenizer = (
        'from transformers import AutoTokenizer\ntokenizer = AutoTokenizer.from_pretrained(".")\n'
        if has_tokenizer
        else "tokenizer = ...  # the model's; pass processor=tokenizer to export_onnx to have it here\n"
    )
    return (
        f'{tokenizer}batch = tokenizer(["some text"], return_tensors="np", padding=True)\n'
        f'outputs = session.run(None, {{name: batch[name].astype("int64") for name in {inputs!r}}})'
    )
