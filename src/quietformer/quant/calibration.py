"""`quantize_` and `calibrate_`: put quantizers into a model, and find their ranges from some batches."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Sized
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from quietformer.architectures.dataflow import trace
from quietformer.architectures.forward import Batch, check_batch, check_batches, check_model, in_eval_mode, run
from quietformer.attention.inject import apply_attention_, attention_cores, remove_attention_
from quietformer.config.attention import AttentionSpec
from quietformer.config.quantization import EstimatorSpec, QuantizedSpec, QuantSpec
from quietformer.config.recorded_changes import changes_of
from quietformer.errors import QuietformerError
from quietformer.progress import SILENT, Progress
from quietformer.quant.insertion import place_, quantizers, remove_quantizers_, weight_of, write_sites_
from quietformer.quant.placement import QuantPlan, make_plan
from quietformer.quant.quantizer import CHANNELS, Quantizer, own_modes
from quietformer.quant.ranges_by_pass import RangesByPass

AGAIN = "export it as it is, start from the unquantized model, or remove the quantizers with quietformer.dequantize_"


def plan_quantization(model: PreTrainedModel, spec: QuantSpec, example: Batch) -> QuantPlan:
    """The plan that `quantize_` would follow, from one forward pass on the example; the model is left unchanged."""
    _check(model, spec, example)
    if changes_of(model).quantized is not None:
        raise QuietformerError(f"{type(model).__name__} is quantized already; {AGAIN}")
    with _cores(model):
        return _plan(model, spec, example)


def quantize_(model: PreTrainedModel, spec: QuantSpec, example: Batch) -> QuantPlan:
    """Put quantizers into the model, in place, to be calibrated next.

    A model without a Quietformer attention core gets one with plain softmax, since the quantizers need its taps.
    """
    _check(model, spec, example)
    if changes_of(model).quantized is not None:
        raise QuietformerError(f"{type(model).__name__} is quantized already; {AGAIN}")
    injected = not any(True for _ in attention_cores(model))
    if injected:
        apply_attention_(model, AttentionSpec())
    try:
        plan = _plan(model, spec, example)
        place_(model, QuantizedSpec(spec=spec, sites={site.name: str(site.grid) for site in plan.sites}))
    except BaseException:
        if injected:
            remove_attention_(model)
        raise
    set_mode_(model, "pass")
    return plan


def dequantize_(model: PreTrainedModel) -> None:
    """Remove the quantizers; the attention core stays."""
    check_model(model)
    if not quantizers(model):
        raise QuietformerError(f"{type(model).__name__} is not quantized")
    remove_quantizers_(model)


def calibrate_(
    model: PreTrainedModel, batches: Iterable[Batch], *, weights: bool = True, progress: Progress = SILENT
) -> None:
    """Find every range: of weights from the weights, of activations from running the batches in full precision.

    With `weights=False` the weights keep the grids they have. After an error the model is as it was before, calibrated or not.
    """
    check_model(model)
    check_batches(batches)
    quantized = changes_of(model).quantized
    if quantized is None:
        raise QuietformerError(f"{type(model).__name__} has no quantizers; call quantize_ first")
    every = quantizers(model)
    placed = {
        site: quantizer
        for site, quantizer in every.items()
        if not quantizer.grid.token and (weights or not is_weight(site))
    }
    if any(quantizer.estimator is not None for quantizer in placed.values()):
        raise QuietformerError(
            f"{type(model).__name__} is being calibrated by another thread; wait for it, or use a copy"
        )
    modes = {site: quantizer.mode for site, quantizer in every.items()}
    before = {site: (q.scale_pattern.clone(), q.zero_point.clone()) for site, q in placed.items()}
    try:
        with in_eval_mode(model), torch.no_grad(), own_modes(), _eagerly(model):
            _observe(model, quantized.spec, placed, batches, progress)
            ranges = {site: quantizer.found_range() for site, quantizer in placed.items()}
            for site, quantizer in placed.items():
                quantizer.set_range_(*ranges[site])
    except BaseException:
        for site, mode in modes.items():
            every[site].mode = mode
        for site, (scale, zero_point) in before.items():
            placed[site].scale_pattern.copy_(scale)
            placed[site].zero_point.copy_(zero_point)
        raise
    finally:
        for quantizer in placed.values():
            quantizer.estimator = None
    set_mode_(model, "quantize")


def _observe(
    model: PreTrainedModel,
    spec: QuantSpec,
    placed: dict[str, Quantizer],
    batches: Iterable[Batch],
    progress: Progress,
) -> None:
    set_mode_(model, "pass")
    start_observing_(placed, spec)
    done, total = 0, len(batches) if isinstance(batches, Sized) else 0
    for done, batch in enumerate(batches, start=1):
        begin_batch_(placed)
        run(model, batch)
        progress.step("calibrating", done, total)
    if not done:
        raise QuietformerError("there are no batches to calibrate on; pass some text or images")
    observe_weights_(model, placed)


def start_observing_(placed: dict[str, Quantizer], spec: QuantSpec) -> None:
    """Give every quantizer an estimator, and let those of activations observe what passes them."""
    for quantizer in placed.values():
        chosen = spec.weights if is_weight(quantizer.site) else spec.activations
        grid = quantizer.grid
        axis = grid.axis if grid.heads is None else CHANNELS
        build = functools.partial(chosen.build, bits=grid.bits, symmetric=grid.symmetric, axis=axis)
        quantizer.estimator = build() if grid.passes is None else RangesByPass(quantizer, build)
        if not is_weight(quantizer.site):
            quantizer.mode = "observe"


def begin_batch_(placed: dict[str, Quantizer]) -> None:
    """Tell every estimator that a batch begins."""
    for quantizer in placed.values():
        assert quantizer.estimator is not None
        quantizer.estimator.begin_batch()


def observe_weights_(model: nn.Module, placed: dict[str, Quantizer]) -> None:
    """Let the quantizers of weights observe them."""
    for site, quantizer in placed.items():
        if is_weight(site):
            quantizer._observe(weight_of(model, site))


def set_weight_ranges_(model: nn.Module, spec: QuantSpec) -> None:
    """Find the ranges of weights anew, as the spec says; those of activations stay."""
    placed = {site: quantizer for site, quantizer in quantizers(model).items() if is_weight(site)}
    start_observing_(placed, spec)
    try:
        observe_weights_(model, placed)
        for quantizer in placed.values():
            quantizer.set_range_(*quantizer.found_range())
    finally:
        for quantizer in placed.values():
            quantizer.estimator = None


def use_estimators_(
    model: PreTrainedModel, *, weights: EstimatorSpec | None = None, activations: EstimatorSpec | None = None
) -> None:
    """Use other range estimators in the next calibration; the quantized tensors stay the same."""
    quantized = changes_of(model).quantized
    if quantized is None:
        raise QuietformerError(f"{type(model).__name__} has no quantizers; call quantize_ first")
    changed = {name: value for name, value in (("weights", weights), ("activations", activations)) if value is not None}
    write_sites_(model, quantized.model_copy(update={"spec": quantized.spec.model_copy(update=changed)}))


def set_mode_(model: nn.Module, mode: Any, sites: Iterable[str] | None = None) -> None:
    """Set the mode of the quantizers of these tensors; of all, if none are named."""
    wanted = None if sites is None else set(sites)
    for site, quantizer in quantizers(model).items():
        if wanted is None or site in wanted:
            quantizer.mode = mode


@contextlib.contextmanager
def full_precision(model: nn.Module) -> Iterator[None]:
    """Run the model in full precision inside the context: its quantizers pass tensors unchanged, in this thread."""
    with own_modes(), _eagerly(model):
        set_mode_(model, "pass")
        yield


def _eagerly(model: nn.Module) -> contextlib.AbstractContextManager[object]:
    """A compiled model is run step by step: its graph knows nothing of the modes of one thread."""
    compiled = any(module._compiled_call_impl is not None for module in model.modules())
    return torch.compiler.set_stance("force_eager") if compiled else contextlib.nullcontext()


def is_weight(site: str) -> bool:
    """Whether a quantizer of this name is one of a weight."""
    return site.endswith(":weight")


def _plan(model: PreTrainedModel, spec: QuantSpec, example: Batch) -> QuantPlan:
    sizes = {len(tensor) if isinstance(tensor, Tensor) and tensor.dim() else None for tensor in example.values()}
    # The trace keeps every tensor of the pass in memory; two sequences show as much as many.
    few = {name: tensor[:2] for name, tensor in example.items()} if len(sizes) == 1 and None not in sizes else example
    with in_eval_mode(model):
        return make_plan(model, trace(model, lambda: run(model, few)), spec)


@contextlib.contextmanager
def _cores(model: PreTrainedModel) -> Iterator[None]:
    if any(True for _ in attention_cores(model)):
        yield
        return
    apply_attention_(model, AttentionSpec())
    try:
        yield
    finally:
        remove_attention_(model)


def _check(model: object, spec: object, example: object) -> None:
    check_model(model)
    check_batch(example)
    if not isinstance(spec, QuantSpec):
        raise QuietformerError(f"spec must be a QuantSpec, got {type(spec).__name__}; write QuantSpec(...)")
