"""`retrofit`: measure a pretrained model, heal it if it needs that, measure it again, and set the two side by side."""

from __future__ import annotations

import copy
import hashlib
import os
import shlex
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import JsonValue
from transformers import PreTrainedModel

from quietformer.analysis.evaluate import Evaluation, reference_run
from quietformer.architectures.forward import Batch
from quietformer.architectures.layout import find_blocks
from quietformer.config.options.opening import OpeningOptions
from quietformer.config.options.retrofit import RetrofitOptions
from quietformer.config.recipe import Recipe
from quietformer.config.recorded_changes import changes_of
from quietformer.data.batches_from_options import KINDS, check_length, image_size
from quietformer.data.training_data import TrainingData, takes_images, training_data
from quietformer.data.unseen_data import measuring_data
from quietformer.errors import QuietformerError
from quietformer.files import check_new_place, whole_folder
from quietformer.models.open_any import open_model
from quietformer.progress import SILENT, Progress
from quietformer.results.before_after import Side, beside_balancing, comparison, side_in_words, verdict_on
from quietformer.results.before_file import keep_before, kept_before
from quietformer.results.provenance import command_line
from quietformer.results.quality import ByGranularity, Spreads, Yardstick, effect
from quietformer.results.retrofit import RetrofitReport, TrainingFree, beside_training, is_better, no_training_needed
from quietformer.results.train import TrainReport
from quietformer.training.run import run_training, with_absolute_paths
from quietformer.training.run_folder import RECIPE, check_run, only_writer, start
from quietformer.training.strategies.base import Prepared
from quietformer.training.student import calibration_batches, student_of
from quietformer.transforms.balance import balance_
from quietformer.transforms.gained_modules import gained_norms
from quietformer.workflows.measure_before_after import Measuring, inspect_some, measure_side, simulate_both
from quietformer.workflows.open_once import OpenedModel, open_once
from quietformer.workflows.retrofit_recipe import KnownModel, attention_for_pretrained, retrofit_recipe, usual_hold_out
from quietformer.workflows.without_training import without_training

REPORT, INT8 = "retrofit.json", "int8"
"""Files of the run folder: the report, and the folder with real INT8."""


@dataclass(frozen=True)
class Call:
    """What was asked for, and where progress goes."""

    name: str
    out: Path
    options: RetrofitOptions
    progress: Progress

    @property
    def asked(self) -> dict[str, JsonValue]:
        """The model and the options as JSON, to compare with those of a finished retrofit."""
        place = os.path.abspath(self.name) if os.path.exists(self.name) else self.name
        return {"model": place} | self.options.model_dump(mode="json", exclude=set(OpeningOptions.model_fields))

    @property
    def command(self) -> str:
        return command_line("retrofit", [self.name, self.out], self.options.words())


def retrofit(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: RetrofitOptions | None = None,
    progress: Progress = SILENT,
) -> RetrofitReport:
    """Make a model work in static INT8, into a folder; interrupted, the same call resumes.

    A model without outliers is left alone, and nothing is written. Where INT8 is good without training, that is what is
    written; otherwise the model is healed.
    """
    call = Call(_name(model), Path(out), options or RetrofitOptions(), progress)
    if (report := _finished(call)) is not None:
        progress.say(f"{out} is finished; nothing to do")
        return report
    _check_place(call)
    with tempfile.TemporaryDirectory() as drafts:
        return _retrofit(call, Path(drafts))


def _retrofit(call: Call, drafts: Path) -> RetrofitReport:
    """What is shipped as INT8 is first made in `drafts`: only at the end is it known which is best."""
    progress = call.progress
    opened = _open(call)
    original = opened.model
    known, draft, data = _read(KnownModel.of(opened.name, original), original, call)
    measured = measuring_data(draft, data, original, call.options.evaluation_sources(), call.options.sequences)
    reference = reference_run(
        original, measured.evaluation, known.task, progress=progress, what="evaluating the original"
    )
    by = Measuring(measured, reference, call.options.seeds, progress)
    key = _key(call, by)
    before = kept_before(call.out, key)
    inspected = inspect_some(original, measured, call.name, progress) if before is None else before.inspect
    if inspected.verdict.severity == "quiet" and not call.options.force:
        unchanged = Side(inspect=inspected, fp32=reference.evaluation.metrics)
        return _report(call, opened, by, unchanged, inspected.verdict.sentence)

    free = _searched(original, by, call, drafts / "original")
    if _is_enough(free, reference.evaluation, call):
        before = before or measure_side(original, inspected, by, real=call.options.real)
        _ship(drafts / "original", call)
        return _kept(call, _untrained(_report(call, opened, by, before, ""), free, call))

    teacher = _balanced_teacher(original, replace(known, inspected=inspected), data, call)
    recipe = teacher.recipe
    check_run(call.out, recipe, "choose another OUT, or give the options it was begun with")
    student = _student(teacher)
    if before is None:
        before = measure_side(original, inspected, by, real=call.options.real)
        with only_writer(call.out):
            start(call.out, recipe)
            keep_before(call.out, key, before)
    progress.say(f"before: {side_in_words(before, reference.evaluation.primary)}")

    trusted = call.options.trust_remote_code
    run = run_training(recipe, call.out, progress, Prepared(data, teacher.model, student, trusted))
    # A run that had ended before this call is only on the disk.
    healed = open_model(call.out, trust_remote_code=trusted) if run.model is None else run.model
    inspected = inspect_some(healed, measured, str(call.out), progress)
    after = measure_side(healed, inspected, by, real=call.options.real)
    alone = simulate_both(teacher.model, by) if teacher.balanced else None
    healed_int8 = _searched(healed, by, call, drafts / "healed", target=original)
    yardstick = reference.evaluation.yardstick
    _ship(drafts / ("healed" if is_better(healed_int8, free, yardstick) else "original"), call)
    sentence = f"{_sentence(before, after, alone, yardstick)} {beside_training(free, healed_int8, yardstick)}".strip()
    changed = _changed(call, recipe, run.report) | {
        "after": after,
        "rows": comparison(before, after),
        "balanced_alone": alone,
        "training_free": free,
        "healed_int8": healed_int8,
        "parameters_added": healed.num_parameters() - original.num_parameters(),
    }
    return _kept(call, _report(call, opened, by, before, sentence).model_copy(update=changed))


