"""The best INT8 that needs no training: steps that are tried one after the other and kept where they lower the error.

The error is that of the model's output, on calibration data other than the ranges are found on. Nothing is added at run time but
the scaling of inputs that no norm or projection can absorb.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from quietformer.analysis.evaluate import evaluate
from quietformer.architectures.forward import Batch
from quietformer.architectures.task import task_of
from quietformer.config.quantization import QuantRule, QuantSpec, estimators
from quietformer.config.recorded_changes import changes_of
from quietformer.data.calibration_data import CalibrationData
from quietformer.data.mixed_lengths import mixed_lengths
from quietformer.data.text_batches import special_tokens
from quietformer.errors import QuietformerError
from quietformer.progress import Progress
from quietformer.quant.bias_correction import correct_biases_
from quietformer.quant.calibration import (
    calibrate_,
    dequantize_,
    quantize_,
    set_mode_,
    set_weight_ranges_,
    use_estimators_,
)
from quietformer.quant.insertion import quantizers
from quietformer.quant.placement import QuantPlan
from quietformer.quant.weight_rounding import round_weights_
from quietformer.results import numbers
from quietformer.results.export import SearchStep
from quietformer.transforms.balance import balance_
from quietformer.transforms.find_prefix import find_prefix
from quietformer.transforms.prefix import add_prefix_
from quietformer.transforms.rotation import rotate_
from quietformer.transforms.smoothquant import migrate_
from quietformer.workflows.ranges_by_tensor import proposals
from quietformer.workflows.search_data import fresh, main_input, main_output, output_error
from quietformer.workflows.smoothing_exponent import least_error_exponent

RANGES = ("percentile(q=99.999)",)
EVERYWHERE_RANGES = ("percentile(q=99.999)", "percentile(q=99.99)")
LOW_BIT_RANGES = ("percentile(q=99.99)", "percentile(q=99.9)", "mse")
"""Ranges of activations that are tried beside the one that was asked for. Cutting more pays with fewer than 8 bits, and for some
tensors of a residual stream; where there are several, each tensor may get its own."""

ATTENTION = (QuantRule(pattern="*:probabilities"), QuantRule(pattern="*:value"))
"""Both sides of attention's second product in full precision."""

WORTH = 0.95
"""A tensor goes back to full precision, and ranges change, if that leaves at most this share of the error."""

WIDER_ALPHA = 0.8
"""Alpha of channel balancing where FFNs have scales of their own for what they read; docs/retrofit.md has the errors."""

WORTH_A_SCALE = 0.5
"""Scales per token cost time in every pass, so they are taken only if they leave at most this share of the error."""

WORSE = 1.01
"""A prefix changes the model itself: in full precision it may raise the loss of the text at most to so much."""

JUDGED = 64
"""Sequences on which the error is measured."""

JUDGED_VALUES = 2**27
"""Values of their exact output that are kept; those of a language model are many."""

PASSES = 24
"""What all steps cost for each batch of calibration data, in passes of the model in fp32; about so."""

FEW = 4
"""Batches on which ranges of single tensors are proposed."""

LEAST = 2
"""Batches to calibrate on, however long they take."""


Ranges = dict[str, tuple[Tensor, Tensor]]
"""Scale and zero point of every tensor, by the name of its quantizer."""


@dataclasses.dataclass
class Searched:
    """The model that was found, calibrated, and how it was found."""

    model: PreTrainedModel
    plan: QuantPlan
    steps: list[SearchStep]


