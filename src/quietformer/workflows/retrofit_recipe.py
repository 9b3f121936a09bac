"""The recipe that heals a pretrained model: defaults by the kind of model and by its own activations.

Where the numbers come from is in docs/retrofit.md.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from quietformer.config.attention import AttentionSpec, gates, normalizers
from quietformer.config.quantization import QuantSpec
from quietformer.config.recipe import (
    DataRecipe,
    ModelRecipe,
    OptimizerRecipe,
    Recipe,
    RoundingRecipe,
    ScheduleRecipe,
    Source,
    TeacherRecipe,
    TrainingRecipe,
)
from quietformer.config.regularizers import RegularizerSpec
from quietformer.training.regularizers import ActivationPenalty, RangePenalty
from quietformer.transforms.balance import ALPHA

LONG_TAIL, BALANCED_TAIL = 6.0, 4.0
"""The penalty begins at so many times what 99 % of the FFN's outputs stay within."""

STRENGTH_PER_FEATURE, BALANCED_STRENGTH = 2e-3, 2e-2
"""The penalty is a mean over features and an outlier is one of them, so its strength grows with their number. In a balanced model
outliers are no longer so far out that a strong penalty would drown everything else."""

NORM_FACTOR = 5.0
"""Where ranges around norms are held the norms learn faster: their gains are what makes those tensors wide, and at the others'
rate they would move too little."""

EVALUATIONS = 8

DAMPED = 0.05
"""What is left of the massive units of a model that is rotated."""

WATCHED = 128
"""Examples that choose the best checkpoint; nothing is reported of them."""

BATCHES = {"passages": 16, "sequences": 4, "images": 16}

LENGTHS = {"passages": 64, "sequences": 128, "images": 128}

UNITS = {
    "embedding": "passages",
    "classes": "passages",
    "masked": "sequences",
    "causal": "sequences",
    "images": "images",
}


def retrofit_recipe(
    model: str,
    task: str,
    inspected: dict[str, Any],
    *,
    width: int,
    attention: AttentionSpec,
    sources: Iterable[Source],
    steps: int,
    batch_size: int | None,
    length: int | None,
    positions: int | None,
    learning_rate: float,
    gate_factor: float,
    penalty: float | None,
    threshold: float | None,
    site: str,
    ranges: float | None,
    rounding: float,
    rotate: bool,
    damp: float | None,
    balance: float | None,
    seed: int,
    measured: int,
) -> Recipe:
    """What `quietformer retrofit` trains; None asks for what suits the model, `measured` examples stay for the figures."""
    unit = UNITS[task]
    batch_size = batch_size or BATCHES[unit]
    length = length or min(LENGTHS[unit], positions or LENGTHS[unit])
    post_norm = bool(inspected.get("model", {}).get("post_norm"))
    balanced = (ALPHA if post_norm else 0.0) if balance is None else balance
    # In the other basis nothing is left for a penalty but to push against the teacher: docs/retrofit.md has the figures.
    usual = 0.0 if rotate else width * (BALANCED_STRENGTH if balanced else STRENGTH_PER_FEATURE)
    strength = usual if penalty is None else penalty
    terms: list[RegularizerSpec] = []
    if strength:
        tail = BALANCED_TAIL if balanced else LONG_TAIL
        bound = long_tail(inspected, site, tail) if threshold is None else threshold
        terms.append(ActivationPenalty(strength=strength, threshold=bound, site=site))
    there = {row["site"] for row in inspected["sites"]}
    sites = tuple(name for name in RangePenalty().sites if not there or name.partition(".")[0] in there)
    held = RangePenalty().strength if strength and post_norm and not balanced else 0.0
    ranged = (held if ranges is None else ranges) if sites else 0.0
    if ranged:
        terms.append(RangePenalty(strength=ranged, sites=sites))
    every = max(1, steps // EVALUATIONS)
    return Recipe(
        name="retrofit",
        task="imitate",
        seed=seed,
        model=ModelRecipe(
            pretrained=model, rotate=rotate, damp=damp or (DAMPED if rotate else 1.0),
            balance=balanced,
        ),
        attention=attention,
        data=DataRecipe(train=tuple(sources), unit=unit, length=length, hold_out=WATCHED + measured, validation_limit=WATCHED),  # type: ignore[arg-type]
        optimizer=OptimizerRecipe(
            learning_rate=learning_rate, gate_factor=gate_factor, weight_decay=0.0, freeze_embeddings=True,
            norm_factor=NORM_FACTOR if ranged and not balanced else 1.0,
        ),
        schedule=ScheduleRecipe(shape="cosine", warmup_steps=min(50, steps // 8), final=learning_rate / 50),
        training=TrainingRecipe(
            steps=steps, batch_size=batch_size, evaluate_every=every, save_every=every, log_every=max(1, steps // 40),
            patience=EVALUATIONS // 2, outliers_every=max(1, steps // 40),
        ),
        regularizers=tuple(terms),
        teacher=TeacherRecipe(hidden=0.0) if rotate else TeacherRecipe(),
        rounding=RoundingRecipe(share=rounding, spec=QuantSpec(per_channel=True)),
    )  # fmt: skip


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


def long_tail(inspected: dict[str, Any], site: str, times: float) -> float:
    """Where the tail begins: a multiple of what 99 % stay within, in the layer in the middle."""
    within = [
        max(-row["percentiles"]["1"], row["percentiles"]["99"]) for row in inspected["sites"] if row["site"] == site
    ]
    return float(f"{times * statistics.median(within):.3g}") if within else times
