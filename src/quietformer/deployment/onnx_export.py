"""A calibrated model as INT8 that ONNX Runtime and OpenVINO run, checked against the simulation and measured."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from quietformer.analysis.writing import DECODED, read_by_decoder
from quietformer.architectures.forward import Batch, check_batch, check_batches, has_decoder, model_inputs
from quietformer.config.options.export import OnnxOptions, WeightType
from quietformer.config.recorded_changes import changes_of
from quietformer.deployment.folder_digests import digests_of
from quietformer.deployment.latency import latency_rows
from quietformer.deployment.onnx_checks import fp32_difference, same_everywhere
from quietformer.deployment.processor import adds_exactly, instruction_set, processor_name
from quietformer.deployment.runtimes import checked, runtimes_for, size_of, timed_models, write_for_openvino
from quietformer.deployment.seq2seq_model import graph_path, open_graph
from quietformer.deployment.torch_program import check_exportable, output_name
from quietformer.deployment.traced_graphs import traced_graphs
from quietformer.deployment.usage_note import INTEGER, PREPARING_FILES, usage_note
from quietformer.errors import QuietformerError, in_one_line, root_of
from quietformer.files import whole_folder, write_text
from quietformer.models.folder_files import PROCESSOR_FILES
from quietformer.models.save import copy_processor
from quietformer.progress import SILENT, Progress
from quietformer.quant.insertion import quantizers
from quietformer.results import numbers
from quietformer.results.export import ExportDetails, FileSizes, LatencyRow, RuntimeDetails, RuntimeName

FLOATING, DETAILS = "model_fp32.onnx", "export.json"
FP32 = "_fp32"
"""What the names of fp32 graphs end in."""

STALE = (
    "model*.onnx*",
    "encoder_model*.onnx*",
    "decoder_model*.onnx*",
    "openvino",
    "figures.json",
    "report.json",
    "report.html",
    *PROCESSOR_FILES,
)
"""What an earlier export wrote into the folder and this one replaces."""

SAME = 1e-3
"""Largest difference of fp32 ONNX from torch, relative to the largest value, that is still rounding."""


def export_onnx(
    model: PreTrainedModel,
    folder: str | os.PathLike[str],
    batches: list[Batch],
    processor: Any = None,
    options: OnnxOptions | None = None,
    progress: Progress = SILENT,
) -> ExportDetails:
    """Write the model as INT8 into a folder, ONNX and OpenVINO IR, all or nothing; the batches check it, and the first is timed.

    The model is quantized and calibrated; `processor`, its tokenizer or image processor, is saved beside it.
    """
    return export_calibrated(Calibrated(model), folder, batches, processor, options, progress)


@dataclass(frozen=True)
class Calibrated:
    """A calibrated model, and the one it was made from if its weights were changed: that is what INT8 is compared with."""

    model: PreTrainedModel
    original: PreTrainedModel | None = None


def export_calibrated(
    calibrated: Calibrated,
    folder: str | os.PathLike[str],
    batches: list[Batch],
    processor: Any = None,
    options: OnnxOptions | None = None,
    progress: Progress = SILENT,
) -> ExportDetails:
    """The same; the fp32 graph that is timed, and kept with `keep_fp32`, is that of the original."""
    options, model = options or OnnxOptions(), calibrated.model
    check_exportable(model)
    asked = runtimes_for(model, options.runtime)
    model = _in_fp32(model)
    placed = quantizers(model)
    batches = _inputs(model, batches)
    weight_type = _weight_type(model, options)
    example = _example(model_inputs(batches[0]))
    output = output_name(model, example)
    progress.step("tracing the graph")
    traced = traced_graphs(model, example, output)
    with _in_one_line(model), whole_folder(Path(folder), stale=STALE) as draft:
        progress.step("writing fp32 ONNX")
        traced.save_fp32(draft, FP32)
        for kind in _weight_types(weight_type, asked):
            progress.step(f"writing INT8 ONNX ({kind} weights)")
            traced.save_int8(draft, f"_{kind}", placed, signed_weights=kind == "int8")
        equal = _signed_equal(draft, batches, progress) if weight_type == "auto" else None
        chosen = weight_type if equal is None else "int8" if equal else "uint8"
        if equal and adds_exactly():
            equal = None  # nothing overflows here whatever the weights: that says nothing about other processors
        refused = None
        if "openvino" in asked:
            progress.step("writing OpenVINO IR")
            refused = write_for_openvino(graph_path(draft, "_int8"), draft, asked)
        traced.keep(draft, f"_{chosen}")
        progress.step("checking against torch and the simulation")
        fp32 = graph_path(draft, FP32)
        difference = _checked_difference(model, fp32, batches, output)
        written = checked(model, draft, asked[:1] if refused else asked, batches, output)
        plain = model if calibrated.original is None else _as_fp32(calibrated.original)
        if plain is not model and (options.timed or options.keep_fp32):
            _replace_fp32(plain, draft, example, output, progress)
        if refused:
            written.append(RuntimeDetails(runtime="openvino", error=refused))
        details = ExportDetails(
            model=type(model).__name__,
            output=output,
            label=changes_of(model).quantized.spec.label,  # type: ignore[union-attr]
            weights=sum(site.endswith(":weight") for site in placed),
            activations=sum(not site.endswith(":weight") for site in placed),
            weight_type="int8" if asked == ("openvino",) else chosen,
            fp32_difference=difference,
            runtimes=written,
            signed_equal=equal,
            bytes=FileSizes(fp32=size_of(fp32), int8=written[0].bytes or 0),
            inputs=traced.inputs,
            **_timed(plain, draft, model_inputs(batches[0]), written, options, progress),
        )
        _finish(draft, model, processor, details, keep_fp32=options.keep_fp32)
    return details


def _replace_fp32(original: PreTrainedModel, draft: Path, example: Batch, output: str, progress: Progress) -> None:
    progress.step("writing fp32 ONNX of the original")
    traced_graphs(original, example, output).save_fp32(draft, FP32)


def _signed_equal(draft: Path, batches: list[Batch], progress: Progress) -> bool:
    """Whether signed weights give what unsigned ones do, here and on these batches."""
    progress.step("comparing signed with unsigned weights")
    signed, unsigned = (open_graph(graph_path(draft, f"_{kind}")) for kind in ("int8", "uint8"))
    return same_everywhere(signed, unsigned, batches)


@contextlib.contextmanager
def _in_one_line(model: PreTrainedModel) -> Iterator[None]:
    """What a graph rewrite or a runtime stumbles over is told with the model's name; disks and users speak for themselves."""
    try:
        yield
    except (QuietformerError, OSError):
        raise
    except Exception as error:  # runtimes raise classes of their own
        raise QuietformerError(
            f"{type(model).__name__} cannot be exported: {in_one_line(root_of(error), 200)}"
        ) from error


