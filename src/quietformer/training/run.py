"""A recipe carried out: data, model, Trainer, and a folder that holds everything about the run."""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedModel, TrainerCallback, TrainingArguments

from quietformer.analysis.inspection import inspect_model
from quietformer.config.recipe import Recipe, Source
from quietformer.data.collate import example_batches
from quietformer.data.fingerprint_file import check_data
from quietformer.data.training_data import TrainingData
from quietformer.errors import QuietformerError, SpecError, in_one_line
from quietformer.models.open_any import open_model
from quietformer.models.silence_transformers import silenced_transformers
from quietformer.progress import SILENT, Progress
from quietformer.results import numbers
from quietformer.results.provenance import command_line
from quietformer.results.train import TrainReport, Validation, log_lines
from quietformer.training.arguments import set_sizes_, shard_blocks_, steps_of, training_arguments
from quietformer.training.callbacks import OutlierCallback
from quietformer.training.checkpoint_checks import usable_checkpoint
from quietformer.training.checkpoints import clear_leftovers, keep_last, last_checkpoint
from quietformer.training.interrupt import StopOnSignal, StoppedError
from quietformer.training.progress import ProgressCallback
from quietformer.training.run_folder import (
    RECIPE,
    REPORT,
    check_run,
    check_space,
    finished_report,
    only_writer,
    start,
    write_final_model,
)
from quietformer.training.strategies import strategy_for
from quietformer.training.strategies.base import Prepared, Setting, Strategy
from quietformer.training.student import freeze_embeddings_
from quietformer.training.trainer import QuietTrainer, unwritable

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EFBIG)

LOOKS = 10
"""Outliers are measured at least so often in a run."""

INSPECTED = 64
"""Validation examples whose activations are inspected when the run ends."""


@dataclass(frozen=True)
class TrainedRun:
    """A finished run; its model is in memory only if this call has trained it."""

    report: TrainReport
    model: PreTrainedModel | None


def train(recipe: Recipe, run: Path, progress: Progress = SILENT) -> TrainReport:
    """Train in a folder, or resume training there; the report is also in the folder.

    Started in several processes (torchrun, accelerate launch) they share the work; the first one writes.
    """
    return run_training(recipe, run, progress).report


def run_training(
    recipe: Recipe, run: Path, progress: Progress = SILENT, prepared: Prepared | None = None
) -> TrainedRun:
    """The same for a caller that has some of it already, and wants the model as well."""
    recipe = with_absolute_paths(recipe)
    check_run(run, recipe)
    if (report := finished_report(run)) is not None:
        progress.say(f"{run} is finished; nothing to do")
        return TrainedRun(report, None)
    arguments = training_arguments(recipe, run)
    strategy = strategy_for(recipe, prepared or Prepared())
    with only_writer(run) if arguments.process_index == 0 else contextlib.nullcontext():
        # Another process may have ended the run while this one waited for its turn.
        if arguments.world_size == 1 and (report := finished_report(run)) is not None:
            progress.say(f"{run} has been finished by another process; nothing to do")
            return TrainedRun(report, None)
        try:
            with silenced_transformers():
                return _train(strategy, run, arguments, progress)
        except OSError as error:
            if error.errno in DISK_ERRORS:
                raise unwritable(run, error) from error
            raise


def _train(strategy: Strategy, run: Path, arguments: TrainingArguments, progress: Progress) -> TrainedRun:
    recipe, first = strategy.recipe, arguments.process_index == 0
    if arguments.fsdp and arguments.world_size == 1:
        raise SpecError("trainer.fsdp shares a model among processes and there is one; start with torchrun")
    if first:
        start(run, recipe)
    strategy.check()
    if recipe.training.precision == "fp16" and not arguments.fp16:
        progress.say("fp16 needs a GPU; training in fp32 here")
    with arguments.main_process_first(desc="data"):  # the others find what the first has cached
        data = strategy.data(run, progress)
    if first:
        check_data(run, data.fingerprint)
    setting = Setting(recipe, run, arguments, steps_of(recipe, data.examples))
    set_sizes_(arguments, recipe, setting.steps)
    with arguments.main_process_first(local=False, desc="checkpoint"):  # what is damaged is put aside once
        resumed = usable_checkpoint(run, progress) if first else last_checkpoint(run)
    model = strategy.model(data, resumed)
    if recipe.optimizer.freeze_embeddings:
        freeze_embeddings_(model)
    shard_blocks_(arguments, model)
    if first:
        check_space(run, sum(parameter.numel() for parameter in model.parameters()), recipe.training.keep)
    stop = StopOnSignal(progress)
    trainer = make_trainer(setting, strategy, model, data, [_shown(setting, data, progress), stop])
    progress.say(_summary(setting, model, data))
    if trainer.warmup >= setting.steps:
        progress.say(
            f"the warm-up of {trainer.warmup} steps is as long as the run or longer: the full learning rate is never reached"
        )
    with stop.listening():
        strategy.take_steps(trainer, resumed)
    _check_ended(trainer, strategy, setting.steps, progress)
    return _finish(setting, strategy, trainer, data, progress)


