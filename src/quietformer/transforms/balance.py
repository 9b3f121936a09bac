"""Channel balancing of post-norm models: a lossless rescaling that gives the features of quantized tensors similar ranges.

A post-norm block adds a sublayer's output to its input and normalises the result: LN_b(h + f(h)), h = LN_a(...). A few features
of h and of the residual add have a far wider range than the others. One range for all features then leaves most of them only a
few of its 256 steps. Balancing divides feature j by s_j in the modules that write it (LN_a, the sublayer's last projection) and
multiplies it in the modules that read it (the sublayer's first projections, and inside LN_b). Every s_j is a power of two, so the
model computes the same, in float32 bit for bit. Wide features remain only inside norms, which are not quantized inside. The sum
of the embeddings is balanced in the same way, and so is the output of an FFN's activation function.

s_j = (largest |x_j| / that of the median feature)^alpha: part of the range moves to the weights that read the feature, as in
SmoothQuant. SmoothQuant skips residual adds, since no weight reads them. Modules are found by tracing a forward pass.
"""

from __future__ import annotations

import copy
import gc
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from quietformer.architectures.dataflow import Step, Trace, trace
from quietformer.architectures.forward import Batch, check_batches, check_model, in_eval_mode, model_inputs, run
from quietformer.architectures.layout import head_modules
from quietformer.config.recorded_changes import refuse_foreign_quantization
from quietformer.errors import QuietformerError
from quietformer.transforms.channel_ranges import largest_inputs
from quietformer.transforms.equivalence import ROUNDINGS, first_output
from quietformer.transforms.gained_modules import GAIN, GainedActivation, gain_, gained_norms, is_function, takes_gains
from quietformer.transforms.preconditions import refuse_quantized

ALPHA = 0.6
"""Alpha of the residual stream; docs/retrofit.md has the metrics for other values."""

HIDDEN_ALPHA = 0.5
"""Alpha of the outputs of activation functions: half of the range stays, half moves to the weights."""

EMBEDDING_ALPHA = 1.0
"""Alpha of the sum of the embeddings, which no weight reads."""


@dataclass
class _Stream:
    """Tensors that share one scale, given by the names of the modules that write and read them."""

    makers: list[str]  # norms, projections, embeddings, activation functions
    readers: list[str]  # projections
    norm: str | None  # the norm that reads the residual add
    alpha: float

    @property
    def is_residual(self) -> bool:
        return bool(self.readers) and self.norm is not None

    @property
    def narrowest(self) -> float:
        """The smallest relative range: a hidden unit that was off on these batches may be on in others."""
        return 1e-3 if self.norm is not None else 1.0

    @property
    def ends(self) -> list[str]:
        """Modules whose inputs are, together, all tensors of the stream."""
        return [*self.readers[:1], *([] if self.norm is None else [self.norm])]

    @property
    def blocks(self) -> set[str | None]:
        return {_block(name) for name in (*self.makers, *self.readers, *self.ends)}


def balance_(model: PreTrainedModel, batches: Iterable[Batch], *, alpha: float = ALPHA) -> int:
    """Balance the channels of a post-norm model, in place, with ranges from the batches; returns the number of residual adds.

    Returns 0 and changes nothing for a model that has none, or that is already balanced. Afterwards hidden states between the
    layers and embeddings are rescaled; the outputs of the model are the same.
    """
    check_model(model)
    if not 0.0 < alpha <= 1.0:
        raise QuietformerError(f"balancing needs an alpha above 0 and up to 1, got {alpha:g}")
    refuse_foreign_quantization(model)
    refuse_quantized(model, "balance")
    if gained_norms(model):
        return 0  # balancing again would rescale by more than alpha says
    check_batches(batches)
    batches = [model_inputs(batch) for batch in batches]
    if not batches:
        raise QuietformerError("there are no batches to balance with; pass some text or images")
    few = {name: tensor[:2] for name, tensor in batches[0].items()}
    with in_eval_mode(model), torch.no_grad():
        streams = _streams(model, few, alpha)
        residual = [stream for stream in streams if stream.is_residual]
        if not residual:
            return 0
        found = _scales(model, streams, batches)
        if not _is_same(model, found, few):
            found = [(stream, scale) for stream, scale in found if stream.is_residual]
            if not _is_same(model, found, few):
                raise QuietformerError(
                    f"{type(model).__name__} gives different outputs when its channels are balanced, so it is left unchanged"
                )
    with torch.no_grad():
        _rewrite_(model, found)
    return len(residual)


Scaled = list[tuple[_Stream, Tensor]]


