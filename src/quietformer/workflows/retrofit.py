"""`retrofit`: measure a pretrained model, heal it if it needs that, measure it again, and set the two side by side."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from quietformer.analysis.evaluate import Reference, reference_run
from quietformer.analysis.inspection import check_finite
from quietformer.analysis.quantized_quality import measure_seeds
from quietformer.architectures.layout import find_blocks
from quietformer.architectures.task import task_of
from quietformer.config.quantization import QuantSpec
from quietformer.config.recipe import Recipe, Source
from quietformer.config.recipe_files import changed
from quietformer.config.recorded_changes import changes_of
from quietformer.data.calibration_data import CalibrationData
from quietformer.data.measuring_data import measuring_data
from quietformer.data.model_inputs import check_length, positions_of
from quietformer.data.training_data import takes_images
from quietformer.errors import QuietformerError
from quietformer.files import finite, write_json
from quietformer.models.open import open_model
from quietformer.quant.calibration import quantize_
from quietformer.results.cost import SCALES
from quietformer.results.labels import printable
from quietformer.results.provenance import versions
from quietformer.results.quality import spreads
from quietformer.training.distillation import student_of
from quietformer.training.run import train, with_absolute_paths
from quietformer.training.run_folder import RECIPE, check_run, only_writer, start
from quietformer.transforms.balance import ALPHA, balance_
from quietformer.transforms.gains import gained_norms
from quietformer.workflows.comparison import comparison, side_in_words, verdict_on
from quietformer.workflows.quality import WEIGHTS, look, measure_side
from quietformer.workflows.retrofit_recipe import attention_for_pretrained, retrofit_recipe

BEFORE, FIGURES, INTEGERS = "before.json", "retrofit.json", "int8"
"""Files of the run folder: the original's figures, those of both sides, and the folder with real INT8."""

Tell = Callable[[str, int, int], None]


@dataclass
class RetrofitOptions:
    """What a user may say; None asks for what suits the model."""

    attention: str = ""  # a normalizer; what is not named stays as it is in the model
    gate: str = ""  # linear by default in a model without gates
    sources: list[Source] = field(default_factory=list)  # by default the built-in prose or images
    evaluation: list[Source] = field(default_factory=list)
    images: bool | None = None  # whether what is named are images rather than text; None: nothing is named
    steps: int = 1000
    batch_size: int | None = None
    length: int | None = None
    learning_rate: float = 1e-4
    gate_factor: float = 10.0
    penalty: float | None = None
    threshold: float | None = None
    site: str = "ffn_output"
    ranges: float | None = None
    rounding: float = 0.35
    rotate: bool | None = None
    damp: float | None = None
    balance: float | None = None
    seed: int = 0
    sequences: int = 256
    seeds: int = 3
    real: bool = True
    force: bool = False
    changes: Sequence[str] = ()


