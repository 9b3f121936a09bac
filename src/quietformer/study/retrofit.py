"""`retrofit`: measure a pretrained model, heal it if it needs that, measure it again, and set the two side by side."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from quietformer.analysis.evaluate import Reference, reference_run
from quietformer.analysis.inspect import check_finite
from quietformer.analysis.outliers import printable
from quietformer.analysis.provenance import command_line, versions
from quietformer.analysis.quantization import SCALES
from quietformer.analysis.task import task_of
from quietformer.data.calibration import CalibrationData, wants_token_types
from quietformer.data.inputs import check_length, image_size
from quietformer.data.training import collate_for, takes_images, training_data
from quietformer.errors import QuietformerError
from quietformer.files import finite, write_json
from quietformer.recipe import Recipe, Source
from quietformer.section import model_spec
from quietformer.sources import open_model
from quietformer.specs import AttentionSpec
from quietformer.study.side import look, measure_side
from quietformer.train.imitation import example_batches, student_of
from quietformer.train.recipe_files import changed
from quietformer.train.retrofit_recipe import retrofit_recipe
from quietformer.train.run import train, with_absolute_paths
from quietformer.train.run_folder import check_run, only_writer, start

BEFORE, FIGURES, INTEGERS = "before.json", "retrofit.json", "int8"
"""Files of the run folder: the original's figures, those of both sides, and the folder with real INT8."""
CALIBRATED = 128
"""Training examples a calibration takes."""
BATCH = 16

Tell = Callable[[str, int, int], None]


@dataclass
class RetrofitOptions:
    """What a user may say; None asks for what suits the model."""

    attention: AttentionSpec
    sources: list[Source] = field(default_factory=list)  # by default the built-in prose or images
    evaluation: list[Source] = field(default_factory=list)
    images: bool | None = None  # whether what is named are images rather than text; None: nothing is named
    steps: int = 1200
    batch_size: int | None = None
    length: int | None = None
    learning_rate: float = 3e-4
    gate_factor: float = 10.0
    penalty: float | None = None
    threshold: float | None = None
    site: str = "ffn_output"
    rounding: float = 0.3
    rotate: bool | None = None
    damp: float | None = None
    seed: int = 0
    sequences: int = 256
    seeds: int = 3
    real: bool = True
    force: bool = False
    changes: Sequence[str] = ()
    trust_remote_code: bool = False


def retrofit(
    name: str, out: Path, options: RetrofitOptions, *, say: Callable[[str], None], tell: Tell
) -> dict[str, Any]:
    """Heal the model into a run folder; a model that has no outliers is left alone and nothing is written."""
    if (figures := _finished(out)) is not None:
        say(f"{out} is finished; nothing to do")
        return figures
    model = open_model(name, trust_remote_code=options.trust_remote_code)
    check_finite(model)
    if model_spec(model).quantized is not None:
        raise QuietformerError(f"{name} is quantized already; heal the model it was made from")
    task = task_of(model)
    visual = model.main_input_name == "pixel_values"
    if options.images not in (None, visual):
        wanted = "images; give --images DIR" if visual else "text; give --texts FILE"
        raise QuietformerError(f"{type(model).__name__} takes {wanted}")
    if not options.sources:
        builtin = "digits" if visual else "embedded"
        options = replace(options, sources=[Source.read(builtin)])
    draft = make_recipe(name, model, task, {"sites": []}, options)
    if not takes_images(draft):
        check_length(model, draft.data.length)
    say(f"reading {', '.join(source.name for source in options.sources)}")
    data = measuring_data(draft, out, model, task, options)
    total = len(data.evaluation)
    reference = reference_run(
        model, data.evaluation, task, progress=lambda done: tell("evaluating the original", done, total)
    )
    key = [name, options.sequences, options.seeds, options.real, reference.evaluation.figures, data.described]
    before = _kept_before(out, key) or {"inspect": look(model, data, name, tell)}
    verdict = before["inspect"]["verdict"]
    if verdict["severity"] == "quiet" and not options.force:
        return _figures(name, model, task, reference, before, None, verdict["sentence"], data, changed=False)
    recipe = with_absolute_paths(make_recipe(name, model, task, before["inspect"], options))
    check_run(out, recipe)
    _try_out(model, recipe, data)
    if "float" not in before:
        before = measure_side(
            model, data, reference, before["inspect"], seeds=options.seeds, real=options.real, folder=None, tell=tell
        )
        with only_writer(out):
            start(out, recipe)
            write_json(out / BEFORE, {"key": key, "side": before})
    say(f"before: {side_in_words(before, reference)}")
    run = train(recipe, out, say=say)
    healed = open_model(str(out))
    after = measure_side(
        healed, data, reference, look(healed, data, str(out), tell), seeds=options.seeds, real=options.real,
        folder=out / INTEGERS, tell=tell,
    )  # fmt: skip
    sentence = f"Before, {side_in_words(before, reference)}. After, {side_in_words(after, reference)}."
    figures = _figures(name, model, task, reference, before, after, sentence, data, changed=True)
    figures |= {
        "attention": run["attention"],
        "steps": run["steps"],
        "minutes": run["steps"] / run["steps_per_second"] / 60,
        "best": run["best"],
        "seed": recipe.seed,
        "recipe": recipe.to_dict(),
        "log": run["log"],
        "parameters_added": healed.num_parameters() - model.num_parameters(),
    }
    written: dict[str, Any] = finite(figures)
    write_json(out / FIGURES, written)
    return written