def _is_same(model: PreTrainedModel, scaled: Scaled, example: Batch) -> bool:
    """Whether a rescaled copy computes the same, checked per feature: a wide feature must not hide errors in others."""
    tried = copy.deepcopy(model)
    _rewrite_(tried, scaled)
    before, after = first_output(model, example), first_output(tried, example)
    allowed = ROUNDINGS * torch.finfo(before.dtype).eps * before.abs().flatten(0, -2).amax(0)
    return bool(((after - before).abs() <= allowed).all())


def _scales(model: PreTrainedModel, streams: list[_Stream], batches: list[Batch]) -> Scaled:
    """A power of two for every feature: multiplying and dividing by it causes no rounding."""
    widths = _widths(model, streams, batches)
    return [
        (stream, torch.exp2((stream.alpha * width.clamp(min=stream.narrowest).log2()).round()))
        for stream, width in zip(streams, widths, strict=True)
    ]


def _widths(model: PreTrainedModel, streams: list[_Stream], batches: list[Batch]) -> list[Tensor]:
    """The range of every feature relative to the median feature, the largest over the tensors of its stream."""
    ends = [[model.get_submodule(name) for name in stream.ends] for stream in streams]
    largest = largest_inputs(model, [module for some in ends for module in some], batches)
    found = []
    for stream, modules in zip(streams, ends, strict=True):
        each = [largest[id(module)].float() for module in modules]
        if not all(bool(width.isfinite().all()) for width in each):
            raise QuietformerError(
                f"{type(model).__name__}: the input of {stream.ends[-1]} is not finite on these batches; balance on others"
            )
        # A feature that is always zero has no range and does not count for the median.
        usual = [width[width > 0].median() if bool((width > 0).any()) else width.new_ones(()) for width in each]
        relative = torch.stack([width / median for width, median in zip(each, usual, strict=True)]).amax(0)
        found.append(torch.where(relative > 0, relative, 1.0))
    return found


def _rewrite_(model: PreTrainedModel, scaled: Scaled) -> None:
    """Divide every feature where it is written, multiply it where it is read."""
    functions = {
        name: len(scale) for stream, scale in scaled for name in stream.makers if is_function(model.get_submodule(name))
    }
    gain_(model, [stream.norm for stream, _ in scaled if stream.norm is not None], functions)
    for stream, scale in scaled:
        for name in stream.makers:
            _divide_(model.get_submodule(name), scale)
        for name in stream.readers:
            weight: Any = model.get_submodule(name).weight
            weight.mul_(scale.to(weight))
        if stream.norm is not None:
            gain: Tensor = getattr(model.get_submodule(stream.norm), GAIN)
            gain.mul_(scale.to(gain))


def _divide_(maker: nn.Module, scale: Tensor) -> None:
    """Divide the output of a module by one scale per feature."""
    if isinstance(maker, GainedActivation):
        maker.quiet_gain.div_(scale.to(maker.quiet_gain))
    for parameter in maker._parameters.values():
        if parameter is not None:
            # The output features of a projection are the rows of its weight.
            rows = isinstance(maker, nn.Linear) and parameter.dim() == 2
            parameter.div_(scale.to(parameter)[:, None] if rows else scale.to(parameter))


def _streams(model: PreTrainedModel, example: Batch, alpha: float) -> list[_Stream]:
    """The streams of which every module is known and used for nothing else."""
    called: set[int] = set()
    handles = [module.register_forward_pre_hook(lambda module, _: called.add(id(module))) for module in model.modules()]
    try:
        seen = trace(model, lambda: run(model, example))
    finally:
        for handle in handles:
            handle.remove()
    # Modules that were not called may read a norm on other inputs: cross-attention without encoder states, experts, disabled
    # adapters. Uncalled modules outside the blocks may do so too, or add to the same sum, as embeddings of images or entities.
    head = head_modules(model)
    silent = {
        _block(name)
        for name, module in model.named_modules()
        if id(module) not in called
        and id(module) not in head
        and not (isinstance(module, nn.Embedding) and _block(name))
        and any(True for _ in module.parameters(False))
    }
    return [one for one in _Finder(model, seen, alpha).found() if not one.blocks & silent]


def _block(name: str) -> str | None:
    """The numbered block that this module is part of, if any."""
    parts = name.split(".")
    number = next((place for place, part in enumerate(parts) if part.isdigit()), None)
    return None if number is None else ".".join(parts[: number + 1])


def _is_used_elsewhere(parameter: Tensor, owner: nn.Module) -> bool:
    """Whether a module outside this model shares the parameter, such as the head of a larger model it is part of."""
    holders = [one for one in gc.get_referrers(parameter) if isinstance(one, dict) and one is not owner._parameters]
    modules = [user for one in holders for user in gc.get_referrers(one)]
    attributes = [
        user if isinstance(user, dict) else vars(user) for user in modules if isinstance(user, dict | nn.Module)
    ]
    return any(found.get("_parameters") is one for found in attributes for one in holders)


