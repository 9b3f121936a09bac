"""The same model in another basis: the residual stream turned so that no feature of it stands out.

Models with RMSNorm before each sublayer do not care in which basis their residual stream is written: what reads it and what
writes it can be turned along. A value of 24,000 in one feature of 576 then is 1,000 in each, all of one size, and a range that
cuts them off keeps their direction, which is all that a norm looks at. Gains of norms go into the projections that read
them. Parts are found by watching a forward pass and the result is compared, so nothing here knows a family by name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from quietformer.architectures.forward import Batch, in_eval_mode, run
from quietformer.architectures.trace import Step, Trace, trace
from quietformer.errors import QuietformerError
from quietformer.transforms.hadamard import spreading
from quietformer.transforms.preconditions import refuse_quantized

SAME = 1e-3
"""How far the output may move relative to its largest value and still be rounding."""


@dataclass
class _Stream:
    """Who has to do with the residual stream."""

    embeddings: list[nn.Embedding] = field(default_factory=list)
    writers: list[nn.Linear] = field(default_factory=list)
    norms: list[tuple[nn.Module, list[nn.Linear]]] = field(default_factory=list)  # each with what reads it


def rotate_(model: PreTrainedModel, example: Batch, *, seed: int = 0) -> None:
    """Turn the residual stream in place; raises, and leaves the model as it was, where that would change what it computes."""
    few = {name: tensor[:2] for name, tensor in example.items() if name != "labels"}
    refuse_quantized(model, "rotate")
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


def _logits(model: PreTrainedModel, batch: Batch) -> Tensor:
    output = run(model, batch)
    found: Tensor = output["logits"] if "logits" in output else output[0]
    return found.float()
