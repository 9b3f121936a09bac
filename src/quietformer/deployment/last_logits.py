"""An optional input that says of how many last tokens the logits are wanted: generation needs those of one."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from quietformer.deployment.onnx_values import constant

WANTED = "logits_to_keep"
"""What models of transformers call the places of the tokens whose logits they compute."""
COUNT = "num_logits_to_keep"
"""What the graph calls the number of them, as transformers.js does; 0, the default, means all."""


def count_last_logits_(model: ir.Model) -> None:
    """Replace the input with the places by one with their number, which need not be given."""
    graph = model.graph
    places = next(value for value in graph.inputs if value.name == WANTED)
    tokens = next(value for value in graph.inputs if value.name == "input_ids")
    count = ir.Value(
        name=COUNT,
        const_value=ir.tensor(np.array(0, np.int64), name=COUNT),
        shape=ir.Shape([]),
        type=ir.TensorType(ir.DataType.INT64),
    )
    graph.inputs[list(graph.inputs).index(places)] = count
    graph.register_initializer(count)
    zero = constant(graph, "quietformer.none", np.array(0, np.int64))
    one = constant(graph, "quietformer.next", np.array(1, np.int64))
    place = constant(graph, "quietformer.axis_of_tokens", np.array(1, np.int64))
    made: list[ir.Node] = []

    def node(kind: str, *inputs: ir.Value) -> ir.Value:
        found = ir.node(kind, list(inputs), name=f"{COUNT}.{kind}")
        found.outputs[0].name, found.outputs[0].dtype = f"{COUNT}.{kind}.output", ir.DataType.INT64
        made.append(found)
        return found.outputs[0]

    length = node("Gather", node("Shape", tokens), place)
    some = node("Greater", count, zero)
    some.dtype = ir.DataType.BOOL
    first = node("Where", some, node("Max", node("Sub", length, count), zero), zero)
    chosen = node("Range", first, length, one)
    chosen.shape = places.shape
    places.replace_all_uses_with(chosen)
    graph.insert_before(graph[0], made)
