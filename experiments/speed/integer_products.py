"""How fast onnxruntime's integer product is against its fp32 one here, with signed and unsigned weights.

    python -m experiments.speed.integer_products [--keep]

A whole model in INT8 cannot gain more than its products do. MiniLM's shapes, one thread, processor time, the fastest of 30 of
each in turn; the largest error against the same integers multiplied exactly shows whether signed weights overflow.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from experiments.provenance import keep, keep_option_

SHAPES = [(16, 384, 384), (16, 384, 1536), (128, 384, 1536), (128, 1536, 384), (1024, 384, 384), (1024, 384, 1536)]


def session(nodes: list[Any], constants: dict[str, Any], k: int, n: int) -> Any:
    graph = helper.make_graph(
        nodes, "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, n])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def integers(weight: Any, x: Any, *, signed: bool) -> tuple[Any, Any]:
    """A session that quantizes x and multiplies integers, and the exact result."""
    scale = np.float32(np.abs(weight).max() / 127)
    q = np.clip(np.rint(weight / scale), -128, 127)
    step = np.float32((x.max() - x.min()) / 255)
    zero = np.uint8(np.rint(-x.min() / step))
    stored = q.astype(np.int8) if signed else (q + 128).astype(np.uint8)
    middle = np.array(0 if signed else 128, stored.dtype)
    constants = {"w": stored, "ws": scale, "wz": middle, "xs": step, "xz": zero}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "xs", "xz"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"]),
        helper.make_node("MatMul", ["xd", "wd"], ["y"]),
    ]
    whole = np.clip(np.rint(x / step) + zero, 0, 255) - float(zero)
    exact = (whole.astype(np.float64) @ q.astype(np.float64)) * float(step) * float(scale)
    return session(nodes, constants, *weight.shape), exact


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    keep_option_(parser)
    arguments = parser.parse_args()
    generator = np.random.default_rng(0)
    rows = []
    for m, k, n in SHAPES:
        weight = (generator.standard_normal((k, n)) * 0.05).astype(np.float32)
        x = generator.standard_normal((m, k)).astype(np.float32)
        floating = session([helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": weight}, k, n)
        signed, exact = integers(weight, x, signed=True)
        unsigned, _ = integers(weight, x, signed=False)
        best = {"fp32": np.inf, "int8": np.inf, "uint8": np.inf}
        for _ in range(30):
            for name, run in (("fp32", floating), ("int8", signed), ("uint8", unsigned)):
                start = time.process_time()
                run.run(None, {"x": x})
                best[name] = min(best[name], time.process_time() - start)
        errors = {
            name: float(np.abs(run.run(None, {"x": x})[0] - exact).max())
            for name, run in (("int8", signed), ("uint8", unsigned))
        }
        row = {
            "rows": m,
            "in": k,
            "out": n,
            "int8": best["fp32"] / best["int8"],
            "uint8": best["fp32"] / best["uint8"],
            "error": errors,
        }
        rows.append(row)
        print(f"{m:5} x {k:4} x {n:4}: int8 {row['int8']:.2f}, uint8 {row['uint8']:.2f} times as fast as fp32; "
              f"largest error {errors['int8']:.1e}, {errors['uint8']:.1e}")  # fmt: skip
    figures = {
        "onnxruntime": onnxruntime.__version__,
        "products": rows,
    }
    if arguments.keep:
        keep(__file__, figures)


if __name__ == "__main__":
    main()
