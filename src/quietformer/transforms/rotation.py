"""Rotates the residual stream of a model, so that no feature of it is an outlier; the function of the model stays the same.

The residual stream of a model with RMSNorm before each sublayer can be written in any orthogonal basis, if all modules that
read or write it are rotated with it. A value of 24,000 in one of 576 features then becomes 1,000 in each of them. A range that
clips them keeps their direction, and norms look only at the direction. The weights of the norms are moved into the projections
that read them. Modules are found by tracing a forward pass and the result is verified, so no family is known by name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from quietformer.architectures.dataflow import Step, Trace, trace
from quietformer.architectures.forward import Batch, check_model, in_eval_mode, model_inputs, run
from quietformer.errors import QuietformerError
from quietformer.transforms.equivalence import SAME, first_output
from quietformer.transforms.hadamard import spreading
from quietformer.transforms.preconditions import refuse_quantized


@dataclass
class _Stream:
    """The modules that write or read the residual stream."""

    embeddings: list[nn.Embedding] = field(default_factory=list)
    writers: list[nn.Linear] = field(default_factory=list)
    norms: list[tuple[nn.Module, list[nn.Linear]]] = field(
        default_factory=list
    )  # each with the projections that read it


def rotate_(model: PreTrainedModel, example: Batch, *, seed: int = 0) -> None:
    """Rotate the residual stream, in place; raises and leaves the model unchanged where the result would differ."""
    check_model(model)
    few = {name: tensor[:2] for name, tensor in model_inputs(example).items()}
    refuse_quantized(model, "rotate")
    with in_eval_mode(model), torch.no_grad():
        stream = _stream(model, trace(model, lambda: run(model, few)))
        kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        whole: Any = model
        head = whole.get_output_embeddings()
        shared = None if head is None else head._parameters.get("weight")
        tied = any(shared is table.weight for table in stream.embeddings)
        before = first_output(model, few).float()
        if tied:  # the head now includes the last norm's weight, so it differs from the embedding
            head.weight = nn.Parameter(head.weight.clone(), requires_grad=head.weight.requires_grad)
        _turn_(stream, spreading(stream.embeddings[0].embedding_dim, seed))
        after = first_output(model, few).float()
        if not bool(((after - before).abs() <= SAME * before.abs().max()).all()):
            if tied:
                head.weight = shared
            model.load_state_dict(kept)
            raise QuietformerError(
                f"{type(model).__name__} gives different outputs when its residual stream is rotated, so it is not rotated"
            )
        if tied:
            model.config.tie_word_embeddings = False


def _turn_(stream: _Stream, basis: Tensor) -> None:
    """Rotate every weight once, in float64, so that only the result is rounded."""
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
    """The gain of a norm, which is then set to one; some norms store their gain minus one."""
    weight: Tensor = norm._parameters["weight"]  # type: ignore[assignment]
    ones = torch.ones(1, 1, len(weight), dtype=weight.dtype, device=weight.device)
    found = norm(ones)[0, 0]  # the input has root mean square one, so the output is the gain
    for offset in (0.0, 1.0):
        gain = weight.float() + offset
        if torch.allclose(found.float(), gain, rtol=1e-3, atol=1e-4):
            weight.fill_(1.0 - offset)
            return gain.clone() if offset else found.float()
    raise QuietformerError(f"{type(norm).__name__} is no RMSNorm with a gain, so the model is not rotated")


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
        raise QuietformerError(f"{name} has no token embedding that starts a residual stream, so it is not rotated")
    for index in sorted(inside):
        for reader in seen.readers(index):
            if reader.kind == "norm":
                _add_norm(stream, seen, reader, name)
            elif seen.steps.index(reader) not in inside:
                raise QuietformerError(
                    f"{name}: {reader.site} reads the residual stream without a norm, so it is not rotated"
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
            f"{name}: {step.site} is no RMSNorm, the only norm that a rotation does not change, so it is not rotated"
        )
    readers = list(seen.readers(seen.steps.index(step)))
    stream.norms.append((norm, [_linear(reader, name) for reader in readers]))


def _linear(step: Step, name: str) -> nn.Linear:
    if step.kind != "projection" or not isinstance(step.module, nn.Linear):
        raise QuietformerError(
            f"{name}: {step.site} reads or writes the residual stream and is no linear layer, so it is not rotated"
        )
    return step.module
