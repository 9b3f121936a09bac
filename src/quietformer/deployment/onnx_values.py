"""Constants and values of an ONNX graph, put in and exchanged."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir


def constant(graph: ir.Graph, name: str, array: Any) -> ir.Value:
    """An initializer; a scale for the whole tensor stays without dimensions, or onnxruntime refuses it in fused sums."""
    if name in graph.initializers:
        return graph.initializers[name]
    tensor = ir.tensor(np.asarray(array), name=name)
    value = ir.Value(name=name, const_value=tensor, shape=ir.Shape(np.shape(array)), type=ir.TensorType(tensor.dtype))
    graph.register_initializer(value)
    return value


def replace(graph: ir.Graph, old: ir.Value, new: ir.Value | None) -> None:
    """Whatever reads the old value reads the new one; an output of the graph keeps its name."""
    assert new is not None
    if old.is_graph_output():
        for index, output in enumerate(graph.outputs):
            if output is old:
                name = old.name
                old.name = f"{name}.before"
                new.name, new.shape, new.type = name, old.shape, old.type
                graph.outputs[index] = new
    old.replace_all_uses_with(new)
