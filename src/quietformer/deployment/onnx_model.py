"""An exported folder that runs: `OnnxModel(folder).encode(texts)`, and a module of sentence-transformers."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from quietformer.config.options.generate import GenerationFields, GenerationOptions
from quietformer.deployment.exported_folder import MADE, ExportedFolder, read_exported
from quietformer.deployment.media_inputs import is_single, media_batches
from quietformer.deployment.runtime_model import RuntimeModel
from quietformer.deployment.seq2seq_generation import written_texts
from quietformer.deployment.seq2seq_model import Seq2SeqModel
from quietformer.deployment.text_generation import continued_texts
from quietformer.deployment.text_inputs import Pair, TextInputs, checked_pairs, checked_texts
from quietformer.errors import QuietformerError
from quietformer.models.sentence_folder import SentenceSettings, sentence_embedding
from quietformer.results.export import RuntimeName

Texts = str | Sequence[str]

_Place = tuple[Path, RuntimeName | None, str | None, int | None]
"""Folder, runtime, file and threads."""


class OnnxModel(nn.Module):
    """An exported folder in ONNX Runtime, or in OpenVINO with `runtime="openvino"` or where it has nothing else.

    `encode(texts)` gives sentence embeddings; calling the model gives its output for texts or for arrays by name. It stands in
    `SentenceTransformer(modules=[OnnxModel(folder)])` as it is.
    """

    save_in_root = False  # what sentence-transformers asks of a module: it gets a subfolder of its own

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        runtime: RuntimeName | None = None,
        file: str | None = None,
        threads: int | None = None,
    ) -> None:
        super().__init__()
        # Files are read later too, when the working directory may be another.
        self._place: _Place = (Path(folder).absolute(), runtime, file, threads)
        self._open()
        self.max_seq_length = self.exported.max_length

    def _open(self) -> None:
        folder, runtime, file, threads = self._place
        self.exported: ExportedFolder = read_exported(folder, runtime, file)
        self.session: RuntimeModel = self.exported.open(threads)
        self._lock = threading.Lock()
        self._texts: TextInputs | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without what is open: in another process it is opened again."""
        opened = ("exported", "session", "_lock", "_texts")
        return {name: value for name, value in self.__dict__.items() if name not in opened}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._open()

    @property
    def tokenizer(self) -> Any:
        return self.exported.tokenizer

    @property
    def _text_inputs(self) -> TextInputs:
        with self._lock:  # one for all threads
            if self._texts is None:
                self._texts = TextInputs(self.tokenizer, self.settings)
            return self._texts

    @property
    def settings(self) -> SentenceSettings:
        """How embeddings are made of what the graph gives."""
        return self.exported.settings

    @property
    def embeds(self) -> bool:
        """Whether it makes embeddings of texts."""
        tokens = self.session.output == "last_hidden_state" and "input_ids" in self.session.inputs
        return tokens and bool(self.settings.pooling) and not self.settings.other_modules

    @property
    def labels(self) -> list[str]:
        """Names of a classifier's classes, in the order of its outputs."""
        return self.exported.labels

    # ---- texts in, embeddings or outputs out
    def encode(
        self, texts: Texts, *, prompt_name: str | None = None, prompt: str | None = None, batch_size: int = 32
    ) -> np.ndarray[Any, Any]:
        """Sentence embeddings (N, D), or (D,) of a single text; texts of similar length share a batch."""
        self.check_embeds()
        one = isinstance(texts, str)
        prompt = self._prompt(prompt_name) if prompt is None else prompt
        given = checked_texts([texts] if one else texts)
        found: list[Tensor | None] = [None] * len(given)
        for places, batch in self._text_inputs.batches(given, batch_size, prompt, self.max_seq_length):
            for place, row in zip(places, self.forward(batch)["sentence_embedding"], strict=True):
                found[place] = row
        rows = [row.numpy() for row in found if row is not None]
        return rows[0] if one else np.stack(rows) if rows else np.zeros((0, self.get_embedding_dimension()), np.float32)

    def __call__(self, given: Any = None, /, *, batch_size: int = 32, **arrays: Any) -> Any:
        """Logits (N, labels), or token outputs, of texts, images or recordings; of a single one without the N.

        In a list of texts each may be a pair, a tuple of two texts, as rerankers and models of entailment take them.
        Images are paths, PIL images or pixels, recordings .wav files or samples. Features by name give the same dictionary more.
        """
        if isinstance(given, Mapping):
            return super().__call__({**given, **arrays})
        if arrays:
            return super().__call__(arrays)[self.session.output]
        if given is None:
            raise QuietformerError("give texts, or arrays by the names of the model's inputs: model(pixel_values=...)")
        reads = "input_ids" in self.session.inputs
        one = isinstance(given, str) if reads else is_single(given)
        several = [given] if one else list(given)
        found: dict[int, Tensor] = {}
        for places, batch in self._prepared(several, batch_size):
            output = self.forward(batch)[self.session.output]
            if reads and output.dim() > 2:
                rows = [row[seen.bool()] for row, seen in zip(output, batch["attention_mask"], strict=True)]
            else:
                rows = list(output)
            found |= dict(zip(places, rows, strict=True))
        rows = [found[place] for place in range(len(several))]
        if one:
            return rows[0]
        # Texts and recordings have outputs of as many tokens as they are long, so these stay in a list.
        return torch.stack(rows) if rows and (rows[0].dim() == 1 or "pixel_values" in self.session.inputs) else rows

    def _prepared(self, given: list[Any], batch_size: int) -> Iterator[tuple[list[int], Mapping[str, Tensor]]]:
        if "input_ids" in self.session.inputs:
            return self._text_batches(checked_pairs(given), batch_size)
        return media_batches(self.exported, self.session.shapes, given, batch_size)

    def _text_batches(
        self, given: list[str] | list[Pair], batch_size: int
    ) -> Iterator[tuple[list[int], Mapping[str, Tensor]]]:
        for places, batch in self._text_inputs.batches(given, batch_size, None, self.max_seq_length):
            types = batch.get("token_type_ids")
            pairs = not isinstance(given[places[0]], str)
            if pairs and types is not None and bool(types.any()) and "token_type_ids" not in self.session.inputs:
                raise QuietformerError(
                    f"the graph of {self.exported.folder} takes no token_type_ids, so it cannot tell the texts of a pair apart; "
                    f"{MADE} again, with the model's own tokenizer"
                )
            yield places, batch

    def generate(self, given: Any, /, **options: Unpack[GenerationFields]) -> Any:
        """What the model writes after a text, or of a text or recording; one or several: greedy, or with `do_sample`.

        A recording is the path of a .wav file, or its samples. Up to `max_new_tokens` are written of each; `temperature`, `top_p`
        and `seed` belong to `do_sample`; `batch_size` are worked on at once.
        """
        chosen = GenerationOptions(**options)
        single = isinstance(given, str | os.PathLike | np.ndarray | Tensor)
        if not single and not isinstance(given, Sequence):
            raise QuietformerError(f"give a text or a recording, or a list of them, got {type(given).__name__}")
        several = [given] if single else list(given)
        if not several:
            return []
        if isinstance(self.session, Seq2SeqModel):
            found = written_texts(self.exported, self.session, several, chosen)
        else:
            found = continued_texts(self.exported, self.session, checked_texts(several), chosen)
        return found[0] if single else found

    def forward(self, features: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        """The features with the output of the graph, and for encoders `token_embeddings` and `sentence_embedding`."""
        batch = {
            name: torch.as_tensor(
                np.asarray(features[name]) if not isinstance(features[name], Tensor) else features[name]
            )
            .detach()
            .cpu()
            .contiguous()
            for name in self.session.inputs
            if name in features
        }
        found: dict[str, Any] = {**features, **self.session(batch)}
        if self.embeds and "attention_mask" in batch:
            states, mask = found[self.session.output], batch["attention_mask"]
            # sentence-transformers passes it whether it matters or not
            prompt = 0 if self.settings.include_prompt else features.get("prompt_length", 0)
            skipped = int(torch.as_tensor(prompt).flatten()[0])
            found["token_embeddings"] = states
            found["sentence_embedding"] = sentence_embedding(states, mask, self.settings, skipped)
        return found

    # ---- what sentence-transformers asks of its first module
    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **_: Any) -> dict[str, Any]:
        """Texts as tensors that `forward` takes."""
        return dict(self._text_inputs.batch(checked_texts(inputs), prompt, self.max_seq_length))

    tokenize = preprocess

    def get_embedding_dimension(self) -> int:
        """Numbers in one embedding."""
        return self.exported.hidden_size * len(self.settings.pooling)

    get_sentence_embedding_dimension = get_embedding_dimension

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        """Copy the exported folder there."""
        shutil.copytree(self.exported.folder, output_path, dirs_exist_ok=True)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **_: Any) -> OnnxModel:
        """What sentence-transformers calls for a folder it saved."""
        return cls(Path(model_name_or_path) / subfolder)

    def _prompt(self, name: str | None) -> str | None:
        prompts, name = self.settings.prompts, name or self.settings.default_prompt_name
        if name is not None and name not in prompts:
            raise QuietformerError(f"there is no prompt {name!r}; the folder has {', '.join(prompts) or 'none'}")
        return None if name is None else prompts[name]

    def check_embeds(self) -> None:
        """One line for a model that makes no embeddings."""
        if self.settings.other_modules:
            raise QuietformerError(
                f"the {self.settings.other_modules[0]} module of {self.exported.folder} is not run here, so these would not be "
                "its embeddings; call the model instead of encode"
            )
        if not self.embeds:
            raise QuietformerError(
                f"{self.exported.folder} gives {self.session.output}, not embeddings of texts; call the model instead of encode"
            )
