"""Quantizing a model several times over and saying what each gave: seeds, estimators, tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from transformers import PreTrainedModel

from quietformer.analysis.evaluate import Reference, evaluate, reference_run
from quietformer.architectures.forward import Batch
from quietformer.config.quantization import EstimatorSpec, estimators
from quietformer.data.calibration_data import CalibrationData
from quietformer.quant.calibration import calibrate_, floating_point, use_estimators_
from quietformer.quant.placement import QuantPlan
from quietformer.quant.sensitivity import Measure, noise_by_tensor, sensitivity
from quietformer.results.cost import cost, spread

SEARCHED = ("minmax", "running_minmax", "percentile(q=99.99)", "percentile(q=99.999)", "mse")
"""The estimators for activations among which the paper chose the best for each model."""

FEW = 16
"""Sequences on which sensitivity measures every site twice."""

Tell = Callable[[str, int, int], None]
"""What is being done, how much of it is done, of how much."""


def measure_seeds(
    model: PreTrainedModel, data: CalibrationData, reference: Reference, seeds: int, tell: Tell
) -> dict[str, Any]:
    """Calibrate once a seed and evaluate; the model is left as seed 0 has calibrated it."""
    runs = []
    for count, seed in enumerate(reversed(range(seeds)), start=1):
        batches = data.calibration(seed)
        calibrate_(model, batches, progress=_Told(tell, f" ({count} of {seeds})"))
        progress = partial(_counted, tell, f"evaluating ({count} of {seeds})", len(data.evaluation))
        found = evaluate(model, data.evaluation, reference.task, reference, progress=progress)
        runs.append({"seed": seed, "figures": found.to_dict()["figures"]})
    runs.reverse()
    return {
        "runs": runs,
        "quantized": {name: spread([run["figures"][name] for run in runs]) for name in runs[0]["figures"]},
    }


class _Told:
    """A `Progress` for callers that still pass a function."""

    def __init__(self, tell: Tell, run: str = "") -> None:
        self.tell, self.run = tell, run

    def say(self, text: str) -> None: ...

    def step(self, what: str, done: int = 0, total: int = 0) -> None:
        self.tell(f"{what}{self.run}", done, total)


def _counted(tell: Tell, what: str, total: int, done: int) -> None:
    tell(what, done, total)


def in_words(figures: dict[str, Any]) -> str:
    """`W8A8 breaks this model: cosine 1.0000 -> 0.8354.`"""
    before, after = figures["float"][figures["primary"]], figures["quantized"][figures["primary"]]["mean"]
    lost = cost(before, after, figures["better"])
    if lost is None:
        return f"{figures['label']}: there is nothing to compare {figures['primary']} with."
    nothing, little, broken = figures["scale"]
    verb = (
        "breaks this model" if lost > broken else "costs this model quality" if lost > little
        else "costs this model a little" if lost > nothing else "costs this model next to nothing"
    )  # fmt: skip
    places = 2 if figures["primary"] == "perplexity" else 4
    numbers = f"{before:.{places}f} -> {'no number' if after is None else f'{after:.{places}f}'}"
    return f"{figures['label']} {verb}: {figures['primary']} {numbers}."


def search_estimator(
    model: PreTrainedModel, data: CalibrationData, task: str, tell: Tell
) -> tuple[EstimatorSpec, list[dict[str, Any]]]:
    """The estimator for activations that does best on the calibration data of seed 0, which evaluation never sees."""
    batches = data.calibration(0)
    with floating_point(model):
        reference = reference_run(model, batches, task)
    rows: list[dict[str, Any]] = []
    scores = []
    for done, text in enumerate(SEARCHED):
        tell("searching estimators", done, len(SEARCHED))
        use_estimators_(model, activations=estimators.read(text))
        calibrate_(model, batches)
        found = evaluate(model, batches, task, reference)
        rows.append({"activations": text, "figures": found.to_dict()["figures"]})
        worst = -math.inf
        scores.append(
            (-found.value if found.better == "lower" else found.value) if math.isfinite(found.value) else worst
        )
    best = estimators.read(SEARCHED[max(range(len(scores)), key=scores.__getitem__)])
    use_estimators_(model, activations=best)
    return best, rows


def describe_sites(model: PreTrainedModel, plan: QuantPlan, batches: list[Batch]) -> dict[str, Any]:
    """Range and signal-to-noise ratio of every site, the noisiest first; cheap, one pass."""
    return noise_by_tensor(model, plan, batches).model_dump()


def measure_sensitivity(
    model: PreTrainedModel, plan: QuantPlan, data: CalibrationData, task: str, tell: Tell
) -> dict[str, Any]:
    """Every site alone, and all but every site, on a few of the evaluation sequences."""
    size = len(next(iter(data.evaluation[0].values())))
    few = data.evaluation[: max(1, FEW // size)]
    with floating_point(model):
        reference = reference_run(model, few, task)
    primary, better = reference.evaluation.primary, reference.evaluation.better
    measure = Measure(primary, better, lambda: evaluate(model, few, task, reference).value)
    return sensitivity(model, plan, few, measure, progress=_Told(tell)).model_dump()
