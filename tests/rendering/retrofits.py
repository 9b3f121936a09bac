"""Figures of a retrofit around real inspections of tiny models, as `quietformer retrofit` hands them to the page."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import torch

import quietformer as qf
from quietformer.analysis.outliers import TokenNames
from quietformer.results.quality import SCALES
from tests.tiny_models import VARIANTS, build, inputs


@cache
def _inspection(name: str, variant: str | None, grown: float) -> dict[str, Any]:
    model = build(name)
    if grown != 1:
        outputs = [module for path, module in model.named_modules() if path.endswith(("output.dense", "fc2"))]
        with torch.no_grad():
            for module in outputs:
                module.weight[3] *= grown
    if variant:
        qf.apply_attention_(model, VARIANTS[variant])
    return qf.inspect_model(
        model, [inputs(name)], names=TokenNames(lambda token: f"t{token}"), name="a-model"
    ).model_dump()


def inspection(name: str = "bert", variant: str | None = None, grown: float = 1) -> dict[str, Any]:
    """Of a tiny model; `grown` makes an outlier of one dimension of what its dense layers give."""
    return copy.deepcopy(_inspection(name, variant, grown))


def side(inspected: dict[str, Any], measure: str, fp32: float | None, integer: float | None) -> dict[str, Any]:
    found = {measure: integer}
    spread = {measure: {"mean": integer, "std": 0.002 if integer is not None else None}}
    latency = {"batch": 1, "length": 16, "torch_fp32_ms": 9.0, "onnx_fp32_ms": 6.0, "onnx_int8_ms": 4.0, "speedup": 1.5}
    return {
        "inspect": inspected,
        "fp32": {measure: fp32},
        "simulated": {"per_tensor": spread, "per_channel": spread},
        "real": {
            "per_tensor": {},
            "per_channel": found,
            "latency": [latency],
            "bytes": {"fp32": 91_000_000, "int8": 23_400_000},
        },
    }


def retrofit(
    before: tuple[float | None, float | None] = (1.0, 0.25),
    after: tuple[float | None, float | None] | None = (0.9, 0.75),
    measure: str = "cosine",
    better: str = "higher",
    name: str = "bert",
    variant: str | None = "gate-linear",
    **more: Any,
) -> dict[str, Any]:
    """`before` and `after`: the metric in fp32 and in INT8."""
    first = side(inspection(name, grown=50), measure, *before)
    second = None if after is None else side(inspection(name, variant), measure, *after)
    rows = [
        {"what": f"real INT8: {measure}", "before": before[1], "after": after and after[1], "better": better},
        {"what": "largest value", "before": 190.0, "after": after and 10.0, "better": "lower"},
    ]
    log = [{"step": step, "loss": 10.0 / step, "learning_rate": 1e-4} for step in (1, 10, 20, 30)]
    log += [{"step": step, "eval_int8": 0.5 + step / 100, "eval_fp32": 0.9} for step in (10, 30)]
    return {
        "version": 2,
        "kind": "retrofit",
        "sentence": "INT8 now keeps `a-model`.",
        "changed": after is not None,
        "model": {"name": "a-model", "class_name": "BertModel", "parameters": 22713216, "attention": "softmax"},
        "task": "embedding",
        "primary": measure,
        "better": better,
        "scale": SCALES[better],
        "rows": rows,
        "before": first,
        "after": second,
        "log": log if after else [],
        "steps": 30 if after else 0,
        "minutes": 2.5,
        "recipe": {"training": {"steps": 30, "seeds": [0, 1]}, "penalty": {"past": 4.0, "site": None}},
        "attention": "softmax() + linear()",
        "data": {"source": "prose", "length": 48},
        "command": "quietformer retrofit a-model --out quiet",
        "versions": {"torch": "2.13"},
    } | more
