"""`export_onnx`: a calibrated model as integers that onnxruntime runs, checked against the simulation and measured."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import onnx_ir as ir
import torch
from torch import Tensor
from transformers import PreTrainedModel

from quietformer.architectures.forward import Batch
from quietformer.config.recorded_changes import changes_of
from quietformer.deployment.latency import latencies
from quietformer.deployment.onnx_graph import floating_graph, integer_graph
from quietformer.deployment.onnx_runtime import OnnxModel
from quietformer.deployment.torch_program import marked_program, output_name
from quietformer.errors import QuietformerError
from quietformer.files import whole_folder, write_json, write_text
from quietformer.models.folder_files import PROCESSOR_FILES
from quietformer.models.save import copy_processor
from quietformer.quant.calibration import floating_point
from quietformer.quant.insertion import quantizers

WeightType = Literal["auto", "int8", "uint8"]

INTEGER, FLOATING = "model.onnx", "model_fp32.onnx"

LARGE = 1_800_000_000
"""Bytes past which a graph and its weights do not fit one protobuf, and weights go into a file beside it."""

SAME = 1e-3
"""Largest difference of floating point ONNX from torch, relative to the largest value, that is still rounding."""


@dataclass
class ExportResult:
    """What was written and how it measured."""

    model: str
    output: str
    label: str
    weights: int
    activations: int
    weight_type: str
    float_difference: float  # largest difference of floating point ONNX from torch, relative to the largest value
    cosine_to_simulation: float  # mean over tokens of INT8 ONNX against the simulation
    equal_to_simulation: float  # share of output values that are the same to 1e-5 of the largest
    signed_equal: bool | None  # whether signed weights gave bit for bit what unsigned ones did here
    bytes: dict[str, int]
    latency: list[dict[str, Any]] = field(default_factory=list)
    threads: int = 0
    versions: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def export_onnx(
    model: PreTrainedModel,
    folder: str | os.PathLike[str],
    batches: list[Batch],
    *,
    processor: Any = None,
    weight_type: WeightType = "auto",
    keep_float: bool = False,
    threads: int | None = None,
    timed: bool = True,
    tell: Callable[[str], None] = lambda what: None,
) -> ExportResult:
    """Write the model as INT8 ONNX into a folder, all or nothing; the batches check it, and the first is timed."""
    folder = Path(folder)
    placed = quantizers(model)
    if not placed or not all(quantizer.calibrated for quantizer in placed.values()):
        raise QuietformerError(
            f"{type(model).__name__} has no calibrated quantizers; call quantize_ and calibrate_ first"
        )
    if model.dtype != torch.float32:
        # Scales are float32 and so is what onnxruntime computes between integers; half precision stays behind.
        half: Any = copy.deepcopy(model)
        model = half.float()
        placed = quantizers(model)
    if not batches:
        raise QuietformerError("there are no batches to check the export on; give some text or images")
    batches = [
        {
            name: tensor.float() if tensor.is_floating_point() else tensor
            for name, tensor in batch.items()
            if name != "labels"
        }
        for batch in batches
    ]
    example = _example(batches[0])
    output = output_name(model, example)
    tell("tracing the graph")
    marked = marked_program(model, example, output)
    with whole_folder(folder, stale=("model*.onnx*", *PROCESSOR_FILES)) as draft:
        tell("writing floating point ONNX")
        _save(floating_graph(marked), draft / FLOATING)
        sizes, equal, chosen = {"fp32": _size(draft / FLOATING)}, None, weight_type
        for kind in ("uint8", "int8") if weight_type == "auto" else (weight_type,):
            tell(f"writing INT8 ONNX ({kind} weights)")
            _save(integer_graph(marked, placed, signed_weights=kind == "int8"), draft / f"model_{kind}.onnx")
        if weight_type == "auto":
            tell("comparing signed with unsigned weights")
            equal = _same_everywhere(draft, batches)
            chosen = "int8" if equal else "uint8"
        _keep(draft, f"model_{chosen}.onnx")
        sizes["int8"] = _size(draft / INTEGER)
        tell("checking against torch and the simulation")
        difference = _float_difference(model, draft / FLOATING, batches, output)
        if not difference <= SAME:
            raise QuietformerError(
                f"the exported graph differs from {type(model).__name__} by {difference:.0%} of its largest output in floating "
                "point, so it was not written; the exporter has mistranslated something"
            )
        cosine, share = _agreement(model, draft / INTEGER, batches, output)
        if timed:
            tell("measuring latency")
        result = ExportResult(
            model=type(model).__name__,
            output=output,
            label=changes_of(model).quantized.spec.label,  # type: ignore[union-attr]
            weights=sum(site.endswith(":weight") for site in placed),
            activations=sum(not site.endswith(":weight") for site in placed),
            weight_type=str(chosen),
            float_difference=difference,
            cosine_to_simulation=cosine,
            equal_to_simulation=share,
            signed_equal=equal,
            bytes=sizes,
            latency=_latency(model, draft, batches[0], threads) if timed else [],
            threads=threads or torch.get_num_threads(),
            versions=_versions(),
        )
        if not keep_float:
            for path in draft.glob(f"{FLOATING}*"):
                path.unlink()
        copy_processor(model, processor, draft)
        write_json(draft / "figures.json", result.to_dict())
        has_tokenizer = any(
            (draft / name).exists() for name in ("tokenizer.json", "vocab.txt", "tokenizer_config.json")
        )
        write_text(draft / "README.md", _usage(result, list(example), has_tokenizer=has_tokenizer))
    return result


def _example(batch: Batch) -> Batch:
    """Two sequences, so that the exporter does not take a size of one for a constant."""
    return {name: tensor[:2] if len(tensor) > 1 else torch.cat([tensor, tensor]) for name, tensor in batch.items()}


def _save(model: ir.Model, path: Path) -> None:
    large = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value) > LARGE
    ir.save(model, path, external_data=f"{path.name}.data" if large else None)


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))


def _keep(draft: Path, name: str) -> None:
    """One of the integer graphs under the name users look for."""
    for path in list(draft.glob("model_*int8.onnx*")):
        if not path.name.startswith(name):
            path.unlink()
    if (data := draft / f"{name}.data").exists():
        graph = ir.load(draft / name)
        ir.save(graph, draft / INTEGER, external_data=f"{INTEGER}.data")
        (draft / name).unlink()
        data.unlink()
    else:
        os.rename(draft / name, draft / INTEGER)


def _same_everywhere(draft: Path, batches: list[Batch]) -> bool:
    """Processors without VNNI add pairs of products in 16 bits, which signed weights can make overflow in silence."""
    signed, unsigned = OnnxModel(draft / "model_int8.onnx"), OnnxModel(draft / "model_uint8.onnx")
    return all(torch.equal(signed(batch)[signed.output], unsigned(batch)[unsigned.output]) for batch in batches)


def _valid(batch: Batch, output: Tensor) -> Tensor:
    """Rows of the output that belong to tokens rather than to padding."""
    flat = output.reshape(-1, output.shape[-1])
    mask = batch.get("attention_mask")
    return flat[mask.bool().flatten()] if mask is not None and mask.numel() == len(flat) else flat


def _torch(model: PreTrainedModel, batch: Batch, output: str) -> Tensor:
    with torch.no_grad():
        result: Tensor = getattr(model(**{name: tensor.to(model.device) for name, tensor in batch.items()}), output)
    return _valid(batch, result.float().cpu())


def _float_difference(model: PreTrainedModel, path: Path, batches: list[Batch], output: str) -> float:
    runtime, worst = OnnxModel(path), 0.0
    with floating_point(model):
        for batch in batches[:4]:
            ours = _torch(model, batch, output)
            theirs = _valid(batch, runtime(batch)[output])
            difference = float((ours - theirs).abs().max() / ours.abs().max())
            worst = max(worst, math.inf if math.isnan(difference) else difference)
    return worst


def _agreement(model: PreTrainedModel, path: Path, batches: list[Batch], output: str) -> tuple[float, float]:
    runtime = OnnxModel(path)
    cosines: list[Tensor] = []
    same: list[Tensor] = []
    for batch in batches:
        ours, theirs = _torch(model, batch, output), _valid(batch, runtime(batch)[output])
        cosines.append(torch.nn.functional.cosine_similarity(ours.double(), theirs.double(), dim=-1))
        same.append(((ours - theirs).abs() <= 1e-5 * ours.abs().max()).double().mean()[None])
    return float(torch.cat(cosines).mean()), float(torch.cat(same).mean())


def _latency(model: PreTrainedModel, draft: Path, batch: Batch, threads: int | None) -> list[dict[str, Any]]:
    threads = threads or torch.get_num_threads()
    before = torch.get_num_threads()
    models = {
        "onnx_fp32": OnnxModel(draft / FLOATING, threads=threads),
        "onnx_int8": OnnxModel(draft / INTEGER, threads=threads),
    }
    rows = []
    torch.set_num_threads(threads)
    try:
        for size, length in _shapes(batch):
            piece = _sized(batch, size, length)

            runs: dict[str, Callable[[], object]] = {"torch_fp32": partial(_in_float, model, piece)}
            for name, runtime in models.items():
                runs[name] = partial(runtime.session.run, None, runtime.feeds(piece))
            taken = latencies(runs)
            rows.append({
                "batch": size, "length": length, **{f"{name}_ms": 1e3 * time for name, time in taken.items()},
                "speedup": taken["onnx_fp32"] / taken["onnx_int8"],
            })  # fmt: skip
    finally:
        torch.set_num_threads(before)
    return rows


def _in_float(model: PreTrainedModel, batch: Batch) -> None:
    with torch.no_grad(), floating_point(model):
        model(**{name: tensor.to(model.device) for name, tensor in batch.items()})


def _shapes(batch: Batch) -> list[tuple[int, int | None]]:
    if "input_ids" not in batch:
        return [(1, None), (8, None)]
    longest = batch["input_ids"].shape[1]
    return [(1, min(16, longest)), (1, longest), (8, longest)] if longest > 16 else [(1, longest), (8, longest)]


def _sized(batch: Batch, size: int, length: int | None) -> Batch:
    times = -(-size // len(next(iter(batch.values()))))
    piece = {name: tensor.repeat(times, *[1] * (tensor.dim() - 1))[:size] for name, tensor in batch.items()}
    return piece if length is None else {name: tensor[:, :length].contiguous() for name, tensor in piece.items()}


def _versions() -> dict[str, str]:
    import onnx
    import onnxruntime
    import transformers

    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "onnx": onnx.__version__,
        "onnxruntime": onnxruntime.__version__,
    }


def _usage(result: ExportResult, inputs: list[str], *, has_tokenizer: bool) -> str:
    """How to run what lies beside this note."""
    images = "pixel_values" in inputs
    feed = (
        "pixels = ...  # float32 (batch, channels, height, width), scaled as the model was trained\n"
        'outputs = session.run(None, {"pixel_values": pixels})'
        if images
        else (
            'from transformers import AutoTokenizer\ntokenizer = AutoTokenizer.from_pretrained(".")\n'
            if has_tokenizer
            else "tokenizer = ...  # the model's; pass processor=tokenizer to export_onnx to have it here\n"
        )
        + 'batch = tokenizer(["some text"], return_tensors="np", padding=True)\n'
        f'outputs = session.run(None, {{name: batch[name].astype("int64") for name in {inputs!r}}})'
    )
    percent = result.bytes["int8"] / result.bytes["fp32"]
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
        f"{result.bytes['int8'] / 1e6:.1f} MB, {percent:.0%} of floating point.\n\n"
        f'```python\nimport onnxruntime\nsession = onnxruntime.InferenceSession("{INTEGER}")\n{feed}\n```\n\n'
        f"The output is `{result.output}`. {caution}\n\n"
        f"Agreement with the simulation: mean cosine {result.cosine_to_simulation:.4f}. Figures: `figures.json`.\n"
    )