def _rotates(model: PreTrainedModel, task: str, options: RetrofitOptions) -> bool:
    """Where nothing is said, a causal model with RMSNorm everywhere is taken to another basis, which costs nothing."""
    if options.rotate is None:
        norms = [module for module in model.modules() if "Norm" in type(module).__name__]
        return task == "causal" and bool(norms) and all("RMS" in type(module).__name__ for module in norms)
    return options.rotate


def _try_out(model: PreTrainedModel, recipe: Recipe, data: CalibrationData) -> None:
    """What the recipe asks of the model, on a copy, before anything takes its time."""
    student = student_of(model, recipe, lambda: data.calibration(0)[:1])
    for spec in recipe.regularizers:
        spec.build(student).detach_()


def make_recipe(
    name: str, model: PreTrainedModel, task: str, inspected: dict[str, Any], options: RetrofitOptions
) -> Recipe:
    width = int(getattr(model.config, "hidden_size", 0) or model.config.get_text_config().hidden_size)
    recipe = retrofit_recipe(
        name, task, inspected, width=width, attention=options.attention, sources=options.sources, steps=options.steps,
        batch_size=options.batch_size, length=options.length, learning_rate=options.learning_rate,
        gate_factor=options.gate_factor, penalty=options.penalty, threshold=options.threshold, site=options.site,
        rounding=options.rounding, rotate=_rotates(model, task, options), damp=options.damp, seed=options.seed,
        measured=0 if options.evaluation else options.sequences,
    )  # fmt: skip
    return changed(recipe, options.changes)


def measuring_data(
    recipe: Recipe, out: Path, model: PreTrainedModel, task: str, options: RetrofitOptions
) -> CalibrationData:
    """Other data than is trained on, and other than is looked at during training to choose the best checkpoint."""
    chosen = recipe.data.model_copy(update={"validation_limit": 0})
    if options.evaluation:
        chosen = chosen.model_copy(update={"validation": tuple(options.evaluation)})
    shape = image_size(model) if takes_images(recipe) else (0, 0)
    found = training_data(recipe.model_copy(update={"data": chosen}), out, image_shape=shape)
    first = 0 if options.evaluation else recipe.data.validation_limit
    places = list(range(first, len(found.validation)))[: options.sequences]
    if recipe.data.unit == "passages":  # neighbours of like length, so that little is padding
        places.sort(key=lambda place: len(found.validation.take([place], None)[0]["input_ids"]))
    embeddings: Any = None if takes_images(recipe) else model.get_input_embeddings()
    vocabulary = 0 if embeddings is None else int(embeddings.weight.shape[0])
    collate = collate_for(recipe, found, vocabulary, seed=recipe.seed, imitated=task)
    types = found.tokenizer is not None and wants_token_types(model, found.tokenizer)

    def batched(rows: Any, chosen: list[int]) -> list[dict[str, Any]]:
        made = example_batches(rows, chosen, collate, BATCH, task)
        if types:
            made = [batch | {"token_type_ids": torch.zeros_like(batch["input_ids"])} for batch in made]
        return made

    def calibration(seed: int) -> list[dict[str, Any]]:
        rows: Any = found.rows
        drawn = np.random.default_rng(seed).permutation(len(rows))[:CALIBRATED]
        return batched(rows, [int(place) for place in drawn])

    described = found.described | {
        "evaluation": [source.name for source in options.evaluation] or "held out of the same",
        "evaluation_sequences": len(places),
        "calibration_sequences": min(CALIBRATED, len(found.rows)),  # type: ignore[arg-type]
    }
    return CalibrationData(batched(found.validation, places), calibration, found.tokenizer, described)


def _kept_before(out: Path, key: Any) -> dict[str, Any] | None:
    """The original's figures, if they were measured for this run before it was interrupted."""
    try:
        kept = json.loads((out / BEFORE).read_text(encoding="utf-8"))
        side: dict[str, Any] | None = kept["side"] if kept["key"] == json.loads(json.dumps(key)) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return side


