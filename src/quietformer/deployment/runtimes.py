"""The runtimes that INT8 is written for: which were asked for, their files, and how each agrees with the simulation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedModel

from quietformer.architectures.forward import Batch, has_decoder
from quietformer.config.options.export import RuntimeChoice
from quietformer.deployment.latency import Timed
from quietformer.deployment.onnx_checks import agreement_with_simulation
from quietformer.deployment.openvino_runtime import (
    OPENVINO_FILE,
    OpenVinoModel,
    has_openvino,
    import_openvino,
    write_openvino,
)
from quietformer.deployment.runtime_model import RuntimeModel
from quietformer.deployment.seq2seq_model import decoder_path, graph_path, open_graph
from quietformer.errors import QuietformerError
from quietformer.results.export import RuntimeDetails, RuntimeName

F32 = "f32"
BOTH: tuple[RuntimeName, ...] = ("onnxruntime", "openvino")


def runtimes_asked(choice: RuntimeChoice | None) -> tuple[RuntimeName, ...]:
    """In the order they are reported; a runtime that is asked for and not installed is an error."""
    if choice is None:
        choice = "both" if has_openvino() else "onnxruntime"
    if choice != "onnxruntime":
        import_openvino()
    return BOTH if choice == "both" else (choice,)


def runtimes_for(model: PreTrainedModel, choice: RuntimeChoice | None) -> tuple[RuntimeName, ...]:
    """The same for a model: encoder-decoders are written for ONNX Runtime only."""
    if not has_decoder(model):
        return runtimes_asked(choice)
    if choice not in (None, "onnxruntime"):
        raise QuietformerError(
            f"{type(model).__name__} is an encoder-decoder, which is written for onnxruntime only; leave out --runtime {choice}"
        )
    return ("onnxruntime",)


def runtime_model(
    runtime: RuntimeName, folder: Path, *, threads: int | None = None, precision: str | None = None
) -> RuntimeModel:
    """The INT8 model of a folder in one of its runtimes; without a precision, as the runtime sets itself up."""
    if runtime == "openvino":
        return OpenVinoModel(folder / OPENVINO_FILE, threads=threads, precision=precision)
    return open_graph(graph_path(folder), threads=threads)


def write_for_openvino(graph: Path, draft: Path, asked: Sequence[RuntimeName]) -> str | None:
    """Why it cannot be written; an error if it was all that was asked for."""
    try:
        write_openvino(graph, draft / OPENVINO_FILE)
    except QuietformerError as error:
        if len(asked) == 1:
            raise
        return str(error)
    return None


def checked(
    model: PreTrainedModel, draft: Path, asked: Sequence[RuntimeName], batches: list[Batch], output: str
) -> list[RuntimeDetails]:
    """What was written for each runtime, and how it agrees with the simulation: by default, and in f32."""
    models = {runtime: runtime_model(runtime, draft) for runtime in asked}
    in_f32 = {
        runtime: runtime_model(runtime, draft, precision=F32) for runtime, one in models.items() if one.precision != F32
    }
    found = iter(agreement_with_simulation(model, [*models.values(), *in_f32.values()], batches, output))
    by_default = {runtime: next(found) for runtime in models}
    told = {runtime: next(found) for runtime in in_f32}
    return [
        RuntimeDetails(
            runtime=runtime,
            file=_file(runtime, draft),
            bytes=size_of(draft / _file(runtime, draft)),
            precision=one.precision,
            agreement=by_default[runtime],
            agreement_in_f32=told.get(runtime),
        )
        for runtime, one in models.items()
    ]


def timed_models(draft: Path, fp32: Path, written: Sequence[RuntimeDetails], threads: int) -> list[Timed]:
    """ONNX Runtime in fp32, and INT8 in every runtime: as it sets itself up, and in f32 where that differs."""
    found = [Timed("onnxruntime", "fp32", open_graph(fp32, threads=threads))]
    for one in written:
        if one.error is None:
            ways = [None] if one.precision == F32 else [None, F32]
            found += [
                Timed(one.runtime, "int8", runtime_model(one.runtime, draft, threads=threads, precision=way))
                for way in ways
            ]
    return found


def size_of(path: Path) -> int:
    """With the files beside it that hold its weights, and the decoder that goes with an encoder."""
    decoder = decoder_path(path)
    beside = [path.with_suffix(".bin")] if path.suffix == ".xml" else path.parent.glob(f"{path.name}.*")
    own: int = sum(file.stat().st_size for file in (path, *beside))
    return own if decoder is None else own + size_of(decoder)


def _file(runtime: RuntimeName, draft: Path) -> str:
    return OPENVINO_FILE if runtime == "openvino" else graph_path(draft).name
