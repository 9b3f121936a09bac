"""The same post-norm model in other units: every feature of its residual sums brought to a like size.

A post-norm block adds what a sublayer gives to what a norm gave, and normalises the sum: LN_b(h + f(h)), h = LN_a(...). A few
features of h and of the sum are far wider than the others, and one range for all leaves the others a few of its 256 steps.
Divide feature j by s_j where it is made (LN_a's parameters, the sublayer's last projection) and multiply where it is read (the
first projections, and inside LN_b): the model is the same, in float32 bit for bit, since every s_j is a power of two. What is
quantized then has features of like size; the wide ones remain only inside norms.

s_j = (largest |x_j| / the median feature's)^alpha: part of the width goes to the weights that read it, as in SmoothQuant, which
leaves out residual sums, where there is no weight to take it. Parts are found by watching a forward pass.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from quietformer.errors import QuietformerError
from quietformer.families.gained_norm import GAIN, gain_norms_, gained_norms, takes_gains
from quietformer.families.layout import head_modules
from quietformer.forward import in_eval_mode, run
from quietformer.quant.calibrate import Batch
from quietformer.quant.migrate import first_output, largest_inputs, same_up_to_rounding
from quietformer.quant.place import quantizers
from quietformer.quant.trace import Step, Trace, trace
from quietformer.section import check_unquantized

ALPHA = 0.6
"""docs/retrofit.md has the figures of others."""


@dataclass
class _Sum:
    """A residual sum from the norm before it to the norm after it, its parts by name."""

    before: str
    readers: list[str]  # projections that read what the norm before gives
    writer: str  # the projection on the other side of the sum
    after: str

    @property
    def blocks(self) -> set[str]:
        return {_block(name) for name in (self.before, *self.readers, self.writer, self.after)}


def balance_(model: PreTrainedModel, batches: Iterable[Batch], *, alpha: float = ALPHA) -> int:
    """Balance the residual sums of a post-norm model in place, from ranges on the batches; how many there are.

    A model without such sums, or one that is balanced, is left as it is. Hidden states between the layers are in other units
    afterwards; what the model gives is not.
    """
    if not 0.0 < alpha <= 1.0:
        raise QuietformerError(f"balancing takes an alpha above 0 and up to 1, all of a feature's width, got {alpha:g}")
    check_unquantized(model)
    if quantizers(model):
        raise QuietformerError(f"{type(model).__name__} is quantized already; balance first, then quantize")
    if gained_norms(model):
        return 0  # once more would take more of the width than alpha says
    batches = [{name: tensor for name, tensor in batch.items() if name != "labels"} for batch in batches]
    if not batches:
        raise QuietformerError("there are no batches to balance by; give some text or images")
    few = {name: tensor[:2] for name, tensor in batches[0].items()}
    with in_eval_mode(model), torch.no_grad():
        sums = _sums(model, few)
        if not sums:
            return 0
        scales = [_scale(width, alpha) for width in _widths(model, sums, batches)]
        tried = copy.deepcopy(model)  # so that a model which it would change is not touched
        _rewrite_(tried, sums, scales)
        if not same_up_to_rounding(first_output(model, few), first_output(tried, few), share=0.0):
            raise QuietformerError(
                f"{type(model).__name__} computes something else when its sums are balanced, so it is left as it is"
            )
    del tried
    with torch.no_grad():
        _rewrite_(model, sums, scales)
    return len(sums)


def _scale(width: Tensor, alpha: float) -> Tensor:
    """A power of two for every feature: multiplying by it and dividing by it rounds nothing."""
    return torch.exp2((alpha * width.clamp(min=1e-3).log2()).round())


def _widths(model: PreTrainedModel, sums: list[_Sum], batches: list[Batch]) -> list[Tensor]:
    """Of every feature the larger of what it reaches in the sum and in what the norm before gives, each over its median."""
    pairs = [(model.get_submodule(one.readers[0]), model.get_submodule(one.after)) for one in sums]
    largest = largest_inputs(model, [module for pair in pairs for module in pair], batches)
    found = []
    for one, pair in zip(sums, pairs, strict=True):
        each = [largest[id(module)].float() for module in pair]
        if not all(bool(width.isfinite().all()) for width in each):
            raise QuietformerError(
                f"{type(model).__name__}: what {one.after} reads is not finite on these batches; balance on others"
            )
        # A feature that is never on has no width, and takes part in no median.
        usual = [width[width > 0].median() if bool((width > 0).any()) else width.new_ones(()) for width in each]
        relative = torch.stack([width / median for width, median in zip(each, usual, strict=True)]).amax(0)
        found.append(torch.where(relative > 0, relative, 1.0))
    return found


def _rewrite_(model: PreTrainedModel, sums: list[_Sum], scales: list[Tensor]) -> None:
    """Divide where a feature is made, multiply where it is read."""
    gain_norms_(model, [one.after for one in sums])
    for one, scale in zip(sums, scales, strict=True):
        after: Tensor = getattr(model.get_submodule(one.after), GAIN)
        after.mul_(scale.to(after))
        writer = model.get_submodule(one.writer)._parameters
        for made in (*model.get_submodule(one.before)._parameters.values(), writer["bias"], writer["weight"]):
            if made is not None:
                made.div_(scale.to(made) if made.dim() == 1 else scale.to(made)[:, None])
        for reader in one.readers:
            weight: Any = model.get_submodule(reader).weight
            weight.mul_(scale.to(weight))


def _sums(model: PreTrainedModel, example: Batch) -> list[_Sum]:
    """Residual sums of which every part is known, and used for nothing else."""
    called: set[int] = set()
    handles = [module.register_forward_pre_hook(lambda module, _: called.add(id(module))) for module in model.modules()]
    try:
        seen = trace(model, lambda: run(model, example))
    finally:
        for handle in handles:
            handle.remove()
    # Cross-attention that was given nothing, experts, adapters that are off: they may read a norm on other input.
    silent = {
        _block(name)
        for name, module in model.named_modules()
        if id(module) not in called
        and not isinstance(module, nn.Embedding)
        and any(True for _ in module.parameters(False))
    }
    return [one for one in _found(model, seen) if not one.blocks & silent]


def _block(name: str) -> str:
    """The numbered module that this one is part of."""
    parts = name.split(".")
    number = next((place for place, part in enumerate(parts) if part.isdigit()), None)
    return name if number is None else ".".join(parts[: number + 1])


def _found(model: PreTrainedModel, seen: Trace) -> Iterator[_Sum]:
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
        return step.kind == "norm" and step.module is not None and takes_gains(step.module) and alone(step)

    for index, step in enumerate(seen.steps):
        if not is_norm(step):
            continue
        readers = list(seen.readers(index))
        adds = [reader for reader in readers if reader.kind == "add"]
        linears = [reader for reader in readers if reader.kind == "projection"]
        if len(adds) != 1 or len(adds) + len(linears) < len(readers) or not linears or not all(map(is_linear, linears)):
            continue
        others = [other for source in adds[0].sources for at, other in seen.origins(source) if at != index]
        if len(adds[0].sources) != 2 or len(others) != 1 or not is_linear(others[0]):
            continue
        after = list(seen.readers(seen.steps.index(adds[0])))
        written = list(seen.readers(seen.steps.index(others[0])))
        if len(after) == 1 and is_norm(after[0]) and len(written) == 1:
            yield _Sum(step.site, [reader.site for reader in linears], others[0].site, after[0].site)