def _finished(out: Path) -> dict[str, Any] | None:
    try:
        figures: dict[str, Any] = json.loads((out / FIGURES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return figures


def side_in_words(side: dict[str, Any], reference: Reference) -> str:
    """`real INT8 has cosine 0.1921 (floating point 1.0000); FFN outputs reach 195, kurtosis up to 40,727`."""
    primary = reference.evaluation.primary
    real, simulated = (side["real"] or {}).get("per_channel"), side["simulated"]["per_channel"][primary]["mean"]
    value, what = (real[primary], "real INT8") if real else (simulated, "simulated INT8")
    places = 2 if primary == "perplexity" else 4
    shown = "broken" if value is None else f"{value:.{places}f}"
    reach, kurtosis = extremes(side["inspect"])
    return (
        f"{what} has {primary} {shown} (floating point {side['float'][primary]:.{places}f}); FFN outputs reach {reach:,.3g}, "
        f"kurtosis up to {kurtosis:,.0f}"
    )


def extremes(inspected: dict[str, Any], site: str = "ffn_output") -> tuple[float, float]:
    """The largest magnitude of any layer, and the largest kurtosis."""
    rows = [row for row in inspected["sites"] if row["site"] == site]
    reach = max((max(abs(row["min"]), abs(row["max"])) for row in rows), default=math.nan)
    return reach, max((row["kurtosis"] or 0.0 for row in rows), default=math.nan)


def _figures(
    name: str, model: PreTrainedModel, task: str, reference: Reference, before: dict[str, Any],
    after: dict[str, Any] | None, sentence: str, data: CalibrationData, *, changed: bool,
) -> dict[str, Any]:  # fmt: skip
    evaluation = reference.evaluation
    attention = model_spec(model).attention
    return {
        "version": 1,
        "kind": "retrofit",
        "changed": changed,
        "sentence": sentence,
        "model": {
            "name": printable(name),
            "class": type(model).__name__,
            "parameters": model.num_parameters(),
            "attention": attention.label if attention else "softmax",
        },
        "task": task,
        "primary": evaluation.primary,
        "better": evaluation.better,
        "scale": SCALES[evaluation.better],
        "rows": [] if after is None else comparison(before, after, evaluation.primary, evaluation.better),
        "before": before,
        "after": after,
        "data": data.described,
        "command": command_line(),
        "versions": versions(),
    }


def comparison(before: dict[str, Any], after: dict[str, Any], primary: str, better: str) -> list[dict[str, Any]]:
    """The table that people read first."""
    rows: list[dict[str, Any]] = []

    def row(what: str, pick: Callable[[dict[str, Any]], Any], better: str) -> None:
        values = [pick(side) for side in (before, after)]
        if any(value is not None for value in values):
            rows.append({"what": what, "before": values[0], "after": values[1], "better": better})

    row("largest FFN output", lambda side: extremes(side["inspect"])[0], "lower")
    row("largest kurtosis of FFN outputs", lambda side: extremes(side["inspect"])[1], "lower")
    for measure in before["float"]:
        direction = "lower" if measure in ("perplexity", "loss") else "higher"
        row(f"floating point: {measure}", lambda side, m=measure: side["float"].get(m), direction)  # type: ignore[misc]
        for weights in ("per_tensor", "per_channel"):
            label = weights.replace("_", "-")
            row(
                f"simulated W8A8, {label} weights: {measure}",
                lambda side, w=weights, m=measure: side["simulated"][w][m]["mean"],  # type: ignore[misc]
                direction,
            )
            row(
                f"real INT8, {label} weights: {measure}",
                lambda side, w=weights, m=measure: ((side["real"] or {}).get(w) or {}).get(m),  # type: ignore[misc]
                direction,
            )
    row("INT8 model, MB", lambda side: _size(side, "int8"), "lower")
    row("floating point model, MB", lambda side: _size(side, "fp32"), "lower")
    for place, one in enumerate((after["real"] or {}).get("latency", [])):
        what = f"batch {one['batch']}" + (f", {one['length']} tokens" if one["length"] else "")
        row(f"INT8, ms ({what})", lambda side, p=place: _latency(side, p, "onnx_int8_ms"), "lower")  # type: ignore[misc]
        row(f"floating point ONNX, ms ({what})", lambda side, p=place: _latency(side, p, "onnx_fp32_ms"), "lower")  # type: ignore[misc]
    return rows


def _size(side: dict[str, Any], kind: str) -> float | None:
    size = ((side["real"] or {}).get("bytes") or {}).get(kind)
    return None if size is None else size / 1e6


def _latency(side: dict[str, Any], place: int, kind: str) -> float | None:
    rows = (side["real"] or {}).get("latency", [])
    return rows[place][kind] if place < len(rows) else None