def _untrained(report: RetrofitReport, free: TrainingFree, call: Call) -> RetrofitReport:
    sentence = no_training_needed(free, report.before, report.primary)
    return report.model_copy(update={"sentence": sentence, "training_free": free, "asked": call.asked})


def _kept(call: Call, report: RetrofitReport) -> RetrofitReport:
    report.save(call.out / REPORT)
    return report


def _searched(
    model: PreTrainedModel, by: Measuring, call: Call, folder: Path, target: PreTrainedModel | None = None
) -> TrainingFree:
    """The best INT8 of a model as it is; of a healed one by its distance from the original."""
    return without_training(model, by, call.options.spec(), folder if call.options.real else None, target)


def _is_enough(free: TrainingFree, fp32: Evaluation, call: Call) -> bool:
    """Whether nothing is trained; with every tensor in INT8, training is what is asked for."""
    lost = effect(fp32.metrics[fp32.primary], free.metrics[fp32.primary], fp32.better)
    return lost == "none" and not call.options.force and not call.options.spec().placement.everywhere


def _ship(draft: Path, call: Call) -> None:
    """Put real INT8 in its place; there is none where it was not asked for, or the graph does not export."""
    if draft.is_dir():
        with whole_folder(call.out / INT8, stale=("*",)) as place:
            shutil.copytree(draft, place, dirs_exist_ok=True)


def _name(model: object) -> str:
    if not isinstance(model, str | os.PathLike):
        raise QuietformerError(
            f"retrofit takes the name of a model, got {type(model).__name__}; save an open model and give its folder"
        )
    return os.fspath(model)


def _finished(call: Call) -> RetrofitReport | None:
    """The report of a retrofit that has ended in this folder, if it is the one that is asked for."""
    if not (call.out / REPORT).is_file():
        return None
    try:
        report = RetrofitReport.read(call.out / REPORT)
    except QuietformerError:
        return None
    there = report.asked
    if not there:
        return None
    if other := [name for name, value in call.asked.items() if name in there and there[name] != value]:
        raise QuietformerError(
            f"{call.out} holds a finished retrofit with another {other[0]} ({there[other[0]]!r} there, "
            f"{call.asked[other[0]]!r} here); choose another OUT"
        )
    return report


def _check_place(call: Call) -> None:
    """Whether OUT is new, empty, or a retrofit to resume."""
    out = call.out
    check_new_place(out)
    if out.is_dir() and os.path.isdir(call.name) and out.samefile(call.name):
        raise QuietformerError(f"{out} is MODEL itself; choose another folder")
    # INT8 without training comes first, before there is a recipe.
    known = out.is_dir() and (
        (out / RECIPE).is_file() or all(e.name == INT8 or e.name[0] == "." for e in out.iterdir())
    )
    if out.is_dir() and not known:
        raise QuietformerError(f"{out} holds other things than a retrofit; choose another OUT")


def _open(call: Call) -> OpenedModel:
    options = call.options
    options.spec()  # a mistake is told before the model is loaded
    attention_for_pretrained(options.attention, options.gate)
    opened = open_once(call.name, options, call.progress)
    model = opened.model
    if changes_of(model).quantized is not None:
        raise QuietformerError(f"{call.name} is quantized already; retrofit the model it was made from")
    if KINDS.get(model.main_input_name) == "audio":
        raise QuietformerError(
            f"{type(model).__name__} takes audio, and retrofit trains on text or images; make INT8 without training: "
            f"quietformer export {shlex.quote(call.name)} OUT --audio DIR"
        )
    visual = model.main_input_name == "pixel_values"
    if options.takes_images not in (None, visual):
        wanted = "images; give --images DIR" if visual else "text; give --texts FILE"
        raise QuietformerError(f"{type(model).__name__} takes {wanted}")
    return opened