class _Finder:
    """Finds streams in a trace."""

    def __init__(self, model: PreTrainedModel, seen: Trace, alpha: float) -> None:
        self.seen, self.alpha = seen, alpha
        self.head = head_modules(model)
        kinds = ("norm", "projection", "embedding", "activation")
        self.calls = Counter(id(step.module) for step in seen.steps if step.kind in kinds)
        self.model = model
        self.names = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
        self.users = Counter(id(parameter) for module in model.modules() for parameter in module._parameters.values())

    def found(self) -> Iterator[_Stream]:
        """Each stream once; a module that is called several times, as shared layers are, must be in it each time."""
        times: dict[tuple[object, ...], list[_Stream]] = {}
        for stream in self._every():
            times.setdefault((*stream.makers, None, *stream.readers, None, stream.norm), []).append(stream)
        for same in times.values():
            named = {*same[0].makers, *same[0].readers, *same[0].ends}
            if all(self.calls[id(self.model.get_submodule(name))] == len(same) for name in named):
                yield same[0]

    def _every(self) -> Iterator[_Stream]:
        """The streams of every call."""
        for index, step in enumerate(self.seen.steps):
            if self._is_norm(step):
                yield from self._residual(index, step)
                yield from self._embeddings(step)
            elif step.kind == "activation":
                yield from self._hidden(index, step)

    def _residual(self, index: int, step: Step) -> Iterator[_Stream]:
        """The stream from a norm, through a sublayer and its residual add, to the next norm."""
        seen = self.seen
        readers = list(seen.readers(index))
        adds = [reader for reader in readers if reader.kind == "add"]
        linears = [reader for reader in readers if reader.kind == "projection"]
        if len(adds) != 1 or len(adds) + len(linears) < len(readers):
            return
        if not linears or not all(map(self._is_linear, linears)):
            return
        others = [other for source in adds[0].sources for at, other in seen.origins(source) if at != index]
        if len(adds[0].sources) != 2 or len(others) != 1 or not self._is_linear(others[0]):
            return
        after = list(seen.readers(seen.steps.index(adds[0])))
        written = list(seen.readers(seen.steps.index(others[0])))
        if len(after) == 1 and self._is_norm(after[0]) and len(written) == 1:
            names = [reader.site for reader in linears]
            yield _Stream([step.site, others[0].site], names, after[0].site, self.alpha)

    def _embeddings(self, norm: Step) -> Iterator[_Stream]:
        """The sum of embeddings that only one norm reads."""
        assert norm.module is not None
        features, tables, waiting = norm.module.weight.shape, [], [norm]
        while waiting:
            reader = waiting.pop()
            if len(reader.sources) != (2 if reader.kind == "add" else 1):
                return  # a parameter that no step produced is part of the sum
            for step in map(self.seen.steps.__getitem__, reader.sources):
                if len(step.readers) != 1:
                    return
                if isinstance(step.module, nn.Embedding) and step.kind == "embedding":
                    table = step.module.weight
                    if (
                        table.shape[1:] != features
                        or not self._is_alone(step)
                        or _is_used_elsewhere(table, step.module)
                    ):
                        return
                    tables.append(step.site)
                elif step.kind in (
                    "add",
                    "dropout",
                ):  # other steps may move features, and the scale would have to move with them
                    waiting.append(step)
                else:
                    return
        if len(tables) > 1:
            yield _Stream(tables, [], norm.site, EMBEDDING_ALPHA)

    def _hidden(self, index: int, function: Step) -> Iterator[_Stream]:
        """The output of an activation function that only one projection reads."""
        assert function.module is not None
        readers = list(self.seen.readers(index))
        if function.empty or len(readers) != 1 or not self._is_linear(readers[0]):
            return
        source = readers[0].sources[0]
        while self.seen.steps[source].kind == "dropout":
            source = self.seen.steps[source].sources[0]
        if source == index and is_function(function.module) and self._is_alone(function):
            yield _Stream([function.site], [readers[0].site], None, HIDDEN_ALPHA)

    def _is_alone(self, step: Step) -> bool:
        """Whether a module has one name, shares no parameter and is not part of the head."""
        own = step.module
        assert own is not None
        tied = any(self.users[id(parameter)] > 1 for parameter in own._parameters.values() if parameter is not None)
        return self.names[id(own)] == 1 and not tied and id(own) not in self.head

    def _is_linear(self, step: Step) -> bool:
        return step.kind == "projection" and isinstance(step.module, nn.Linear) and self._is_alone(step)

    def _is_norm(self, step: Step) -> bool:
        return step.kind == "norm" and step.module is not None and takes_gains(step.module) and self._is_alone(step)
