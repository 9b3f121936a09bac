"""A model as the graphs that are written of it, with marks where quantizers stand: one, or an encoder and a decoder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
from transformers import PreTrainedModel

from quietformer.architectures.forward import Batch, has_decoder
from quietformer.deployment.cached_program import cache_shape, cached_program
from quietformer.deployment.merged_decoder import merged_decoder
from quietformer.deployment.onnx_graph import floating_graph, integer_graph
from quietformer.deployment.seq2seq_model import DECODED, DECODER, ENCODER
from quietformer.deployment.seq2seq_program import seq2seq_graphs
from quietformer.deployment.torch_program import marked_program
from quietformer.quant.quantizer import Quantizer

LARGE = 1_800_000_000
"""Bytes past which a graph and its weights do not fit one protobuf, and weights go into a file beside it."""


@dataclass(frozen=True)
class TracedGraphs:
    """Marked graphs by the file they go into; of a decoder two, its first step and further ones."""

    files: dict[str, tuple[ir.Model, ...]]
    inputs: list[str]
    """What a caller gives."""

    def save_fp32(self, folder: Path, suffix: str) -> None:
        for stem, graphs in self.files.items():
            _save([floating_graph(graph) for graph in graphs], folder / f"{stem}{suffix}.onnx")

    def save_int8(self, folder: Path, suffix: str, placed: dict[str, Quantizer], *, signed_weights: bool) -> None:
        for stem, graphs in self.files.items():
            made = [integer_graph(graph, placed, signed_weights=signed_weights) for graph in graphs]
            _save(made, folder / f"{stem}{suffix}.onnx")

    def keep(self, folder: Path, suffix: str) -> None:
        """The files with this suffix under the names users look for, and no others of their kind."""
        for stem in self.files:
            for path in list(folder.glob(f"{stem}_*int8.onnx*")):
                if not path.name.startswith(f"{stem}{suffix}.onnx"):
                    path.unlink()
            _rename(folder / f"{stem}{suffix}.onnx", folder / f"{stem}.onnx")


def traced_graphs(model: PreTrainedModel, example: Batch, output: str) -> TracedGraphs:
    """With past keys and values, if the model writes token by token."""
    if has_decoder(model):
        found = seq2seq_graphs(model, example)
        files: dict[str, tuple[ir.Model, ...]] = {ENCODER: (found.encoder,), DECODER: (found.first, found.further)}
        return TracedGraphs(files, [*_inputs(found.encoder), DECODED])
    kept = cache_shape(model, example)
    graph = cached_program(model, example, kept, output) if kept else marked_program(model, example, output)
    return TracedGraphs({"model": (graph,)}, _inputs(graph))


def _inputs(graph: ir.Model) -> list[str]:
    return [str(value.name) for value in graph.graph.inputs if not value.is_initializer()]


def _save(graphs: list[ir.Model], path: Path) -> None:
    model = graphs[0] if len(graphs) == 1 else merged_decoder(*graphs)
    large = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value) > LARGE
    ir.save(model, path, external_data=f"{path.name}.data" if large else None)


def _rename(path: Path, wanted: Path) -> None:
    if not (data := path.with_name(f"{path.name}.data")).exists():
        os.rename(path, wanted)
        return
    ir.save(ir.load(path), wanted, external_data=f"{wanted.name}.data")
    path.unlink()
    data.unlink()