def _checked_difference(model: PreTrainedModel, path: Path, batches: list[Batch], output: str) -> float:
    """How far fp32 ONNX is from torch; an error if it is more than rounding."""
    difference = fp32_difference(model, open_graph(path), batches, output)
    if not difference <= SAME:
        raise QuietformerError(
            f"the exported graph differs from {type(model).__name__} by {numbers.percent(difference, 0)} of its largest "
            "output in fp32, so it was not written; the exporter has mistranslated something"
        )
    return difference


def _weight_types(weight_type: WeightType, asked: Sequence[RuntimeName]) -> list[str]:
    """OpenVINO has integer products for signed weights only."""
    wanted: list[str] = ["uint8", "int8"] if weight_type == "auto" else [weight_type]
    return wanted if "openvino" not in asked or "int8" in wanted else [*wanted, "int8"]


def _weight_type(model: PreTrainedModel, options: OnnxOptions) -> WeightType:
    """Targets that want signed activations want signed weights."""
    quantized = changes_of(model).quantized
    symmetric = quantized is not None and quantized.spec.activation_symmetric
    return "int8" if options.weight_type == "auto" and symmetric else options.weight_type


def _in_fp32(model: PreTrainedModel) -> PreTrainedModel:
    """A calibrated model in fp32: scales are fp32 and so is what ONNX Runtime computes between integers."""
    placed = quantizers(model)
    if not placed or not all(quantizer.calibrated for quantizer in placed.values()):
        raise QuietformerError(
            f"{type(model).__name__} has no calibrated quantizers; call quantize_ and calibrate_ first"
        )
    return _as_fp32(model)


def _as_fp32(model: PreTrainedModel) -> PreTrainedModel:
    if model.dtype == torch.float32:
        return model
    half: Any = copy.deepcopy(model)
    whole: PreTrainedModel = half.float()
    return whole


def _inputs(model: PreTrainedModel, batches: list[Batch]) -> list[Batch]:
    check_batches(batches)
    found = [_as_inputs(batch) for batch in batches]
    if not found:
        raise QuietformerError("there are no batches to check the export on; give some text or images")
    if not has_decoder(model):
        return found
    return [batch if DECODED in batch else read_by_decoder(model, batch) for batch in found]


def _as_inputs(batch: Batch) -> Batch:
    check_batch(batch)
    return {
        name: tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in batch.items()
        if name != "labels"
    }


def _timed(
    model: PreTrainedModel,
    draft: Path,
    batch: Batch,
    written: list[RuntimeDetails],
    options: OnnxOptions,
    progress: Progress,
) -> dict[str, Any]:
    """How fast it is, and on what; no latencies if none were asked for."""
    threads = options.threads or torch.get_num_threads()
    rows: list[LatencyRow] = []
    if options.timed:
        progress.step("measuring latency")
        rows = latency_rows(model, timed_models(draft, graph_path(draft, FP32), written, threads), batch, threads)
    machine = {"processor": processor_name(), "instruction_set": instruction_set()}
    return {"latency": rows, "threads": threads, **machine}


def _finish(draft: Path, model: PreTrainedModel, processor: Any, details: ExportDetails, *, keep_fp32: bool) -> None:
    """What lies beside the graph: the tokenizer, the metrics and a note on how to run it."""
    if not keep_fp32:
        for path in draft.glob(f"*model*{FP32}.onnx*"):
            path.unlink()
    if not any(one.runtime == "onnxruntime" for one in details.runtimes):
        for path in draft.glob(f"{INTEGER}*"):
            path.unlink()
    copy_processor(model, processor, draft)
    details = details.model_copy(update={"files": digests_of(draft)})
    write_text(draft / DETAILS, details.model_dump_json(indent=1) + "\n")
    has_processor = any((draft / name).exists() for name in PREPARING_FILES)
    write_text(draft / "README.md", usage_note(details, details.inputs, has_processor=has_processor))


def _example(batch: Batch) -> Batch:
    """Two sequences, so that the exporter does not take a size of one for a constant."""
    return {name: tensor[:2] if len(tensor) > 1 else torch.cat([tensor, tensor]) for name, tensor in batch.items()}
