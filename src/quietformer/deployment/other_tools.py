"""What NNCF, torchao and SmoothQuant make of a model, each as its own documents say."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from quietformer.analysis.evaluate import Run
from quietformer.architectures.forward import Batch, model_inputs, run
from quietformer.config.quantization import QuantSpec
from quietformer.deployment.onnx_runtime import OnnxModel
from quietformer.deployment.openvino_runtime import import_openvino, only_core, without_telemetry
from quietformer.deployment.silence import silent
from quietformer.errors import QuietformerError
from quietformer.quant.calibration import calibrate_, dequantize_, quantize_
from quietformer.quant.insertion import quantizers
from quietformer.transforms.smoothquant import migrate_

GROUP = 32
"""Input channels that share a scale where weights have few bits; the default of torchao."""

NNCF_BITS = 4
"""The only bits below 8 that NNCF has for weights."""

ALPHA = 0.5
"""How much of the outliers SmoothQuant migrates into weights, as it was published."""


def write_nncf(graph: Path, out: Path, batches: list[Batch]) -> Path:
    """Static INT8 by `nncf.quantize` for transformers, from an fp32 ONNX graph, as OpenVINO IR."""
    openvino = import_openvino()
    needs("nncf")
    only_core()  # before NNCF's own
    with without_telemetry(), silent():
        import nncf

        items = list(single_sequences(batches))
        data = nncf.Dataset(items, OnnxModel(graph).feeds)
        found = nncf.quantize(
            openvino.convert_model(graph), data, subset_size=len(items), model_type=nncf.ModelType.TRANSFORMER
        )
        out.parent.mkdir(parents=True, exist_ok=True)
        openvino.save_model(found, out)
    return out


def write_nncf_weights(graph: Path, out: Path, group: int | None) -> Path:
    """Weights alone in 4 bits by `nncf.compress_weights`, one scale an output channel or a group of input channels."""
    openvino = import_openvino()
    needs("nncf")
    only_core()
    with without_telemetry(), silent():
        import nncf

        mode, size = nncf.CompressWeightsMode.INT4_SYM, -1 if group is None else group
        found = nncf.compress_weights(openvino.convert_model(graph), mode=mode, group_size=size, all_layers=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        openvino.save_model(found, out)
    return out


def single_sequences(batches: list[Batch]) -> Iterator[Batch]:
    """One sequence at a time and without padding: NNCF takes statistics over every value that it sees."""
    for batch in batches:
        for place in range(len(next(iter(batch.values())))):
            one = {name: tensor[place : place + 1] for name, tensor in model_inputs(batch).items()}
            mask = one.get("attention_mask")
            length = None if mask is None or mask.dim() != 2 or not mask[0, 0] else int(mask.sum())
            yield {
                name: tensor[:, :length] if mask is not None and tensor.shape == mask.shape else tensor
                for name, tensor in one.items()
            }


def torchao_model(model: PreTrainedModel, example: Batch, weight_bits: int = 8) -> tuple[Run, str]:
    """Dynamic INT8 of linear layers in torch, compiled where that works; also which of the two it is.

    With fewer bits weights have a scale for each group of 32 (`GROUP`), which is the default there.
    """
    needs("torchao")
    with silent():
        from torchao import quantization

        mine: Any = without_quantizers(model)
        mine.eval()
        config: Any = quantization.Int8DynamicActivationInt8WeightConfig()
        if weight_bits < 8:
            config = quantization.Int8DynamicActivationIntxWeightConfig(
                weight_dtype=getattr(torch, f"int{weight_bits}")
            )
        quantization.quantize_(mine, config)
        inputs = model_inputs(example)
        try:
            compiled: Any = torch.compile(mine, dynamic=True)
            with torch.no_grad():
                compiled(**inputs)
            return torch.no_grad()(lambda batch: run(compiled, batch)), "torch, compiled"
        except Exception:  # no compiler, or something it cannot translate
            return torch.no_grad()(lambda batch: run(mine, batch)), "torch, eager"


def smoothquant_model(model: PreTrainedModel, batches: list[Batch], spec: QuantSpec) -> PreTrainedModel:
    """SmoothQuant as published, simulated: weights and inputs of products, one exponent for all layers."""
    mine = without_quantizers(model)
    migrate_(mine, batches, ALPHA)
    return _at_products(mine, batches, spec)


def nearest_model(model: PreTrainedModel, batches: list[Batch], spec: QuantSpec) -> PreTrainedModel:
    """Weights and inputs of products rounded to the nearest, simulated; nothing else is done."""
    return _at_products(without_quantizers(model), batches, spec)


def _at_products(mine: PreTrainedModel, batches: list[Batch], spec: QuantSpec) -> PreTrainedModel:
    plain = {"rules": (), "placement": QuantSpec(placement="matmul").placement}  # type: ignore[arg-type]
    quantize_(mine, QuantSpec(**(dict(spec) | plain)), batches[0])
    calibrate_(mine, batches)
    return mine


def without_quantizers(model: PreTrainedModel) -> PreTrainedModel:
    """A copy in fp32."""
    mine = copy.deepcopy(model)
    if quantizers(mine):
        dequantize_(mine)
    return mine


def needs(package: str) -> None:
    if find_spec(package) is None:
        raise QuietformerError(f"{package} is not installed; pip install quietformer[baselines]")
