"""Quietformer: transformers whose attention heads can do nothing, and so quantize to INT8 as they are."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from quietformer import _autoload

__version__ = "0.1.0"

if TYPE_CHECKING:
    from quietformer.analysis.inspect import inspect
    from quietformer.attention.clipped import ClippedSoftmax
    from quietformer.attention.gates import AllHeadsGate, ElementwiseGate, LinearGate, MLPGate
    from quietformer.attention.inject import advance_warmup_, apply_attention_, attention_cores, remove_attention_
    from quietformer.attention.sink import LearnedSink
    from quietformer.attention.softmax import Softmax
    from quietformer.attention.softmax1 import Softmax1
    from quietformer.checkpoint import load, save
    from quietformer.errors import QuietformerError
    from quietformer.export.onnx import export_onnx
    from quietformer.families.vit import add_patch_norm_
    from quietformer.quant.calibrate import calibrate_, quantize_
    from quietformer.specs import AttentionSpec, QuantSpec
    from quietformer.train.callbacks import OutlierCallback, WarmupCallback

_HOMES = {
    "AllHeadsGate": "attention.gates",
    "AttentionSpec": "specs",
    "ClippedSoftmax": "attention.clipped",
    "ElementwiseGate": "attention.gates",
    "LearnedSink": "attention.sink",
    "LinearGate": "attention.gates",
    "MLPGate": "attention.gates",
    "OutlierCallback": "train.callbacks",
    "QuantSpec": "specs",
    "QuietformerError": "errors",
    "Softmax": "attention.softmax",
    "Softmax1": "attention.softmax1",
    "WarmupCallback": "train.callbacks",
    "add_patch_norm_": "families.vit",
    "advance_warmup_": "attention.inject",
    "apply_attention_": "attention.inject",
    "attention_cores": "attention.inject",
    "calibrate_": "quant.calibrate",
    "export_onnx": "export.onnx",
    "inspect": "analysis.inspect",
    "load": "checkpoint",
    "quantize_": "quant.calibrate",
    "remove_attention_": "attention.inject",
    "save": "checkpoint",
}

__all__ = [
    "AllHeadsGate",
    "AttentionSpec",
    "ClippedSoftmax",
    "ElementwiseGate",
    "LearnedSink",
    "LinearGate",
    "MLPGate",
    "OutlierCallback",
    "QuantSpec",
    "QuietformerError",
    "Softmax",
    "Softmax1",
    "WarmupCallback",
    "__version__",
    "add_patch_norm_",
    "advance_warmup_",
    "apply_attention_",
    "attention_cores",
    "calibrate_",
    "export_onnx",
    "inspect",
    "load",
    "quantize_",
    "remove_attention_",
    "save",
]


def __getattr__(name: str) -> Any:
    """Public names load on first use, so that `quietformer --help` does not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'quietformer' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"quietformer.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


_autoload.install()
