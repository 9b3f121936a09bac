"""An INT8 graph without work that constants can absorb, in the shape ONNX Runtime computes fastest.

Every rewrite leaves the function as it is, up to the rounding of fp32.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from quietformer.deployment.onnx_values import constant, replace


def make_lean_(model: ir.Model) -> None:
    """Rewrite an INT8 graph in place."""
    RemoveUnusedNodesPass()(model)  # what nobody reads must not count as a reader
    _multiply_by_reciprocals_(model.graph)
    _share_equal_nodes_(model.graph)
    _fold_scaled_products_(model.graph)
    _mask_rows_after_product_(model.graph)
    _keep_norms_apart_(model.graph)
    RemoveUnusedNodesPass()(model)


def _multiply_by_reciprocals_(graph: ir.Graph) -> None:
    """Smoothing divides activations by constants; a product costs a third of a division."""
    for node in list(graph):
        divisor = node.inputs[1] if node.op_type == "Div" else None
        if divisor is None or divisor.const_value is None or divisor.dtype != ir.DataType.FLOAT:
            continue
        if divisor.const_value.size == 1:
            continue  # scales of tokens are found so, and must be those of the simulation to the bit
        with np.errstate(divide="ignore"):
            reciprocals = (1.0 / divisor.const_value.numpy().astype(np.float64)).astype(np.float32)
        if not np.isfinite(reciprocals).all():
            continue
        inverse = constant(graph, f"{divisor.name}.reciprocal", reciprocals)
        product = ir.node("Mul", [node.inputs[0], inverse], name=node.name)
        output = node.outputs[0]
        product.outputs[0].name = f"{output.name}.times"
        product.outputs[0].type, product.outputs[0].shape = output.type, output.shape
        graph.insert_before(node, product)
        replace(graph, output, product.outputs[0])


def _share_equal_nodes_(graph: ir.Graph) -> None:
    """Query, key and value projections read one tensor: it is scaled and quantized once for all three."""
    seen: dict[object, ir.Node] = {}
    for node in list(graph):
        if (
            node.op_type not in ("QuantizeLinear", "DequantizeLinear", "Div", "Mul", "Abs", "ReduceMax", "Max")
            or node.outputs[0].is_graph_output()
        ):
            continue
        if node.inputs[0] is None or node.inputs[0].const_value is not None:
            continue  # a weight
        if node.op_type.endswith("Linear") and _signed(node):
            continue  # ONNX Runtime takes signed integers from a QuantizeLinear and DequantizeLinear with one reader only
        attributes = tuple(sorted((name, str(item.value)) for name, item in node.attributes.items()))
        key = (node.op_type, attributes, tuple(map(_identity, node.inputs)))
        first = seen.setdefault(key, node)
        if first is not node:
            node.outputs[0].replace_all_uses_with(first.outputs[0])


def _signed(node: ir.Node) -> bool:
    zero = node.inputs[2]
    return zero is not None and zero.dtype in (ir.DataType.INT8, ir.DataType.INT16)


def _identity(value: ir.Value | None) -> object:
    """Equal for constants of equal content, whatever they are called."""
    if value is None or value.const_value is None:
        return id(value)
    array = value.const_value.numpy()
    return (array.dtype.str, array.shape, array.tobytes())


def _fold_scaled_products_(graph: ir.Graph) -> None:
    """A product times a number: the number goes into the scale that the product's input is dequantized with."""
    for node in list(graph):
        if node.op_type != "Mul" or (found := _times_number(node)) is None:
            continue
        product, number = found
        producer = product.producer()
        if producer is None or producer.op_type != "MatMul" or _readers(product) != 1:
            continue
        source = producer.inputs[0]
        dequantize = None if source is None else source.producer()
        if source is None or dequantize is None or dequantize.op_type != "DequantizeLinear" or _readers(source) != 1:
            continue
        scale = dequantize.inputs[1]
        if scale is None or scale.const_value is None:
            continue
        scaled = (scale.const_value.numpy() * np.float32(number)).astype(np.float32)
        dequantize.replace_input_with(1, constant(graph, f"{scale.name}.times_scaling", scaled))
        replace(graph, node.outputs[0], product)