class Search:
    """One search; `model` is the best so far, quantized and calibrated, and `error` what it leaves."""

    def __init__(
        self,
        model: PreTrainedModel,
        data: CalibrationData,
        spec: QuantSpec,
        progress: Progress,
        target: PreTrainedModel | None = None,
    ) -> None:
        """The error is to the output of `target`: the model itself, or what a healed model was healed from."""
        self.original, self.spec, self.progress = model, spec, progress
        self.unbalanced = model
        before, after = ([], []) if data.tokenizer is None else special_tokens(data.tokenizer)
        calibration, judges = data.calibration(0), data.calibration(1)
        unseen = fresh(judges, calibration)
        judges = (unseen or judges)[: max(1, JUDGED // len(main_input(judges[0])))]
        self.calibration = mixed_lengths(calibration, before, after)
        self.judges = mixed_lengths(judges, before, after)
        self.exact: list[Tensor] = []
        self.pass_seconds = math.inf
        for batch in self.judges:
            begin = time.perf_counter()
            self.exact.append(main_output(target or model, batch))
            # The fastest: the first pass is a slow one, and other programs may be at work.
            self.pass_seconds = min(self.pass_seconds, time.perf_counter() - begin)
            if sum(exact.numel() for exact in self.exact) >= JUDGED_VALUES:
                break
        self.judges = self.judges[: len(self.exact)]
        self.of_classes = task_of(model) in ("classes", "images") and len(self.exact[0]) == len(
            main_input(self.judges[0])
        )
        self.remark = "" if unseen else "; judged on the data it is calibrated on, since there is no other"
        self.steps: list[SearchStep] = []

    def run(self, *, seconds: float, ranges: bool, per_token: bool = False) -> Searched:
        """Every step while there is time; the model that was given is left as it is."""
        begin, self.per_token = time.perf_counter(), per_token
        self._take_what_fits(seconds)
        self.model, self.plan = self._quantized(copy.deepcopy(self.original))
        self.error = self._measure()
        self.steps.append(SearchStep(name="start", what=f"{self.spec.label}{self.remark}", error=self.error, kept=True))
        by_grid: list[tuple[str, Callable[[], None]]] = [
            ("weight rounding", lambda: self._change_weights("weight rounding", round_weights_)),
            *([("ranges", self._ranges)] if ranges else []),
        ]
        # What costs most comes first.
        first = "ranges" if self.spec.activation_bits < min(8, self.spec.weight_bits) else "weight rounding"
        tried: list[tuple[str, Callable[[], None]]] = [
            # First: their error hides what the other steps bring.
            *([("prefix", self._prefix), ("rotation", self._rotate)] if task_of(self.original) == "causal" else []),
            ("attention", self._attention_in_full_precision),
            ("channel balancing" if self.spec.placement.everywhere else "smoothing", self._rescale),
            *([("input scales", self._rescale_inputs)] if self.spec.placement.everywhere else []),
            # Again: what it brings may be little beside the outliers that smoothing has now removed.
            ("attention", self._attention_in_full_precision),
            *([("per token", self._per_token)] if self._may_go_per_token() else []),
            *([("weight ranges", self._weight_ranges)] if self._may_cut_weights() else []),
            *sorted(by_grid, key=lambda step: step[0] != first),
            ("bias correction", lambda: self._change_weights("bias correction", correct_biases_)),
        ]
        for name, step in tried:
            if time.perf_counter() - begin > seconds:
                if any(step.name == name for step in self.steps):
                    continue  # it was tried before
                self.steps.append(SearchStep(name=name, what="left out: no time left", error=None, kept=False))
                continue
            self.progress.step(f"searching: {name}")
            step()
        return Searched(self.model, self.plan, self.steps)

    def _take_what_fits(self, seconds: float) -> None:
        """Fewer batches for a model that takes long: every step on some data is worth more than few steps on all."""
        batches = max(LEAST, int(seconds / (PASSES * self.pass_seconds)))
        if batches < len(self.calibration):
            self.remark += f"; on {batches} of {len(self.calibration)} batches, for lack of time"
        self.calibration = self.calibration[:batches]
        self.judges, self.exact = self.judges[: max(1, batches // 2)], self.exact[: max(1, batches // 2)]

    def _quantized(self, model: PreTrainedModel) -> tuple[PreTrainedModel, QuantPlan]:
        plan = quantize_(model, self.spec, self.calibration[0])
        calibrate_(model, self.calibration)
        return model, plan

    def _measure(self) -> float:
        """How far the output is from that of the target in fp32."""
        found = [main_output(self.model, batch) for batch in self.judges]
        return output_error(found, self.exact, classes=self.of_classes)

    def _note(self, name: str, what: str, error: float, *, kept: bool) -> None:
        self.steps.append(SearchStep(name=name, what=what, error=error, kept=kept))
        if kept:
            self.error = error

    def _rescale(self) -> None:
        """Outliers of inputs go into the weights that read them; with every tensor quantized, out of residual adds."""
        self.unbalanced, model = self.original, copy.deepcopy(self.original)
        try:
            if self.spec.placement.everywhere:
                name, count = "channel balancing", balance_(model, self.calibration)
                what = f"{count} residual adds, lossless"
            else:
                done = migrate_(model, self.calibration, least_error_exponent(self.spec))
                name, count = "smoothing", done.folded + done.divided
                spread = numbers.span(min(done.alphas), max(done.alphas)) if done.alphas else "none"
                what = f"{count} groups of linear layers, exponents {spread}, {done.folded} folded into what is before"
        except QuietformerError as reason:
            self.steps.append(SearchStep(name="rescaling", what=str(reason), error=None, kept=False))
            return
        if count:
            self._try(name, what, model)

    def _rescale_inputs(self) -> None:
        """More of the width leaves residual adds if it need not go into the FFN's weights.

        The FFN reads the tensor divided by a scale of its own for each channel, and rounded again. Queries, keys and values lose
        next to nothing by balancing, so they read it as it is.
        """
        model = copy.deepcopy(self.unbalanced)
        try:
            if not balance_(model, self.calibration, alpha=WIDER_ALPHA):
                return
            exponents = least_error_exponent(self.spec)
            done = migrate_(
                model, self.calibration, exponents, which=lambda one: one.reads_norm and len(one.projections) == 1
            )
        except QuietformerError as reason:
            self.steps.append(SearchStep(name="input scales", what=str(reason), error=None, kept=False))
            return
        if done.divided:
            what = f"{done.divided} FFNs read their input on a grid of its own, balancing with alpha {WIDER_ALPHA}"
            self._try("input scales", what, model)

    def _try(self, name: str, what: str, model: PreTrainedModel, share: float = 1.0) -> None:
        """Quantize another model and go on with it if it leaves less than this share of the error."""
        before = self.model, self.plan
        self.model, self.plan = self._quantized(copy.deepcopy(model))
        error = self._measure()
        if kept := error < share * self.error:
            self.original = model
        else:
            self.model, self.plan = before
        self._note(name, what, error, kept=kept)

    def _prefix(self) -> None:
        """Tokens in front hold what would be massive in the text; the error is to the model with them, in fp32."""
        if changes_of(self.original).prefix is not None:
            return
        model = copy.deepcopy(self.original)
        try:
            tokens = find_prefix(model, self.calibration)
            if not tokens:
                self.steps.append(SearchStep(name="prefix", what="no token helps", error=None, kept=False))
                return
            add_prefix_(model, tokens)
        except QuietformerError as reason:
            self.steps.append(SearchStep(name="prefix", what=str(reason), error=None, kept=False))
            return
        shown = ", ".join(map(str, tokens))
        losses = [evaluate(one, self.judges, "causal").measured["loss"] for one in (self.original, model)]
        if losses[1] > WORSE * losses[0]:
            what = f"tokens {shown} in front raise the loss of the text in fp32 too much"
            self.steps.append(SearchStep(name="prefix", what=what, error=None, kept=False))
            return
        exact, self.exact = self.exact, [main_output(model, batch) for batch in self.judges]
        self._try("prefix", f"tokens {shown} in front", model)
        if self.original is not model:
            self.exact = exact

    def _rotate(self) -> None:
        """Large features of the residual stream spread over all of them; lossless."""
        model = copy.deepcopy(self.original)
        try:
            rotate_(model, self.calibration[0])
        except QuietformerError as reason:
            self.steps.append(SearchStep(name="rotation", what=str(reason), error=None, kept=False))
            return
        self._try("rotation", "residual stream in another basis, lossless", model)

    def _may_go_per_token(self) -> bool:
        return self.per_token and self.spec.granularity == "tensor" and task_of(self.original) == "causal"

    def _per_token(self) -> None:
        before, self.spec = self.spec, self.spec.model_copy(update={"granularity": "token"})
        self._try("per token", "a scale for each token", self.original, WORTH_A_SCALE)
        if not self.steps[-1].kept:
            self.spec = before

    def _attention_in_full_precision(self) -> None:
        """Probabilities are mostly far below one step of their grid; their product with values costs as little in fp32."""
        sites = {site for site in quantizers(self.model) if site.endswith((":probabilities", ":value"))}
        if not sites or self.spec.placement.everywhere:
            return
        set_mode_(self.model, "pass", sites)
        error = self._measure()
        kept = error < WORTH * self.error
        set_mode_(self.model, "quantize")
        if kept:
            self.spec = self.spec.model_copy(update={"rules": (*ATTENTION, *self.spec.rules)})
            ranges = self._ranges_now()
            dequantize_(self.model)
            self.plan = quantize_(self.model, self.spec, self.calibration[0])
            self._set_ranges(ranges)
            set_mode_(self.model, "quantize")
        self._note("attention", "the product of probabilities and values in fp32", error, kept=kept)

    def _may_cut_weights(self) -> bool:
        return self.spec.weight_bits < 8 and self.spec.weights == estimators["minmax"]()

    def _weight_ranges(self) -> None:
        """With few bits the largest weights are cut for the sake of all others."""
        before, spec = self._ranges_now(), self.spec.model_copy(update={"weights": estimators["mse"]()})
        set_weight_ranges_(self.model, spec)
        error = self._measure()
        if kept := error < self.error:
            self.spec = self.plan.spec = spec
            use_estimators_(self.model, weights=spec.weights)
        else:
            self._set_ranges(before)
        self._note("weight ranges", "mse", error, kept=kept)

    def _ranges(self) -> None:
        """Of activations, first the same for all, then by tensor; rounded weights stay on the grids they were rounded to."""
        best, least, ranges, found = self.spec.activations, self.error, self._ranges_now(), {}
        for text in self._candidates():
            use_estimators_(self.model, activations=estimators.read(text))
            calibrate_(self.model, self.calibration, weights=False)
            found[text] = self._ranges_now()
            error = self._measure()
            if kept := error < WORTH * least:
                best, least, ranges = estimators.read(text), error, found[text]
            self.steps.append(SearchStep(name="ranges", what=text, error=error, kept=kept))
        use_estimators_(self.model, activations=best)
        self._set_ranges(ranges)
        self.spec = self.plan.spec = self.spec.model_copy(update={"activations": best})
        self.error = least
        if len(found) > 1:
            self._ranges_by_tensor(found)

    def _candidates(self) -> tuple[str, ...]:
        if self.spec.activation_bits < 8:
            return LOW_BIT_RANGES
        return EVERYWHERE_RANGES if self.spec.placement.everywhere else RANGES

    def _ranges_by_tensor(self, candidates: dict[str, Ranges]) -> None:
        """Another range for those tensors where it helps the output, judged one after the other on some of the data."""
        before, everything = self._ranges_now(), (self.judges, self.exact)
        asked = proposals(self.model, candidates, self.calibration[:FEW])
        few = max(1, len(self.judges) // 4)
        self.judges, self.exact = self.judges[:few], self.exact[:few]
        least, taken = self._measure(), 0
        for place, one in enumerate(asked, start=1):
            self.progress.step("searching: ranges by tensor", place, len(asked))
            now = self._ranges_now()[one.site]
            self._set_ranges({one.site: candidates[one.name][one.site]})
            error = self._measure()
            if error < least:
                least, taken = error, taken + 1
            else:
                self._set_ranges({one.site: now})
        self.judges, self.exact = everything
        error = self._measure()
        kept = taken > 0 and error < self.error
        if not kept:
            self._set_ranges(before)
        self._note("ranges by tensor", f"another range for {taken} tensors", error, kept=kept)

    def _ranges_now(self) -> Ranges:
        return {
            site: (quantizer.scale_pattern.clone(), quantizer.zero_point.clone())
            for site, quantizer in quantizers(self.model).items()
            if not quantizer.grid.token
        }

    def _set_ranges(self, ranges: Ranges) -> None:
        for site, quantizer in quantizers(self.model).items():
            if site in ranges:
                quantizer.scale_pattern.copy_(ranges[site][0])
                quantizer.zero_point.copy_(ranges[site][1])

    def _change_weights(self, name: str, change_: Callable[[PreTrainedModel, list[Batch]], int]) -> None:
        """Weights or biases change, grids do not; undone if it does not help."""
        before = {name: value.detach().clone() for name, value in self.model.named_parameters()}
        count = change_(self.model, self.calibration)
        if not count:
            self.steps.append(SearchStep(name=name, what="no layer that it is for", error=None, kept=False))
            return
        error = self._measure()
        kept = error < self.error
        if not kept:
            with torch.no_grad():
                for parameter, value in self.model.named_parameters():
                    value.copy_(before[parameter])
        self._note(name, f"{count} linear layers", error, kept=kept)
