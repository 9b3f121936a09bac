"""An exported model on its way to clients: what it is, where it lies, and what every client reads of it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from quietformer.architectures.forward import has_decoder
from quietformer.architectures.task import task_of
from quietformer.config.spec_base import JsonObject
from quietformer.config.tasks import MeasuredTask
from quietformer.data.batches_from_options import KINDS, InputKind, positions_of
from quietformer.deployment.cache_names import is_past
from quietformer.deployment.seq2seq_model import DECODED, DECODER, ENCODER
from quietformer.deployment.usage_note import INTEGER, PREPARING_FILES
from quietformer.files import read_json, write_text
from quietformer.models.folder_files import PROCESSOR_FILES
from quietformer.models.origin import sentence_folder_of, unknown_kind_of
from quietformer.models.sentence_folder import SentenceSettings
from quietformer.results.export import ExportDetails, RuntimeName

LONGEST = 1_000_000
"""A tokenizer that knows no longest text says a number past this one."""


GENERATION = "generation_config.json"
"""What ends a text, and the first tokens where they are given."""


@dataclass(frozen=True)
class ModelToShip:
    """What is known of a model before it is exported."""

    class_name: str
    task: MeasuredTask
    kind: InputKind
    config: JsonObject
    origin: Path | None
    """The folder that the model came from."""
    home: Path | None
    """The folder with its card: that one, or the sentence-transformers folder it lies in."""
    settings: SentenceSettings | None
    """How it makes embeddings of texts; None if it does not."""
    max_length: int | None
    """The longest text that it takes, in tokens."""
    hidden_size: int
    unknown_kind: str = ""
    """What its modules.json describes, if that is no sentence encoder that is understood here."""
    writes: bool = False
    """Whether it is an encoder-decoder, whose decoder writes of what the encoder reads or hears."""

    @property
    def embeds_text(self) -> bool:
        return self.settings is not None

    @property
    def gives_one_score(self) -> bool:
        """Whether it is a classifier of texts with one output, as rerankers are, which take pairs of texts."""
        return self.class_name.endswith("ForSequenceClassification") and self.kind == "text" and len(self.labels) == 1

    @property
    def labels(self) -> dict[str, str]:
        """Names of classes by their number, as text."""
        found = self.config.get("id2label")
        return {str(key): str(name) for key, name in found.items()} if isinstance(found, dict) else {}


@dataclass(frozen=True)
class Shipment:
    """The folder as it is being written."""

    model: ModelToShip
    folder: Path
    details: ExportDetails
    calibrated: PreTrainedModel
    """The quantized model itself, for targets that write weights of their own."""

    @property
    def inputs(self) -> list[str]:
        return self.details.inputs

    @property
    def generates(self) -> bool:
        """Whether texts are written token by token."""
        return self.has_two_graphs or any(map(is_past, self.inputs))

    @property
    def has_two_graphs(self) -> bool:
        """Whether there is an encoder and a decoder."""
        return DECODED in self.inputs

    @property
    def has_onnx(self) -> bool:
        return self._has("onnxruntime")

    @property
    def has_openvino(self) -> bool:
        return self._has("openvino")

    @property
    def has_processor(self) -> bool:
        """A tokenizer, an image processor or a feature extractor."""
        return any((self.folder / name).is_file() for name in PREPARING_FILES)

    def _has(self, runtime: RuntimeName) -> bool:
        return any(one.runtime == runtime and one.error is None for one in self.details.runtimes)

    @property
    def stems(self) -> tuple[str, ...]:
        """Names of the graphs, without what says of which kind they are."""
        return (ENCODER, DECODER) if self.has_two_graphs else (INTEGER.removesuffix(".onnx"),)

    @property
    def graph(self) -> str:
        """Where the INT8 graph lies, relative to the folder."""
        return next((name for name in GRAPHS if (self.folder / name).is_file()), INTEGER)

    @property
    def settings(self) -> SentenceSettings:
        assert self.model.settings is not None
        return self.model.settings


IN_BROWSERS = "onnx/model_quantized.onnx"
"""The name that transformers.js looks for."""
TWO_IN_BROWSERS = "onnx/encoder_model_quantized.onnx"
GRAPHS = (INTEGER, IN_BROWSERS, f"{ENCODER}.onnx", TWO_IN_BROWSERS)
"""Where the INT8 graph may lie, first to last."""
FP32_GRAPHS = ("model_fp32.onnx", "onnx/model.onnx", f"{ENCODER}_fp32.onnx", f"onnx/{ENCODER}.onnx")
"""Where the fp32 graph may lie, if it is kept."""


def model_to_ship(model: PreTrainedModel, origin: Path | None) -> ModelToShip:
    """What there is to know about a model before any work is done."""
    kind, task = KINDS.get(model.main_input_name, "text"), task_of(model)
    unknown = "" if origin is None else unknown_kind_of(origin)
    home, settings = (None if origin is None else sentence_folder_of(origin)) or (origin, SentenceSettings())
    length = settings.max_seq_length or _longest(model, origin)
    return ModelToShip(
        class_name=type(model).__name__,
        task=task,
        kind=kind,
        config=plain_config(model),
        origin=origin,
        home=home,
        settings=dataclasses.replace(settings, max_seq_length=length)
        if kind == "text" and task == "embedding" and not unknown
        else None,
        max_length=length if kind == "text" else None,
        unknown_kind=unknown if kind == "text" and task == "embedding" else "",
        hidden_size=getattr(model.config, "hidden_size", None) or 0,
        writes=has_decoder(model),
    )


def _longest(model: PreTrainedModel, origin: Path | None) -> int | None:
    """The longest text that the tokenizer lets through and the model has positions for."""
    path = None if origin is None else origin / "tokenizer_config.json"
    told = read_json(path, "") if path is not None and path.is_file() else {}
    found = [told.get("model_max_length") if isinstance(told, dict) else None, positions_of(model)]
    return min((int(one) for one in found if isinstance(one, int | float) and 0 < one < LONGEST), default=None)


def plain_config(model: PreTrainedModel) -> JsonObject:
    """config.json as any client understands it: nothing of ours, and the class that it describes."""
    # Clients look up sizes of encoders and decoders that transformers leaves out where they are its defaults.
    fields: JsonObject = json.loads(model.config.to_json_string(use_diff=not has_decoder(model)))
    for name in ("quantization_config", "attn_implementation", "_name_or_path"):
        fields.pop(name, None)
    if fields.get("label2id") is None and isinstance(named := fields.get("id2label"), dict):
        fields["label2id"] = {str(name): int(number) for number, name in named.items()}
    return _plain(fields) | {"architectures": [type(model).__name__]}


def _plain(fields: JsonObject) -> JsonObject:
    """Without what we add to the configs of parts."""
    ours = ("quantization_config", "attn_implementation")
    return {
        name: _plain(value) if isinstance(value, dict) else value for name, value in fields.items() if name not in ours
    }


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_common(shipment: Shipment) -> None:
    """config.json, and the tokenizer files of the folder the model came from, as they are there."""
    model, folder = shipment.model, shipment.folder
    write_json(folder / "config.json", model.config)
    if model.origin is not None:
        for pattern in PROCESSOR_FILES:
            for path in model.origin.glob(pattern):
                if path.is_file():
                    (folder / path.name).write_bytes(path.read_bytes())
    if shipment.generates and not (folder / GENERATION).is_file():
        write_json(folder / GENERATION, json.loads(shipment.calibrated.generation_config.to_json_string()))
    _tell_length(shipment)


def _tell_length(shipment: Shipment) -> None:
    """Clients that do not read sentence-transformers' files cut texts where the tokenizer says."""
    path = shipment.folder / "tokenizer_config.json"
    if not path.is_file() or shipment.model.max_length is None:
        return
    told = read_json(path, "")
    if isinstance(told, dict):
        kept = {name: value for name, value in told.items() if name != "max_length"}
        write_json(path, kept | {"model_max_length": shipment.model.max_length})
