"""Pooling and normalization inside an exported graph: a second output, `sentence_embedding`."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import torch
from torch import Tensor, nn

from quietformer.deployment.silence import silent
from quietformer.deployment.torch_program import OPSET
from quietformer.errors import QuietformerError
from quietformer.models.sentence_folder import SentenceSettings, sentence_embedding

EMBEDDING, STATES, MASK = "sentence_embedding", "last_hidden_state", "attention_mask"


class _Pooling(nn.Module):
    """Hidden states and a mask to one embedding a text."""

    def __init__(self, settings: SentenceSettings) -> None:
        super().__init__()
        self.settings = settings

    def forward(self, states_BTD: Tensor, mask_BT: Tensor) -> Tensor:
        return sentence_embedding(states_BTD, mask_BT, self.settings)


def add_pooling(path: Path, settings: SentenceSettings) -> None:
    """Give the graph of a file the further output; its own output stays the first."""
    model = ir.load(path)
    graph = model.graph
    mask = next((value for value in graph.inputs if value.name == MASK), None)
    states = next((value for value in graph.outputs if value.name == STATES), None)
    if mask is None or states is None or states.shape is None:
        raise QuietformerError(f"--pooled: {path.name} has no {MASK} or no {STATES}, so nothing can be pooled in it")
    size = states.shape[-1]
    added = _exported(settings, size if isinstance(size, int) else 1)
    for value, replaced in zip((states, mask), list(added.inputs), strict=True):
        replaced.replace_all_uses_with(value)
    for value in list(added.initializers.values()):
        added.initializers.pop(value.name or "")
        value.name = f"pooling.{value.name}"
        graph.register_initializer(value)
    output = added.outputs.pop()
    for node in list(added):
        added.remove(node)
        node.name = f"pooling.{node.name}"
        for one in node.outputs:
            one.name = f"pooling.{one.name}"
        graph.append(node)
    output.name = EMBEDDING
    output.shape = ir.Shape([states.shape[0], *(output.shape or [None])[-1:]])  # by the names the graph has for sizes
    graph.outputs.append(output)
    data = path.with_name(f"{path.name}.data")
    ir.save(model, path, external_data=data.name if data.is_file() else None)


def _exported(settings: SentenceSettings, size: int) -> ir.Graph:
    """The pooling alone, for any number and length of texts."""
    example = (torch.randn(2, 3, size), torch.ones(2, 3, dtype=torch.int64))
    free = torch.export.Dim.DYNAMIC
    with silent():
        program = torch.onnx.export(
            _Pooling(settings), example, dynamo=True, opset_version=OPSET, verbose=False,
            dynamic_shapes=({0: free, 1: free}, {0: free, 1: free}),
        )  # fmt: skip
    assert program is not None
    graph: ir.Graph = program.model.graph
    return graph
