"""The same model in another basis: the residual stream turned so that no feature of it stands out.

Models with RMSNorm before each sublayer do not care in which basis their residual stream is written: what reads it and what
writes it can be turned along. A value of 24,000 in one feature of 576 then is 1,000 in each, all of one size, and a range that
cuts them off keeps their direction, which is all that a norm looks at. Gains of norms go into the projections that read
them. Parts are found by watching a forward pass and the result is compared, so nothing here knows a family by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from quietformer.errors import QuietformerError
from quietformer.forward import in_eval_mode, run
from quietformer.quant.calibrate import Batch
from quietformer.quant.hadamard import spreading
from quietformer.quant.migrate import largest_inputs, smoothing
from quietformer.quant.place import quantizers
from quietformer.quant.trace import Step, Trace, trace

SAME = 1e-3
"""How far the output may move relative to its largest value and still be rounding."""

MASSIVE = 200.0
"""Units whose largest value is so many times that of the usual unit hold a massive activation up, or take it away."""
READING = ("projection", "add", "mul", "norm", "activation")
"""What makes something of a tensor, as against a hook that only looks at it."""


@dataclass
class _Stream:
    """Who has to do with the residual stream."""

    embeddings: list[nn.Embedding] = field(default_factory=list)
    writers: list[nn.Linear] = field(default_factory=list)
    norms: list[tuple[nn.Module, list[nn.Linear]]] = field(default_factory=list)  # each with what reads it


def rotate_(model: PreTrainedModel, example: Batch, *, seed: int = 0) -> None:
    """Turn the residual stream in place; raises, and leaves the model as it was, where that would change what it computes."""
    few = {name: tensor[:2] for name, tensor in example.items() if name != "labels"}
    if quantizers(model):
        raise QuietformerError(f"{type(model).__name__} is quantized already; rotate first, then quantize")
    with in_eval_mode(model), torch.no_grad():
        stream = _stream(model, trace(model, lambda: run(model, few)))
        kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        whole: Any = model
        head = whole.get_output_embeddings()
        shared = None if head is None else head._parameters.get("weight")
        tied = any(shared is table.weight for table in stream.embeddings)
        before = _logits(model, few)
        if tied:  # what is read through the last norm and what is written are no longer the same
            head.weight = nn.Parameter(head.weight.clone(), requires_grad=head.weight.requires_grad)
        _turn_(stream, spreading(stream.embeddings[0].embedding_dim, seed))
        after = _logits(model, few)
        if not bool(((after - before).abs() <= SAME * before.abs().max()).all()):
            if tied:
                head.weight = shared
            model.load_state_dict(kept)
            raise QuietformerError(
                f"{type(model).__name__} computes something else in another basis, so it is not rotated"
            )
        if tied:
            model.config.tie_word_embeddings = False


def equalise_(model: PreTrainedModel, batches: Iterable[Batch], *, alpha: float = 0.5) -> int:
    """Hand outliers of gated FFNs' units to the weights that read them, exactly; how many FFNs have such units.

    A unit is gate * up: dividing the row of up and multiplying the column that reads it changes its size and nothing else.
    """
    units = _units(model, batches)
    with torch.no_grad():
        for up, down, largest in units:
            scale = smoothing(largest, down.weight.abs().amax(0), alpha).to(down.weight)
            _scale_units_(up, 1 / scale)
            down.weight.mul_(scale)
    return len(units)


def damp_(model: PreTrainedModel, batches: Iterable[Batch], factor: float) -> int:
    """Make the massive units of gated FFNs so much smaller, which changes the model a little; how many there are."""
    units, found = _units(model, batches), 0
    if not units:
        return 0
    usual = torch.cat([largest for _, _, largest in units]).median()
    with torch.no_grad():
        for up, _, largest in units:
            massive = largest > MASSIVE * usual
            _scale_units_(up, torch.where(massive, factor, 1.0).to(up.weight))
            found += int(massive.sum())
    return found


def _scale_units_(up: nn.Linear, scale: Tensor) -> None:
    up.weight.mul_(scale[:, None])
    if up.bias is not None:
        up.bias.mul_(scale)


def _units(model: PreTrainedModel, batches: Iterable[Batch]) -> list[tuple[nn.Linear, nn.Linear, Tensor]]:
    """Of every gated FFN what makes its units linearly, what reads them, and the largest magnitude of each."""
    batches = [{name: tensor for name, tensor in batch.items() if name != "labels"} for batch in batches]
    few = {name: tensor[:2] for name, tensor in batches[0].items()}
    with in_eval_mode(model), torch.no_grad():
        pairs = _gated(trace(model, lambda: run(model, few)))
        largest = largest_inputs(model, [down for _, down in pairs], batches)
    return [(up, down, largest[id(down)]) for up, down in pairs]


def _turn_(stream: _Stream, basis: Tensor) -> None:
    """Everything once, in float64: rounding is that of the result alone."""
    for table in stream.embeddings:
        table.weight.copy_(table.weight.double() @ basis.to(table.weight.device))
    for norm, readers in stream.norms:
        gain = _take_gain_(norm).double()
        for linear in readers:
            linear.weight.copy_((linear.weight.double() * gain) @ basis.to(linear.weight.device))
    for linear in stream.writers:
        turn = basis.T.to(linear.weight.device)
        linear.weight.copy_(turn @ linear.weight.double())
        if linear.bias is not None:
            linear.bias.copy_(turn @ linear.bias.double())


def _take_gain_(norm: nn.Module) -> Tensor:
    """What a norm multiplies with, which becomes one; some keep it as its distance from one."""
    weight: Tensor = norm._parameters["weight"]  # type: ignore[assignment]
    ones = torch.ones(1, 1, len(weight), dtype=weight.dtype, device=weight.device)
    found = norm(ones)[0, 0]  # of root mean square one
    for offset in (0.0, 1.0):
        gain = weight.float() + offset
        if torch.allclose(found.float(), gain, rtol=1e-3, atol=1e-4):
            weight.fill_(1.0 - offset)
            return gain.clone() if offset else found.float()
    raise QuietformerError(f"{type(norm).__name__} is no RMSNorm with a gain")


def _stream(model: PreTrainedModel, seen: Trace) -> _Stream:
    name = type(model).__name__
    stream, inside = _Stream(), set[int]()
    embeddings = model.get_input_embeddings()
    for index, step in enumerate(seen.steps):
        if step.kind == "embedding" and step.module is embeddings:
            assert isinstance(embeddings, nn.Embedding)
            stream.embeddings = [embeddings]
            inside.add(index)
        elif step.kind == "add":
            origins = [found for source in step.sources for found in seen.origins(source)]
            if any(origin in inside for origin, _ in origins):
                inside.add(index)
                for origin, other in origins:
                    if origin not in inside:
                        stream.writers.append(_linear(other, name))
    if not stream.embeddings:
        raise QuietformerError(f"{name} has no embedding of tokens that starts a residual stream; it is not rotated")
    for index in sorted(inside):
        for reader in seen.readers(index):
            if reader.kind == "norm":
                _add_norm(stream, seen, reader, name)
            elif seen.steps.index(reader) not in inside:
                raise QuietformerError(
                    f"{name}: {reader.site} reads the residual stream past a norm, so it is not rotated"
                )
    linears = [*stream.writers, *(linear for _, readers in stream.norms for linear in readers)]
    if len({id(linear) for linear in linears}) < len(linears):
        raise QuietformerError(f"{name} uses a projection twice, so it is not rotated")
    return stream


def _add_norm(stream: _Stream, seen: Trace, step: Step, name: str) -> None:
    norm = step.module
    assert norm is not None
    if any(known is norm for known, _ in stream.norms):
        return
    if set(norm._parameters) != {"weight"}:
        raise QuietformerError(
            f"{name}: {step.site} is no RMSNorm, which alone is the same in every basis; not rotated"
        )
    readers = list(seen.readers(seen.steps.index(step)))
    stream.norms.append((norm, [_linear(reader, name) for reader in readers]))


def _linear(step: Step, name: str) -> nn.Linear:
    if step.kind != "projection" or not isinstance(step.module, nn.Linear):
        raise QuietformerError(
            f"{name}: {step.site} has to do with the residual stream and is no linear layer; not rotated"
        )
    return step.module


def _gated(seen: Trace) -> list[tuple[nn.Linear, nn.Linear]]:
    """What makes the units of gated FFNs linearly, and what reads them: projections around a product with an activation."""
    pairs = []
    for step in seen.steps:
        if step.kind != "projection" or not isinstance(step.module, nn.Linear):
            continue
        for _, product in (found for source in step.sources for found in seen.origins(source)):
            others = [reader for reader in seen.readers(seen.steps.index(product)) if reader.kind in READING]
            if product.kind != "mul" or len(others) != 1:
                continue
            origins = [found for source in product.sources for found in seen.origins(source)]
            ups = [other.module for _, other in origins if other.kind == "projection"]
            if len(origins) == 2 and len(ups) == 1 and isinstance(ups[0], nn.Linear):
                pairs.append((ups[0], step.module))
    return pairs


def _logits(model: PreTrainedModel, batch: Batch) -> Tensor:
    output = run(model, batch)
    found: Tensor = output["logits"] if "logits" in output else output[0]
    return found.float()