def retrofit(
    name: str, out: Path, options: RetrofitOptions, *, say: Callable[[str], None], tell: Tell
) -> dict[str, Any]:
    """Heal the model into a run folder; a model that has no outliers is left alone and nothing is written."""
    place = os.path.abspath(name) if os.path.exists(name) else name
    asked = json.loads(json.dumps({"model": place} | asdict(options), default=str))
    if (figures := _finished(out, asked)) is not None:
        say(f"{out} is finished; nothing to do")
        return figures
    check_place_for(out)
    model = open_model(name)
    check_finite(model)
    if changes_of(model).quantized is not None:
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
        if set(source.path for source in options.sources) & set(source.path for source in options.evaluation):
            say("--eval-texts names text that is also tuned on: what is measured there says little about other text")
    say(f"reading {', '.join(source.name for source in options.sources)}")
    data = measuring_data(draft, out, model, task, options)
    reference = reference_run(model, data.evaluation, task)
    # What the original makes of the data says which model and which data it was.
    print_of = hashlib.sha256(reference.kept.contiguous().numpy().tobytes()).hexdigest()
    key = [asked["model"], options.sequences, options.seeds, options.real, print_of, data.info.model_dump()]
    before = _kept_before(out, key) or {"inspect": look(model, data, name, tell)}
    verdict = before["inspect"]["verdict"]
    if verdict["severity"] == "quiet" and not options.force:
        return _figures(name, model, task, reference, before, None, verdict["sentence"], data, changed=False)
    options = _balance_that_works(name, model, data, before["inspect"], options, say)
    recipe = with_absolute_paths(make_recipe(name, model, task, before["inspect"], options))
    check_run(out, recipe, "choose another OUT, or give the options it was begun with")
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
    alone = _balanced_alone(model, recipe, data, reference, tell)
    sentence = (
        f"{verdict_on(before, after, reference)} Before, {side_in_words(before, reference)}. "
        f"After, {side_in_words(after, reference)}.{_against_balanced(alone, after, reference)}"
    )
    figures = _figures(name, model, task, reference, before, after, sentence, data, changed=True)
    figures |= {
        "attention": run["attention"],
        "balanced_alone": alone,
        "steps": run["steps"],
        "minutes": run["seconds"] / 60,
        "asked": asked,
        "best": run["best"],
        "seed": recipe.seed,
        "recipe": recipe.to_dict(),
        "log": run["log"],
        "parameters_added": healed.num_parameters() - model.num_parameters(),
    }
    written: dict[str, Any] = finite(figures)
    write_json(out / FIGURES, written)
    return written


def _balanced_alone(
    model: PreTrainedModel, recipe: Recipe, data: CalibrationData, reference: Reference, tell: Tell
) -> dict[str, Any] | None:
    """Simulated INT8 of the model in other units and not trained, so that a person sees what training adds."""
    balanced: Any = copy.deepcopy(model)
    if not recipe.model.balance or not balance_(balanced, data.calibration(0), alpha=recipe.model.balance):
        return None
    found = {}
    for name, per_channel in WEIGHTS.items():
        quantized = copy.deepcopy(balanced)
        quantize_(quantized, QuantSpec(per_channel=per_channel), data.evaluation[0])
        found[name] = spreads([run.metrics for run in measure_seeds(quantized, data, reference, 1)]).model_dump()
    return found


def _against_balanced(alone: dict[str, Any] | None, after: dict[str, Any], reference: Reference) -> str:
    """What balancing alone gives, and a word where a run was too short to make up for what training itself takes."""
    primary, better = reference.evaluation.primary, reference.evaluation.better
    if alone is None:
        return ""
    untrained, trained = (side["per_channel"][primary]["mean"] for side in (alone, after["simulated"]))
    if untrained is None:
        return ""
    ahead = trained is None or (untrained != trained and (untrained > trained) == (better == "higher"))
    if not ahead:
        return f" Balanced and not trained, simulated INT8 has {primary} {untrained:.4f}."
    return (
        f" Balanced and not trained, simulated INT8 has {primary} {untrained:.4f}, which is better than what these steps made "
        "of it: give more steps, or export the original with --balance."
    )


def _rotates(model: PreTrainedModel, task: str, options: RetrofitOptions) -> bool:
    """Where nothing is said, a causal model with RMSNorm everywhere is taken to another basis, which costs nothing."""
    if options.rotate is None:
        norms = [module for module in model.modules() if "Norm" in type(module).__name__]
        return task == "causal" and bool(norms) and all("RMS" in type(module).__name__ for module in norms)
    return options.rotate


