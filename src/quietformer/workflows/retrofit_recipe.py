"""The recipe that heals a pretrained model: defaults by the kind of model and by its own activations.

Where the numbers come from is in docs/retrofit.md.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Literal

from transformers import PreTrainedModel

from quietformer.architectures.task import task_of
from quietformer.config.attention import AttentionSpec, gates, normalizers
from quietformer.config.optimization import OptimizerRecipe, ScheduleRecipe
from quietformer.config.options.retrofit import RetrofitOptions
from quietformer.config.quantization import QuantSpec
from quietformer.config.recipe import (
    DataRecipe,
    ModelRecipe,
    QatRecipe,
    Recipe,
    TeacherRecipe,
    TokenizerRecipe,
    TrainingRecipe,
)
from quietformer.config.recipe_files import changed
from quietformer.config.recorded_changes import changes_of
from quietformer.config.tasks import MeasuredTask
from quietformer.data.batches_from_options import positions_of
from quietformer.results import numbers
from quietformer.results.inspect import InspectReport
from quietformer.training.regularizers import ActivationPenalty, RangePenalty
from quietformer.transforms.balance import ALPHA

LONG_TAIL, BALANCED_TAIL = 6.0, 4.0
"""The penalty begins at so many times what 99 % of the FFN's outputs stay within."""

STRENGTH_PER_FEATURE, BALANCED_STRENGTH = 2e-3, 2e-2
"""The penalty is a mean over features and an outlier is one of them, so its strength grows with their number. In a balanced model
outliers are no longer so far out that a strong penalty would drown everything else."""

NORM_FACTOR = 5.0
"""Where ranges around norms are held the norms learn faster: their gains are what makes those tensors wide, and at the others'
learning rate they would move too little."""

EVALUATIONS = 8

DAMPED = 0.05
"""What is left of the massive units of a model that is rotated."""

WATCHED = 128
"""Examples that choose the best checkpoint; nothing is reported of them."""

Unit = Literal["passages", "sequences", "images"]

BATCHES: dict[Unit, int] = {"passages": 16, "sequences": 4, "images": 16}

LENGTHS: dict[Unit, int] = {"passages": 64, "sequences": 128, "images": 128}

UNITS: dict[MeasuredTask, Unit] = {
    "embedding": "passages",
    "classes": "passages",
    "masked": "sequences",
    "causal": "sequences",
    "images": "images",
}


@dataclass(frozen=True)
class KnownModel:
    """What a recipe depends on of the model; the inspection comes later than the first draft."""

    name: str
    task: MeasuredTask
    visual: bool
    width: int
    positions: int | None
    attention: AttentionSpec | None
    only_rms_norms: bool
    inspected: InspectReport | None = None
    held_out: int | None = None
    """As many as the data allows; None where that is not known yet."""
    watched: int = WATCHED

    @classmethod
    def of(cls, name: str, model: PreTrainedModel) -> KnownModel:
        norms = [type(module).__name__ for module in model.modules() if "Norm" in type(module).__name__]
        return cls(
            name=name,
            task=task_of(model),
            visual=model.main_input_name == "pixel_values",
            width=int(getattr(model.config, "hidden_size", 0) or model.config.get_text_config().hidden_size),
            positions=positions_of(model),
            attention=changes_of(model).attention,
            only_rms_norms=bool(norms) and all("RMS" in norm for norm in norms),
        )

    @property
    def post_norm(self) -> bool:
        return self.inspected is not None and bool(self.inspected.model.post_norm)


