"""The same post-norm model in other units: every feature of its residual sums brought to a like size.

A post-norm block adds what a sublayer gives to what a norm gave, and normalises the sum: LN_b(h + f(h)), h = LN_a(...). A few
features of h and of the sum are far wider than the others, and one range for all leaves the others a few of its 256 steps.
Divide feature j by s_j where it is made (LN_a's parameters, the sublayer's last projection) and multiply where it is read (the
first projections, and inside LN_b): the model is the same, bit for bit, since every s_j is a power of two. What is quantized
then has features of like size; the wide ones remain only inside norms.

s_j = (largest |x_j| / the median feature's)^alpha: part of the width goes to the weights that read it, as in SmoothQuant, which
leaves out residual sums, where there is no weight to take it. Parts are found by watching a forward pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from quietformer.errors import QuietformerError
from quietformer.families.gained_norm import GAIN, gain_norms_
from quietformer.families.layout import head_modules
from quietformer.forward import in_eval_mode, run
from quietformer.quant.calibrate import Batch
from quietformer.quant.migrate import first_output, largest_inputs, same_up_to_rounding
from quietformer.quant.place import quantizers
from quietformer.quant.trace import Step, Trace, trace
from quietformer.section import model_spec

ALPHA = 0.6
"""docs/retrofit.md has the figures of others."""


@dataclass
class _Sum:
    """A residual sum from the norm before it to the norm after it."""

    before: nn.LayerNorm
    readers: list[nn.Linear]  # of what the norm before gives
    writer: nn.Linear  # the other side of the sum
    after: str  # the norm that reads the sum, by name


def balance_(model: PreTrainedModel, batches: Iterable[Batch], *, alpha: float = ALPHA) -> int:
    """Balance the residual sums of a post-norm model in place, from ranges on the batches; how many there are.

    A model without such sums, or one that is balanced, is left as it is; one that would compute something else is left too.
    """
    if not 0.0 < alpha <= 1.0:
        raise QuietformerError(f"balancing takes an alpha above 0 and up to 1, all of a feature's width, got {alpha:g}")
    if quantizers(model):
        raise QuietformerError(f"{type(model).__name__} is quantized already; balance first, then quantize")
    if model_spec(model).gained_norms:
        return 0  # once more would take more of the width than alpha says
    batches = [{name: tensor for name, tensor in batch.items() if name != "labels"} for batch in batches]
    if not batches:
        raise QuietformerError("there are no batches to balance by; give some text or images")
    few = {name: tensor[:2] for name, tensor in batches[0].items()}
    with in_eval_mode(model), torch.no_grad():
        sums = _sums(model, trace(model, lambda: run(model, few)))
        if not sums:
            return 0
        scales = [_scale(found, alpha) for found in _widths(model, sums, batches)]
        expected = first_output(model, few)
        gain_norms_(model, [one.after for one in sums])
        for one, scale in zip(sums, scales, strict=True):
            _rewrite_(model, one, scale)
        if not same_up_to_rounding(expected, first_output(model, few)):
            for one, scale in zip(sums, scales, strict=True):
                _rewrite_(model, one, 1 / scale)
            raise QuietformerError(
                f"{type(model).__name__} computes something else when its sums are balanced, so it is left as it is"
            )
    return len(sums)


def _scale(width: Tensor, alpha: float) -> Tensor:
    """A power of two for every feature: multiplying by it and dividing by it rounds nothing."""
    relative = (width / width.median()).clamp(min=1e-3)
    return torch.exp2((alpha * relative.log2()).round())


def _widths(model: PreTrainedModel, sums: list[_Sum], batches: list[Batch]) -> list[Tensor]:
    """Of every feature the larger of what it reaches in the sum and in what the norm before gives, each over its median."""
    inputs = [(one.readers[0], model.get_submodule(one.after)) for one in sums]
    largest = largest_inputs(model, [module for pair in inputs for module in pair], batches)
    found = []
    for pair in inputs:
        each = [largest[id(module)].float() for module in pair]
        found.append(
            torch.stack([width / width.median().clamp(min=torch.finfo(torch.float32).tiny) for width in each]).amax(0)
        )
    return found


def _rewrite_(model: PreTrainedModel, one: _Sum, scale: Tensor) -> None:
    """Divide where a feature is made, multiply where it is read."""
    after: Tensor = getattr(model.get_submodule(one.after), GAIN)
    after.mul_(scale.to(after))
    # The norm may have been exchanged for one with gains, which has the same parameters.
    for made in (one.before.weight, one.before.bias, one.writer.bias):
        if made is not None:
            made.div_(scale.to(made))
    one.writer.weight.div_(scale.to(one.writer.weight)[:, None])
    for reader in one.readers:
        reader.weight.mul_(scale.to(reader.weight))


def _sums(model: PreTrainedModel, seen: Trace) -> list[_Sum]:
    """Residual sums of which every part is known, and used for nothing else."""
    head = head_modules(model)
    calls = Counter(id(step.module) for step in seen.steps if step.kind in ("norm", "projection"))
    users = Counter(id(parameter) for module in model.modules() for parameter in module._parameters.values())

    def alone(step: Step) -> bool:
        own = step.module
        assert own is not None
        tied = any(users[id(parameter)] > 1 for parameter in own._parameters.values() if parameter is not None)
        return calls[id(own)] == 1 and not tied and id(own) not in head

    def is_linear(step: Step) -> bool:
        return step.kind == "projection" and isinstance(step.module, nn.Linear) and alone(step)

    def is_norm(step: Step) -> bool:
        norm = step.module
        return step.kind == "norm" and isinstance(norm, nn.LayerNorm) and norm.weight is not None and alone(step)

    found = []
    for index, step in enumerate(seen.steps):
        if not is_norm(step):
            continue
        readers = list(seen.readers(index))
        adds = [reader for reader in readers if reader.kind == "add"]
        linears = [reader for reader in readers if reader.kind == "projection"]
        if len(adds) != 1 or len(adds) + len(linears) < len(readers) or not linears or not all(map(is_linear, linears)):
            continue
        place = seen.steps.index(adds[0])
        others = [
            other for source in adds[0].sources for at, other in seen.origins(source) if at != index
        ]  # fmt: skip
        after = list(seen.readers(place))
        if len(adds[0].sources) != 2 or len(others) != 1 or not is_linear(others[0]):
            continue
        written = list(seen.readers(seen.steps.index(others[0])))
        if len(after) == 1 and is_norm(after[0]) and len(written) == 1:
            assert isinstance(step.module, nn.LayerNorm)
            assert isinstance(others[0].module, nn.Linear)
            found.append(
                _Sum(step.module, [reader.module for reader in linears], others[0].module, after[0].site)  # type: ignore[misc]
            )
    return found