def _times_number(node: ir.Node) -> tuple[ir.Value, float] | None:
    for one, other in ((0, 1), (1, 0)):
        value, factor = node.inputs[one], node.inputs[other]
        if value is not None and factor is not None and factor.const_value is not None and factor.const_value.size == 1:
            number = float(factor.const_value.numpy().reshape(()))
            return (value, number) if number > 0 else None
    return None


def _mask_rows_after_product_(graph: ir.Graph) -> None:
    """Rows that see no key are zeroed after probabilities met values: fewer numbers, and the same zeros.

    The factor is zero or one for each row, so it commutes with quantizing from zero upwards and with the product.
    """
    for node in list(graph):
        if node.op_type != "Mul" or (found := _times_row_mask(node)) is None:
            continue
        weights, mask = found
        chain = _to_product(node.outputs[0])
        if chain is None:
            continue
        first, last = chain
        first.replace_input_with(0, weights)
        product = last.outputs[0]
        readers = list(product.uses())
        masked = ir.node("Mul", [product, mask], name=f"{node.name}.after_product")
        masked.outputs[0].name = f"{product.name}.masked"
        masked.outputs[0].type, masked.outputs[0].shape = product.type, product.shape
        graph.insert_after(last, masked)
        for user, index in readers:
            user.replace_input_with(index, masked.outputs[0])


def _times_row_mask(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """Softmax times a cast of booleans with a single column."""
    for one, other in ((0, 1), (1, 0)):
        value, mask = node.inputs[one], node.inputs[other]
        if value is None or mask is None or value.producer() is None or mask.producer() is None:
            continue
        softmax, cast = value.producer(), mask.producer()
        assert softmax is not None
        assert cast is not None
        source = cast.inputs[0] if cast.inputs else None
        boolean = source is not None and source.dtype == ir.DataType.BOOL
        column = mask.shape is not None and len(mask.shape) > 1 and mask.shape[-1] == 1
        if softmax.op_type == "Softmax" and cast.op_type == "Cast" and boolean and column:
            return value, mask
    return None


def _to_product(weights: ir.Value) -> tuple[ir.Node, ir.Node] | None:
    """What reads the probabilities first, and the product they enter on the left: the same node unless they are quantized."""
    chain = _only_chain(weights, ("MatMul",))
    if chain is None:
        chain = _only_chain(weights, ("QuantizeLinear", "DequantizeLinear", "MatMul"))
        if chain is None or not _starts_at_zero(chain[0]):
            return None
    before = weights if len(chain) == 1 else chain[-2].outputs[0]
    return (chain[0], chain[-1]) if chain[-1].inputs[0] is before else None


def _only_chain(value: ir.Value, kinds: tuple[str, ...]) -> list[ir.Node] | None:
    """The nodes of these kinds that follow one another, each the only reader of the one before."""
    chain: list[ir.Node] = []
    for kind in kinds:
        if _readers(value) != 1 or value.is_graph_output():
            return None
        node = next(iter(value.uses()))[0]
        if node.op_type != kind:
            return None
        chain.append(node)
        value = node.outputs[0]
    return None if value.is_graph_output() else chain


def _starts_at_zero(quantize: ir.Node) -> bool:
    zero = quantize.inputs[2] if len(quantize.inputs) > 2 else None
    return zero is not None and zero.const_value is not None and not zero.const_value.numpy().any()


def _keep_norms_apart_(graph: ir.Graph) -> None:
    """ONNX Runtime fuses Add and LayerNormalization into a kernel ten times slower than the two; it leaves Sum alone."""
    for node in list(graph):
        if node.op_type != "Add" or node.domain or _broadcasts(node):
            continue
        if any(user.op_type == "LayerNormalization" and index == 0 for user, index in node.outputs[0].uses()):
            apart = ir.node("Sum", list(node.inputs), name=f"{node.name}.apart")
            output = node.outputs[0]
            apart.outputs[0].name = f"{output.name}.apart"
            apart.outputs[0].type, apart.outputs[0].shape = output.type, output.shape
            graph.insert_before(node, apart)
            replace(graph, output, apart.outputs[0])


def _broadcasts(node: ir.Node) -> bool:
    return any(value is None or value.const_value is not None for value in node.inputs)


def _readers(value: ir.Value) -> int:
    return len(list(value.uses()))
