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
from quietformer.deployment.token_graph import divided_by_token_scale, scale_after_products_
from quietformer.errors import QuietformerError
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
    scaled: list[ir.Value] = []
    for node in _marks(model):
        quantizer = placed[node.attributes["site"].as_string()]
        if quantizer.site.endswith(":weight"):
            _Weight(model.graph, node, quantizer, signed_weights).store()
        elif quantizer.grid.heads is not None:
            raise QuietformerError(
                f"{quantizer.site} has a scale for each feature of a head, which is simulated only; export with --kv-cache "
                "token or tensor"
            )
        elif quantizer.grid.token:
            scaled.append(_put_token_scaled(model.graph, node, quantizer))
        else:
            signed = _move_first(model.graph, node) if quantizer.grid.symmetric else []
            for mark in (node, *signed):
                _put_activation(model.graph, mark, quantizer)
    for node in [node for node in model.graph if node.op_type == "Gemm"]:
        _split_gemm(model.graph, node)
    RemoveUnusedNodesPass()(model)  # a Gemm that was split must not count as a reader
    scale_after_products_(model.graph, scaled)
    make_lean_(model)
    return _tidy(model)


def _marks(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.domain == DOMAIN and node.op_type == MARK_NAME]


def _put_activation(graph: ir.Graph, node: ir.Node, quantizer: Quantizer) -> None:
    """Quantize and back; a grid narrower than its container is cut to size as integers, where that is exact.

    A symmetric grid is stored signed with the zero point 0, the only one that TensorRT and its like take.
    """
    value, bits, site = node.inputs[0], quantizer.grid.bits, quantizer.site
    place = node.attributes["place"].as_int()
    step, middle = (tensor.cpu().numpy() for tensor in quantizer.grid_at(place))
    site = site if quantizer.grid.passes is None else f"{site}.{place}"
    shift = 2 ** (bits - 1) if quantizer.grid.symmetric else 0
    container = np.dtype(f"{'int' if shift else 'uint'}{8 if bits <= 8 else 16}")
    scale = constant(graph, f"{site}.scale", step.astype(np.float32))
    zero = constant(graph, f"{site}.zero_point", (middle - shift).astype(container))
    integers = _node(node, "QuantizeLinear", [value, scale, zero], f"{site}.quantized", _integer(container))
    if bits not in (8, 16):
        wide = np.dtype(np.int32) if bits > 8 else container  # onnxruntime clips bytes but not 16 bit integers
        least = constant(graph, f"{site}.least", np.array(-shift, wide))
        most = constant(graph, f"{site}.most", np.array(levels(bits) - shift, wide))
        if wide != container:
            integers = _cast(node, integers, f"{site}.wide", wide)
        integers = _node(node, "Clip", [integers, least, most], f"{site}.clipped", _integer(wide))
        if wide != container:
            integers = _cast(node, integers, f"{site}.narrow", container)
    real = _node(node, "DequantizeLinear", [integers, scale, zero], f"{site}.dequantized", ir.DataType.FLOAT)
    replace(graph, node.outputs[0], real)


def _move_first(graph: ir.Graph, node: ir.Node) -> list[ir.Node]:
    """What is moved after it is quantized is moved before; the marks that this adds.

    Of the other order ONNX Runtime makes a graph of signed integers that it refuses itself.
    """
    added: list[ir.Node] = []
    for user, index in list(node.outputs[0].uses()):
        moved = user.outputs[0]
        if user.op_type not in MOVING or index or moved.is_graph_output():
            continue
        readers = list(moved.uses())
        user.replace_input_with(0, node.inputs[0])
        mark = ir.node(MARK_NAME, [moved], node.attributes, domain=DOMAIN, name=f"{user.name}.mark")
        mark.outputs[0].name, mark.outputs[0].type, mark.outputs[0].shape = (
            f"{moved.name}.marked",
            moved.type,
            moved.shape,
        )
        graph.insert_after(user, mark)
        for reader, place in readers:
            reader.replace_input_with(place, mark.outputs[0])
        added += [mark, *_move_first(graph, mark)]
    return added


def _cast(node: ir.Node, value: ir.Value, name: str, to: Any) -> ir.Value:
    return _node(node, "Cast", [value], name, _integer(to), to=int(_integer(to)))


def _put_token_scaled(graph: ir.Graph, node: ir.Node, quantizer: Quantizer) -> ir.Value:
    """Each token divided by its own scale, quantized with the scale 1, and multiplied again; nothing is ever clipped."""
    value, scale = divided_by_token_scale(graph, node, quantizer, _node)
    container, site = (np.uint8 if quantizer.grid.bits <= 8 else np.uint16), quantizer.site
    one = constant(graph, "quietformer.one", np.array(1, np.float32))
    middle = constant(
        graph, f"quietformer.middle_{np.dtype(container)}", np.array(np.iinfo(container).max // 2 + 1, container)
    )
    integers = _node(node, "QuantizeLinear", [value, one, middle], f"{site}.quantized", _integer(container))
    real = _node(node, "DequantizeLinear", [integers, one, middle], f"{site}.dequantized", ir.DataType.FLOAT)
    real = _node(node, "Mul", [real, scale], f"{site}.by_token", ir.DataType.FLOAT)
    real.shape = node.outputs[0].shape
    replace(graph, node.outputs[0], real)
    return real


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
