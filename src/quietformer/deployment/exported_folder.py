"""What an exported folder has in it: which graph, tokenizer, labels and pooling, and whether this release can read it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quietformer.config.spec_base import JsonObject
from quietformer.data.tokenizers import REMEDY, tokenizer_of
from quietformer.deployment.folder_digests import check_whole
from quietformer.deployment.openvino_runtime import OPENVINO_FILE, OpenVinoModel, import_openvino
from quietformer.deployment.runtime_model import RuntimeModel
from quietformer.deployment.seq2seq_model import open_graph
from quietformer.deployment.shipment import GENERATION, GRAPHS, LONGEST
from quietformer.errors import CheckpointError, QuietformerError
from quietformer.files import read_json
from quietformer.models.check_folder import LARGEST
from quietformer.models.sentence_folder import MODULES, POOLING, SentenceSettings, read_sentence_settings
from quietformer.results.export import FOLDER_FORMAT, RuntimeName

MOST_THREADS = 1024

MADE = "make it with `quietformer export MODEL OUT`"


@dataclass(frozen=True)
class ExportedFolder:
    """A folder, the graph of it that is run, and what is read from beside it."""

    folder: Path
    graph: Path
    runtime: RuntimeName
    config: dict[str, Any]
    settings: SentenceSettings

    def open(self, threads: int | None) -> RuntimeModel:
        """The graph in its runtime."""
        if threads is not None and not (isinstance(threads, int) and 1 <= threads <= MOST_THREADS):
            raise QuietformerError(
                f"threads must lie between 1 and {MOST_THREADS}, got {threads!r}; leave it out for all"
            )
        if self.runtime == "openvino":
            import_openvino()
            return OpenVinoModel(self.graph, threads=threads)
        try:
            return open_graph(self.graph, threads=threads)
        except ModuleNotFoundError:
            raise QuietformerError("OnnxModel needs onnxruntime; pip install quietformer[onnx]") from None

    @functools.cached_property
    def tokenizer(self) -> Any:
        try:
            found = tokenizer_of(str(self.folder))
        except QuietformerError as error:
            raise CheckpointError(str(error).replace(REMEDY, f"save one into the folder, or {MADE} again")) from None
        if found.pad_token is None:
            found.pad_token = found.eos_token or found.unk_token  # padding is masked, so any token will do
        return found

    @property
    def max_length(self) -> int | None:
        """Longest text in tokens; None where nothing says."""
        if self.settings.max_seq_length is not None:
            return self.settings.max_seq_length
        if not (self.folder / "tokenizer_config.json").is_file():
            return None
        found = [self.tokenizer.model_max_length, self.config.get("max_position_embeddings")]
        known = [int(one) for one in found if isinstance(one, int | float) and 0 < one < LONGEST]
        return min(known) if known else None

    @property
    def labels(self) -> list[str]:
        named = self.config.get("id2label")
        if not isinstance(named, dict):
            return []
        if not all(key.isdecimal() and isinstance(name, str) for key, name in named.items()):
            raise CheckpointError(f"{self.folder / 'config.json'}: id2label must name classes by number; {MADE} again")
        return [named[key] for key in sorted(named, key=int)]

    @property
    def class_name(self) -> str:
        """Which model it was, as far as the config says."""
        names = self.config.get("architectures")
        return str(names[0] if isinstance(names, list) and names else self.config.get("model_type", ""))

    @functools.cached_property
    def generation(self) -> JsonObject:
        """generation_config.json, over what config.json says of the same."""
        return self.config | _object(self.folder / GENERATION)

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end a text."""
        told = self.generation.get("eos_token_id", self.tokenizer.eos_token_id)
        return frozenset(one for one in (told if isinstance(told, list) else [told]) if isinstance(one, int))

    @property
    def hidden_size(self) -> int:
        told = _object(self.folder / POOLING).get("word_embedding_dimension")
        found = told or self.config.get("hidden_size") or self.config.get("d_model") or self.config.get("dim")
        return self._size("hidden_size", found)

    @property
    def vocabulary(self) -> int:
        """How many tokens the model knows, as far as the config says."""
        return self._size("vocab_size", self.config.get("vocab_size", 2))

    def _size(self, name: str, found: object) -> int:
        if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= LARGEST:
            raise CheckpointError(f"{self.folder / 'config.json'} has no usable {name}: {found!r}; {MADE} again")
        return found


def read_exported(folder: Path, runtime: RuntimeName | None, file: str | None) -> ExportedFolder:
    """Check a folder and read what lies beside the graph; one line for what is missing, damaged or newer.

    Without a runtime it is ONNX Runtime, unless the folder has a graph for OpenVINO only.
    """
    if runtime not in (None, "onnxruntime", "openvino"):
        raise QuietformerError(f"unknown runtime {runtime!r}; choose from onnxruntime, openvino")
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder; give one that `quietformer export` wrote")
    details = _object(folder / "export.json")
    written = details.get("format", 1)
    if not isinstance(written, int) or isinstance(written, bool) or written < 1:
        raise CheckpointError(f"{folder / 'export.json'} has no usable format: {written!r}; {MADE} again")
    if written > FOLDER_FORMAT:
        raise CheckpointError(
            f"{folder} has format {written}, this release reads up to {FOLDER_FORMAT}; pip install -U quietformer"
        )
    runtime = runtime or _runtime(folder, file, details.get("files"))
    graph = _graph(folder, runtime, file)
    check_whole(folder, graph, details.get("files", {}), f"{MADE} again")
    config = _object(folder / "config.json")
    return ExportedFolder(folder, graph, runtime, config, _settings(folder, details))


def _settings(folder: Path, details: dict[str, Any]) -> SentenceSettings:
    """How embeddings are made; without pooling where the export wrote no modules.json, as earlier releases never did."""
    if (found := read_sentence_settings(folder)) is not None:
        return found
    files = details.get("files")
    embeds = not details.get("targets") or not isinstance(files, dict) or MODULES in files
    return SentenceSettings() if embeds else SentenceSettings(pooling=())


def _runtime(folder: Path, file: str | None, listed: object) -> RuntimeName:
    """What runs a file, or what the folder was exported for."""
    if file is not None:
        return "openvino" if file.endswith(".xml") else "onnxruntime"
    has_onnx = any((folder / name).is_file() or (isinstance(listed, dict) and name in listed) for name in GRAPHS)
    return "openvino" if not has_onnx and (folder / OPENVINO_FILE).is_file() else "onnxruntime"


def _graph(folder: Path, runtime: RuntimeName, file: str | None) -> Path:
    """The graph to run, which must be there with its weights."""
    names = [file] if file is not None else [OPENVINO_FILE] if runtime == "openvino" else list(GRAPHS)
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if found is None:
        raise CheckpointError(f"{folder} is not complete: it has no {' or '.join(names)}; {MADE}")
    if runtime == "openvino" and not found.with_suffix(".bin").is_file():
        raise CheckpointError(
            f"{folder} is not complete: {found.name} lacks its weights, {found.stem}.bin; {MADE} again"
        )
    return found


def _object(path: Path) -> dict[str, Any]:
    """A JSON object; empty where the file is not there, as in folders of earlier releases and of others."""
    told = read_json(path, "", CheckpointError) if path.is_file() else {}
    if not isinstance(told, dict):
        raise CheckpointError(f"{path} must be a JSON object; {MADE} again")
    return told