def retrofit_recipe(known: KnownModel, options: RetrofitOptions) -> Recipe:
    """What `retrofit` trains: an option that is unset takes what suits the model; changes by `--set` come last."""
    unit = UNITS[known.task]
    length = options.length or min(LENGTHS[unit], known.positions or LENGTHS[unit])
    rotated, balance = _rotates(known, options), _balance(known, options)
    penalties = _penalties(known, options)
    hold_ranges = any(isinstance(term, RangePenalty) for term in penalties)
    steps, every = options.steps, max(1, options.steps // EVALUATIONS)
    recipe = Recipe(
        name="retrofit",
        task="distill",
        seed=options.seed,
        model=ModelRecipe(
            pretrained=known.name, rotate=rotated, damp=options.damp or (DAMPED if rotated else 1.0), balance=balance
        ),
        attention=attention_for_pretrained(options.attention, options.gate, known.attention),
        data=DataRecipe(
            train=options.training_sources(known.visual), unit=unit, length=length, validation_limit=known.watched,
            hold_out=usual_hold_out(options) if known.held_out is None else known.held_out,
        ),
        tokenizer=TokenizerRecipe(pretrained=options.tokenizer),
        optimizer=OptimizerRecipe(
            learning_rate=options.learning_rate, gate_factor=options.gate_factor, weight_decay=0.0,
            freeze_embeddings=True, norm_factor=NORM_FACTOR if hold_ranges and not balance else 1.0,
        ),
        schedule=ScheduleRecipe(
            shape="cosine", warmup_steps=min(50, steps // 8), final=options.learning_rate / 50
        ),
        training=TrainingRecipe(
            steps=steps, batch_size=options.batch_size or BATCHES[unit], evaluate_every=every, save_every=every,
            log_every=max(1, steps // 40), patience=EVALUATIONS // 2, outliers_every=max(1, steps // 40),
        ),
        regularizers=penalties,
        teacher=TeacherRecipe(hidden=0.0) if rotated else TeacherRecipe(),
        qat=QatRecipe(share=options.qat, spec=QuantSpec(per_channel=True)),
    )  # fmt: skip
    return changed(recipe, options.set)


def usual_hold_out(options: RetrofitOptions) -> int:
    """What chooses the best checkpoint, and what is measured on unless that comes from elsewhere."""
    return WATCHED + (0 if options.evaluation_sources() else options.sequences)


def _rotates(known: KnownModel, options: RetrofitOptions) -> bool:
    """By default a causal model with RMSNorm everywhere is rotated, which is lossless."""
    return known.task == "causal" and known.only_rms_norms if options.rotate is None else options.rotate


def _balance(known: KnownModel, options: RetrofitOptions) -> float:
    """By default a post-norm model is balanced."""
    return (ALPHA if known.post_norm else 0.0) if options.balance is None else options.balance


def _penalties(known: KnownModel, options: RetrofitOptions) -> tuple[ActivationPenalty | RangePenalty, ...]:
    """On outliers, and on wide ranges around the norms of a post-norm model that is not balanced."""
    balanced = bool(_balance(known, options))
    # In a rotated basis a penalty would only push against the teacher: docs/retrofit.md has the numbers.
    usual = 0.0 if _rotates(known, options) else known.width * (BALANCED_STRENGTH if balanced else STRENGTH_PER_FEATURE)
    strength = usual if options.penalty is None else options.penalty
    terms: list[ActivationPenalty | RangePenalty] = []
    if strength:
        tail = BALANCED_TAIL if balanced else LONG_TAIL
        bound = long_tail(known.inspected, options.site, tail) if options.threshold is None else options.threshold
        terms.append(ActivationPenalty(strength=strength, threshold=bound, site=options.site))
    there = set() if known.inspected is None else {row.site for row in known.inspected.sites}
    sites = tuple(name for name in RangePenalty().sites if not there or name.partition(".")[0] in there)
    held = RangePenalty().strength if strength and known.post_norm and not balanced else 0.0
    ranged = (held if options.ranges is None else options.ranges) if sites else 0.0
    if ranged:
        terms.append(RangePenalty(strength=ranged, sites=sites))
    return tuple(terms)


def attention_for_pretrained(normalizer: str = "", gate: str = "", there: AttentionSpec | None = None) -> AttentionSpec:
    """From text, what is not named staying as it is: gates get the paper's setting for fine-tuning, open at the start.

    A model without gates gets linear ones unless told otherwise.
    """
    spec = there or AttentionSpec()
    if normalizer:
        spec = spec.model_copy(update={"normalizer": normalizers.read(normalizer)})
    if gate == "none":
        return spec.model_copy(update={"gate": None})
    if not gate and spec.gate is not None:
        return spec
    named = gates.read(gate or "linear")
    given = {name: getattr(named, name) for name in named.model_fields_set if name in type(named).model_fields}
    opened = type(named).for_pretrained(**given)  # type: ignore[attr-defined]
    return spec.model_copy(update={"gate": opened})


def long_tail(inspected: InspectReport | None, site: str, times: float) -> float:
    """Where the tail begins: a multiple of what 99 % stay within, in the layer in the middle."""
    rows = [] if inspected is None else [row for row in inspected.sites if row.site == site]
    within = [max(-row.percentiles["1"], row.percentiles["99"]) for row in rows]
    return numbers.to_three_digits(times * statistics.median(within)) if within else times