def _read(known: KnownModel, model: PreTrainedModel, call: Call) -> tuple[KnownModel, Recipe, TrainingData]:
    """The data of training and measuring, read once; of little data less is held out, unless the user has said how much."""
    draft = retrofit_recipe(known, call.options)
    trained, visual = draft.data.train, takes_images(draft)
    if not visual:
        check_length(model, draft.data.length)
        if {source.path for source in trained} & {source.path for source in call.options.evaluation_sources()}:
            call.progress.say(
                "--eval-texts names text that is also trained on: metrics on it say little about other text"
            )
    call.progress.say(f"reading {', '.join(source.in_words for source in trained)}")
    shape, usual = image_size(model) if visual else (0, 0), usual_hold_out(call.options)
    data = training_data(draft, call.out, image_shape=shape, shrink=draft.data.hold_out == usual)
    if draft.data.validation or len(data.held_out) >= draft.data.hold_out:
        return known, draft, data
    known = replace(known, held_out=len(data.held_out), watched=data.validation_limit)
    measured = (
        "" if call.options.evaluation_sources() else f", {len(data.held_out) - data.validation_limit} to measure on"
    )
    call.progress.say(
        f"{data.examples} {data.info.unit} to train on, {data.validation_limit} to choose the best checkpoint by{measured}"
    )
    return known, retrofit_recipe(known, call.options), data


def _key(call: Call, by: Measuring) -> list[JsonValue]:
    """What the metrics of the original must have been measured with to be kept: its answers tell model and data."""
    answers = hashlib.sha256(by.reference.kept.contiguous().numpy().tobytes()).hexdigest()
    options = call.options
    return [call.asked["model"], options.sequences, options.seeds, options.real, answers, by.data.info.model_dump()]


@dataclass(frozen=True)
class Teacher:
    """The original as the student starts from it, the recipe that this leads to, and the batches to transform by."""

    model: PreTrainedModel
    recipe: Recipe
    batches: list[Batch]
    balanced: int  # residual adds


def _balanced_teacher(original: PreTrainedModel, known: KnownModel, data: TrainingData, call: Call) -> Teacher:
    """A copy, balanced where the recipe says so; what is asked for is done or refused, what is a default may be left out."""
    options = call.options
    recipe = with_absolute_paths(retrofit_recipe(known, options))
    model = copy.deepcopy(original)
    batches = calibration_batches(recipe, data, model)
    if not recipe.model.balance:
        return Teacher(model, recipe, batches, 0)
    by_default = options.balance is None and known.post_norm and not gained_norms(original)
    try:
        found = balance_(model, batches, alpha=recipe.model.balance)
    except QuietformerError:
        if not by_default:
            raise
        found = 0
    if options.balance and not found and not gained_norms(original):
        raise QuietformerError(f"{call.name} has no residual adds between LayerNorms to balance; leave out --balance")
    if by_default and found < 2 * len(find_blocks(model)) - 1:  # the first block may read no norm
        unbalanced = options.model_copy(update={"balance": 0.0})
        return Teacher(copy.deepcopy(original), with_absolute_paths(retrofit_recipe(known, unbalanced)), batches, 0)
    if found:
        call.progress.say(
            f"channels of {found} residual adds are balanced first; the outputs of {call.name} stay the same"
        )
    return Teacher(model, recipe, batches, found)


def _student(teacher: Teacher) -> PreTrainedModel:
    student = student_of(teacher.model, teacher.recipe, teacher.batches)
    for spec in teacher.recipe.regularizers:
        spec.build(student).detach_()  # a tensor that the model does not have is told before anything takes its time
    return student


def _sentence(before: Side, after: Side, alone: ByGranularity[Spreads] | None, yardstick: Yardstick) -> str:
    parts = [
        verdict_on(before, after, yardstick),
        f"Before, {side_in_words(before, yardstick.primary)}.",
        f"After, {side_in_words(after, yardstick.primary)}.",
        beside_balancing(alone, after, yardstick),
    ]
    return " ".join(filter(None, parts))


def _report(call: Call, opened: OpenedModel, by: Measuring, before: Side, sentence: str) -> RetrofitReport:
    """What is known of a model whether it is changed or not."""
    return RetrofitReport(
        **dict(by.reference.evaluation.yardstick),
        changed=False,
        sentence=sentence,
        model=opened.info,
        before=before,
        data=by.data.info,
        command=call.command,
    )


def _changed(call: Call, recipe: Recipe, run: TrainReport) -> dict[str, object]:
    """What a report has of the training."""
    return {
        "changed": True,
        "asked": call.asked,
        "attention": run.attention,
        "steps": run.steps,
        "minutes": run.seconds / 60,
        "seed": recipe.seed,
        "best": run.best,
        "recipe": recipe.to_dict(),
        "log": run.log,
    }
