"""Which tensors are quantized, and which stay in full precision and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from quietformer.architectures.dataflow import ACTIVATION_FUNCTIONS, COUNTED, MODULE_KINDS, PROJECTIONS, Step, Trace
from quietformer.architectures.layout import find_blocks, head_modules
from quietformer.attention.core import AttentionCore
from quietformer.attention.find_layers import CORE
from quietformer.config.quantization import QuantRule, QuantSpec
from quietformer.errors import QuietformerError
from quietformer.quant.quantizer import Grid
from quietformer.results.quantize import KeptTensor, PlanInfo, PlannedTensor

FUSED = "read only by an activation function, quantized after it"

CHANNELS_FIRST = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.GroupNorm, nn.modules.batchnorm._NormBase)

ALWAYS_TAPPED = ("query", "key", "value", "scores", "probabilities", "context")


@dataclass(frozen=True)
class Site:
    """One tensor with a quantizer."""

    name: str  # the owning module and the tensor: `encoder.layer.0.output.dense:weight`
    short: str  # a name that all families share, such as `0.ffn_output`; the full name where there is none
    role: Literal["weight", "activation"]
    grid: Grid


@dataclass(frozen=True)
class LeftOut:
    """One tensor that stays in full precision."""

    name: str
    why: str


@dataclass
class QuantPlan:
    """Every tensor seen in the traced forward pass, quantized or not."""

    spec: QuantSpec
    sites: list[Site] = field(default_factory=list)
    left: list[LeftOut] = field(default_factory=list)

    def count(self, role: str) -> int:
        return sum(site.role == role for site in self.sites)

    def info(self) -> PlanInfo:
        """The plan as a part of a report."""
        return PlanInfo(
            spec=self.spec,
            weights=self.count("weight"),
            activations=self.count("activation"),
            sites=[PlannedTensor(site=s.name, short=s.short, role=s.role, grid=str(s.grid)) for s in self.sites],
            left=[KeptTensor(site=item.name, why=item.why) for item in self.left],
        )

    def __str__(self) -> str:
        lines = [
            f"{self.count('weight')} weights and {self.count('activation')} activations quantized ({self.spec.label})"
        ]
        reasons: dict[str, list[str]] = {}
        for item in self.left:
            if item.why == FUSED:
                continue  # every runtime fuses it with the next operation
            reasons.setdefault(item.why, []).append(item.name)
        for why, names in reasons.items():
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            lines.append(f"kept in full precision: {shown} ({why})")
        return "\n".join(lines)


def make_plan(model: PreTrainedModel, seen: Trace, spec: QuantSpec) -> QuantPlan:
    """Decide for every step of the trace; names do not depend on the order in which modules are called."""
    return _Planner(model, seen, spec).plan


class _Planner:
    """Builds the plan; a rule of the user overrides every other decision."""

    def __init__(self, model: PreTrainedModel, seen: Trace, spec: QuantSpec) -> None:
        self.seen = seen
        self.spec = spec
        self.plan = QuantPlan(spec)
        self.chosen: dict[str, Site] = {}
        self.refused: dict[str, str] = {}
        self.used_rules: set[QuantRule] = set()
        self.head = head_modules(model)
        self.shorts = short_names(model, seen)
        self.calls = Counter(step.site for step in seen.steps)
        for index, step in enumerate(seen.steps):
            self._decide(index, step)
        self._cover_inputs()
        self._tell_unused(model)
        if unused := [str(rule) for rule in spec.rules if rule not in self.used_rules]:
            raise QuietformerError(
                f"rule {unused[0]!r} matches no tensor; 'quietformer quantize MODEL --plan' lists their names"
            )
        if not self.chosen:
            raise QuietformerError(f"{type(model).__name__}: these rules leave no tensor to quantize")
        self.plan.sites = list(self.chosen.values())
        self.plan.left = [LeftOut(name, why) for name, why in self.refused.items() if name not in self.chosen]

    def _decide(self, index: int, step: Step) -> None:
        placement = self.spec.placement
        if step.kind in ("projection", "embedding") or (step.kind == "norm" and placement.everywhere):
            self._decide_weight(step)
        if not placement.everywhere and step.kind != "tap":
            if step.kind == "projection":
                self._choose(f"{step.site}:input", "activation", step)
        elif step.kind == "projection":
            readers = list(self.seen.readers(index))
            if readers and all(reader.kind == "activation" or _function(reader) for reader in readers):
                self._refuse(f"{step.site}:output", FUSED)
            elif readers and all(_tap(reader) in ("query", "key", "value") for reader in readers):
                pass  # the tap quantizes it
            else:
                self._choose(f"{step.site}:output", "activation", step)
        elif step.kind in ("norm", "activation"):
            self._choose(f"{step.site}:output", "activation", step)
        elif step.kind == "tap" and (tap := _tap(step)):
            owner = step.site.partition(f".{CORE}.")[0]
            if tap == "context" and placement.everywhere and self.spec.granularity == "token":
                # Its heads are apart; the output projection reads them as one row a token (`_cover_inputs`).
                self._refuse(f"{owner}:context", "quantized per token where the output projection reads it")
            elif tap in ("key", "value") and self.spec.kv_cache is not None:
                self._choose_cached(f"{owner}:{tap}", step)
            elif tap in placement.attention or (tap == "gate" and self.spec.gate):
                self._choose(f"{owner}:{tap}", "activation", step)
            elif tap == "gate":
                self._refuse(f"{owner}:gate", "gates stay in full precision unless the spec says gate=True")
        elif step.kind not in MODULE_KINDS and step.computed and not step.shaping:
            self._decide_function(step)

    def _decide_function(self, step: Step) -> None:
        if isinstance(step.module, AttentionCore):
            return  # it has a tap at every stage
        if CORE in step.module._modules:  # type: ignore[union-attr]
            self._refuse(step.site, "between a projection and the attention core, whose taps quantize the result")
        elif step.masked:
            self._refuse(step.site, "contains the minimum values of a mask")
        elif step.kind in COUNTED:
            self._choose(step.site, "activation", step)
        else:
            self._refuse(step.site, "a function that is never quantized")

    def _decide_weight(self, step: Step) -> None:
        if step.module is None:
            return
        weight = step.module._parameters.get("weight")
        if weight is None and isinstance(getattr(step.module, "weight", None), Tensor):
            self._refuse(f"{step.site}:weight", "not a parameter: computed (weight norm) or frozen (batch norm)")
        if weight is None or not weight.is_floating_point():
            return
        axis = None
        if self.spec.per_channel and weight.dim() > 1:
            # An embedding has one scale per feature, so that its output has the same scales for every token.
            axis = 1 if isinstance(step.module, (nn.Embedding, Conv1D)) else 0
        self._choose(f"{step.site}:weight", "weight", step, axis)

    def _cover_inputs(self) -> None:
        """Give a projection a quantizer for its input where no quantizer upstream puts that tensor on a grid."""
        if not self.spec.placement.everywhere:
            return
        for step in self.seen.steps:
            if step.kind != "projection" or not step.sources:
                continue
            origins = [found for source in step.sources for found in self.seen.origins(source)]
            if not all(self._on_grid(origin) for _, origin in origins):
                self._choose(f"{step.site}:input", "activation", step)

    def _on_grid(self, step: Step) -> bool:
        if step.kind == "embedding":
            return True
        name = step.site
        if step.kind == "tap" and (tap := _tap(step)):
            name = f"{step.site.partition(f'.{CORE}.')[0]}:{tap}"
        elif step.kind in ("projection", "norm", "activation"):
            name = f"{step.site}:output"
        # Excluded by a rule of the user: respect it.
        return name in self.chosen or self.refused.get(name, "").startswith("rule ")

    def _choose(self, name: str, role: Literal["weight", "activation"], step: Step, axis: int | None = None) -> None:
        if name in self.chosen or (name in self.refused and self.refused[name].startswith("rule ")):
            return
        if step.module is not None and id(step.module) in self.head and not self.spec.head:
            self._refuse(name, "the head")
            return
        if role == "activation" and step.empty:
            self._refuse(name, "no data reached this tensor in the traced pass")
            return
        if role == "activation" and step.several and name.endswith(":output"):
            self._refuse(name, "the module returns several tensors")
            return
        spec = self.spec
        bits = spec.weight_bits if role == "weight" else spec.activation_bits
        short = self.shorts.get(name, name)
        for rule in spec.rules:
            if fnmatchcase(name, rule.pattern) or fnmatchcase(short, rule.pattern):
                self.used_rules.add(rule)
                bits = rule.bits or 0
        if not bits:
            self._refuse(name, f"rule {next(str(r) for r in reversed(spec.rules) if _matches(r, name, short))!r}")
            return
        symmetric = spec.weight_symmetric if role == "weight" else spec.activation_symmetric
        if role == "activation" and spec.granularity == "token" and self._has_tokens(step):
            self.chosen[name] = Site(name, short, role, Grid(bits, True, token=True))
        else:
            passes = self.calls[step.site] if role == "activation" and self.spec.per_pass else 1
            grid = Grid(bits, symmetric, axis, passes=passes if passes > 1 else None)
            self.chosen[name] = Site(name, short, role, grid)

    def _choose_cached(self, name: str, step: Step) -> None:
        """Keys or values as a key/value cache holds them, whatever the placement."""
        self._choose(name, "activation", step)
        if (site := self.chosen.get(name)) is None:
            return
        bits, grid = site.grid.bits, site.grid
        if self.spec.kv_cache == "token":
            grid = Grid(bits, True, token=True)
        elif self.spec.kv_cache == "channel":
            grid = Grid(bits, grid.symmetric, heads=(step.shape[1], step.shape[3]))
        self.chosen[name] = replace(site, grid=grid)

    def _has_tokens(self, step: Step) -> bool:
        """Whether the last dimension of a step's input and output is the features of one token.

        Not inside attention: a scale for each token of the values does not leave the sum over tokens. Not around
        convolutions: their channels come first.
        """
        if step.kind == "tap" or isinstance(step.module, (nn.Linear, Conv1D)):
            return step.kind != "tap"
        around = [step, *(origin for source in step.sources for _, origin in self.seen.origins(source))]
        return not any(isinstance(one.module, CHANNELS_FIRST) for one in around)

    def _refuse(self, name: str, why: str) -> None:
        self.refused.setdefault(name, why)

    def _tell_unused(self, model: nn.Module) -> None:
        called = {step.site for step in self.seen.steps}
        for name, module in model.named_modules():
            if isinstance(module, (*PROJECTIONS, nn.Embedding)) and name not in called and f".{CORE}." not in name:
                self._refuse(f"{name}:weight", "not used in the traced pass")


def _matches(rule: QuantRule, name: str, short: str) -> bool:
    return fnmatchcase(name, rule.pattern) or fnmatchcase(short, rule.pattern)


def _function(step: Step) -> bool:
    return step.kind in ACTIVATION_FUNCTIONS


def _tap(step: Step) -> str:
    mark = f".{CORE}.taps."
    return step.site.rpartition(mark)[2] if mark in step.site else ""


def short_names(model: nn.Module, seen: Trace) -> dict[str, str]:
    """Short names such as `0.ffn_output` and `0.ffn_output.weight` for the tensors that every family has."""
    names = {id(module): name for name, module in model.named_modules()}
    words: dict[str, str] = {}  # module or function -> word
    shorts: dict[str, str] = {}
    for block in find_blocks(model):
        for watch in block.watches():
            words[names[id(watch.module)]] = f"{block.index}.{watch.site}"
        for tap in (*ALWAYS_TAPPED, "gate"):
            shorts[f"{block.attention}:{tap}"] = f"{block.index}.{tap}"
    for index, step in enumerate(seen.steps):
        words |= _neighbours(seen, index, step, words)
    for index, step in enumerate(seen.steps):
        if step.kind == "projection":
            for reader in seen.readers(index):
                if words.get(reader.site, "").endswith(".ffn_hidden"):
                    shorts[f"{step.site}:weight"] = f"{words[reader.site]}.weight"
                if (tap := _tap(reader)) in ("query", "key", "value"):
                    owner = reader.site.partition(f".{CORE}.")[0]
                    shorts[f"{step.site}:weight"] = f"{shorts.get(f'{owner}:{tap}', step.site)}.weight"
    for where, word in words.items():
        if ":" in where:
            shorts[where] = word
        else:
            shorts |= {f"{where}:output": word, f"{where}:weight": f"{word}.weight", f"{where}:input": f"{word}.input"}
    return shorts


def _neighbours(seen: Trace, index: int, step: Step, words: dict[str, str]) -> dict[str, str]:
    """Short names of the residual add after a sublayer, and of the hidden tensor before the FFN's last projection."""
    layer, _, what = words.get(step.site, "").partition(".")
    if step.kind != "projection" or what not in ("attention_output", "ffn_output"):
        return {}
    found = {}
    for reader in seen.readers(index):
        if reader.kind == "add":
            found[reader.site] = f"{layer}.{what.replace('output', 'residual')}"
            break
    if what == "ffn_output":
        for source in step.sources:
            for _, origin in seen.origins(source):
                if origin.kind in ("activation", *COUNTED):
                    found.setdefault(origin.site, f"{layer}.ffn_hidden")
    return found
