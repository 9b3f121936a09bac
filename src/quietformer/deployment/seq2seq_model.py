"""An encoder-decoder that a runtime runs: its encoder once, and then its decoder, token by token."""

# B batch, T tokens

from __future__ import annotations

from pathlib import Path

import numpy as np

from quietformer.architectures.forward import Batch
from quietformer.config.options.generate import GenerationOptions
from quietformer.data.first_tokens import FirstTokens
from quietformer.deployment.cache_names import ENCODER_MASK, MASK, STATES
from quietformer.deployment.generation import Generator
from quietformer.deployment.onnx_runtime import OnnxModel
from quietformer.deployment.runtime_model import Array, Feeds, RuntimeModel, Steps
from quietformer.errors import QuietformerError

ENCODER, DECODER = "encoder_model", "decoder_model_merged"
"""What optimum and transformers.js call the files."""

DECODED = "decoder_input_ids"


class Seq2SeqModel(RuntimeModel):
    """Both graphs; called as the whole model is, it gives the logits of the decoder's tokens."""

    def __init__(self, encoder: RuntimeModel, decoder: RuntimeModel) -> None:
        self.encoder, self.decoder = encoder, decoder
        self.inputs = [*encoder.inputs, DECODED]
        self.shapes = {**encoder.shapes, DECODED: [None, None]}
        self.types = {**encoder.types, DECODED: np.int64}
        self.output, self.precision = decoder.output, decoder.precision

    @property
    def has_cache(self) -> bool:
        return self.decoder.has_cache

    def run(self, feeds: Feeds) -> Array:
        return self.steps().read(self._encoded(feeds) | {"input_ids": feeds[DECODED]})

    def steps(self) -> Steps:
        return self.decoder.steps()

    def _encoded(self, feeds: Feeds) -> Feeds:
        """What the decoder takes with every step."""
        states = self.encoder.run({name: feeds[name] for name in self.encoder.inputs})
        found = {STATES: states, ENCODER_MASK: feeds.get(MASK)}
        return {name: array for name, array in found.items() if array is not None and name in self.decoder.inputs}

    def read_in_two_steps(self, batch: Batch) -> Array:
        """The output where the second half of the tokens is read with the keys and values of the first."""
        feeds = self.feeds(batch)
        tokens_BT, fixed, steps = feeds[DECODED], self._encoded(feeds), self.steps()
        middle = max(1, tokens_BT.shape[1] // 2)
        halves = [half for half in np.split(tokens_BT, [middle], axis=1) if half.shape[1]]
        return np.concatenate([steps.read(fixed | {"input_ids": np.ascontiguousarray(half)}) for half in halves], 1)

    def written(self, batch: Batch, first: FirstTokens, options: GenerationOptions) -> list[list[int]]:
        """The tokens that the decoder writes of each row, up to one that ends it."""
        encoder_inputs = {name: tensor for name, tensor in batch.items() if name in self.encoder.inputs}
        fixed = self._encoded(self.encoder.feeds(encoder_inputs))
        count = len(fixed[STATES])
        tokens_BT = np.array([first.prompt] * count, np.int64)
        if first.languages:
            logits = self.steps().read(fixed | {"input_ids": np.ascontiguousarray(tokens_BT[:, :1])})[:, -1]
            tokens_BT[:, 1] = np.array(first.languages)[logits[:, list(first.languages)].argmax(-1)]
        generator = Generator(self.decoder, first.ends, options, fixed, first)
        return generator.continued(tokens_BT, np.ones_like(tokens_BT), first.room)


def graph_path(folder: Path, suffix: str = "") -> Path:
    """The graph that is opened: the one there is, or the encoder of two."""
    two = folder / f"{ENCODER}{suffix}.onnx"
    return two if two.is_file() else folder / f"model{suffix}.onnx"


def decoder_path(encoder: Path) -> Path | None:
    """The decoder that goes with an encoder; None for a graph that is a whole model."""
    return encoder.with_name(encoder.name.replace(ENCODER, DECODER, 1)) if encoder.name.startswith(ENCODER) else None


def open_graph(path: Path, *, threads: int | None = None) -> RuntimeModel:
    """A graph in ONNX Runtime; an encoder together with its decoder."""
    decoder = decoder_path(path)
    if decoder is None:
        return OnnxModel(path, threads=threads)
    if not decoder.is_file():
        raise QuietformerError(
            f"{path.parent} is not complete: it has {path.name} and no {decoder.name}; export it again"
        )
    return Seq2SeqModel(OnnxModel(path, threads=threads), OnnxModel(decoder, threads=threads))
