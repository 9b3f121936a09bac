"""Both steps of a decoder in one graph that shares their weights, as optimum and transformers.js expect it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from quietformer.deployment.cache_names import USE_CACHE

FIRST, FURTHER = "first", "further"


def merged_decoder(first: ir.Model, further: ir.Model) -> ir.Model:
    """`use_cache_branch` says which step is taken; a further one gives no keys and values of the encoder's output."""
    branches = {FIRST: first.clone(), FURTHER: further.clone()}
    inputs = {str(value.name): _like(value) for value in (*further.graph.inputs, *first.graph.inputs)}
    choice = ir.Value(name=USE_CACHE, shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.BOOL))
    outputs = [_like(value) for value in first.graph.outputs]
    shared: dict[str, ir.Value] = {}
    for name, model in branches.items():
        _take_out(model.graph, name, inputs, shared)
    _answer_all(branches[FURTHER].graph, outputs)
    node = ir.node(
        "If", [choice], outputs=outputs, name="decoder",
        attributes={"then_branch": branches[FURTHER].graph, "else_branch": branches[FIRST].graph},
    )  # fmt: skip
    graph = ir.Graph(
        [*inputs.values(), choice], outputs, nodes=[node], initializers=list(shared.values()), name="decoder",
        opset_imports={**first.opset_imports, **further.opset_imports},
    )  # fmt: skip
    return ir.Model(graph, ir_version=first.ir_version)


def _like(value: ir.Value) -> ir.Value:
    return ir.Value(name=value.name, shape=value.shape, type=value.type)


def _take_out(graph: ir.Graph, branch: str, inputs: dict[str, ir.Value], shared: dict[str, ir.Value]) -> None:
    """Inputs and weights become those of the graph around; all other names get the name of the branch in front."""
    for value in list(graph.inputs):
        value.replace_all_uses_with(inputs[str(value.name)])
    graph.inputs.clear()
    for value in list(graph.initializers.values()):
        name = str(value.name)
        assert value.const_value is not None
        known = shared.get(name)
        if known is not None and not _same(known, value):
            name = f"{branch}.{name}"
            known = shared.get(name)
        if known is None:
            tensor: Any = value.const_value
            known = shared[name] = ir.Value(name=name, shape=value.shape, type=value.type, const_value=tensor)
        value.replace_all_uses_with(known)
        del graph.initializers[str(value.name)]
    for node in graph:
        node.name = f"{branch}.{node.name}"
        for output in node.outputs:
            output.name = f"{branch}.{output.name}"
    graph.name = branch


def _same(one: ir.Value, other: ir.Value) -> bool:
    assert one.const_value is not None
    assert other.const_value is not None
    first, second = one.const_value.numpy(), other.const_value.numpy()
    return first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()


def _answer_all(graph: ir.Graph, outputs: list[ir.Value]) -> None:
    """Both branches give as many outputs; of what does not change, nothing."""
    given = {str(value.name): value for value in graph.outputs}
    graph.outputs.clear()
    for output in outputs:
        name = f"{FURTHER}.{output.name}"
        if name not in given:
            assert output.shape is not None
            sizes = [0 if not isinstance(size, int) else size for size in output.shape]
            nothing = ir.tensor(np.zeros([*sizes[:2], 1, sizes[3]], np.float32), name=name)
            node = ir.node("Constant", [], attributes={"value": nothing}, name=f"{name}.nothing")
            node.outputs[0].name, node.outputs[0].type = name, output.type
            graph.append(node)
            given[name] = node.outputs[0]
        graph.outputs.append(given[name])