def _balance_that_works(
    name: str, model: PreTrainedModel, data: CalibrationData, inspected: dict[str, Any], options: RetrofitOptions,
    say: Callable[[str], None],
) -> RetrofitOptions:  # fmt: skip
    """Where nothing is said, a post-norm model is balanced if all of it can be; what is asked for is done or refused."""
    if options.balance == 0 or gained_norms(model):
        return options
    if options.balance is None and not inspected.get("model", {}).get("post_norm"):
        return options
    try:
        found = balance_(copy.deepcopy(model), data.calibration(0)[:1], alpha=options.balance or ALPHA)
    except QuietformerError:
        if options.balance is not None:
            raise
        found = 0
    if options.balance is not None and not found:
        raise QuietformerError(f"{name} has no residual sums between LayerNorms to balance; leave out --balance")
    if options.balance is None and found < 2 * len(find_blocks(model)) - 1:  # the first block may read no norm
        return replace(options, balance=0.0)
    say(f"{found} residual sums are written in other units first, which changes nothing of what {name} gives")
    return options


def _try_out(model: PreTrainedModel, recipe: Recipe, data: CalibrationData) -> None:
    """What the recipe asks of the model, on a copy, before anything takes its time."""
    student = student_of(model, recipe, lambda: data.calibration(0)[:1])
    for spec in recipe.regularizers:
        spec.build(student).detach_()


def make_recipe(
    name: str, model: PreTrainedModel, task: str, inspected: dict[str, Any], options: RetrofitOptions
) -> Recipe:
    width = int(getattr(model.config, "hidden_size", 0) or model.config.get_text_config().hidden_size)
    attention = attention_for_pretrained(options.attention, options.gate, changes_of(model).attention)
    recipe = retrofit_recipe(
        name, task, inspected, width=width, attention=attention, sources=options.sources, steps=options.steps,
        batch_size=options.batch_size, length=options.length, positions=positions_of(model),
        learning_rate=options.learning_rate, gate_factor=options.gate_factor, penalty=options.penalty,
        threshold=options.threshold, site=options.site, ranges=options.ranges, rounding=options.rounding,
        rotate=_rotates(model, task, options), damp=options.damp, balance=options.balance, seed=options.seed,
        measured=0 if options.evaluation else options.sequences,
    )  # fmt: skip
    return changed(recipe, options.changes)


def _kept_before(out: Path, key: Any) -> dict[str, Any] | None:
    """The original's figures, if they were measured for this run before it was interrupted."""
    try:
        kept = json.loads((out / BEFORE).read_text(encoding="utf-8"))
        side: dict[str, Any] | None = kept["side"] if kept["key"] == json.loads(json.dumps(key)) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return side


def _finished(out: Path, asked: dict[str, Any]) -> dict[str, Any] | None:
    """The figures of a retrofit that has ended in this folder, if it is the one that is asked for."""
    try:
        figures = json.loads((out / FIGURES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(figures, dict) or not isinstance(figures.get("asked"), dict):
        return None
    if other := [name for name, value in asked.items() if figures["asked"].get(name) != value]:
        raise QuietformerError(
            f"{out} holds a finished retrofit with another {other[0]} ({figures['asked'].get(other[0])!r} there, "
            f"{asked[other[0]]!r} here); choose another OUT"
        )
    return figures


def check_place_for(out: Path) -> None:
    """Whether OUT is new, empty, or a retrofit to go on with."""
    if out.exists() and not out.is_dir():
        raise QuietformerError(f"{out} is a file; OUT is a folder")
    if out.is_dir() and not (out / RECIPE).is_file() and any(not e.name.startswith(".") for e in out.iterdir()):
        raise QuietformerError(f"{out} holds other things than a retrofit; choose another OUT")


def _figures(
    name: str, model: PreTrainedModel, task: str, reference: Reference, before: dict[str, Any],
    after: dict[str, Any] | None, sentence: str, data: CalibrationData, *, changed: bool,
) -> dict[str, Any]:  # fmt: skip
    evaluation = reference.evaluation
    attention = changes_of(model).attention
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
        "rows": [] if after is None else comparison(before, after),
        "before": before,
        "after": after,
        "data": data.info.model_dump(),
        "command": shlex.join(["quietformer", *sys.argv[1:]]),
        "versions": versions(),
    }
