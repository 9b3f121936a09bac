"""Scales per token in an ONNX graph, in operators that every runtime has.

A token is divided by its own scale and quantized with the scale 1. So the product with a weight is an ordinary integer product,
which runtimes fuse, and the scales of the tokens multiply its rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from quietformer.deployment.onnx_values import constant
from quietformer.quant.affine import SMALLEST_SCALE
from quietformer.quant.quantizer import Quantizer

NewNode = Callable[..., ir.Value]


def divided_by_token_scale(
    graph: ir.Graph, node: ir.Node, quantizer: Quantizer, new_node: NewNode
) -> tuple[ir.Value, ir.Value]:
    """What a mark reads, divided by the scale of each token, and the scales (..., 1)."""
    kind, site = ir.DataType.FLOAT, quantizer.site
    largest = np.array(2 ** (quantizer.grid.bits - 1) - 1, np.float32)
    last = constant(graph, "quietformer.last_axis", np.array([-1], np.int64))
    reach = new_node(node, "Abs", [node.inputs[0]], f"{site}.magnitude", kind)
    reach = new_node(node, "ReduceMax", [reach, last], f"{site}.reach", kind)
    scale = new_node(node, "Div", [reach, constant(graph, f"{site}.largest", largest)], f"{site}.step", kind)
    least = constant(graph, "quietformer.smallest_scale", np.array(SMALLEST_SCALE, np.float32))
    scale = new_node(node, "Max", [scale, least], f"{site}.scales", kind)  # a token of zeros has no range
    return new_node(node, "Div", [node.inputs[0], scale], f"{site}.divided", kind), scale


def scale_after_products_(graph: ir.Graph, scaled: list[ir.Value]) -> None:
    """Integers times token scales, where products read them: the scales multiply the rows of the products instead."""
    for value in scaled:
        node = value.producer()
        assert node is not None
        integers, scale = node.inputs
        for user, index in list(value.uses()):
            if index == 0 and user.op_type == "MatMul":
                user.replace_input_with(0, integers)
                _scale_rows(graph, user, scale)
            elif index == 0 and user.op_type == "Reshape" and _is_matrix_of_tokens(user, value):
                _scale_after_reshape(graph, user, integers, scale)


def _is_matrix_of_tokens(reshape: ir.Node, value: ir.Value) -> bool:
    """Whether a reshape only lines up the tokens, as GPT-2's projections do, and products read the result."""
    before, after = value.shape, reshape.outputs[0].shape
    readers = [(user.op_type, index) for user, index in reshape.outputs[0].uses()]
    same_rows = before is not None and after is not None and len(after) == 2 and before[-1] == after[-1]
    return same_rows and bool(readers) and all(reader == ("MatMul", 0) for reader in readers)


def _scale_after_reshape(graph: ir.Graph, reshape: ir.Node, integers: ir.Value | None, scale: ir.Value | None) -> None:
    column = constant(graph, "quietformer.column", np.array([-1, 1], np.int64))
    lined = ir.node("Reshape", [scale, column], name=f"{reshape.name}.scales")
    lined.outputs[0].name, lined.outputs[0].dtype = f"{reshape.name}.scales", ir.DataType.FLOAT
    graph.insert_before(reshape, lined)
    reshape.replace_input_with(0, integers)
    for user, _ in list(reshape.outputs[0].uses()):
        _scale_rows(graph, user, lined.outputs[0])


def _scale_rows(graph: ir.Graph, product: ir.Node, scale: ir.Value | None) -> None:
    output = product.outputs[0]
    readers = list(output.uses())
    rows = ir.node("Mul", [output, scale], name=f"{product.name}.by_token")
    rows.outputs[0].name = f"{output.name}.by_token"
    rows.outputs[0].type, rows.outputs[0].shape = output.type, output.shape
    graph.insert_after(product, rows)
    for user, index in readers:
        user.replace_input_with(index, rows.outputs[0])
    if output.is_graph_output():
        name, output.name = output.name, f"{output.name}.before"
        rows.outputs[0].name = name
        graph.outputs[list(graph.outputs).index(output)] = rows.outputs[0]