def make_trainer(
    setting: Setting, strategy: Strategy, model: PreTrainedModel, data: TrainingData, callbacks: list[TrainerCallback]
) -> QuietTrainer:
    """The Trainer of a run; `callbacks` come after its own."""
    training = setting.recipe.training
    try:
        trainer = strategy.trainer(setting, model, data, callbacks)
    except (RuntimeError, ImportError, TypeError) as error:  # trackers and kernels that are not installed
        raise SpecError(f"the Trainer does not take this recipe: {in_one_line(error)}") from error
    trainer.remove_callback(transformers.PrinterCallback)
    if training.outliers_every and not training.compile:
        # A run shorter than the interval would have one value, from before its first step.
        OutlierCallback(every=min(training.outliers_every, max(1, setting.steps // LOOKS))).attach_(trainer)
    trainer.callback_handler.callbacks[:0] = strategy.first_callbacks(trainer, setting.steps)
    return trainer


def with_absolute_paths(recipe: Recipe) -> Recipe:
    """Files named by their absolute paths, so that the run can be resumed from any folder."""

    def absolute(source: Source) -> Source:
        if not source.path or not glob(os.path.expanduser(source.path), recursive=True):
            return source  # what does not exist is named as it was given
        return source.model_copy(update={"path": os.path.abspath(os.path.expanduser(source.path))})

    data = recipe.data
    update = {"train": tuple(map(absolute, data.train)), "validation": tuple(map(absolute, data.validation))}
    model, words = recipe.model, recipe.tokenizer
    return recipe.model_copy(
        update={
            "data": data.model_copy(update=update),
            "model": model.model_copy(update={"pretrained": _absolute_folder(model.pretrained)}),
            "tokenizer": words.model_copy(update={"pretrained": _absolute_folder(words.pretrained)}),
        }
    )


def _absolute_folder(name: str) -> str:
    return os.path.abspath(name) if name and os.path.exists(name) else name


def _shown(setting: Setting, data: TrainingData, progress: Progress) -> ProgressCallback:
    recipe = setting.recipe
    words = recipe.task in ("masked", "causal")
    per_step = recipe.training.batch_size * (recipe.data.length if words else 1)
    return ProgressCallback(
        progress, words=words, unit="tokens" if words else data.info.unit or "examples", per_step=per_step
    )


def _summary(setting: Setting, model: PreTrainedModel, data: TrainingData) -> str:
    recipe, steps = setting.recipe, setting.steps
    size = sum(parameter.numel() for parameter in model.parameters())
    amount = "a stream" if data.examples is None else f"{numbers.whole(data.examples)} {data.info.unit}"
    epochs = (
        ""
        if not data.examples
        else f" ({numbers.two_digits(steps * recipe.training.batch_size / data.examples)} epochs)"
    )
    return (
        f"{recipe.name}: {type(model).__name__}, {numbers.millions(size, 2)} parameters, {recipe.attention.label}; "
        f"{amount}, {numbers.counted(steps, 'step')} of {recipe.training.batch_size}{epochs}"
    )


def _check_ended(trainer: QuietTrainer, strategy: Strategy, steps: int, progress: Progress) -> None:
    """Whether the run was interrupted before its last step."""
    done = trainer.state.global_step
    if done < steps and not strategy.ended_early(trainer):
        raise StoppedError(f"interrupted at step {done} of {steps}; the same command resumes from there")
    if done < steps:
        progress.say(f"no evaluation has been better for a while: ended early at step {done} of {steps}")


def _finish(
    setting: Setting, strategy: Strategy, trainer: QuietTrainer, data: TrainingData, progress: Progress
) -> TrainedRun:
    """The last evaluation, the model into the run folder, its outliers, and the report beside it."""
    recipe, run = setting.recipe, setting.run
    metrics = trainer.evaluate()
    state = trainer.whole_state()
    model: PreTrainedModel = trainer._inner()
    found: dict[str, Any] = {}
    if trainer.args.process_index == 0:
        progress.say("writing the model and inspecting it")
        model = strategy.kept_model(trainer, run, progress)
        write_final_model(model, run, data.tokenizer, state)
        if state is not None:  # a shard is not a model
            model = open_model(run, trust_remote_code=strategy.prepared.trust_remote_code)
        beside = strategy.baselines(data, model)
        found = vars(beside) | _outliers(model, trainer, data)
    steps, seconds = trainer.state.global_step, trainer.clock.seconds
    report = TrainReport(
        recipe=recipe.name,
        attention=recipe.attention.label,
        seed=recipe.seed,
        steps=steps,
        data=data.info,
        validation=Validation(**{name.removeprefix("eval_"): metrics[name] for name in metrics if _is_metric(name)}),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        best=strategy.best(trainer),
        seconds=seconds,
        steps_per_second=steps / max(seconds, 1e-9),
        processes=trainer.args.world_size,
        paper=recipe.paper,
        log=log_lines(trainer.state.log_history),
        command=command_line("train", [run / RECIPE], ["--out", f"{run}-again"]),
        **{name: value for name, value in found.items() if value is not None},
    )
    if trainer.args.process_index == 0:
        clear_leftovers(run, ended=True)
        keep_last(run, recipe.training.keep)
        report.save(run / REPORT)
    trainer.accelerator.wait_for_everyone()
    return TrainedRun(report, model)


def _is_metric(name: str) -> bool:
    return name.removeprefix("eval_") in Validation.model_fields


def _outliers(model: PreTrainedModel, trainer: QuietTrainer, data: TrainingData) -> dict[str, Any]:
    """Infinity norm and kurtosis as the paper defines them, on validation data."""
    collate: Any = trainer.data_collator
    places = range(min(INSPECTED, len(data.validation)))
    batches = example_batches(data.validation, places, collate, 8, labelled=False)
    try:
        return {"outliers": inspect_model(model, batches).headline}
    except QuietformerError as error:  # a family whose blocks are not known trains all the same
        return {"outliers_unknown": str(error)}
