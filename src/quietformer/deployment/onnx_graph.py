"""From the exported graph, in which sites are marked, to an fp32 graph and an INT8 one.

The exporter of torch knows nothing of our quantizers: it writes a node `quietformer::Site` where each stood. Here those
nodes are taken out, or become QuantizeLinear and DequantizeLinear with exactly the calibrated scale and zero point, and
weights become integers in the file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.passes.common import RemoveUnusedNodesPass, RemoveUnusedOpsetsPass

from quietformer.deployment.lean_graph import make_lean_
from quietformer.deployment.onnx_values import constant, replace
from quietformer.quant.affine import levels, quantize
from quietformer.quant.quantizer import MARK, Quantizer

DOMAIN, _, MARK_NAME = MARK.partition("::")

MOVING = {"Transpose", "Reshape", "Squeeze", "Unsqueeze", "Slice"}
"""What onnxruntime pushes a DequantizeLinear through."""


def floating_graph(marked: ir.Model) -> ir.Model:
    """The model as torch computes it without quantizers."""
    model = marked.clone()
    for node in _marks(model):
        replace(model.graph, node.outputs[0], node.inputs[0])
    return _tidy(model)


def integer_graph(marked: ir.Model, placed: dict[str, Quantizer], *, signed_weights: bool) -> ir.Model:
    """The model with a QuantizeLinear and DequantizeLinear for every mark, and integers for weights."""
    model = marked.clone()
    for node in _marks(model):
        quantizer = placed[node.attributes["site"].as_string()]
        if quantizer.site.endswith(":weight"):
            _Weight(model.graph, node, quantizer, signed_weights).store()
        else:
            _put_activation(model.graph, node, quantizer)
    for node in [node for node in model.graph if node.op_type == "Gemm"]:
        _split_gemm(model.graph, node)
    make_lean_(model)
    return _tidy(model)


def _marks(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.domain == DOMAIN and node.op_type == MARK_NAME]


def _put_activation(graph: ir.Graph, node: ir.Node, quantizer: Quantizer) -> None:
    """Quantize and back; a grid narrower than its container is cut to size as integers, where that is exact."""
    value, bits, site = node.inputs[0], quantizer.grid.bits, quantizer.site
    container = np.uint8 if bits <= 8 else np.uint16
    scale = constant(graph, f"{site}.scale", quantizer.scale.cpu().numpy().astype(np.float32))
    zero = constant(graph, f"{site}.zero_point", quantizer.zero_point.cpu().numpy().astype(container))
    integers = _node(node, "QuantizeLinear", [value, scale, zero], f"{site}.quantized", _integer(container))
    if bits not in (8, 16):
        least = constant(graph, f"{site}.least", np.array(0, container))
        most = constant(graph, f"{site}.most", np.array(levels(bits), container))
        if container is np.uint16:  # onnxruntime clips bytes but not 16 bit integers
            wide = _node(node, "Cast", [integers], f"{site}.wide", ir.DataType.INT32, to=int(ir.DataType.INT32))
            least = constant(graph, f"{site}.least32", np.array(0, np.int32))
            most = constant(graph, f"{site}.most32", np.array(levels(bits), np.int32))
            wide = _node(node, "Clip", [wide, least, most], f"{site}.clipped32", ir.DataType.INT32)
            kind = int(ir.DataType.UINT16)
            integers = _node(node, "Cast", [wide], f"{site}.clipped", ir.DataType.UINT16, to=kind)
        else:
            integers = _node(node, "Clip", [integers, least, most], f"{site}.clipped", ir.DataType.UINT8)
    real = _node(node, "DequantizeLinear", [integers, scale, zero], f"{site}.dequantized", ir.DataType.FLOAT)
    replace(graph, node.outputs[0], real)


class _Weight:
    """One weight as integers, in the orientation its reader wants."""

    def __init__(self, graph: ir.Graph, node: ir.Node, quantizer: Quantizer, signed: bool) -> None:
        self.graph, self.node, self.quantizer = graph, node, quantizer
        value = node.inputs[0]
        assert value is not None
        assert value.const_value is not None
        grid = quantizer.grid
        weight = torch.from_numpy(np.array(value.const_value.numpy(), dtype=np.float32))
        scale, zero = quantizer.scale.cpu(), quantizer.zero_point.cpu()
        integers = quantize(weight, scale, zero, bits=grid.bits, axis=grid.axis).numpy()
        zero_array = zero.numpy()
        if signed:
            shift = 2 ** (grid.bits - 1)
            integers, zero_array = integers - shift, zero_array - shift
            container: Any = np.int8 if grid.bits <= 8 else np.int16
        else:
            container = np.uint8 if grid.bits <= 8 else np.uint16
        self.integers = integers.astype(container)
        self.scale = scale.numpy().astype(np.float32)
        self.zero = zero_array.astype(container)

    def store(self) -> None:
        for user, index in list(self.node.outputs[0].uses()):
            if user.op_type == "Transpose" and self.integers.ndim == 2:
                # Stored as the product reads it: nothing may stand between the integers and their product.
                replace(self.graph, user.outputs[0], self._dequantized(transposed=True))
            elif user.op_type == "Gather" and index == 0 and _attribute(user, "axis", 0) == 0:
                self._look_up(user)
            else:
                user.replace_input_with(index, self._dequantized(transposed=False))

    def _parts(self, *, transposed: bool) -> tuple[ir.Value, ir.Value, ir.Value]:
        site, turn = self.quantizer.site, ".t" if transposed else ""
        stored = np.ascontiguousarray(self.integers.T) if transposed else self.integers
        return (
            constant(self.graph, f"{site}.integers{turn}", stored),
            constant(self.graph, f"{site}.scale", self.scale),
            constant(self.graph, f"{site}.zero_point", self.zero),
        )

    def _dequantized(self, *, transposed: bool) -> ir.Value:
        axis = self.quantizer.grid.axis
        axis = None if axis is None else self.integers.ndim - 1 - axis if transposed else axis
        name = f"{self.quantizer.site}.dequantized{'.t' if transposed else ''}"
        parts = list(self._parts(transposed=transposed))
        attributes = {} if axis is None else {"axis": axis}
        return _node(self.node, "DequantizeLinear", parts, name, ir.DataType.FLOAT, **attributes)

    def _look_up(self, gather: ir.Node) -> None:
        """Rows are looked up as integers, so that the table is never stored in fp32."""
        table, scale, zero = self._parts(transposed=False)
        site = f"{self.quantizer.site}.{gather.name or id(gather)}"
        rows = _node(gather, "Gather", [table, gather.inputs[1]], f"{site}.rows", _integer(self.integers.dtype))
        moved = any(user.op_type in MOVING for user, _ in gather.outputs[0].uses())
        if self.quantizer.grid.axis is None and not moved:
            real = _node(gather, "DequantizeLinear", [rows, scale, zero], f"{site}.real", ir.DataType.FLOAT)
        else:
            # (q - z) s spelled out: onnxruntime fuses a DequantizeLinear with a scale a feature into sums that cannot take it,
            # and pushes one of relative positions through their transposition with types that do not fit.
            kind = ir.DataType.FLOAT
            zeros = constant(self.graph, f"{self.quantizer.site}.zero_point.real", self.zero.astype(np.float32))
            spread = _node(gather, "Cast", [rows], f"{site}.spread", kind, to=int(kind))
            spread = _node(gather, "Sub", [spread, zeros], f"{site}.centred", kind)
            real = _node(gather, "Mul", [spread, scale], f"{site}.real", kind)
        replace(self.graph, gather.outputs[0], real)


def _split_gemm(graph: ir.Graph, node: ir.Node) -> None:
    """onnxruntime has an integer kernel for MatMul with an fp32 bias, none for such a Gemm."""
    a, b, *rest = node.inputs
    plain = _attribute(node, "alpha", 1.0) == 1.0 and _attribute(node, "beta", 1.0) == 1.0
    if not plain or _attribute(node, "transA", 0) or b is None:
        return
    if _attribute(node, "transB", 0):
        producer = b.producer()
        if producer is None or producer.op_type != "DequantizeLinear":
            return
        b = _transpose_stored(graph, producer)
    product = _node(node, "MatMul", [a, b], f"{node.outputs[0].name}.product", ir.DataType.FLOAT)
    if rest and rest[0] is not None:
        product = _node(node, "Add", [product, rest[0]], f"{node.outputs[0].name}.sum", ir.DataType.FLOAT)
    replace(graph, node.outputs[0], product)


def _transpose_stored(graph: ir.Graph, dequantize: ir.Node) -> ir.Value:
    table, scale, zero = dequantize.inputs
    assert table is not None
    assert table.const_value is not None
    turned = constant(graph, f"{table.name}.t", np.ascontiguousarray(table.const_value.numpy().T))
    axis = dequantize.attributes.get("axis")
    attributes = {} if axis is None else {"axis": 1 - axis.as_int()}
    name = f"{dequantize.outputs[0].name}.t"
    return _node(dequantize, "DequantizeLinear", [turned, scale, zero], name, ir.DataType.FLOAT, **attributes)


def _node(before: ir.Node, kind: str, inputs: list[Any], name: str, dtype: ir.DataType, **attributes: Any) -> ir.Value:
    graph = before.graph
    assert isinstance(graph, ir.Graph)
    # A module called several times has a node for each call, under names of their own.
    taken = graph.meta.setdefault("quietformer_names", {})
    taken[name] = taken.get(name, -1) + 1
    name = f"{name}.{taken[name]}" if taken[name] else name
    made = ir.node(kind, inputs, attributes=attributes, name=name)
    made.outputs[0].name = name
    made.outputs[0].dtype = dtype
    graph.insert_before(before, made)
    return made.outputs[0]


def _tidy(model: ir.Model) -> ir.Model:
    RemoveUnusedNodesPass()(model)
    model.opset_imports.pop(DOMAIN, None)
    RemoveUnusedOpsetsPass()(model)
    return model


def _integer(container: Any) -> ir.DataType:
    return ir.DataType.from_numpy(np.dtype(container))


def _attribute(node: ir.Node, name: str, default: Any) -> Any:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.value
